"""Bugs of a tree that is restored (CP-2, CP-3, CP-4, CP-8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio.lowlevel
import attrs

from pinfold.errors import CheckpointCorrupt, InvalidArgument
from pinfold.provider import (
    Entry,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
)
from pinfold_conformance.adapters.toy._tree import ToyTree
from pinfold_conformance.adapters.toy._world import Dir, File, Node
from pinfold_conformance.mutants._base import BugTree, bug, mutant


class _Plans(BugTree):
    """A bug of what is restored."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return entries

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        return await self.inner.restore(
            attrs.evolve(plan, entries=tuple(self.entries(plan.entries)))
        )


@mutant("CP-2.exact")
class KeepsWhatWasAdded(ToyTree):
    """A restore deletes nothing."""

    async def stage(self, plan: RestorePlan) -> Dir:
        root = await super().stage(plan)
        root.children = {**self.world.workspace.children, **root.children}
        return root


@bug("CP-2.exact")
class RestoresNoLinks(_Plans):
    """A restore leaves links out."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [entry for entry in entries if entry.link is None]


@bug("CP-2.back-and-forth")
class RestoresNoModes(_Plans):
    """A restore gives every file the default mode."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [attrs.evolve(e, mode=0o644 if e.digest else 0o755) for e in entries]


@bug("CP-2.links")
class ListsNoEscapes(BugTree):
    """Links that lead out are not listed."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        return attrs.evolve(await self.inner.restore(plan), escaping_links=())


@bug("CP-2.links")
class TidiesLinks(_Plans):
    """The text of links is tidied up."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        import posixpath

        return [
            attrs.evolve(e, link=posixpath.normpath(e.link).strip()) if e.link else e
            for e in entries
        ]


class _InPlace(ToyTree):
    """Writes the tree where it stands, through whatever is there."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        from pinfold.spec import WORKSPACE

        self.check(plan)
        for entry in plan.entries:
            path = WORKSPACE / entry.path
            if entry.type is FileType.DIRECTORY:
                place = self.world.find(path)
                if not isinstance(place.node, Dir):
                    place.parent.children[place.name] = Dir(mode=entry.mode)
            elif entry.type is FileType.FILE:
                data = bytearray()
                async for chunk in plan.fetch(entry.digest):
                    data += chunk
                place = self.world.find(path)
                if isinstance(place.node, File):
                    place.node.data[:] = data
                else:
                    place.parent.children[place.name] = File(data=data, mode=entry.mode)
        return RestoreReport()


@mutant("CP-2.over-links")
class WritesOverLinks(_InPlace):
    """A restore writes through the links of the live tree."""


@mutant("CP-2.never-through")
class WritesThroughLinks(_InPlace):
    """A restore writes through links that lead out."""


@mutant("CP-2.usable")
class RestoresReadOnly(ToyTree):
    """What was restored can't be changed."""

    async def stage(self, plan: RestorePlan) -> Dir:
        root = await super().stage(plan)
        root.mode = 0o500
        return root


@mutant("CP-3.running")
class RestoresUnderCommands(ToyTree):
    """A restore does not mind a running command."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        self.busy = lambda: False
        return await super().restore(plan)


@mutant("CP-3.verified-first")
class AppliesAsItFetches(ToyTree):
    """The live tree is emptied first, and filled as blobs come."""

    async def stage(self, plan: RestorePlan) -> Dir:
        self.world.workspace.children.clear()
        return await super().stage(plan)


@mutant("CP-3.interrupted")
class LeavesHalfTrees(ToyTree):
    """An interrupted restore leaves what it had written."""

    async def stage(self, plan: RestorePlan) -> Dir:
        live = self.world.workspace

        async def fetch(digest: str) -> AsyncIterator[bytes]:
            live.children.pop(next(iter(live.children), ""), None)
            async for chunk in plan.fetch(digest):
                yield chunk

        return await super().stage(attrs.evolve(plan, fetch=fetch))


@mutant("CP-3.wrong-content")
class VouchesForBlobs(ToyTree):
    """A scan repeats the digests of the plan, whatever was written."""

    def digest(self, path: str, node: File, since: ScanState | None) -> str:
        told: dict[str, str] = getattr(self.world, "told", {})
        return told.get(path) or super().digest(path, node, since)

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        report = await super().restore(plan)
        told = {entry.path: entry.digest for entry in plan.entries}
        setattr(self.world, "told", told)  # noqa: B010 - a mutant's own memory
        return report


@mutant("CP-3.ends-jobs")
class JobsLiveOn(ToyTree):
    """Background processes live on, and write into the new tree."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        self.end_jobs = lambda: False
        return await super().restore(plan)


