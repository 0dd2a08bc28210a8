"""The workspace as a whole, by system calls of this process (CP)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import attrs

from pinfold.errors import Conflict
from pinfold.posix import Gate
from pinfold.provider import Blob, Entry, RestorePlan, RestoreReport, Scan, ScanState, Tree
from pinfold.spec import WORKSPACE
from pinfold_host._beneath import Roots
from pinfold_host._errors import lost, typed
from pinfold_host._restore import Restore, escaping_links
from pinfold_host._scan import read_blobs, scan

__all__ = ["DirectTree"]

T = TypeVar("T")


class Commands(Protocol):
    """What a restore asks of a guest."""

    @property
    def is_busy(self) -> bool:
        """A command or a terminal is in hand."""

    async def end_jobs(self) -> bool:
        """End what commands have left running; say whether there was anything."""


class DirectTree(Tree):
    """The workspace of one instance.

    Args:
        roots: the workspace first.
        restore: where a restore is staged and journalled.
        commands: what runs in it.
        gate: closed while a restore is under way.
    """

    def __init__(self, roots: Roots, restore: Restore, commands: Commands, gate: Gate) -> None:
        self._roots = roots
        self._restore = restore
        self._commands = commands
        self._gate = gate
        self._last: ScanState | None = None
        gate.mend = self._mend

    async def scan(self, since: ScanState | None = None) -> Scan:
        """Return every entry; read only what changed."""
        await self._gate()
        found = await self._do(scan, self._roots, since)
        self._last = found.state
        return found

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        """Yield the contents of files."""
        await self._gate()
        blobs = read_blobs(self._roots, entries)
        while batch := await self._do(next, blobs, None):
            for blob in batch:
                yield blob

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        """Make the workspace exactly the plan's tree."""
        self._restore.check(plan.entries)
        self._check_idle()
        async with self._gate.closed():
            self._check_idle()
            ended = await self._commands.end_jobs()
            known = attrs.evolve(self._last, token="") if self._last else None
            now = await self._do(scan, self._roots, known)
            with self._errors():
                await self._restore.stage(plan.entries, now.entries, plan.fetch)
            with anyio.CancelScope(shield=True):  # the journal is written: it goes to its end
                self._last = await self._do(self._restore.apply, plan.entries)
        return RestoreReport(
            escaping_links=escaping_links(plan.entries, self._roots.roots[0].guest),
            processes_ended=ended,
            state=self._last,
        )

    async def recover(self) -> bool:
        """Finish or undo an interrupted restore."""
        interrupted = self._restore.is_interrupted()
        async with self._gate.closed():
            await self._mend()
        return interrupted

    async def _mend(self) -> None:
        if self._restore.is_interrupted():
            with anyio.CancelScope(shield=True):
                await self._commands.end_jobs()
                self._last = await self._do(self._restore.recover)

    def _check_idle(self) -> None:
        if self._commands.is_busy:
            raise Conflict("a command is running: a restore would pull its files away")

    async def _do(self, call: Callable[..., T], *args: object) -> T:
        """Call in a worker thread, which a cancellation waits for."""
        with self._errors():
            return await anyio.to_thread.run_sync(call, *args)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._roots.are_lost():
            raise lost()
        try:
            yield
        except OSError as error:
            if self._roots.are_lost():
                raise lost() from None
            raise typed(error, os.fsdecode(error.filename or WORKSPACE)) from error
