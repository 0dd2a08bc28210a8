"""The workspace as one value: scan and read (contract section 6)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final

import anyio
import attrs

from pinfold._tasks import iterating
from pinfold.errors import (
    Effect,
    IsADirectory,
    NotADirectory,
    NotFound,
    NotRegular,
    OutsideWorkspace,
    PermissionDenied,
    PinfoldError,
    Unavailable,
)
from pinfold.posix._bulk import Bulk, Operation, batched, batched_names
from pinfold.posix._call import ProgramFailed, Shell
from pinfold.posix._layout import Layout, Place
from pinfold.posix._probe import Tools
from pinfold.posix._records import Record
from pinfold.posix._restore import Restorer
from pinfold.posix._trouble import error_of
from pinfold.posix._walk import walk
from pinfold.provider import (
    Blob,
    Entry,
    FileMark,
    Files,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Tree,
)
from pinfold.spec import WORKSPACE

__all__ = ["ShellTree"]

#: A change this short before a scan may have left no trace in the times (CP-7).
_RACY_NS: Final = 2_000_000_000
_TRIES: Final = 3
#: What its owner needs to look into it.
_NEEDED: Final = {FileType.DIRECTORY: 0o500, FileType.FILE: 0o400}
_CLOSE_SECONDS: Final = 10.0


class ShellTree(Tree):
    """The workspace of any target that has a shell.

    Args:
        shell: runs our programs, past the gate.
        layout: where the workspace is.
        tools: what the target has.
        files: to read what can't be read in bulk; past the gate.
        restorer: restores.
    """

    def __init__(
        self, shell: Shell, layout: Layout, tools: Tools, files: Files, restorer: Restorer
    ) -> None:
        self._shell = shell
        self._tools = tools
        self._files = files
        self._bulk = Bulk(shell, tools)
        self._restorer = restorer
        self._place = layout.place(WORKSPACE)

    async def scan(self, since: ScanState | None = None) -> Scan:
        if not self._tools.find:
            raise Unavailable(
                "the workspace can't be scanned: the target has no find",
                hint="use an image that has it",
                retryable=False,
            )
        scan, shut = await self._scan(since or ScanState(), {})
        if shut:
            async with self._opened() as modes:
                scan, shut = await self._scan(since or ScanState(), modes)
        if shut:
            raise PermissionDenied(
                f"the workspace can't be read whole: {', '.join(shut[:5])}",
                hint="give its owner the right to read them",
                details={"paths": shut},
            )
        return scan

    async def _scan(self, since: ScanState, modes: Mapping[str, int]) -> tuple[Scan, list[str]]:
        """Scan; return also what could not be read. `modes` are those that count."""
        started, records, trouble = await self._walk()
        marks: dict[str, FileMark] = {}
        dirty: list[Record] = []
        for record in records:
            if record.type is FileType.FILE:
                mark = since.files.get(record.name)
                if mark is not None and _is_unchanged(record, mark, since.started_ns):
                    marks[record.name] = mark
                else:
                    dirty.append(record)
        fresh, unsettled, unreadable = await self._hash(dirty)
        entries = []
        for record in records:
            if record.type is FileType.OTHER:
                continue
            digest = ""
            if record.type is FileType.FILE:
                mark = marks.get(record.name)
                if mark is not None:
                    digest = mark.digest
                elif record.name in fresh:
                    record, digest = fresh[record.name]  # noqa: PLW2901 -- as when it was read
                    if started and record.name not in unsettled:
                        marks[record.name] = mark_of(record, digest)
                else:
                    continue  # gone meanwhile
            entry = entry_of(record, digest)
            if record.name in modes:
                entry = attrs.evolve(entry, mode=modes[record.name])
            entries.append(entry)
        scan = Scan(
            entries=tuple(entries),
            skipped=tuple(r.name for r in records if r.type is FileType.OTHER),
            unsettled=tuple(sorted(unsettled)),
            state=ScanState(started_ns=started, files=marks),
        )
        return scan, sorted(unreadable) or ([trouble] if trouble else [])

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[dict[str, int]]:
        """Let the owner read what it has shut, for a while; yield the modes that were."""
        modes: dict[str, int] = {}
        try:
            while shut := [record for record in (await self._walk())[1] if _is_shut(record, modes)]:
                for record in shut:
                    modes[record.name] = record.mode
                await self._change({r.name: r.mode | _NEEDED[r.type] for r in shut})
            yield modes
        finally:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._change(modes)

    async def _change(self, modes: Mapping[str, int]) -> None:
        """Set modes, the deepest first; what can't be set stays as it is."""
        operations = [
            Operation("chmod", *_inside(self._place, name), f"{mode:o}")
            for name, mode in sorted(modes.items(), reverse=True)
        ]
        for batch in batched(operations):
            await self._bulk.apply(self._place.directory, batch)

    async def _walk(self) -> tuple[int, list[Record], str]:
        try:
            started, records, trouble = await walk(self._shell, self._tools, self._place)
        except ProgramFailed as exc:
            raise error_of(exc, WORKSPACE, "scan") from None
        records.sort(key=attrgetter("name"))
        return started, records, trouble if "ermission denied" in trouble else ""

    async def _hash(
        self, records: Sequence[Record]
    ) -> tuple[dict[str, tuple[Record, str]], set[str], set[str]]:
        """Return each file's facts and digest; which changed all the time; which can't be read."""
        done: dict[str, tuple[Record, str]] = {}
        unsettled: set[str] = set()
        unreadable: set[str] = set()
        pending = {record.name: record for record in records}
        for attempt in range(_TRIES):
            changed: dict[str, Record] = {}
            for names in batched_names(pending):
                digests, facts = await self._digests(names)
                for name in names:
                    fact, digest = facts.get(name), digests.get(name)
                    if fact is None or fact.type is not FileType.FILE:
                        continue  # gone meanwhile
                    if digest is None:
                        unreadable.add(name)
                        continue
                    done[name] = fact, digest
                    if not _is_same(fact, pending[name]):
                        changed[name] = fact
            pending = changed
            if attempt == _TRIES - 1:
                unsettled.update(changed)
        return done, unsettled, unreadable - done.keys()

    async def _digests(self, names: Sequence[str]) -> tuple[dict[str, str], dict[str, Record]]:
        digests: dict[str, str] = {}
        facts: dict[str, Record] = {}
        left = dict.fromkeys(names)
        for _ in range(_TRIES if self._tools.sha256sum else 0):
            tried = list(left)
            hashed = self._bulk.hash([_pair(self._place, name) for name in tried])
            async with aclosing(hashed):
                async for at, digest, fact in hashed:
                    name = tried[at]
                    del left[name]
                    if digest is not None:
                        digests[name] = digest
                    if fact is not None:
                        facts[name] = fact._replace(name=name)
            if not left:
                return digests, facts
        # Their directories are changed all the time, or there is no sha256sum.
        for name in left:
            with suppress(PinfoldError):
                digests[name] = await self._digest_by_reading(name)
        pairs = [_pair(self._place, name) for name in left]
        for name, fact_now in zip(left, await self._bulk.stat(pairs), strict=True):
            if not isinstance(fact_now, ProgramFailed):
                facts[name] = fact_now._replace(name=name)
        return digests, facts

    async def _digest_by_reading(self, name: str) -> str:
        sha = hashlib.sha256()
        chunks = self._files.download(WORKSPACE / name)
        async with iterating(chunks):
            async for chunk in chunks:
                sha.update(chunk)
        return sha.hexdigest()

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        names = [entry.path for entry in entries]
        left = dict.fromkeys(names)
        shut: list[str] = []
        if self._tools.tar:
            items = [(*_pair(self._place, entry.path), entry.size) for entry in entries]
            async with aclosing(self._bulk.small(items)) as found:
                async for index, data in found:
                    left.pop(names[index], None)
                    digest = hashlib.sha256(data).hexdigest()
                    yield Blob(path=names[index], data=data, last=True, digest=digest)
        for name in left:
            try:
                async with aclosing(self._read_one(name)) as blobs:
                    async for blob in blobs:
                        yield blob
            except PermissionDenied:
                shut.append(name)
        if shut:
            async with self._opened():
                for name in shut:
                    async with aclosing(self._read_one(name)) as blobs:
                        async for blob in blobs:
                            yield blob

    async def _read_one(self, name: str) -> AsyncGenerator[Blob]:
        chunks = self._files.download(WORKSPACE / name)
        try:
            async with iterating(chunks), aclosing(_blobs(name, chunks)) as blobs:
                async for blob in blobs:
                    yield blob
        except (NotFound, NotADirectory, NotRegular, IsADirectory, OutsideWorkspace):
            yield Blob(path=name, data=b"", last=True)  # it is gone

    async def state_of(self, entries: Sequence[Entry]) -> ScanState | None:
        """Hold the tree to what it was made to be, and return the state for the next scan.

        None where its owner has shut parts of it: then that can't be seen without opening them.

        Raises:
            Unavailable: it is something else.
        """
        started, records, trouble = await self._walk()
        if trouble:
            return None
        wanted = {entry.path: entry for entry in entries}
        marks = {}
        for record in records:
            entry = wanted.pop(record.name, None)
            if entry is None or (entry.type, entry.link) != (record.type, record.link):
                raise _tampered(record.name)
            if record.type is FileType.FILE:
                if (entry.size, entry.mode) != (record.size, record.mode):
                    raise _tampered(record.name)
                marks[record.name] = mark_of(record, entry.digest)
            elif record.type is FileType.DIRECTORY and entry.mode != record.mode:
                raise _tampered(record.name)
        for name in wanted:
            raise _tampered(name)
        return ScanState(started_ns=started, files=marks if started else {})

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        return await self._restorer.restore(plan, self)

    async def recover(self) -> bool:
        return await self._restorer.recover()


