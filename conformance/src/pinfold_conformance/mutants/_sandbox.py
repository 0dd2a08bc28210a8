"""Bugs of a provider that show in the durable life that core leads on it (LC, CP-5)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pinfold.provider import (
    Context,
    Entry,
    ExecRequest,
    ExecResult,
    FileType,
    Instance,
    InstanceRef,
    Owner,
    Pausable,
    Provider,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
)
from pinfold.spec import PinnedSpec
from pinfold_conformance.mutants._base import BugInstance, BugProvider, BugTree, mutant


class _FirstScanOnly(BugTree):
    scanned = False

    async def scan(self, since: ScanState | None = None) -> Scan:
        if since is not None and self.scanned:
            return Scan(entries=(), state=since, unchanged=True)
        self.scanned = True
        return await self.inner.scan(since)


@mutant("LC-3.covered")
class SeesNoChange(BugInstance):
    """After its first scan a tree is said to be unchanged, whatever was done."""

    tree_class: type[BugTree] = _FirstScanOnly


@mutant("LC-6.bootstrap")
class ForgivesBootstrap(BugInstance):
    """Whatever a command exits with, 0 is told."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return result if result.timed_out else attrs.evolve(result, exit_code=0, signal=None)


class _Restless(BugInstance, Pausable):
    async def pause(self) -> None:
        return

    async def resume(self) -> bool:
        return False


@mutant("LC-7.idle")
class NeverRests(BugProvider):
    """A pause is acknowledged, and nothing stops."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        return _Restless(await self.inner.create(pinned, ctx))

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        return _Restless(await self.inner.attach(ref, pinned, ctx))


class _OneForAll(BugProvider):
    def __init__(self, inner: Provider) -> None:
        super().__init__(inner)
        self.made: Instance | None = None

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        if self.made is None:
            self.made = await self.inner.create(pinned, ctx)
        else:
            await ctx.register(self.made.ref)
        return self.made

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return ()


@mutant("LC-8.fork")
class OneForAll(_OneForAll):
    """Every create gives the one instance that there is already."""


class _Additive(BugTree):
    async def restore(self, plan: RestorePlan) -> RestoreReport:
        kept = [entry for entry in plan.entries if entry.type is not FileType.FILE]
        return await self.inner.restore(attrs.evolve(plan, entries=tuple(kept)))


@mutant("LC-8.drain")
class MovesNoFiles(BugInstance):
    """A restore makes directories and links, and no file."""

    tree_class: type[BugTree] = _Additive


class _Salted(BugTree):
    async def scan(self, since: ScanState | None = None) -> Scan:
        scan = await self.inner.scan(None)
        self.turn = getattr(self, "turn", 0) + 1

        def salted(entry: Entry) -> Entry:
            if entry.type is not FileType.FILE:
                return entry
            return attrs.evolve(entry, digest=f"{self.turn:08x}{entry.digest[8:]}")

        return attrs.evolve(scan, entries=tuple(map(salted, scan.entries)))


@mutant("CP-5.proportion")
class NeverTheSame(BugInstance):
    """Each scan tells another digest for the same content, so that all is read again."""

    tree_class: type[BugTree] = _Salted
