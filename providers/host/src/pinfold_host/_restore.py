"""Make a workspace exactly a given tree, so that an interruption can be finished (CP-2, CP-3).

All that is needed is first laid out in a folder beside the workspace, out of the guest's reach:
one file for each file that differs, complete but for its place. Then the journal is written, and
that is the point of no return: before it the live tree is as it was, after it `apply` can be run,
again and again, until the tree is the one in the journal. Putting things in place takes renames
only, so no space runs out half-way.

::

    <instance>/restore/files/<n>     content, mode, owner and time of the journal's entry n
    <instance>/restore/journal.json  {"version": 1, "entries": [...]}
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, Self, TypeAlias

import anyio.to_thread

from pinfold.errors import CheckpointCorrupt, InvalidArgument
from pinfold.provider import Entry, FileMark, FileType, ScanState
from pinfold_host._beneath import Roots
from pinfold_host._linux import O_PATH
from pinfold_host._remove import remove_tree
from pinfold_host._scan import file_type, token_of

__all__ = ["Restore", "escaping_links"]

#: The entries, by number, that some data belongs to; the data; whether it is their last.
_Piece: TypeAlias = tuple[Sequence[int], bytes, bool]

_VERSION: Final = 1
_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 8192
_LINK_BYTES: Final = 4095
_BATCH_BYTES: Final = 4 * 1024 * 1024
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK


class Restore:
    """Restores of one workspace; one at a time.

    Args:
        roots: the workspace first.
        folder: the instance's own folder, on the same file system.
        owner: whom files are to belong to, uid and gid; None for this process's user.
    """

    def __init__(self, roots: Roots, folder: Path, owner: int | None) -> None:
        self._roots = roots
        self._folder = folder / "restore"
        self._files = self._folder / "files"
        self._journal = self._folder / "journal.json"
        self._owner = owner

    # --- before the point of no return ---

    def check(self, entries: Sequence[Entry]) -> None:
        """Refuse what can't be put here, by name (CP-4, CP-8).

        Raises:
            InvalidArgument: the first few of them.
        """
        faults: list[str] = []
        known: dict[str, FileType] = {"": FileType.DIRECTORY}
        for entry in entries:
            reason = _reason(entry, known)
            if reason:
                faults.append(f"{entry.path!r} {reason}")
            known[entry.path] = entry.type
        if faults:
            more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
            raise InvalidArgument(
                "this machine can't represent the tree: " + "; ".join(faults[:5]) + more,
                details={"faults": faults[:100]},
            )

    async def stage(
        self,
        entries: Sequence[Entry],
        live: Sequence[Entry],
        fetch: Callable[[str], AsyncIterator[bytes]],
    ) -> None:
        """Lay out every file that differs from the live one, and write the journal.

        Every blob of the tree is fetched, and so verified, also those that are in place (CP-3).

        Raises:
            CheckpointCorrupt: from `fetch`, or it gives more or less than the tree says.
            OSError: no space, or the like; `discard` takes it back.
        """
        self.discard()
        self._files.mkdir(parents=True, mode=0o700)
        there = {e.path: (e.digest, e.size) for e in live if e.type is FileType.FILE}
        wanted: dict[str, tuple[int, list[int]]] = {}
        for number, entry in enumerate(entries):
            if entry.type is FileType.FILE:
                _, places = wanted.setdefault(entry.digest, (entry.size, []))
                if there.get(entry.path) != (entry.digest, entry.size):
                    places.append(number)
        work: list[_Piece] = []
        held = 0
        for digest, (size, places) in wanted.items():
            got = 0
            async for data in fetch(digest):
                got += len(data)
                held += len(data)
                work.append((places, data, got >= size))
                if held >= _BATCH_BYTES:
                    await anyio.to_thread.run_sync(self._lay_out, entries, work)
                    work, held = [], 0
            if got != size:
                raise CheckpointCorrupt(
                    f"a content of {size} bytes came as {got}", details={"digest": digest}
                )
            if not size:
                work.append((places, b"", True))
        await anyio.to_thread.run_sync(self._lay_out, entries, work)
        await anyio.to_thread.run_sync(self._write_journal, entries)

    def _lay_out(self, entries: Sequence[Entry], work: Sequence[_Piece]) -> None:
        directory = os.open(self._files, _DIRECTORY | os.O_CLOEXEC)
        try:
            for places, data, last in work:
                for number in places:
                    fd = os.open(str(number), _APPEND, 0o600, dir_fd=directory)
                    try:
                        written = os.write(fd, data) if data else 0
                        while written < len(data):
                            written += os.write(fd, memoryview(data)[written:])
                        if last:
                            self._dress(fd, entries[number])
                    finally:
                        os.close(fd)
        finally:
            os.close(directory)

    def discard(self) -> None:
        """Take all of it back, or away; idempotent."""
        self._journal.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def _dress(self, fd: int, entry: Entry) -> None:
        if self._owner is not None:
            os.fchown(fd, self._owner, self._owner)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))

    def _write_journal(self, entries: Sequence[Entry]) -> None:
        rows = [(e.path, e.type, e.mode, e.size, e.digest, e.link, e.mtime_ns) for e in entries]
        aside = self._journal.with_suffix(".new")
        with aside.open("w") as stream:
            stream.write(json.dumps({"version": _VERSION, "entries": rows}))
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(self._journal)

    # --- from there on ---

    def is_interrupted(self) -> bool:
        """One was begun and has not come to its end."""
        return self._folder.exists()

    def recover(self) -> ScanState | None:
        """Finish an interrupted restore, or take back one that had touched nothing yet.

        Returns:
            The state of a finished one.
        """
        if self._journal.exists():
            return self.apply()
        self.discard()
        return None

    def apply(self, entries: Sequence[Entry] | None = None) -> ScanState:
        """Make the live tree the journal's; run again after an interruption, it finishes.

        Args:
            entries: the journal's, where they are at hand.

        Returns:
            The tree's state, as a scan gives it.
        """
        if entries is None:
            entries = self._read_journal()
        self._clear({entry.path: entry for entry in entries})
        self._fill(entries)
        state = self._finish(entries)
        self.discard()
        return state

    def _read_journal(self) -> list[Entry]:
        record = json.loads(self._journal.read_text())
        return [
            Entry(
                path=path,
                type=FileType(kind),
                mode=mode,
                size=size,
                digest=digest,
                link=link,
                mtime_ns=mtime,
            )
            for path, kind, mode, size, digest, link, mtime in record["entries"]
        ]

    def _clear(self, wanted: dict[str, Entry]) -> None:
        """Remove what is not wanted, and what stands in the way."""
        pending = [""]
        while pending:
            path = pending.pop()
            fd = self._open_directory(path)
            try:
                with os.scandir(fd) as found:
                    names = [(e.name, e.stat(follow_symlinks=False)) for e in found]
                for name, stat in names:
                    inner, kind = path + name, file_type(stat.st_mode)
                    entry = wanted.get(inner)
                    if entry is not None and entry.type is kind and _is_same_link(entry, name, fd):
                        if kind is FileType.DIRECTORY:
                            pending.append(inner + "/")
                        elif kind is FileType.FILE and stat.st_nlink > 1:
                            self._unshare(name, fd)
                    elif kind is FileType.DIRECTORY:
                        remove_tree(fd, os.fsencode(name))
                    else:
                        os.unlink(name, dir_fd=fd)
            finally:
                os.close(fd)

    def _unshare(self, name: str, directory: int) -> None:
        """Give a name a file of its own: two names of one file are no part of a tree."""
        aside = self._folder / "own"
        source = os.open(name, _FILE, dir_fd=directory)
        with open(source, "rb") as old, aside.open("wb") as new:
            shutil.copyfileobj(old, new)
        if self._owner is not None:
            os.chown(aside, self._owner, self._owner)
        os.rename(aside, name, dst_dir_fd=directory)

    def _open_directory(self, path: str) -> int:
        """Open a directory and let its owner work in it; its own mode is set at the end."""
        fd = self._roots.open_inner(os.fsencode(path), O_PATH | os.O_DIRECTORY)
        try:
            if os.fstat(fd).st_mode & 0o700 != 0o700:
                _set_mode(fd, 0o700)
        finally:
            os.close(fd)
        return self._roots.open_inner(os.fsencode(path), _DIRECTORY)

    def _fill(self, entries: Sequence[Entry]) -> None:
        staged = set(os.listdir(self._files))
        files = os.open(self._files, _DIRECTORY | os.O_CLOEXEC)
        try:
            with _Parents(self._roots) as parents:
                for number, entry in enumerate(entries):
                    head, _, name = entry.path.rpartition("/")
                    here = parents.open(head)
                    if str(number) in staged:
                        os.rename(str(number), name, src_dir_fd=files, dst_dir_fd=here)
                    elif entry.type is not FileType.FILE:
                        self._make(entry, name, here)
        finally:
            os.close(files)

    def _make(self, entry: Entry, name: str, directory: int) -> None:
        try:
            if entry.type is FileType.DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=directory)
            else:
                os.symlink(entry.link or "", name, dir_fd=directory)
        except FileExistsError:
            return
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=directory, follow_symlinks=False)

    def _finish(self, entries: Sequence[Entry]) -> ScanState:
        """Set modes and times, deepest first: a directory may come to be closed to its owner."""
        started = time.time_ns()
        marks: dict[str, FileMark] = {}
        with _Parents(self._roots) as parents:
            for entry in reversed(entries):
                if entry.type is FileType.SYMLINK:
                    continue
                head, _, name = entry.path.rpartition("/")
                found = os.stat(name, dir_fd=parents.open(head), follow_symlinks=False)
                if (found.st_mode & 0o7777, found.st_mtime_ns) != (entry.mode, entry.mtime_ns):
                    found = self._settle(entry)
                if entry.type is FileType.FILE:
                    marks[entry.path] = FileMark(
                        found.st_size,
                        found.st_mtime_ns,
                        found.st_ctime_ns,
                        found.st_ino,
                        entry.digest,
                    )
        return ScanState(started_ns=started, files=marks, token=token_of(entries))

    def _settle(self, entry: Entry) -> os.stat_result:
        """Give a file or directory its mode and time; return what it is then."""
        fd = self._roots.open_inner(os.fsencode(entry.path), O_PATH | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_mode & 0o7777 != entry.mode:
                _set_mode(fd, entry.mode)
            os.utime(_by_descriptor(fd), ns=(entry.mtime_ns, entry.mtime_ns))
            return os.fstat(fd)
        finally:
            os.close(fd)


class _Parents:
    """The directory last worked in, open: neighbours come one after the other."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._path: str | None = None
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            os.close(self._fd)

    def open(self, path: str) -> int:
        if path != self._path:
            fd = self._roots.open_inner(os.fsencode(path), _DIRECTORY)
            if self._path is not None:
                os.close(self._fd)
            self._path, self._fd = path, fd
        return self._fd


