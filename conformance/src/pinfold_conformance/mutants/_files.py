"""Bugs in contents, changes and streams of files (FS-3, FS-4, FS-6, FS-7)."""

from __future__ import annotations

import base64
import os
import unicodedata
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import anyio
import attrs

from pinfold.errors import (
    InvalidArgument,
    TooLarge,
    Unimplemented,
)
from pinfold.provider import ExecRequest, ExecResult, FileStat, Instance, Sink
from pinfold_conformance.adapters.toy._files import ToyFiles
from pinfold_conformance.adapters.toy._world import Dir, Fifo, File, Link, Node, drop, put
from pinfold_conformance.mutants._base import BugFiles, BugInstance, Path, bug, mutant


@bug("FS-3.contents")
class TextMode(BugFiles):
    """CR LF becomes LF."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(path, data.replace(b"\r\n", b"\n"), mode=mode)


@bug("FS-3.contents")
class StripsNuls(BugFiles):
    """NULs at the end are lost."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        return (await self.inner.read(path, offset=offset, length=length)).rstrip(b"\0")


@bug("FS-3.witness")
class WrongBothWays(BugFiles):
    """Files are stored in a form of the adapter's own: a wrong write and a wrong read cancel."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(path, base64.b64encode(data), mode=mode)

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        data = base64.b64decode(await self.inner.read(path), validate=False)
        return data[offset:] if length is None else data[offset : offset + length]


@bug("FS-3.ranges")
class RangesAreLines(BugFiles):
    """A range has one byte too many."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        more = None if length is None or length < 0 else length + 1
        return await self.inner.read(path, offset=offset, length=more if length else length)


@bug("FS-3.names")
class NormalisesNames(BugFiles):
    """Names are brought into one Unicode form."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(unicodedata.normalize("NFC", str(path)), data, mode=mode)


@bug("FS-3.names")
class RefusesSpaces(BugFiles):
    """Everyday names are refused."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        if " " in str(path):
            raise InvalidArgument("no spaces, please")
        await self.inner.write(path, data, mode=mode)


@bug("FS-3.names-in-commands")
class QuotesNames(BugFiles):
    """Names with quotes get more of them on their way."""

    def _other(self, path: Path) -> str:
        return str(path).replace('"', '\\"')

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(self._other(path), data, mode=mode)

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        return await self.inner.read(self._other(path), offset=offset, length=length)

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        await self.inner.remove(self._other(path), recursive=recursive)


@bug("FS-3.non-utf8")
class ReplacesNames(BugFiles):
    """Bytes of names that are not UTF-8 are replaced."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        found = []
        for entry in await self.inner.list(path):
            name = os.fsencode(entry.path.name).decode("utf-8", "replace")
            found.append(attrs.evolve(entry, path=entry.path.parent / name))
        return found


@bug("FS-3.non-utf8-absent", strict=True)
class ManglesNames(BugFiles):
    """A name that is not UTF-8 is taken, and changed."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(os.fsencode(path).decode("utf-8", "replace"), data, mode=mode)


@mutant("FS-4.parents")
class WantsParents(ToyFiles):
    """A write makes no parents."""

    def replace(self, path: Path, data: bytes, mode: int | None) -> None:
        self.place(path, make=False)
        super().replace(path, data, mode)


@mutant("FS-4.parents")
class ParentsFirst(ToyFiles):
    """Parents are made before the write is judged."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        self.place(path, make=True)
        await super().write(path, data, mode=mode)


@mutant("FS-4.parents")
class NamesLater(ToyFiles):
    """A name that is too long is found so when its parents are made."""

    def check_length(self, path: PurePosixPath) -> None:
        return


@bug("FS-4.modes")
class ResetsModes(BugFiles):
    """A write resets the mode."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(path, data, mode=0o644 if mode is None else mode)


@bug("FS-4.modes-absent", strict=True)
class ChmodInVain(BugFiles):
    """chmod does nothing, without a word, where there are no modes."""

    async def chmod(self, path: Path, mode: int) -> None:
        try:
            await self.inner.chmod(path, mode)
        except Unimplemented:
            return


@mutant("FS-4.through-link")
class ReplacesLinks(ToyFiles):
    """A write through a link replaces the link."""

    def replace(self, path: Path, data: bytes, mode: int | None) -> None:
        super().replace(path, data, mode)
        here = self.place(path, follow=False)
        if isinstance(here.node, Link):
            put(here.parent, here.name, File(data=bytearray(data)))


@mutant("FS-4.remove-link")
class RemovesThroughLinks(ToyFiles):
    """Removing a tree empties the folders that its links lead to."""

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        place = self.place(path, follow=False)
        if recursive and place.node is not None:
            self._empty(place.path, place.node)
        await super().remove(path, recursive=recursive)

    def _empty(self, path: PurePosixPath, node: Node) -> None:
        if isinstance(node, Dir):
            for name, child in list(node.children.items()):
                self._empty(path / name, child)
        elif isinstance(node, Link):
            target = self.world.find(path).node
            if isinstance(target, Dir) and not str(path).endswith("up"):
                target.children.clear()


