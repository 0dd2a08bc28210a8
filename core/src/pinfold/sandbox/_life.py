"""The seam between the handle that callers hold and how long what is behind it lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from pinfold.events import Event
from pinfold.provider import Instance
from pinfold.sandbox._states import LiveState

__all__ = ["Life"]

T = TypeVar("T")


class Life(ABC):
    """Whatever a sandbox's operations need before and after: the one place for it.

    An ephemeral life has one instance, from open to close. A durable one finds, makes, replaces
    and checkpoints instances as the contract's sections 6 and 7 say.
    """

    @property
    @abstractmethod
    def known(self) -> LiveState:
        """What is known without asking anybody."""

    @abstractmethod
    async def look(self) -> LiveState:
        """Return what is so now."""

    @abstractmethod
    async def call(self, work: Callable[[Instance], Awaitable[T]], *, mutates: bool = False) -> T:
        """Do something with the instance, once it is ready.

        Args:
            work: given the instance; tried again after recovery where it provably did nothing
                (EX-14).
            mutates: it may change the workspace (LC-3).

        Raises:
            Conflict: the sandbox is closed, draining or deleted.
            StaleGeneration: another controller replaced the instance (LC-2); nothing was done.
            PinfoldError: whatever the work raises; nothing else, and no secret in it.
        """

    @abstractmethod
    def operation(self, *, mutates: bool = False) -> AbstractAsyncContextManager[Instance]:
        """The same around a block, for what can't be tried again: streams."""

    def reading(self) -> AbstractAsyncContextManager[Instance]:
        """The same inside of a generator, which may be left half way, and ended by any task."""
        return self.operation()

    async def awake(self) -> None:  # noqa: B027 - nothing to note by default
        """Note that work goes on; to be called from time to time while reading (LC-7)."""

    def batch(self) -> AbstractAsyncContextManager[None]:
        """Let all mutations of a block share one checkpoint, at its end (LC-3)."""
        return nullcontext()

    @abstractmethod
    async def events(self) -> tuple[Event, ...]:
        """Return the journal, in order (EV-1)."""

    @abstractmethod
    async def close(self) -> None:
        """Let go: an ephemeral sandbox ends, a durable one is left for the next controller."""
