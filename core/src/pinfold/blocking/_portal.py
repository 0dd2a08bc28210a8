"""Coroutine functions, async iterators and async context managers, seen from without a loop."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from anyio import create_memory_object_stream, get_current_task, to_thread
from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from pinfold._tasks import background, iterating
from pinfold.errors import Conflict, InvalidArgument

__all__ = ["Facade", "call", "chunks_of", "iterate", "no_running_loop", "portals", "pull"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: One loop for the process, in one thread, for as long as anything here is open.
portals = BlockingPortalProvider()


class Facade:
    """An async object and the portal to its loop."""

    def __init__(self, portal: BlockingPortal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        no_running_loop()
        with _closed_is_conflict():
            return self._portal.call(work)

    @contextmanager
    def _held(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Hold an async context for the length of a block."""
        no_running_loop()
        # Not around the block: what the caller raises in it is the caller's.
        with _closed_is_conflict():
            entered = self._portal.wrap_async_context_manager(block)
            value = entered.__enter__()
        try:
            yield value
        except BaseException as exc:
            if not entered.__exit__(type(exc), exc, exc.__traceback__):
                raise
        else:
            entered.__exit__(None, None, None)


@contextmanager
def _closed_is_conflict() -> Iterator[None]:
    try:
        yield
    except RuntimeError as exc:
        if str(exc) == "This portal is not running":
            raise Conflict("the sandbox is closed", hint="open another one") from None
        raise


def no_running_loop() -> None:
    """Refuse to block a thread that runs a loop.

    Raises:
        InvalidArgument: it does.
    """
    try:
        get_current_task()
    except RuntimeError:  # there is no loop in this thread: all is well
        return
    raise InvalidArgument(
        "pinfold.blocking is called inside a running event loop, which it would block",
        hint="use the async API there: `async with pinfold.open(...)`",
    )


def call(
    function: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Facade, P], R]:
    """Turn a coroutine function of the async object into a method of its facade."""
    name = function.__name__  # looked up on the object: `function` may be an interface's

    @wraps(function)
    def method(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return await getattr(self._target, name)(*args, **kwargs)  # type: ignore[no-any-return]

        return self._run(work)

    return method


def iterate(
    function: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Facade, P], Iterator[T]]:
    """Turn an async generator function of the async object into a generator of its facade."""
    name = function.__name__

    @wraps(function)
    def method(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        no_running_loop()
        return pull(self._portal, getattr(self._target, name)(*args, **kwargs))

    return method


def pull(portal: BlockingPortal, items: AsyncIterator[T]) -> Iterator[T]:
    """Yield what an async iterator yields; all its steps run in one task."""
    producer = portal.wrap_async_context_manager(_producer(items))
    with _closed_is_conflict():
        received = producer.__enter__()

    async def step() -> list[T]:
        async for item in received:
            return [item]
        return []

    # Not `with`: leaving a generator early raises GeneratorExit, which is no affair of the loop's.
    try:
        while item := portal.call(step):
            yield item[0]
    finally:
        producer.__exit__(None, None, None)


@asynccontextmanager
async def _producer(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    # An async iterator may hold a task group open: all its steps belong into one task.
    send, receive = create_memory_object_stream[T](0)
    errors: list[Exception] = []

    async def produce() -> None:
        async with send:
            try:
                async with iterating(items):
                    async for item in items:
                        await send.send(item)
            except Exception as exc:  # noqa: BLE001 - raised where the caller reads
                errors.append(exc)

    async def consume() -> AsyncIterator[T]:
        async for item in receive:
            yield item
        if errors:
            raise errors[0]

    async with receive, background(produce):
        yield consume()


async def chunks_of(data: Iterable[bytes]) -> AsyncIterable[bytes]:
    """Yield pieces, each made in a worker thread: a blocking source must not block the loop."""
    pieces = iter(data)
    while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
        yield piece
