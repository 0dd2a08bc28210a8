"""Look at a whole workspace, and read only what changed (CP-6, CP-7)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat as st
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from pinfold.errors import InvalidArgument
from pinfold.provider import Blob, Entry, FileMark, FileType, Scan, ScanState
from pinfold_host._beneath import Roots
from pinfold_host._names import is_temporary

__all__ = ["file_type", "open_even_closed", "read_blobs", "scan", "token_of"]

#: What an entry is made of: most scans find that nothing changed, and make none.
_Row: TypeAlias = tuple[str, FileType, int, int, str, "str | None", int]

#: A clock may be this coarse, and a file be changed twice within one of its ticks.
_RACY_NS: Final = 2_000_000_000
_CHUNK_BYTES: Final = 1024 * 1024
_TRIES: Final = 3
#: Deeper trees than this are an attack on whoever reads them, not work.
_MAX_PATH: Final = 8192
_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_FILES: Final = 256
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})


def scan(roots: Roots, since: ScanState | None) -> Scan:
    """Return every entry of the workspace.

    Raises:
        InvalidArgument: it is nested beyond any use.
        OSError: something could not be read.
    """
    return _Scanner(roots, since or ScanState()).run()


def token_of(entries: Iterable[Entry]) -> str:
    """Return a text that is the same for two trees only when they are the same, mtimes aside."""
    return _token([(e.path, e.type, e.mode, e.size, e.digest, e.link, 0) for e in entries])


def _token(rows: Iterable[_Row]) -> str:
    # No name and no link has a NUL, so no two trees have one text.
    text = "".join(
        [
            f"{path}\0{kind} {mode} {size} {digest}{link or ''}\0"
            for path, kind, mode, size, digest, link, _ in rows
        ]
    )
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def file_type(mode: int) -> FileType:
    """Return what a mode's type bits say."""
    if st.S_ISREG(mode):
        return FileType.FILE
    if st.S_ISDIR(mode):
        return FileType.DIRECTORY
    return FileType.SYMLINK if st.S_ISLNK(mode) else FileType.OTHER


