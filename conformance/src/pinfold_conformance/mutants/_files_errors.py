"""Bugs in errors, listings, batches and trees of files (FS-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import attrs

from pinfold.errors import (
    Lost,
    NoSpace,
    NotADirectory,
    NotFound,
    PinfoldError,
)
from pinfold.provider import FileStat, FileType, TreeItem
from pinfold_conformance.adapters.toy._files import ToyFiles
from pinfold_conformance.adapters.toy._world import File, Link, Place
from pinfold_conformance.mutants._base import BugFiles, Path, bug, mutant


@bug("FS-5.not-found")
class MissingIsEmpty(BugFiles):
    """A file that is not there reads as empty."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        try:
            return await self.inner.read(path, offset=offset, length=length)
        except NotFound:
            return b""


@bug("FS-5.directory")
class ListsFiles(BugFiles):
    """A file's listing is the file."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        try:
            return await self.inner.list(path)
        except NotADirectory:
            return ()


@bug("FS-5.exists")
class ForgivesExisting(BugFiles):
    """make_directory forgives whatever is there."""

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await self.inner.make_directory(path, parents=parents, exist_ok=True)


@mutant("FS-5.exists")
class DotsAreLinks(ToyFiles):
    """A link whose text has no part, as `.`, is not followed."""

    def place(self, path: Path, *, follow: bool = True, make: bool = False) -> Place:
        found = super().place(path, follow=follow, make=make)
        here = super().place(path, follow=False)
        if isinstance(here.node, Link) and not PurePosixPath(here.node.text).parts:
            return here
        return found


@bug("FS-5.remove")
class RemovesRecklessly(BugFiles):
    """Every removal is recursive."""

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        await self.inner.remove(path, recursive=True)


@mutant("FS-5.permission")
class IgnoresPermission(ToyFiles):
    """Permission bits of files bind commands alone."""

    def file(self, path: Path) -> File:
        node = self.there(path)
        if isinstance(node, File):
            return node
        return super().file(path)


@mutant("FS-5.too-large")
class NoFileLimit(ToyFiles):
    """A stated limit on files is not kept."""

    def check_size(self, path: Path, size: int) -> None:
        return


@bug("FS-5.read-limit")
class ReadsAnything(BugFiles):
    """A download stops at the limit of a read."""

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        total = 0
        async for piece in self.inner.download(path):
            total += len(piece)
            if total > 4_000_000:
                return
            yield piece


@bug("FS-5.no-space")
class FullIsLost(BugFiles):
    """A full workspace is taken for lost compute."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        try:
            await self.inner.write(path, data, mode=mode)
        except NoSpace as exc:
            raise Lost(exc.message) from exc


@mutant("FS-5.not-regular")
class FifosAreFiles(ToyFiles):
    """A FIFO is told as a file."""

    async def stat(self, path: Path) -> FileStat:
        stat = await super().stat(path)
        kind = FileType.FILE if stat.type is FileType.OTHER else stat.type
        return attrs.evolve(stat, type=kind)


@bug("FS-5.never-lost")
class ErrorsAreLoss(BugFiles):
    """What is not there is taken for lost compute."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        try:
            return await self.inner.list(path)
        except NotFound as exc:
            raise Lost(exc.message) from exc


@bug("FS-5.list")
class ListsUnsorted(BugFiles):
    """A listing comes as it comes."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        return list(reversed(await self.inner.list(path)))


@bug("FS-5.list")
class ListsAHundred(BugFiles):
    """A listing has a limit that nobody stated."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        return list(await self.inner.list(path))[:100]


@bug("FS-5.list")
class RoomForAHundred(BugFiles):
    """A hundred names are all that there is room for."""

    async def write_many(self, files: Mapping[Path, bytes]) -> None:
        await self.inner.write_many(dict(list(files.items())[:100]))
        if len(files) > 100:
            raise NoSpace("no room for more names")


@bug("FS-5.times")
class TimesInSeconds(BugFiles):
    """mtime is in seconds."""

    async def stat(self, path: Path) -> FileStat:
        stat = await self.inner.stat(path)
        return attrs.evolve(stat, mtime_ns=stat.mtime_ns // 10**9)


@bug("FS-5.batches")
class BatchesStop(BugFiles):
    """A batch ends with its first error."""

    async def read_many(self, paths: Sequence[Path]) -> Sequence[bytes | PinfoldError]:
        return [await self.inner.read(path) for path in paths]


@bug("FS-5.batches")
class BatchesSort(BugFiles):
    """A batch's results come in the order of the names."""

    async def stat_many(self, paths: Sequence[Path]) -> Sequence[FileStat | PinfoldError]:
        return await super().stat_many(sorted(paths, key=str))


@bug("FS-5.trees")
class TreesWithoutFolders(BugFiles):
    """Empty folders are no part of a tree that comes down."""

    async def download_tree(self, path: Path) -> AsyncIterator[TreeItem]:
        async for item in super().download_tree(path):
            if item.path.name != "empty":
                yield item


@bug("FS-5.trees")
class TreesWithoutRoots(BugFiles):
    """A tree that goes up is made of its entries: an empty one makes no directory."""

    async def upload_tree(self, path: Path, items: Any) -> int:
        return await self.inner.upload_tree(path, items) if items else 0


@bug("FS-5.trees")
class TreesFromAbove(BugFiles):
    """The names of a tree that comes down begin above it."""

    async def download_tree(self, path: Path) -> AsyncIterator[TreeItem]:
        above = PurePosixPath("..") / PurePosixPath(path).name
        async for item in super().download_tree(path):
            yield attrs.evolve(item, path=above / item.path)


@bug("FS-5.trees")
class TreesWithoutLinks(BugFiles):
    """A tree that goes up loses its links."""

    async def upload_tree(self, path: Path, items: Any) -> int:
        kept = [item for item in items if item.type is not FileType.SYMLINK]
        return await super().upload_tree(path, kept) + len(items) - len(kept)
