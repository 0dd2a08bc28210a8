"""The same API without async: every call goes through one event loop in one thread.

::

    from pinfold import blocking

    with blocking.open({"target": {"kind": "vfs"}}) as box:
        print(box.exec(["echo", "hello"]).stdout)

It is the async API behind a portal, not a second implementation: each method below names the
coroutine function that it calls. For threads without a running event loop.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
from anyio import (
    CancelScope,
    create_memory_object_stream,
    get_current_task,
    to_thread,
)
from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from pinfold import sandbox
from pinfold._tasks import background
from pinfold.errors import Conflict, InvalidArgument
from pinfold.plugins import Catalog
from pinfold.provider import Capabilities, Features, Files, TreeItem
from pinfold.resolve import AnyLayer, TargetInfo
from pinfold.resolve import targets as _targets
from pinfold.sandbox import Chunk, ExecStream, Runtime, Sandbox
from pinfold.spec import EXEC_TIMEOUT_SECONDS, WORKSPACE, PinnedSpec, ResolvedSpec, Spec

__all__ = ["BlockingFiles", "BlockingSandbox", "BlockingStream", "open", "targets"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: One loop for the process, in one thread, for as long as anything here is open.
_portals = BlockingPortalProvider()


class _Facade:
    """An async object and the portal to its loop."""

    def __init__(self, portal: BlockingPortal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def _run(self, call: Callable[[], Awaitable[R]]) -> R:
        try:
            return self._portal.call(call)
        except RuntimeError as exc:
            if str(exc) == "This portal is not running":
                raise Conflict("the sandbox is closed", hint="open another one") from None
            raise


def _no_running_loop() -> None:
    try:
        get_current_task()
    except RuntimeError:  # there is no loop in this thread: all is well
        return
    raise InvalidArgument(
        "pinfold.blocking is called inside a running event loop, which it would block",
        hint="use the async API there: `async with pinfold.open(...)`",
    )


def _call(
    function: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[_Facade, P], R]:
    """Turn a coroutine function of the async object into a method of its facade."""
    name = function.__name__  # looked up on the object: `function` may be an interface's

    @wraps(function)
    def method(self: _Facade, /, *args: P.args, **kwargs: P.kwargs) -> R:
        _no_running_loop()

        async def call() -> R:
            return await getattr(self._target, name)(*args, **kwargs)  # type: ignore[no-any-return]

        return self._run(call)

    return method


def _iterate(
    function: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Facade, P], Iterator[T]]:
    """Turn an async generator function of the async object into a generator of its facade."""
    name = function.__name__

    @wraps(function)
    def method(self: _Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        _no_running_loop()
        return _pull(self._portal, getattr(self._target, name)(*args, **kwargs))

    return method


def _pull(portal: BlockingPortal, items: AsyncIterator[T]) -> Iterator[T]:
    producer = portal.wrap_async_context_manager(_producer(items))
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
                async for item in items:
                    await send.send(item)
            except Exception as exc:  # noqa: BLE001 - raised where the caller reads
                errors.append(exc)
            finally:
                if isinstance(items, AsyncGenerator):
                    with CancelScope(shield=True):
                        await items.aclose()

    async def consume() -> AsyncIterator[T]:
        async for item in receive:
            yield item
        if errors:
            raise errors[0]

    async with receive, background(produce):
        yield consume()


async def _chunks(data: Iterable[bytes]) -> AsyncIterator[bytes]:
    # Each piece is made in a worker thread: a blocking source must not block the loop.
    pieces = iter(data)
    while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
        yield piece


class BlockingFiles(_Facade):
    """A sandbox's files; `pinfold.provider.Files` says what each call does and raises."""

    read = _call(Files.read)
    write = _call(Files.write)
    stat = _call(Files.stat)
    list = _call(Files.list)
    make_directory = _call(Files.make_directory)
    remove = _call(Files.remove)
    rename = _call(Files.rename)
    symlink = _call(Files.symlink)
    chmod = _call(Files.chmod)
    download = _iterate(Files.download)
    read_many = _call(Files.read_many)
    write_many = _call(Files.write_many)
    stat_many = _call(Files.stat_many)
    upload_tree = _call(Files.upload_tree)

    def upload(
        self, path: PurePosixPath | str, chunks: Iterable[bytes], *, mode: int | None = None
    ) -> int:
        """Write a file from chunks, in bounded memory; see `Files.upload`."""
        _no_running_loop()

        async def call() -> int:
            size: int = await self._target.upload(path, _chunks(chunks), mode=mode)
            return size

        return self._run(call)

    def download_tree(self, path: PurePosixPath | str) -> Iterator[TreeItem]:
        """Yield a directory and all in it, each file's content read whole; see `Files`."""
        _no_running_loop()

        async def with_content() -> AsyncIterator[TreeItem]:
            async for item in self._target.download_tree(path):
                if item.chunks is None:
                    yield item
                    continue
                data = b"".join([chunk async for chunk in item.chunks])
                yield attrs.evolve(item, chunks=_Whole(data))

        return _pull(self._portal, with_content())


class _Whole(AsyncIterable[bytes]):
    """Content that is at hand; `bytes()` gives it, and it can be uploaded again."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bytes__(self) -> bytes:
        return self._data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class BlockingStream(_Facade):
    """A command's output while it runs; see `pinfold.sandbox.ExecStream`."""

    result = _call(ExecStream.result)

    def __iter__(self) -> Iterator[Chunk]:
        return _pull(self._portal, self._target)


class BlockingSandbox(_Facade):
    """A sandbox; `pinfold.Sandbox` says what each call does and raises."""

    _target: Sandbox

    exec = _call(Sandbox.exec)
    view = _call(Sandbox.view)
    environment = _call(Sandbox.environment)
    events = _call(Sandbox.events)
    close = _call(Sandbox.close)

    @property
    def id(self) -> str:
        """`sbx_` and 32 hex digits."""
        return self._target.id

    @property
    def name(self) -> str:
        """The profile's name, the name given, or `inline`."""
        return self._target.name

    @property
    def pinned(self) -> PinnedSpec:
        """What it was made from; immutable."""
        return self._target.pinned

    @property
    def capabilities(self) -> Capabilities:
        """The six facts (RS-7)."""
        return self._target.capabilities

    @property
    def features(self) -> Features:
        """The features in force (PR-7)."""
        return self._target.features

    @property
    def generation(self) -> int:
        """The number of the physical incarnation (LC-1)."""
        return self._target.generation

    @property
    def files(self) -> BlockingFiles:
        """Its files (FS)."""
        return BlockingFiles(self._portal, self._target.files)

    @contextmanager
    def stream(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: PurePosixPath | str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_seconds: float | None = EXEC_TIMEOUT_SECONDS,
    ) -> Iterator[BlockingStream]:
        """Run one command and yield its output while it runs; see `Sandbox.stream`."""
        _no_running_loop()
        stream = self._target.stream(
            argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds
        )
        with self._portal.wrap_async_context_manager(stream) as chunks:
            yield BlockingStream(self._portal, chunks)


@contextmanager
def open(  # noqa: A001 - `blocking.open` reads as what it does
    what: str | Path | Mapping[str, Any] | Spec | ResolvedSpec | None = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    runtime: Runtime | None = None,
) -> Iterator[BlockingSandbox]:
    """Open a sandbox that lives as long as the block; see `pinfold.open`.

    Raises:
        InvalidArgument: a loop runs in this thread. Otherwise as `pinfold.open`.
    """
    _no_running_loop()
    opening = sandbox.open(what, name=name, override=override, template=template, runtime=runtime)
    with _portals as portal, portal.wrap_async_context_manager(opening) as box:
        yield BlockingSandbox(portal, box)


def targets(catalog: Catalog | None = None, *, probe: bool = True) -> Sequence[TargetInfo]:
    """Describe every installed provider; see `pinfold.targets`."""
    _no_running_loop()

    async def call() -> Sequence[TargetInfo]:
        return await _targets(catalog, probe=probe)

    with _portals as portal:
        return portal.call(call)
