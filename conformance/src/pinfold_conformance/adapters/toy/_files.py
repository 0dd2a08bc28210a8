"""File operations of the reference adapter (FS)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from pathlib import PurePosixPath

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    NotRegular,
    PermissionDenied,
    TooLarge,
    Unimplemented,
)
from pinfold.provider import Features, Files, FileStat, FileType, guest_path
from pinfold.spec import Limits
from pinfold_conformance.adapters.toy._world import (
    Dir,
    Fifo,
    File,
    Link,
    Node,
    Place,
    World,
    check_length,
    drop,
    put,
    writable,
)

__all__ = ["ToyFiles"]

Path = PurePosixPath | str
_CHUNK = 65_536


class ToyFiles(Files):
    """Each call runs in one piece, so nothing comes between check and use."""

    def __init__(
        self, world: World, features: Features, limits: Limits, ready: Callable[[], None]
    ) -> None:
        self.world, self.features, self.limits = world, features, limits
        self.ready = ready

    def place(self, path: Path, *, follow: bool = True, make: bool = False) -> Place:
        """Resolve a path of the caller's; the world has caught up with the clock."""
        self.ready()
        pure = guest_path(path, self.world.roots[1:])
        self._check_name(pure)
        return self.world.find(pure, follow=follow, confined=True, make=make)

    def _check_name(self, path: PurePosixPath) -> None:
        self.check_length(path)
        if not self.features.non_utf8_names:
            text = str(path)
            if any("\udc80" <= char <= "\udcff" for char in text):
                raise InvalidArgument(
                    f"names are UTF-8 here: {text!r}", hint="the feature non_utf8_names is absent"
                )

    def check_length(self, path: PurePosixPath) -> None:
        """Refuse a name that is too long before anything is made on the way to it (FS-4)."""
        for name in path.parts:
            check_length(name)

    def there(self, path: Path, *, follow: bool = True) -> Node:
        """Return what a path leads to."""
        place = self.place(path, follow=follow)
        if place.node is None:
            raise NotFound(f"there is no {str(path)!r}", details={"path": str(path)})
        return place.node

    def file(self, path: Path) -> File:
        """Return a regular file that may be read."""
        node = self.there(path)
        if isinstance(node, Dir):
            raise IsADirectory(f"{str(path)!r} is a directory")
        if not isinstance(node, File):
            raise NotRegular(f"{str(path)!r} is no regular file")
        if not node.mode & 0o400:
            raise PermissionDenied(f"no permission to read {str(path)!r}")
        return node

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument("offset and length are 0 or more")
        data = self.file(path).data
        end = len(data) if length is None else min(len(data), offset + length)
        if end - offset > self.limits.read_bytes:
            raise TooLarge(
                f"{str(path)!r}: one read gives at most {self.limits.read_bytes} bytes",
                hint="stream it with download()",
            )
        return bytes(data[offset:end])

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgument("data is bytes")
        self.check_size(path, len(data))
        self.replace(path, bytes(data), mode)

    def check_size(self, path: Path, size: int) -> None:
        """Refuse a file that is beyond the limits."""
        if self.limits.file_bytes is not None and size > self.limits.file_bytes:
            raise TooLarge(f"{str(path)!r}: a file has at most {self.limits.file_bytes} bytes here")

    def replace(self, path: Path, data: bytes, mode: int | None) -> None:
        """Put a whole new file where a path leads."""
        _check_mode(mode)
        node = self.place_if_any(path)
        if isinstance(node, Dir):
            raise IsADirectory(f"{str(path)!r} is a directory")
        if node is not None and not isinstance(node, File):
            raise NotRegular(f"{str(path)!r} is no regular file")
        old = 0 if node is None else len(node.data)
        room = self.limits.workspace_bytes
        if room is not None and data and self.world.used_bytes() - old + len(data) > room:
            raise NoSpace(f"{str(path)!r}: no room for {len(data)} bytes")
        place = self.place(path, make=True)
        kept = 0o644 if node is None else node.mode
        put(
            place.parent,
            place.name,
            File(data=bytearray(data), mode=kept if mode is None else mode),
        )

    def place_if_any(self, path: Path) -> Node | None:
        """Return what a path leads to, or None, also where a parent is missing."""
        try:
            return self.place(path).node
        except NotFound:
            return None

    async def stat(self, path: Path) -> FileStat:
        return _stat(PurePosixPath(path), self.there(path, follow=False))

    async def list(self, path: Path) -> Sequence[FileStat]:
        node = self.there(path)
        if not isinstance(node, Dir):
            raise NotADirectory(f"{str(path)!r} is no directory")
        if not node.mode & 0o400:
            raise PermissionDenied(f"no permission to list {str(path)!r}")
        here = PurePosixPath(path)
        return [_stat(here / name, node.children[name]) for name in sorted(node.children)]

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        place = self.place(path, make=parents)
        if place.node is None:
            put(place.parent, place.name, Dir())
        elif not exist_ok or not isinstance(place.node, Dir):
            raise AlreadyExists(f"there is a {str(path)!r} already")

    def named(self, path: Path, what: str) -> Place:
        """Return where a name is that may be taken away."""
        place = self.place(path, follow=False)
        if place.path in self.world.roots:
            raise InvalidArgument(f"{str(place.path)!r} itself can't be {what}")
        return place

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        place = self.named(path, "removed")
        if place.node is None:
            raise NotFound(f"there is no {str(path)!r}", details={"path": str(path)})
        if isinstance(place.node, Dir) and place.node.children and not recursive:
            raise Conflict(f"directory {str(path)!r} is not empty", hint="say recursive=True")
        drop(place.parent, place.name)

    async def rename(self, source: Path, target: Path) -> None:
        old, new = self.named(source, "renamed"), self.named(target, "replaced")
        if old.node is None:
            raise NotFound(f"there is no {str(source)!r}", details={"path": str(source)})
        if old.node is new.node:
            return
        if isinstance(old.node, Dir):
            if old.path in new.path.parents:
                raise Conflict(f"{str(source)!r} can't be moved into itself")
            if new.node is not None and not isinstance(new.node, Dir):
                raise NotADirectory(f"{str(target)!r} is no directory")
            if isinstance(new.node, Dir) and new.node.children:
                raise Conflict(f"directory {str(target)!r} is not empty")
        elif isinstance(new.node, Dir):
            raise IsADirectory(f"{str(target)!r} is a directory")
        writable(new.parent, new.name)
        drop(old.parent, old.name)
        put(new.parent, new.name, old.node)

    async def symlink(self, path: Path, target: str) -> None:
        if not self.features.symlinks:
            raise Unimplemented("there are no symbolic links here")
        if not isinstance(target, str) or not target or "\0" in target:
            raise InvalidArgument("a link's text is a non-empty string without NUL")
        place = self.place(path, follow=False)
        if place.node is not None:
            raise AlreadyExists(f"there is a {str(path)!r} already")
        put(place.parent, place.name, Link(text=target))

    async def chmod(self, path: Path, mode: int) -> None:
        _check_mode(mode)
        if not self.features.modes:
            raise Unimplemented("there are no permission bits here")
        self.there(path).mode = mode

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        node = self.file(path)
        for start in range(0, len(node.data), _CHUNK):
            yield bytes(node.data[start : start + _CHUNK])

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        guest_path(path, self.world.roots[1:])
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            self.check_size(path, len(data))
        self.replace(path, bytes(data), mode)
        return len(data)


def _check_mode(mode: int | None) -> None:
    if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o7777):
        raise InvalidArgument("a mode is 0..0o7777")


def _stat(path: PurePosixPath, node: Node) -> FileStat:
    kind = {
        File: FileType.FILE,
        Dir: FileType.DIRECTORY,
        Link: FileType.SYMLINK,
        Fifo: FileType.OTHER,
    }[type(node)]
    size = len(node.data) if isinstance(node, File) else 0
    text = node.text if isinstance(node, Link) else None
    return FileStat(
        path=path,
        type=kind,
        size=size if text is None else len(os.fsencode(text)),
        mode=node.mode,
        mtime_ns=node.mtime_ns,
        link=text,
    )