def open_even_closed(name: str | bytes, flags: int, directory: int) -> int:
    """Open one's own file or directory, though its mode forbids it; the mode is put back.

    Raises:
        OSError: as open.
    """
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError:
        path_only = getattr(os, "O_PATH", None)
        if path_only is None:
            raise
        place = os.open(name, path_only | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            found = os.fstat(place)
            if st.S_ISLNK(found.st_mode):
                raise
            link = f"/proc/self/fd/{place}"
            os.chmod(link, 0o700)
            try:
                return os.open(link, flags & ~os.O_NOFOLLOW)
            finally:
                os.chmod(link, st.S_IMODE(found.st_mode))
        finally:
            os.close(place)


class _Scanner:
    def __init__(self, roots: Roots, since: ScanState) -> None:
        self._roots = roots
        self._old: Mapping[str, FileMark] = since.files
        self._old_token = since.token
        self._settled_before = since.started_ns - _RACY_NS
        self._rows: list[_Row] = []
        self._skipped: list[str] = []
        self._unsettled: list[str] = []
        self._marks: dict[str, FileMark] = {}

    def run(self) -> Scan:
        started = time.time_ns()
        for path, fd in self._directories():
            with os.scandir(fd) as found:
                for entry in found:
                    if not is_temporary(entry.name):
                        self._add(path + entry.name, entry, fd)
        self._rows.sort()  # by path: no two have the same
        token = _token(self._rows)
        unchanged = token == self._old_token and not self._unsettled
        return Scan(
            entries=() if unchanged else tuple(map(_entry, self._rows)),
            skipped=tuple(sorted(self._skipped)),
            unsettled=tuple(sorted(self._unsettled)),
            state=ScanState(started_ns=started, files=self._marks, token=token),
            unchanged=unchanged,
        )

    def _directories(self) -> Iterator[tuple[str, int]]:
        """Yield each directory, open, with its path as a prefix of names; new ones as they come."""
        self._pending = [""]
        while self._pending:
            path = self._pending.pop()
            if len(path) > _MAX_PATH:
                raise InvalidArgument(f"{path[:200]!r}… is nested too deeply to be checkpointed")
            try:
                fd = self._roots.open_inner(os.fsencode(path), _DIRECTORY)
            except OSError as error:
                if path and error.errno in _GONE:
                    continue
                raise
            try:
                yield path, fd
            finally:
                os.close(fd)

    def _add(self, path: str, entry: os.DirEntry[str], directory: int) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        kind, mode, mtime_ns = st.S_IFMT(found.st_mode), found.st_mode & 0o7777, found.st_mtime_ns
        if kind == st.S_IFREG:
            self._add_file(path, entry.name, found, directory)
        elif kind == st.S_IFDIR:
            self._pending.append(path + "/")
            self._rows.append((path, FileType.DIRECTORY, mode, 0, "", None, mtime_ns))
        elif kind == st.S_IFLNK:
            with contextlib.suppress(FileNotFoundError):
                link = os.readlink(entry.name, dir_fd=directory)
                self._rows.append((path, FileType.SYMLINK, mode, 0, "", link, mtime_ns))
        else:
            self._skipped.append(path)

    def _add_file(self, path: str, name: str, found: os.stat_result, directory: int) -> None:
        mark = self._old.get(path)
        if (
            mark is None
            or mark.size != found.st_size
            or mark.mtime_ns != found.st_mtime_ns
            or mark.ctime_ns != found.st_ctime_ns
            or mark.inode != found.st_ino
            or found.st_ctime_ns >= self._settled_before
        ):
            read = self._read(path, name, directory)
            if read is None:
                return
            mark, found = read
        self._marks[path] = mark
        mode, mtime_ns = found.st_mode & 0o7777, found.st_mtime_ns
        self._rows.append((path, FileType.FILE, mode, mark.size, mark.digest, None, mtime_ns))

    def _read(self, path: str, name: str, directory: int) -> tuple[FileMark, os.stat_result] | None:
        """Hash a file; None when it is gone. One that keeps changing is taken as read."""
        try:
            fd = open_even_closed(name, _FILE, directory)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        try:
            if not st.S_ISREG(os.fstat(fd).st_mode):
                return None
            mark, found, settled = _hash(fd)
            for _ in range(_TRIES - 1):
                if settled:
                    break
                mark, found, settled = _hash(fd)
            if not settled:
                self._unsettled.append(path)
            return mark, found
        finally:
            os.close(fd)


def _entry(row: _Row) -> Entry:
    path, kind, mode, size, digest, link, mtime_ns = row
    return Entry(
        path=path, type=kind, mode=mode, size=size, digest=digest, link=link, mtime_ns=mtime_ns
    )


def _hash(fd: int) -> tuple[FileMark, os.stat_result, bool]:
    """Read a file; return its mark, what it is now, and whether it held still meanwhile."""
    before = os.fstat(fd)
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, _CHUNK_BYTES, size):
        digest.update(chunk)
        size += len(chunk)
    after = os.fstat(fd)
    mark = FileMark(size, after.st_mtime_ns, after.st_ctime_ns, after.st_ino, digest.hexdigest())
    times = (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
    return mark, after, times and size == after.st_size


def read_blobs(roots: Roots, entries: Sequence[Entry]) -> Iterator[list[Blob]]:
    """Yield the contents of files, in batches of a few megabytes at most."""
    batch: list[Blob] = []
    size = 0
    for entry in entries:
        for blob in _blobs_of(roots, entry):
            batch.append(blob)
            size += len(blob.data)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _blobs_of(roots: Roots, entry: Entry) -> Iterator[Blob]:
    head, _, name = entry.path.rpartition("/")
    try:
        directory = roots.open_inner(os.fsencode(head), _DIRECTORY)
        try:
            fd = open_even_closed(name, _FILE, directory)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        yield Blob(path=entry.path, data=b"", last=True)
        return
    try:
        if not st.S_ISREG(os.fstat(fd).st_mode):
            yield Blob(path=entry.path, data=b"", last=True)
            return
        digest, offset = hashlib.sha256(), 0
        data = os.pread(fd, _CHUNK_BYTES, 0)
        while True:
            digest.update(data)
            offset += len(data)
            more = os.pread(fd, _CHUNK_BYTES, offset) if data else b""
            if not more:
                yield Blob(path=entry.path, data=data, last=True, digest=digest.hexdigest())
                return
            yield Blob(path=entry.path, data=data)
            data = more
    finally:
        os.close(fd)
