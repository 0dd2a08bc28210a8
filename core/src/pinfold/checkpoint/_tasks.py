"""How tasks end: with one error, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

__all__ = ["CLEAN_UP_SECONDS", "one_error"]

#: How long clean-up may go on after a cancellation.
CLEAN_UP_SECONDS: Final = 5.0


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
