"""Tasks and iterators that end with the block that uses them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

__all__ = ["background", "each_of", "iterating"]

T = TypeVar("T")


@asynccontextmanager
async def iterating(items: AsyncIterable[T]) -> AsyncIterator[AsyncIterable[T]]:
    """Close an iterator that can be closed at the end of the block, however far it was read.

    A generator that is left to the garbage collector ends at any time, in any task. When it is
    cancelled, it cleans up under a shield of its own: a scope of ours would lie across its own.
    """
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def each_of(items: AsyncIterable[T] | Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield the items of either kind of iterable; whoever reads it closes it."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


@asynccontextmanager
async def background(
    work: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[anyio.CancelScope]:
    """Run `work` beside the block, and end it when the block is left.

    What the block raises comes out as it is. `work` keeps its own errors to itself: it hands them
    over to whoever reads from it.

    Yields:
        The scope of both; cancelling it leaves the block.
    """
    error: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        try:
            yield group.cancel_scope
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 - raised again outside of the group
            error = exc
        group.cancel_scope.cancel()
    if error is not None:
        raise error