def _reason(entry: Entry, known: dict[str, FileType]) -> str:
    """Return why an entry can't be, or ""."""
    head, slash, name = entry.path.rpartition("/")
    try:
        raw = os.fsencode(entry.path)
        link = os.fsencode(entry.link or "")
    except UnicodeEncodeError:
        return "has a surrogate that stands for no byte"
    if name in {"", ".", ".."} or (slash and not head) or b"\0" in raw:
        return "is no plain relative path"
    if entry.path in known:
        return "is listed twice"
    if known.get(head) is not FileType.DIRECTORY:
        return "has no directory to lie in before it"
    if len(raw) - raw.rfind(b"/") - 1 > _NAME_BYTES:
        return f"has a name of more than {_NAME_BYTES} bytes"
    if len(raw) > _PATH_BYTES:
        return f"is a path of more than {_PATH_BYTES} bytes"
    if not 0 <= entry.mode <= 0o7777:
        return "has no sensible mode"
    if entry.type is FileType.OTHER:
        return "is no file, directory or link"
    if entry.type is FileType.SYMLINK and not (0 < len(link) <= _LINK_BYTES and b"\0" not in link):
        return "is a link with a text that can't be"
    return ""


def _is_same_link(entry: Entry, name: str, directory: int) -> bool:
    if entry.type is not FileType.SYMLINK:
        return True
    return os.readlink(name, dir_fd=directory) == entry.link


def _by_descriptor(fd: int) -> int | str:
    return fd if O_PATH == os.O_RDONLY else f"/proc/self/fd/{fd}"


def _set_mode(fd: int, mode: int) -> None:
    os.chmod(_by_descriptor(fd), mode)


def escaping_links(entries: Sequence[Entry], root: bytes) -> tuple[str, ...]:
    """Return the paths of links whose text leads out of the workspace (CP-2).

    Args:
        entries: the tree.
        root: the workspace, as commands see it.
    """
    return tuple(
        entry.path
        for entry in entries
        if entry.type is FileType.SYMLINK and _leads_out(entry, os.fsdecode(root))
    )


def _leads_out(entry: Entry, root: str) -> bool:
    target = entry.link or ""
    base = f"{root}/{entry.path}".rpartition("/")[0]
    place = os.path.normpath(target if target.startswith("/") else f"{base}/{target}")
    return place != root and not place.startswith(root + "/")
