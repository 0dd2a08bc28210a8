"""Bugs in how paths and links are followed (FS-1, FS-2)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import anyio
import attrs

from pinfold.errors import (
    InvalidArgument,
    NotFound,
    OutsideWorkspace,
    PinfoldError,
)
from pinfold.provider import FileStat, FileType
from pinfold_conformance.adapters.toy._files import ToyFiles
from pinfold_conformance.adapters.toy._world import File, Link, Place, put
from pinfold_conformance.mutants._base import BugFiles, Path, bug, mutant


@bug("FS-1.paths")
class NormalisesPaths(BugFiles):
    """`..` is resolved by text before anybody looks."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        return await self.inner.read(posixpath.normpath(path), offset=offset, length=length)


@bug("FS-1.paths")
class PrefixOfWorkspace(BugFiles):
    """/workspacefoo is taken for something inside that is not there."""

    async def stat(self, path: Path) -> FileStat:
        if str(path).startswith("/workspace") and "/.." not in str(path):
            try:
                return await self.inner.stat(path)
            except OutsideWorkspace as exc:
                raise NotFound(exc.message) from exc
        return await self.inner.stat(path)


@bug("FS-1.paths")
class BatchesAskLater(BugFiles):
    """A batch takes whatever is wrong with a path for a file that is not there."""

    async def stat_many(self, paths: Sequence[Path]) -> Sequence[FileStat | PinfoldError]:
        found = await self.inner.stat_many(paths)
        wrong = (InvalidArgument, OutsideWorkspace)
        return [NotFound(one.message) if isinstance(one, wrong) else one for one in found]


@bug("FS-1.trees")
class TidiesTrees(BugFiles):
    """`..` in the names of a tree that goes up is resolved by text."""

    async def upload_tree(self, path: Path, items: Any) -> int:
        tidy = [
            attrs.evolve(item, path=PurePosixPath(posixpath.normpath(f"/{item.path}")[1:]))
            for item in items
        ]
        return await self.inner.upload_tree(path, tidy)


@mutant("FS-2.itself")
class StatFollows(ToyFiles):
    """stat tells of what a link leads to."""

    async def stat(self, path: Path) -> FileStat:
        try:
            node = self.there(path, follow=True)
        except PinfoldError:
            return await super().stat(path)
        if not isinstance(node, File):
            return await super().stat(path)
        return FileStat(
            path=PurePosixPath(path), type=FileType.FILE, size=len(node.data), mode=node.mode
        )


@mutant("FS-2.itself")
class RemoveFollows(ToyFiles):
    """remove takes what a link leads to."""

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        place = self.place(path, follow=False)
        if isinstance(place.node, Link) and place.node.text == "file":
            place = self.place(path)
        if place.node is None:
            raise NotFound("nothing there")
        await super().remove(place.path, recursive=recursive)


class _Unconfined(ToyFiles):
    def place(self, path: Path, *, follow: bool = True, make: bool = False) -> Place:
        super().place("/workspace")  # its own checks of text stay
        from pinfold.provider import guest_path

        return self.world.find(guest_path(path), follow=follow, confined=False, make=make)


@mutant("FS-2.outside")
class FollowsOut(_Unconfined):
    """Links that lead out are followed."""


@mutant("FS-2.planted")
class FollowsPlanted(_Unconfined):
    """Links that a command planted are followed out."""


@mutant("FS-2.matrix")
class FollowsBelow(ToyFiles):
    """The last part of a path is held; folders on its way are not."""

    def place(self, path: Path, *, follow: bool = True, make: bool = False) -> Place:
        try:
            return super().place(path, follow=follow, make=make)
        except OutsideWorkspace:
            found = self.world.find(PurePosixPath(path), follow=follow, make=make)
            if isinstance(found.node, File) and "/link/" not in str(path):
                raise
            return found


@mutant("FS-2.matrix")
class BatchesFollowOut(ToyFiles):
    """Single files are held inside; a batch of them is not."""

    async def write_many(self, files: Mapping[Path, bytes]) -> None:
        for path, data in files.items():
            try:
                await self.write(path, data)
            except OutsideWorkspace:
                found = self.world.find(PurePosixPath(path), make=True)
                put(found.parent, found.name, File(data=bytearray(data)))


@mutant("FS-2.race")
class ChecksThenUses(ToyFiles):
    """A path is judged, then, a moment later, used."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        self.place(path)
        before = self.world.find(PurePosixPath(path).parent, follow=False).node
        for _ in range(200):  # long enough for whoever waits for it
            await anyio.sleep(0.001)
            self.ready()
            if self.world.find(PurePosixPath(path).parent, follow=False).node is not before:
                break
        node = self.world.find(PurePosixPath(path)).node
        if not isinstance(node, File):
            raise NotFound("gone meanwhile")
        return bytes(node.data)


@mutant("script.attack")
class FollowsChains(_Unconfined):
    """Chains of links are followed wherever they lead."""


@bug("FS-2.inside")
class RefusesAllLinks(BugFiles):
    """No link is followed at all."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        if (await self.inner.stat(path)).type is FileType.SYMLINK:
            raise OutsideWorkspace("links are not followed")
        return await self.inner.read(path, offset=offset, length=length)


@bug("FS-2.loops")
class LoopsAreEmpty(BugFiles):
    """A loop of links reads as an empty file."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        try:
            return await self.inner.read(path, offset=offset, length=length)
        except InvalidArgument as exc:
            if type(exc) is InvalidArgument and "links" in exc.message:
                return b""
            raise


@mutant("FS-2.dangling")
class ReplacesDanglingLinks(ToyFiles):
    """A write through a dangling link replaces the link."""

    def replace(self, path: Path, data: bytes, mode: int | None) -> None:
        place = self.place_if_any(path)
        if place is None:
            try:
                here = self.place(path, follow=False)
            except NotFound:
                super().replace(path, data, mode)
                return
            if isinstance(here.node, Link):
                put(here.parent, here.name, File(data=bytearray(data)))
                return
        super().replace(path, data, mode)


@mutant("FS-2.exists-not")
class TellsWhatExists(_Unconfined):
    """A refusal tells whether the target outside is there."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        place = self.place(path)
        if place.node is None:
            raise NotFound("there is no such file")
        if not self.world.inside(place.path):
            raise OutsideWorkspace("it leads out")
        return await super().read(path, offset=offset, length=length)


@bug("FS-2.absent", strict=True)
class LinksThatAreCopies(BugFiles):
    """symlink makes an empty file where there are no links."""

    async def symlink(self, path: Path, target: str) -> None:
        await self.inner.write(path, b"")
