"""Files of a bashkit sandbox (FS): every operation takes microseconds, in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import PurePosixPath

import anyio.lowlevel

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    NotRegular,
    TooLarge,
)
from pinfold.provider import Files, FileStat, FileType, check_mode, guest_path
from pinfold.spec import WORKSPACE, Limits
from pinfold_bashkit._errors import translated
from pinfold_bashkit._vfs import Place, Vfs

__all__ = ["BashkitFiles", "closing"]

_CHUNK = 256 * 1024


class BashkitFiles(Files):
    """Files, as the interpreter sees them; they can be used while a command runs."""

    def __init__(self, vfs: Vfs, limits: Limits) -> None:
        self._vfs = vfs
        self._limits = limits

    def _place(self, path: PurePosixPath | str, *, follow: bool) -> tuple[PurePosixPath, Place]:
        asked = guest_path(path)
        return asked, self._vfs.locate(asked, follow=follow)

    def _content(self, path: PurePosixPath | str) -> bytes:
        asked, place = self._place(path, follow=True)
        _regular(asked, place)
        with translated(str(asked)):
            return self._vfs.root.read_file(place.path)

    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        await self._vfs.ready()
        for name, value in (("offset", offset), ("length", length)):
            if value is not None and (type(value) is not int or value < 0):
                raise InvalidArgument(f"{name} is a number of bytes, 0 or more")
        content = self._content(path)
        part = content[offset:] if length is None else content[offset : offset + length]
        if len(part) > self._limits.read_bytes:
            raise TooLarge(
                f"{len(part)} bytes are more than one read returns",
                hint="read ranges, or use download()",
                details={"size": len(part), "limit": self._limits.read_bytes},
            )
        return part

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        await self._vfs.ready()
        if not isinstance(data, bytes):
            raise InvalidArgument("a file's content is bytes")
        self._check_size(guest_path(path), len(data))  # before any parent is made (FS-4)
        self._write(path, data, mode)

    def _check_size(self, path: PurePosixPath, size: int) -> None:
        limit = self._limits.file_bytes
        if limit is not None and size > limit:
            raise TooLarge(
                f"{str(path)!r} would be larger than {limit} bytes",
                details={"limit": limit, **_at(path)},
            )

    def _write(self, path: PurePosixPath | str, data: bytes, mode: int | None) -> None:
        if mode is not None:
            check_mode(mode)
        asked, place = self._place(path, follow=True)
        if place.meta is not None:
            _regular(asked, place)
            mode = place.meta["mode"] & 0o7777 if mode is None else mode
        with translated(str(asked)), self._vfs.parents(place.path):
            self._vfs.put(place.path, data, 0o644 if mode is None else mode)

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        await self._vfs.ready()
        asked, place = self._place(path, follow=False)
        meta = _there(asked, place)
        with translated(str(asked)):
            return self._vfs.facts(asked, place.path, meta)

    async def list(self, path: PurePosixPath | str) -> Sequence[FileStat]:
        await self._vfs.ready()
        asked, place = self._place(path, follow=True)
        if _there(asked, place)["file_type"] != "directory":
            raise NotADirectory(f"{str(asked)!r} is not a directory", details=_at(asked))
        with translated(str(asked)):
            entries = self._vfs.root.read_dir(place.path)
        facts = []
        for name, meta in sorted((entry["name"], entry["metadata"]) for entry in entries):
            try:
                facts.append(self._vfs.facts(asked / name, f"{place.path}/{name}", meta))
            except RuntimeError:  # a link that is gone meanwhile
                continue
        return facts

    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await self._vfs.ready()
        asked, place = self._place(path, follow=exist_ok)
        if place.meta is not None:
            if exist_ok and place.type is FileType.DIRECTORY:
                return
            raise AlreadyExists(f"{str(asked)!r} is there already", details=_at(asked))
        above = self._vfs.parents(place.path) if parents else nullcontext()
        with translated(str(asked)), above:
            self._vfs.changes += 1
            self._vfs.root.mkdir(place.path)

    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        await self._vfs.ready()
        asked, place = self._place(path, follow=False)
        _there(asked, place)
        _not_the_workspace(asked, place)
        with translated(str(asked)):
            self._vfs.changes += 1
            self._vfs.root.remove(place.path, recursive=recursive)

    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        await self._vfs.ready()
        asked, place = self._place(source, follow=False)
        wanted, goal = self._place(target, follow=False)
        _there(asked, place)
        _not_the_workspace(asked, place)
        _not_the_workspace(wanted, goal)
        if place.path == goal.path:
            return
        if place.type is FileType.DIRECTORY:
            if goal.type not in (None, FileType.DIRECTORY):
                raise NotADirectory(f"{str(wanted)!r} is no directory", details=_at(wanted))
            if goal.path.startswith(place.path + "/"):
                raise Conflict(f"{str(asked)!r} can't be moved into itself", details=_at(asked))
        with translated(str(wanted)):
            self._vfs.changes += 1
            self._vfs.root.rename(place.path, goal.path)

    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        await self._vfs.ready()
        if not isinstance(target, str) or not target or "\0" in target:
            raise InvalidArgument("a link's text is a string of at least one character, no NUL")
        asked, place = self._place(path, follow=False)
        if place.meta is not None:
            raise AlreadyExists(f"{str(asked)!r} is there already", details=_at(asked))
        with translated(str(asked)):
            self._vfs.changes += 1
            self._vfs.root.symlink(target, place.path)

    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        await self._vfs.ready()
        check_mode(mode)
        asked, place = self._place(path, follow=True)
        _there(asked, place)
        with translated(str(asked)):
            self._vfs.changes += 1
            self._vfs.root.chmod(place.path, mode)

    async def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        await self._vfs.ready()
        content = memoryview(self._content(path))  # of one moment; at most limits.file_bytes
        for start in range(0, len(content), _CHUNK):
            await anyio.lowlevel.checkpoint()
            yield bytes(content[start : start + _CHUNK])

    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        asked = guest_path(path)
        content = bytearray()
        async with closing(chunks):
            async for chunk in chunks:
                content += chunk
                self._check_size(asked, len(content))
        await self._vfs.ready()
        self._write(path, bytes(content), mode)
        return len(content)


@asynccontextmanager
async def closing(chunks: AsyncIterable[bytes]) -> AsyncIterator[AsyncIterable[bytes]]:
    """End a generator that may not be read to its end."""
    try:
        yield chunks
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def _at(path: PurePosixPath) -> dict[str, str]:
    return {"path": str(path)}


def _there(path: PurePosixPath, place: Place) -> dict[str, object]:
    if place.meta is None:
        raise NotFound(f"there is no {str(path)!r}", details=_at(path))
    return place.meta


def _regular(path: PurePosixPath, place: Place) -> None:
    _there(path, place)
    if place.type is FileType.DIRECTORY:
        raise IsADirectory(f"{str(path)!r} is a directory", details=_at(path))
    if place.type is not FileType.FILE:
        raise NotRegular(f"{str(path)!r} is no regular file", details=_at(path))


def _not_the_workspace(path: PurePosixPath, place: Place) -> None:
    if place.path == str(WORKSPACE):
        raise InvalidArgument(f"{str(path)!r} is the workspace itself", details=_at(path))
