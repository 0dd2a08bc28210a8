"""File operations on the objects of `pinfold.memory` (FS)."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from pathlib import PurePosixPath

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    PinfoldError,
    TooLarge,
)
from pinfold.memory._nodes import Directory, File, Link, Node, Store, file_at
from pinfold.provider import Files, FileStat, FileType, check_mode, guest_path
from pinfold.spec import Limits

__all__ = ["MemoryFiles"]

CHUNK = 1 << 20


class MemoryFiles(Files):
    """Files in memory. Each call runs in one piece: nothing comes between check and use."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument("offset and length are 0 or more")
        file = file_at(self._store, path)
        end = len(file.data) if length is None else min(len(file.data), offset + length)
        if end - offset > self._limits.read_bytes:
            raise TooLarge(
                f"{str(path)!r}: {end - offset} bytes in one read",
                hint="stream it with download()",
                details={"limit": self._limits.read_bytes},
            )
        return file.data[offset:end]

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgument("data is bytes")
        if mode is not None:
            check_mode(mode)
        self._check_size(path, len(data))
        self._put(path, bytes(data), mode)

    def _check_size(self, path: PurePosixPath | str, size: int) -> None:
        if self._limits.file_bytes is not None and size > self._limits.file_bytes:
            raise TooLarge(
                f"{str(path)!r}: a file of {size} bytes",
                hint=f"a file has at most {self._limits.file_bytes} bytes here",
                details={"limit": self._limits.file_bytes},
            )

    def _put(self, path: PurePosixPath | str, data: bytes, mode: int | None) -> None:
        # Looked at first, so that a refused write makes no parents.
        made: list[tuple[Directory, str, Directory]] = []

        def make(parent: Directory, name: str) -> Directory:
            directory = Directory()
            made.append((parent, name, directory))
            return directory

        parent, name = self._store.locate(path, follow=True, make=make)
        node = parent.children.get(name) if name else parent
        if isinstance(node, Directory):
            raise IsADirectory(f"{str(path)!r} is a directory", details={"path": str(path)})
        for above, child, directory in made:
            above.children[child] = directory
            self._store.changed(above)
        kept = node.mode if isinstance(node, File) else 0o644
        parent.children[name] = File(data, kept if mode is None else mode)
        self._store.changed(parent)

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        return _stat(guest_path(path), self._store.lookup(path, follow=False))

    async def list(self, path: PurePosixPath | str) -> Sequence[FileStat]:
        node = self._store.lookup(path, follow=True)
        if not isinstance(node, Directory):
            raise NotADirectory(f"{str(path)!r} is no directory", details={"path": str(path)})
        here = guest_path(path)
        return [_stat(here / name, node.children[name]) for name in sorted(node.children)]

    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        made: builtins.list[tuple[Directory, str]] = []

        def make(parent: Directory, name: str) -> Directory:
            directory = Directory()
            parent.children[name] = directory
            self._store.changed(parent)
            made.append((parent, name))
            return directory

        try:
            parent, name = self._store.locate(path, follow=True, make=make if parents else None)
        except PinfoldError:
            for above, below in reversed(made):  # what was refused leaves no trace
                del above.children[below]
            raise
        node: Node | None = parent.children.get(name) if name else parent
        if node is None:
            make(parent, name)
        elif not exist_ok or not isinstance(node, Directory):
            raise AlreadyExists(f"there is a {str(path)!r} already", details={"path": str(path)})

    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        parent, name = self._named(path, "removed")
        node = parent.children.get(name)
        if node is None:
            raise NotFound(f"there is no {str(path)!r}", details={"path": str(path)})
        if isinstance(node, Directory) and node.children and not recursive:
            raise Conflict(f"directory {str(path)!r} is not empty", hint="say recursive=True")
        del parent.children[name]
        self._store.changed(parent)

    def _named(self, path: PurePosixPath | str, what: str) -> tuple[Directory, str]:
        parent, name = self._store.locate(path, follow=False)
        if not name:
            raise InvalidArgument(f"the workspace itself can't be {what}")
        return parent, name

    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        old_parent, old = self._named(source, "renamed")
        node = old_parent.children.get(old)
        if node is None:
            raise NotFound(f"there is no {str(source)!r}", details={"path": str(source)})
        new_parent, new = self._named(target, "replaced")
        there = new_parent.children.get(new)
        if there is node:
            return
        if isinstance(node, Directory):
            if node is new_parent or _holds(node, new_parent):
                raise Conflict(f"{str(source)!r} can't be moved into itself")
            if there is not None and not isinstance(there, Directory):
                raise NotADirectory(f"{str(target)!r} is no directory")
            if isinstance(there, Directory) and there.children:
                raise Conflict(f"directory {str(target)!r} is not empty")
        elif isinstance(there, Directory):
            raise IsADirectory(f"{str(target)!r} is a directory")
        del old_parent.children[old]
        new_parent.children[new] = node
        self._store.changed(old_parent)
        self._store.changed(new_parent)

    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        if not isinstance(target, str) or not target or "\0" in target:
            raise InvalidArgument("a link's text is a non-empty string without NUL")
        parent, name = self._store.locate(path, follow=False)
        if not name or name in parent.children:
            raise AlreadyExists(f"there is a {str(path)!r} already", details={"path": str(path)})
        parent.children[name] = Link(target)
        self._store.changed(parent)

    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        check_mode(mode)
        node = self._store.lookup(path, follow=True)
        assert not isinstance(node, Link)  # noqa: S101 - followed
        if node.mode != mode:
            node.mode = mode
            self._store.version += 1

    async def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        data = file_at(self._store, path).data  # a later write replaces the object, not these bytes
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]

    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        if mode is not None:
            check_mode(mode)
        guest_path(path)
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            self._check_size(path, len(data))
        self._put(path, bytes(data), mode)
        return len(data)


def _holds(directory: Directory, other: Directory) -> bool:
    pending: list[Node] = list(directory.children.values())
    while pending:
        node = pending.pop()
        if node is other:
            return True
        if isinstance(node, Directory):
            pending += node.children.values()
    return False


def _stat(path: PurePosixPath, node: Node) -> FileStat:
    if isinstance(node, File):
        return FileStat(
            path=path,
            type=FileType.FILE,
            size=len(node.data),
            mode=node.mode,
            mtime_ns=node.mtime_ns,
        )
    if isinstance(node, Link):
        return FileStat(
            path=path,
            type=FileType.SYMLINK,
            size=len(node.text.encode("utf-8", "surrogateescape")),
            mode=0o777,
            mtime_ns=node.mtime_ns,
            link=node.text,
        )
    return FileStat(path=path, type=FileType.DIRECTORY, mode=node.mode, mtime_ns=node.mtime_ns)
