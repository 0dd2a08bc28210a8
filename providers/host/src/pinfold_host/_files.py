"""Files by system calls of this process, no other process started (FS).

What is small is done where the call is made: it takes microseconds, and a thread would cost
several times as much. What may be long runs in a worker thread.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import stat as st
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from pathlib import PurePosixPath
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from pinfold.errors import (
    Conflict,
    Effect,
    InvalidArgument,
    IsADirectory,
    PinfoldError,
    TooLarge,
)
from pinfold.posix import Gate
from pinfold.provider import Files, FileStat, FileType, check_mode, guest_path, iterating
from pinfold.spec import Limits
from pinfold_host._acting import Acting
from pinfold_host._beneath import Place, Roots
from pinfold_host._errors import typed
from pinfold_host._linux import O_PATH, Identity
from pinfold_host._names import is_temporary
from pinfold_host._remove import remove_tree
from pinfold_host._replacement import Replacement, not_regular, write_all
from pinfold_host._scan import file_type

__all__ = ["DirectFiles"]

T = TypeVar("T")
P = TypeVar("P")

_INLINE_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


class DirectFiles(Files):
    """The files below some roots.

    Args:
        roots: where they are.
        limits: what may be read at once and written.
        identity: whom they belong to.
        gate: passed before anything is touched.
    """

    def __init__(self, roots: Roots, limits: Limits, identity: Identity, gate: Gate) -> None:
        self.roots = roots
        self.identity = identity
        self._gate = gate
        self._limits = limits
        self._writable = tuple(root.caller for root in roots.roots[1:])

    # --- small: done at once ---

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        """Stat a name."""
        await self._gate()
        return self._stat(path)

    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        """Make a directory."""
        place = self._path(path)
        await self._gate()
        with self.acting(place), self.roots.final(place, make_parents=parents) as at:
            try:
                os.mkdir(at.name, 0o755, dir_fd=at.directory)
            except FileExistsError:
                found = os.stat(at.name, dir_fd=at.directory, follow_symlinks=False)
                if not exist_ok or not st.S_ISDIR(found.st_mode):
                    raise

    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        """Rename, replacing a file or link."""
        old, new = self._path(source), self._path(target)
        self._not_a_root(old, "renamed")
        self._not_a_root(new, "replaced")
        if self.roots.split(old)[0] is not self.roots.split(new)[0]:
            raise InvalidArgument(
                f"{str(old)!r} and {str(new)!r} lie in different roots",
                hint="copy it there, then remove it here",
            )
        if old in new.parents:
            raise Conflict(f"{str(old)!r} can't be moved into itself")
        await self._gate()
        with self.acting(old), self.roots.at(old) as at:
            os.stat(at.name, dir_fd=at.directory, follow_symlinks=False)  # absence is told first
            with self.acting(new), self.roots.at(new) as to:
                os.rename(at.name, to.name, src_dir_fd=at.directory, dst_dir_fd=to.directory)

    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        """Make a link."""
        place = self._path(path)
        self._not_a_root(place, "replaced")
        text = _link_text(target)
        await self._gate()
        with self.acting(place), self.roots.at(place) as at:
            os.symlink(text, at.name, dir_fd=at.directory)

    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        """Set permission bits."""
        place = self._path(path)
        check_mode(mode)
        await self._gate()
        with self.acting(place):
            fd = self.roots.open(place, O_PATH)
            try:
                _chmod(fd, mode)
            finally:
                os.close(fd)

    # --- small or large ---

    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        """Read a file, or a range of it."""
        for what, number in (("offset", offset), ("length", length)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgument(f"{what} is a number of bytes, 0 or more")
        place = self._path(path)
        await self._gate()
        fd, size = self._open_file(place)
        try:
            wanted = self._wanted(place, size, offset, length)
            if wanted <= _INLINE_BYTES:
                try:
                    return _pread(fd, offset, wanted)
                except OSError as error:
                    raise typed(error, place) from error
            return await self._in_thread(place, _pread, fd, offset, wanted)
        finally:
            os.close(fd)

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        """Replace or create a file."""
        await self._gate()
        if len(data) <= _INLINE_BYTES:
            self._write(path, data, mode)
        else:
            await anyio.to_thread.run_sync(self._write, path, data, mode)

    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        """Remove a name."""
        place = self._path(path)
        self._not_a_root(place, "removed")
        await self._gate()
        if recursive:
            await anyio.to_thread.run_sync(self._remove, place, remove_tree)
        else:
            self._remove(place, _rmdir)

    async def list(self, path: PurePosixPath | str) -> Sequence[FileStat]:
        """List a directory."""
        await self._gate()
        return await anyio.to_thread.run_sync(self._list, self._path(path))

    # --- streams ---

    async def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        """Yield a file in chunks."""
        place = self._path(path)
        await self._gate()
        fd, _ = self._open_file(place)
        try:
            while chunk := await self._in_thread(place, os.read, fd, _CHUNK_BYTES):
                yield chunk
        finally:
            os.close(fd)

    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        """Write a file from chunks."""
        place = self._path(path)
        await self._gate()
        total = 0
        with Replacement(self.roots, self.identity, place, _checked_mode(mode)) as new:
            async with iterating(chunks):
                async for chunk in chunks:
                    _check_bytes(chunk)
                    total += len(chunk)
                    self._check_size(total)
                    await self._in_thread(place, write_all, new.fd, chunk)
            new.commit()
        return total

    # --- many at once: one turn of a worker thread ---

    async def read_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[bytes | PinfoldError]:
        """Read many files."""
        await self._gate()
        return await anyio.to_thread.run_sync(_each, self._read_whole, paths)

    async def stat_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[FileStat | PinfoldError]:
        """Stat many names."""
        await self._gate()
        return await anyio.to_thread.run_sync(_each, self._stat, paths)

    async def write_many(self, files: Mapping[PurePosixPath | str, bytes]) -> None:
        """Write many files."""
        await self._gate()
        await anyio.to_thread.run_sync(self._write_many, files)

    # --- plain functions, for this thread or a worker ---

    def acting(self, place: PurePosixPath | str) -> Acting:
        """Act as the owner, with the contract's errors, in one thread; don't await inside."""
        return Acting(self.roots, self.identity, place)

    def find_directory(self, path: PurePosixPath) -> None:
        """Find a directory, links inside followed.

        Raises:
            NotFound, NotADirectory, OutsideWorkspace, PermissionDenied: FS-5.
        """
        with self.acting(path):
            os.close(self.roots.open(path, O_PATH | os.O_DIRECTORY))

    async def _in_thread(self, place: PurePosixPath, call: Callable[..., T], *args: object) -> T:
        def work() -> T:
            with self.acting(place):
                return call(*args)

        return await anyio.to_thread.run_sync(work)

    def _read_whole(self, path: PurePosixPath | str) -> bytes:
        place = self._path(path)
        fd, size = self._open_file(place)
        try:
            with self.acting(place):
                return _pread(fd, 0, self._wanted(place, size, 0, None))
        finally:
            os.close(fd)

    def _write(self, path: PurePosixPath | str, data: bytes, mode: int | None) -> None:
        place = self._path(path)
        _check_bytes(data)
        self._check_size(len(data))
        with Replacement(self.roots, self.identity, place, _checked_mode(mode)) as new:
            with self.acting(place):
                write_all(new.fd, data)
            new.commit()

    def _write_many(self, files: Mapping[PurePosixPath | str, bytes]) -> None:
        done = False
        for path, data in files.items():
            try:
                self._write(path, data, None)
            except PinfoldError as error:
                if done:
                    error.effect = Effect.DONE
                raise
            done = True

    def _stat(self, path: PurePosixPath | str) -> FileStat:
        place = self._path(path)
        with self.acting(place), self.roots.at(place) as at:
            found = os.stat(at.name, dir_fd=at.directory, follow_symlinks=False)
            return _file_stat(place, found, at)

    def _list(self, place: PurePosixPath) -> builtins.list[FileStat]:
        entries = []
        with self.acting(place):
            fd = self.roots.open(place, _READ_FLAGS | os.O_DIRECTORY)
            try:
                with os.scandir(fd) as scan:
                    for entry in scan:
                        if is_temporary(entry.name):
                            continue
                        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                            found = entry.stat(follow_symlinks=False)
                            at = Place(fd, os.fsencode(entry.name))
                            entries.append(_file_stat(place / entry.name, found, at))
            finally:
                os.close(fd)
        entries.sort(key=lambda entry: entry.path.name)
        return entries

    def _remove(self, place: PurePosixPath, directory: Callable[[int, bytes], None]) -> None:
        with self.acting(place), self.roots.at(place) as at:
            found = os.stat(at.name, dir_fd=at.directory, follow_symlinks=False)
            if not st.S_ISDIR(found.st_mode):
                os.unlink(at.name, dir_fd=at.directory)
            else:
                directory(at.directory, at.name)

    def _open_file(self, place: PurePosixPath) -> tuple[int, int]:
        with self.acting(place):
            fd = self.roots.open(place, _READ_FLAGS)
            found = os.fstat(fd)
            if st.S_ISREG(found.st_mode):
                return fd, found.st_size
            os.close(fd)
        if st.S_ISDIR(found.st_mode):
            raise IsADirectory(f"{str(place)!r} is a directory", details={"path": str(place)})
        raise not_regular(place)

    def _wanted(self, place: PurePosixPath, size: int, offset: int, length: int | None) -> int:
        rest = max(0, size - offset)
        wanted = rest if length is None else min(length, rest)
        if wanted > self._limits.read_bytes:
            raise TooLarge(
                f"{wanted} bytes of {str(place)!r} were asked for; one read returns at most "
                f"{self._limits.read_bytes}",
                hint="read a range of it, or download it as a stream",
                details={"size": wanted, "limit": self._limits.read_bytes},
            )
        return wanted

    def _path(self, path: PurePosixPath | str) -> PurePosixPath:
        return guest_path(path, self._writable)

    def _not_a_root(self, place: PurePosixPath, verb: str) -> None:
        if any(place == root.caller for root in self.roots.roots):
            raise InvalidArgument(f"{str(place)!r} itself can't be {verb}")

    def _check_size(self, size: int) -> None:
        limit = self._limits.file_bytes
        if limit is not None and size > limit:
            raise TooLarge(
                f"a file takes at most {limit} bytes here", details={"size": size, "limit": limit}
            )


def _rmdir(directory: int, name: bytes) -> None:
    os.rmdir(name, dir_fd=directory)


def _chmod(fd: int, mode: int) -> None:
    if O_PATH != os.O_RDONLY:
        os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod takes no O_PATH descriptor
    else:
        os.fchmod(fd, mode)


def _pread(fd: int, offset: int, wanted: int) -> bytes:
    data = os.pread(fd, wanted, offset)
    if len(data) == wanted or not data:
        return data
    parts = [data]  # the kernel gives at most 2 GiB at once, and a file may shrink
    while data:
        offset, wanted = offset + len(data), wanted - len(data)
        data = os.pread(fd, wanted, offset)
        parts.append(data)
    return b"".join(parts)


def _each(call: Callable[[P], T], items: Iterable[P]) -> builtins.list[T | PinfoldError]:
    results: builtins.list[T | PinfoldError] = []
    for item in items:
        try:
            results.append(call(item))
        except PinfoldError as error:
            results.append(error)
    return results


def _file_stat(place: PurePosixPath, found: os.stat_result, at: Place) -> FileStat:
    kind = file_type(found.st_mode)
    link = None
    if kind is FileType.SYMLINK:
        link = os.fsdecode(os.readlink(at.name, dir_fd=at.directory))
    return FileStat(
        path=place,
        type=kind,
        size=0 if kind is FileType.DIRECTORY else found.st_size,
        mode=st.S_IMODE(found.st_mode),
        mtime_ns=found.st_mtime_ns,
        link=link,
    )


def _link_text(target: str) -> bytes:
    if not isinstance(target, str) or not target or "\0" in target:
        raise InvalidArgument("a link's text is a string, not empty, without NUL")
    try:
        return os.fsencode(target)
    except UnicodeEncodeError:
        raise InvalidArgument("the link's text has a surrogate that stands for no byte") from None


def _check_bytes(data: object) -> None:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"the content is bytes, not {type(data).__name__}")


def _checked_mode(mode: int | None) -> int | None:
    if mode is not None:
        check_mode(mode)
    return mode
