"""Small things that structured concurrency leaves to its users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

import anyio

__all__ = ["CLEAN_UP_SECONDS", "closing", "one_error"]

#: How long clean-up may go on after a cancellation.
CLEAN_UP_SECONDS: Final = 5.0

_T = TypeVar("_T")


@asynccontextmanager
async def closing(items: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Close an iterator at the end, when it is one that can be closed."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
                await close()


@contextmanager
def one_error() -> Iterator[None]:
    """Raise what went wrong first, not the group around it; tasks that were cancelled don't count.

    To be entered outside the task group.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        cancelled = anyio.get_cancelled_exc_class()
        leaves = [leaf for leaf in _leaves(group) if not isinstance(leaf, cancelled)]
        if not leaves:
            raise
        raise leaves[0] from leaves[0].__cause__


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc
