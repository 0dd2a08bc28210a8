"""What a checkpoint store asks of the place where it is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

__all__ = ["ObjectInfo", "Objects", "OnStep", "no_step"]

#: Called with a step's name and the key that it is about, before the step and after it; in a worker
#: thread or in the event loop. Whatever it raises ends the operation there, as a crash would.
OnStep = Callable[[str, str], None]


def no_step(step: str, key: str) -> None:
    """Do nothing: the steps of a store in use."""


@attrs.frozen
class ObjectInfo:
    """What a listing says of one object.

    Attributes:
        key: its name.
        size: bytes, as stored.
        modified: when it was put, in seconds by the store's own clock.
    """

    key: str
    size: int
    modified: float


class Objects(ABC):
    """Named byte strings. Blocking: each call is made in a worker thread, several at a time.

    Keys are of letters, digits, `_`, `-`, `.` and `/`. A put is whole or not at all, whenever the
    process dies, and what was put is there for the next get and list. All methods raise
    `PermissionDenied`, `NoSpace`, `NotFound` (no such bucket or folder, and none can be made),
    `Unreachable` or `Unavailable`; what they had done by then stays done.

    Attributes:
        atomic_moves: an object that is moved is at one of its two keys at any time; else it may be
            at both for a while.
    """

    atomic_moves: bool = False

    @abstractmethod
    def put(self, items: Mapping[str, bytes]) -> None:
        """Put each of these; what is there already is replaced."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of `keys` that are there."""

    @abstractmethod
    def exists(self, keys: Collection[str]) -> set[str]:
        """Return those of `keys` that are there, as they are now and not as they were."""

    def rely(self, keys: Collection[str]) -> set[str]:
        """As `exists`; and the next `sync` is for these too, whoever put them."""
        return self.exists(keys)

    @abstractmethod
    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return all objects below `prefix` and `/`, in any order."""

    @abstractmethod
    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Give each first key's object the second key; those that are missing are passed over."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove these; those that are missing are passed over."""

    def sync(self) -> None:  # noqa: B027 - nothing to do is an answer
        """Return when what was put, or relied on, survives a power cut. Object stores do that."""

    def sweep(self) -> None:  # noqa: B027 - nothing to do is an answer
        """Remove what killed processes left of puts that were never done. Seldom called."""
