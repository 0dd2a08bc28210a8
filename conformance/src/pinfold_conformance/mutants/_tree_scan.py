"""Bugs of a tree that is scanned and read (CP-1, CP-6, CP-7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from hashlib import sha256

import attrs

from pinfold.provider import (
    Blob,
    Entry,
    FileType,
    Scan,
    ScanState,
)
from pinfold_conformance.adapters.toy._tree import ToyTree
from pinfold_conformance.adapters.toy._world import Dir, File, Node
from pinfold_conformance.mutants._base import BugTree, bug, mutant


class _Entries(BugTree):
    """A bug of a scan's entries."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return entries

    async def scan(self, since: ScanState | None = None) -> Scan:
        scan = await self.inner.scan(since)
        return attrs.evolve(scan, entries=tuple(self.entries(scan.entries)))


@bug("CP-1.entries")
class NoEmptyFolders(_Entries):
    """Empty folders are left out."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        parents = {entry.path.rpartition("/")[0] for entry in entries}
        return [e for e in entries if e.type is not FileType.DIRECTORY or e.path in parents]


@bug("CP-1.entries")
class NoModes(_Entries):
    """Modes are left out."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [attrs.evolve(e, mode=0o644 if e.digest else 0o755) for e in entries]


@bug("CP-1.entries")
class Unsorted(_Entries):
    """Entries come as they come."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return list(reversed(entries))


@bug("CP-1.stable")
class HashesTimes(_Entries):
    """Times are part of what is compared: the same tree, made again, is another."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [
            attrs.evolve(e, mode=(e.mtime_ns // 1000) % 0o1000) if e.digest else e for e in entries
        ]


@mutant("CP-1.commands")
class ScansOldContents(ToyTree):
    """A scan tells old contents of files that commands wrote."""

    def entry(self, path: str, node: Node, since: ScanState | None) -> Entry:
        entry = super().entry(path, node, since)
        if entry.digest and path.startswith("by/"):
            return attrs.evolve(entry, digest=sha256(b"").hexdigest())
        return entry


@bug("CP-1.large")
class LosesPieces(BugTree):
    """Of a large file the second piece is lost."""

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        number: dict[str, int] = {}
        async for blob in self.inner.read(entries):
            number[blob.path] = number.get(blob.path, 0) + 1
            if number[blob.path] != 2 or blob.last:
                yield blob


@bug("CP-1.large")
class LargePieces(BugTree):
    """Pieces are as large as their files."""

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        data = bytearray()
        async for blob in self.inner.read(entries):
            data += blob.data
            if blob.last:
                yield attrs.evolve(blob, data=bytes(data))
                data.clear()


@bug("CP-1.read-some")
class ReadsAll(BugTree):
    """A file that is gone is left out of the answer."""

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        async for blob in self.inner.read(entries):
            if blob.digest or not blob.last:
                yield blob


@mutant("CP-1.never-out")
class ScansThroughLinks(ToyTree):
    """A scan goes through links to folders."""

    async def scan(self, since: ScanState | None = None) -> Scan:
        from pathlib import PurePosixPath

        from pinfold.spec import WORKSPACE

        scan = await super().scan(since)
        entries = list(scan.entries)
        for entry in scan.entries:
            if entry.link is not None and entry.link.startswith("/"):
                target = self.world.find(PurePosixPath(entry.link)).node
                if isinstance(target, Dir):
                    at = self.world.find(WORKSPACE / entry.path, follow=False)
                    entries.remove(entry)
                    entries.append(attrs.evolve(entry, type=FileType.DIRECTORY, link=None))
                    for name, node in target.children.items():
                        if isinstance(node, File):
                            entries.append(self.entry(f"{entry.path}/{name}", node, None))
                            at.parent.children[at.name] = target
        return attrs.evolve(scan, entries=tuple(sorted(entries, key=lambda e: e.path)))


@mutant("CP-6.special")
class FifosAreForgotten(ToyTree):
    """Skipped FIFOs are not listed."""

    async def scan(self, since: ScanState | None = None) -> Scan:
        return attrs.evolve(await super().scan(since), skipped=())


@mutant("CP-6.changing")
class OldDigests(ToyTree):
    """A file that changed since the scan is read with the scan's digest."""

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        digests = {entry.path: entry.digest for entry in entries}
        import anyio

        await anyio.sleep(0.1)
        async for blob in super().read(entries):
            yield attrs.evolve(blob, digest=digests[blob.path]) if blob.last else blob


@mutant("CP-7.same-times")
class TrustsTimes(ToyTree):
    """A file of the same size and mtime is taken for unchanged."""

    def digest(self, path: str, node: File, since: ScanState | None) -> str:
        mark = since.files.get(path) if since is not None else None
        if mark is not None and (mark.size, mark.mtime_ns) == (len(node.data), node.mtime_ns):
            return mark.digest
        return super().digest(path, node, None)


@bug("CP-7.incremental")
class AlwaysUnchanged(BugTree):
    """With a state given nothing ever changed."""

    async def scan(self, since: ScanState | None = None) -> Scan:
        scan = await self.inner.scan(since)
        return scan if since is None else Scan(state=scan.state, unchanged=True)


@bug("CP-7.incremental")
class TrustsSizes(BugTree):
    """A file of the same size is taken for unchanged."""

    known: dict[tuple[str, int], str]

    async def scan(self, since: ScanState | None = None) -> Scan:
        scan = await self.inner.scan(since)
        self.known = getattr(self, "known", {})
        entries = []
        for entry in scan.entries:
            digest = self.known.setdefault((entry.path, entry.size), entry.digest)
            entries.append(entry if since is None else attrs.evolve(entry, digest=digest))
        return attrs.evolve(scan, entries=tuple(entries))


@bug("CP-7.skips")
class LeavesNothing(BugTree):
    """A scan leaves nothing to compare by."""

    async def scan(self, since: ScanState | None = None) -> Scan:
        return attrs.evolve(await self.inner.scan(), state=ScanState())


@bug("CP-1.times")
class ScansWithoutTimes(_Entries):
    """A scan tells no times."""

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return [attrs.evolve(entry, mtime_ns=0) for entry in entries]