@mutant("FS-4.hardlink")
class WritesInPlace(ToyFiles):
    """A file is written into, not replaced."""

    def replace(self, path: Path, data: bytes, mode: int | None) -> None:
        node = self.place_if_any(path)
        if isinstance(node, File):
            node.data[:] = data
            node.touched()
            return
        super().replace(path, data, mode)


@mutant("FS-4.atomic")
class WritesInHalves(ToyFiles):
    """A file is written in two halves."""

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await super().write(path, data[: len(data) // 2], mode=mode)
        await anyio.sleep(0.002)
        await super().write(path, data, mode=mode)


@mutant("FS-4.broken-upload")
class KeepsHalfUploads(ToyFiles):
    """An upload that breaks leaves what came."""

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        data = bytearray()
        try:
            async for chunk in chunks:
                data += chunk
                self.check_size(path, len(data))
        finally:
            self.replace(path, bytes(data), mode)
        return len(data)


@mutant("FS-4.rename")
class RenamesInto(ToyFiles):
    """A rename onto a directory moves into it, as `mv` does."""

    async def rename(self, source: Path, target: Path) -> None:
        place = self.place(target, follow=False)
        if isinstance(place.node, Dir) and str(source) != str(target):
            target = PurePosixPath(target) / PurePosixPath(source).name
        await super().rename(source, target)


@mutant("FS-7.fifo")
class FifosHang(ToyFiles):
    """Reading a FIFO waits for a writer."""

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        if isinstance(self.place_if_any(path), Fifo):
            await anyio.sleep_forever()
        return await super().read(path, offset=offset, length=length)


@bug("FS-6.both-ways")
class CachesReads(BugFiles):
    """What was read once is read from memory."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.cache: dict[str, bytes] = {}

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        if str(path) not in self.cache:
            self.cache[str(path)] = await self.inner.read(path)
        data = self.cache[str(path)]
        return data[offset:] if length is None else data[offset : offset + length]


@mutant("FS-6.same-user")
class AnotherUser(ToyFiles):
    """What file operations make, commands may not change."""

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await super().make_directory(path, parents=parents, exist_ok=exist_ok)

    def replace(self, path: Path, data: bytes, mode: int | None) -> None:
        place = self.place_if_any(path)
        super().replace(path, data, mode)
        folder = self.there(PurePosixPath(path).parent)
        if place is None and PurePosixPath(path).parent.name == "api":
            folder.mode = 0o500


@mutant("FS-6.while-running")
class FilesWait(BugInstance):
    """File operations wait until no command runs."""

    def __init__(self, inner: Instance) -> None:
        self.lock = anyio.Lock()
        super().__init__(inner)
        files = _WaitingFiles(inner.files)
        files.lock = self.lock
        self.files = files

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        async with self.lock:
            return await self.inner.exec(request, sink)


class _WaitingFiles(BugFiles):
    lock: anyio.Lock

    async def stat(self, path: Path) -> FileStat:
        async with self.lock:
            return await self.inner.stat(path)


@bug("FS-7.large")
class DownloadsAtOnce(BugFiles):
    """A download is one piece, whatever its size."""

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        pieces = [piece async for piece in self.inner.download(path)]
        yield b"".join(pieces)


@bug("FS-7.small-pieces")
class StopsAtEmptyPieces(BugFiles):
    """An upload ends with the first empty piece."""

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        async def until_empty() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                if not chunk:
                    return
                yield chunk

        return await self.inner.upload(path, until_empty(), mode=mode)


@bug("FS-7.abandoned")
class OneDownloadAtATime(BugFiles):
    """A download that is given up blocks every later operation."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.busy = False

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        if self.busy:
            raise TooLarge("another download is under way")
        self.busy = True
        async for piece in self.inner.download(path):
            yield piece
        self.busy = False


@bug("script.files")
class WriteManyForgets(BugFiles):
    """The second write to a file of the same length is taken for no change."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sizes: dict[str, int] = {}

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        if self.sizes.get(str(path)) == len(data) or (data == b"by link"):
            return
        self.sizes[str(path)] = len(data)
        await self.inner.write(path, data, mode=mode)

    async def write_many(self, files: Mapping[Path, bytes]) -> None:
        await self.inner.write_many(files)


@mutant("machine.files")
class RenameLosesSiblings(ToyFiles):
    """Renaming a directory takes siblings with the same beginning along."""

    async def rename(self, source: Path, target: Path) -> None:
        old = self.place(source, follow=False)
        await super().rename(source, target)
        for name in list(old.parent.children):
            if old.name and name != old.name and name.startswith(old.name):
                drop(old.parent, name)
                break
