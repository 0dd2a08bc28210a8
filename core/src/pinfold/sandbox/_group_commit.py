"""Commits that are asked for together are made once (LC-3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import attrs

from pinfold.checkpoint import CheckpointRecord
from pinfold.provider import ScanState

__all__ = ["GroupCommit"]


@attrs.define
class GroupCommit:
    """Where the next commit starts from, and who waits for one.

    Attributes:
        base, state: the last commit or restore of this instance.
        batches: blocks under way that postpone commits.
        owed: something was postponed.
    """

    base: CheckpointRecord | None = None
    state: ScanState | None = None
    batches: int = 0
    owed: bool = False
    _asked: int = 0
    _covered: int = 0
    _last: CheckpointRecord | None = None
    _lock: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def share(self, commit: Callable[[], Awaitable[CheckpointRecord]]) -> CheckpointRecord:
        """Commit, or share one that began after this was asked for (LC-3)."""
        self._asked += 1
        ticket = self._asked
        async with self._lock:
            if self._covered < ticket or self._last is None:
                upto = self._asked
                self._last = await commit()
                self._covered = upto
            return self._last