def _is_shut(record: Record, known: Mapping[str, int]) -> bool:
    """Say whether its owner can't look into it, and that was not known."""
    return record.name not in known and bool(_NEEDED.get(record.type, 0) & ~record.mode)


def _tampered(name: str) -> Unavailable:
    return Unavailable(
        f"the restored tree is not as it should be: {name!r} was changed meanwhile",
        hint="a process that can't be ended writes into it; replace the sandbox",
        effect=Effect.DONE,
        details={"path": name},
    )


def _pair(place: Place, name: str) -> tuple[str, str]:
    inner = PurePosixPath(place.directory, name)
    return str(inner.parent), inner.name


def _inside(place: Place, name: str) -> tuple[str, tuple[str]]:
    directory, last = _pair(place, name)
    return directory, (last,)


async def _blobs(path: str, chunks: AsyncIterator[bytes]) -> AsyncGenerator[Blob]:
    sha = hashlib.sha256()
    async for chunk in chunks:
        sha.update(chunk)
        yield Blob(path=path, data=chunk)
    yield Blob(path=path, data=b"", last=True, digest=sha.hexdigest())


def _is_same(one: Record, other: Record) -> bool:
    return (one.size, one.mtime_ns, one.ctime_ns, one.inode) == (
        other.size,
        other.mtime_ns,
        other.ctime_ns,
        other.inode,
    )


def _is_unchanged(record: Record, mark: FileMark, started_ns: int) -> bool:
    return (
        (record.size, record.mtime_ns, record.ctime_ns, record.inode)
        == (mark.size, mark.mtime_ns, mark.ctime_ns, mark.inode)
    ) and record.ctime_ns < started_ns - _RACY_NS


def mark_of(record: Record, digest: str) -> FileMark:
    """Return what the next scan compares with."""
    return FileMark(
        size=record.size,
        mtime_ns=record.mtime_ns,
        ctime_ns=record.ctime_ns,
        inode=record.inode,
        digest=digest,
    )


def entry_of(record: Record, digest: str = "") -> Entry:
    """Return what a checkpoint says of a record."""
    return Entry(
        path=record.name,
        type=record.type,
        mode=record.mode,
        size=record.size if record.type is FileType.FILE else 0,
        digest=digest,
        link=record.link,
        mtime_ns=record.mtime_ns,
    )
