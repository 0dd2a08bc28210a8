"""Connections to a helper, as bytes, and how new ones are made."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pinfold.errors import Unavailable

__all__ = ["Connector", "Link"]


class Link(ABC):
    """One connection to a helper, as bytes."""

    @abstractmethod
    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; safe to be cancelled.

        Raises:
            anyio.EndOfStream, anyio.BrokenResourceError: the connection is gone.
        """

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            anyio.BrokenResourceError, anyio.ClosedResourceError: the connection is gone.
        """

    @abstractmethod
    def send_now(self, data: bytes) -> int:
        """Send as much as can be sent without waiting; return how many bytes that was."""

    @abstractmethod
    def was_cut(self) -> bool:
        """Say whether the other side is known to be gone, before anything is sent or read."""

    @abstractmethod
    async def was_refused(self) -> bool:
        """Say, of one that has ended, whether there was nobody to connect to."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it; idempotent, never raises."""


class Connector(ABC):
    """Makes new connections to the same helper."""

    @abstractmethod
    async def connect(self) -> Link:
        """Open one, right before its greeting.

        Raises:
            Lost: the helper is definitely gone.
            Unavailable: it may be reached later.
        """

    async def suspended(self) -> Unavailable | None:
        """As `Guest.suspended`, of the target that it is in."""
        return None