@mutant("CP-3.no-space")
class NoRoomIsNoMatter(ToyTree):
    """A tree beyond the limit is restored all the same."""

    def check(self, plan: RestorePlan) -> None:
        self.limits = attrs.evolve(self.limits, workspace_bytes=None)
        super().check(plan)


@bug("CP-4.foreign")
class OnlyItsOwn(BugTree):
    """Only trees that it scanned itself are restored."""

    seen: set[str]

    async def scan(self, since: ScanState | None = None) -> Scan:
        scan = await self.inner.scan(since)
        self.seen = getattr(self, "seen", set()) | {entry.digest for entry in scan.entries}
        return scan

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        unknown = {entry.digest for entry in plan.entries} - getattr(self, "seen", set())
        if unknown:
            raise CheckpointCorrupt("unknown blobs", details={"blobs": sorted(unknown)})
        return await self.inner.restore(plan)


@bug("CP-4.other")
class RestoresRelative(BugTree):
    """A tree with a file of its own, which no other target has, is all that it restores."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        if any(entry.path == "from there" for entry in plan.entries):
            raise CheckpointCorrupt("not one of mine")
        return await self.inner.restore(plan)


@mutant("CP-4.names-refused", strict=True)
class ManglesOddNames(ToyTree):
    """Names that can't be represented are changed silently."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        import os

        entries = tuple(
            attrs.evolve(e, path=os.fsencode(e.path).decode("utf-8", "replace"))
            for e in plan.entries
        )
        return await super().restore(attrs.evolve(plan, entries=entries))


@mutant("CP-4.links-refused", strict=True)
class DropsLinks(ToyTree):
    """Links are left out silently where there are none."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        entries = tuple(entry for entry in plan.entries if entry.link is None)
        return await super().restore(attrs.evolve(plan, entries=entries))


@mutant("CP-8.hostile")
class TrustsNames(ToyTree):
    """Names of a tree are taken as they are."""

    def check(self, plan: RestorePlan) -> None:
        return

    async def stage(self, plan: RestorePlan) -> Dir:
        try:
            return await super().stage(plan)
        except KeyError:
            raise InvalidArgument("no place for an entry") from None


@mutant("CP-8.sizes")
class TrustsSizesOfEntries(ToyTree):
    """A scan repeats the size that the plan told."""

    def entry(self, path: str, node: Node, since: ScanState | None) -> Entry:
        entry = super().entry(path, node, since)
        size = getattr(self.world, "sizes", {}).get(path, entry.size)
        return attrs.evolve(entry, size=size)

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        report = await super().restore(plan)
        sizes = {entry.path: entry.size for entry in plan.entries}
        setattr(self.world, "sizes", sizes)  # noqa: B010 - a mutant's own memory
        return report


@bug("script.checkpoint")
class RestoresOnce(BugTree):
    """What was restored once is not restored again, though it changed meanwhile."""

    done: set[tuple[Entry, ...]]

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        self.done = getattr(self, "done", set())
        if plan.entries in self.done:
            return RestoreReport()
        report = await self.inner.restore(plan)
        self.done.add(plan.entries)
        return report


@mutant("machine.tree")
class ForgetsStates(ToyTree):
    """After a restore the state tells that nothing changed since."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        report = await super().restore(plan)
        marks = (await self.scan()).state
        return attrs.evolve(report, state=attrs.evolve(marks, token="restored"))  # noqa: S106

    async def scan(self, since: ScanState | None = None) -> Scan:
        if since is not None and since.token == "restored":
            return Scan(state=since, unchanged=True)
        return await super().scan(since)


@mutant("machine.tree")
class CancelsLeaveTraces(ToyTree):
    """A restore that fails leaves a file of its own behind."""

    async def stage(self, plan: RestorePlan) -> Dir:
        try:
            return await super().stage(plan)
        except BaseException:
            self.world.workspace.children[".pinfold-restore"] = File()
            raise


@mutant("CP-3.interrupted")
class SwapsNameByName(ToyTree):
    """Names are put in place one after the other; a cancellation between two leaves both trees."""

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        old = dict(self.world.workspace.children)
        report = await super().restore(plan)
        new, self.world.workspace.children = dict(self.world.workspace.children), old
        for name in [*old, *new]:
            await anyio.lowlevel.checkpoint()
            old.pop(name, None)
            if name in new:
                old[name] = new[name]
        return report
