"""The workspace as a whole: what a checkpoint is made from and restored to (contract section 6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import attrs

from pinfold.errors import InvalidArgument
from pinfold.provider._files import FileType

__all__ = [
    "Blob",
    "Entry",
    "FileMark",
    "RestorePlan",
    "RestoreReport",
    "Scan",
    "ScanState",
    "Tree",
    "check_entries",
]


@attrs.frozen(kw_only=True)
class Entry:
    """One name in a workspace.

    Attributes:
        path: relative to the workspace, `/` between names, surrogateescape; never empty.
        type: FILE, DIRECTORY or SYMLINK.
        mode: permission bits, 0..0o7777.
        size: bytes of a file; 0 otherwise.
        digest: hex SHA-256 of a file's content; empty otherwise.
        link: a link's text, verbatim; null otherwise.
        mtime_ns: stored, never hashed (CP-1).
    """

    path: str
    type: FileType
    mode: int
    size: int = 0
    digest: str = ""
    link: str | None = None
    mtime_ns: int = 0


@attrs.frozen
class FileMark:
    """What lets an unchanged file go unread the next time (CP-7)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: str


@attrs.frozen(kw_only=True)
class ScanState:
    """What one scan leaves for the next; plain data, so that it can be stored.

    Attributes:
        started_ns: the target's own clock when the scan began, in nanoseconds since the epoch.
        files: path to mark; empty where the target has nothing to compare by.
        token: anything of the provider's own that tells "nothing was written since"; may be "".
    """

    started_ns: int = 0
    files: Mapping[str, FileMark] = attrs.field(factory=dict)
    token: str = ""


@attrs.frozen(kw_only=True)
class Scan:
    """The workspace at one time.

    Attributes:
        entries: sorted by path, parents before children; the workspace itself is not among them.
        skipped: paths of sockets, pipes and devices (CP-6).
        unsettled: paths of files that changed while they were read (CP-6).
        state: for the next scan.
        unchanged: provably the same as the scan that `since` came from: `entries` is then empty.
    """

    entries: tuple[Entry, ...] = ()
    skipped: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    state: ScanState = ScanState()
    unchanged: bool = False


@attrs.frozen(kw_only=True)
class Blob:
    """A piece of one file's content; the pieces of a file come in order, one file at a time.

    Attributes:
        path: as in `Entry.path`.
        data: the bytes of this piece; at most 1 MiB.
        last: no piece of this file follows.
        digest: with `last`, the hex SHA-256 of all that was read; it differs from the entry's
            when the file changed since the scan, and the entry is then unsettled (CP-6).
    """

    path: str
    data: bytes = attrs.field(repr=lambda value: f"<{len(value)} bytes>")
    last: bool = False
    digest: str = ""


@attrs.frozen(kw_only=True)
class RestorePlan:
    """The tree to be, and where its contents come from.

    Attributes:
        entries: the whole tree, sorted by path, parents before children; checked by core before
            it gets here (CP-8), and checked again by whoever follows a name.
        fetch: digest (hex SHA-256) to the content, in chunks. It raises `CheckpointCorrupt` for a
            missing or damaged blob: what comes to its end was verified, and need not be again.
            Every blob is fetched before the live tree is touched (CP-3).
    """

    entries: tuple[Entry, ...]
    fetch: Callable[[str], AsyncIterator[bytes]] = attrs.field(repr=False, eq=False)


@attrs.frozen(kw_only=True)
class RestoreReport:
    """What a restore did besides.

    Attributes:
        escaping_links: paths of links that lead out of the workspace; restored verbatim (CP-2).
        processes_ended: background processes were ended (CP-3, CP-9).
        state: for the next scan, as if the restored tree had been scanned; null where a full scan
            is needed.
    """

    escaping_links: tuple[str, ...] = ()
    processes_ended: bool = False
    state: ScanState | None = None


class Tree(ABC):
    """The workspace as one value. Writable roots are no part of it (SP-4)."""

    @abstractmethod
    async def scan(self, since: ScanState | None = None) -> Scan:
        """Return every entry, with digests; files that CP-7 calls unchanged are not read.

        Args:
            since: the state of an earlier scan of the same instance, or None for a full one.

        Raises:
            Unavailable: the target went away; nothing was changed.
        """

    @abstractmethod
    def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        """Yield the contents of files of a scan, in any order of files, in bounded memory.

        A file that is gone meanwhile yields one empty last piece with digest "".
        """

    @abstractmethod
    async def restore(self, plan: RestorePlan) -> RestoreReport:
        """Make the workspace exactly the plan's tree (CP-2), journalled (CP-3).

        Raises:
            Conflict: an exec is running; nothing was touched.
            CheckpointCorrupt: from `plan.fetch`; the live tree was not touched.
            InvalidArgument: what the target cannot represent, by name; nothing was touched (CP-4).
            NoSpace: not enough room to stage it; nothing was touched.
            Unavailable: the target went away; `recover` finishes or undoes it.
        """

    @abstractmethod
    async def recover(self) -> bool:
        """Finish or undo an interrupted restore; called before anything else (CP-3).

        Returns:
            Whether there was one.
        """


def check_entries(entries: Sequence[Entry]) -> None:
    """Refuse names that a tree can't have; every `Tree.restore` calls it first (CP-8).

    Raises:
        InvalidArgument: naming the first of them.
    """
    kinds: dict[str, FileType] = {}
    for entry in entries:
        folder = entry.path.rpartition("/")[0]
        fault = (
            "a name in it is empty, '.' or '..'"
            if any(part in {"", ".", ".."} for part in entry.path.split("/"))
            else "it has a NUL byte"
            if "\0" in entry.path or "\0" in (entry.link or "")
            else "it is there twice"
            if entry.path in kinds
            else "its parent is no directory of the tree"
            if folder and kinds.get(folder) is not FileType.DIRECTORY
            else "its mode is out of range"
            if not 0 <= entry.mode <= 0o7777
            else "its size is out of range"
            if entry.size < 0
            else "its kind can't be restored"
            if entry.type is FileType.OTHER or (entry.type is FileType.SYMLINK) != bool(entry.link)
            else ""
        )
        if fault:
            raise InvalidArgument(
                f"the tree has an entry that can't be restored: {entry.path!r}: {fault}",
                details={"path": entry.path},
            )
        kinds[entry.path] = entry.type
