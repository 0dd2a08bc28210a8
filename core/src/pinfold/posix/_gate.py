"""A half-done restore is finished before anything else is done (CP-3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

__all__ = ["Gate"]


class Gate:
    """What commands and file operations pass before they start.

    Attributes:
        mend: finishes or undoes an interrupted restore; set once it exists.
    """

    mend: Callable[[], Awaitable[object]]

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._torn = False

    async def __call__(self) -> None:
        """Wait for a restore that is under way; mend one that was interrupted."""
        if self._lock.locked() or self._torn:
            async with self._lock:
                if self._torn:
                    await self.mend()
                    self._torn = False

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Keep everything out; what fails or is cancelled inside is mended before the next."""
        async with self._lock:
            torn, self._torn = self._torn, True
            if torn:
                await self.mend()
            yield
            self._torn = False
