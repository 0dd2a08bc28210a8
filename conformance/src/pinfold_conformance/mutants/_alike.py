"""Bugs of other ways to the same: streams of exec, batches, uploads, trees, listings."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence

import anyio.lowlevel
import attrs

from pinfold._tasks import each_of
from pinfold.errors import PinfoldError
from pinfold.provider import (
    ExecRequest,
    ExecResult,
    FileStat,
    FileType,
    OutputStream,
    Sink,
    TreeItem,
)
from pinfold_conformance.mutants._base import BugFiles, BugInstance, Path, bug, mutant

Items = AsyncIterable[TreeItem] | Iterable[TreeItem]


class _Streamed(BugInstance):
    """A bug of streamed calls alone."""

    def streamed(self, request: ExecRequest) -> ExecRequest:
        """What is passed on instead of the request of a streamed call."""
        return request

    def sunk(self, sink: Sink) -> Sink:
        """What output is given to instead."""
        return sink

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if sink is None:
            return await self.inner.exec(request)
        return await self.inner.exec(self.streamed(request), self.sunk(sink))


@mutant("EX-15.as-any")
class StreamsWithoutStdin(_Streamed):
    """A streamed command gets no stdin."""

    def streamed(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, stdin=b"")


@mutant("EX-15.as-any")
class StreamsWithoutVariables(_Streamed):
    """A streamed command gets none of the request's variables."""

    def streamed(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, env={})


@mutant("EX-15.as-any")
class StreamsWithoutDeadline(_Streamed):
    """A streamed command has ten times the time."""

    def streamed(self, request: ExecRequest) -> ExecRequest:
        timeout = request.timeout_seconds
        return attrs.evolve(request, timeout_seconds=timeout and 10 * timeout)


@mutant("EX-15.as-any")
class StreamsLittleStderr(_Streamed):
    """Of a streamed command's stderr the pieces are cut."""

    def sunk(self, sink: Sink) -> Sink:
        async def cut(stream: OutputStream, data: bytes) -> None:
            await sink(stream, data[:1000] if stream == "stderr" else data)

        return cut


@bug("FS-4.upload")
class UploadsWithoutMode(BugFiles):
    """An upload forgets the mode that it is given."""

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        return await self.inner.upload(path, chunks)


@bug("FS-4.upload")
class UploadReplacesLinks(BugFiles):
    """An upload through a link that stays inside replaces the link."""

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        try:
            await self.inner.read(path)
            if (await self.inner.stat(path)).type is FileType.SYMLINK:
                await self.inner.remove(path)
        except PinfoldError:
            pass
        return await self.inner.upload(path, chunks, mode=mode)


@bug("FS-4.concurrent")
class OneTemporaryName(BugFiles):
    """All uploads share one temporary file."""

    def __init__(self, inner: BugFiles) -> None:
        super().__init__(inner)
        self._temporary = b""

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        self._temporary = b""
        async for piece in chunks:
            self._temporary += piece
        await anyio.lowlevel.checkpoint()
        await self.inner.write(path, self._temporary, mode=mode)
        return len(self._temporary)


@bug("FS-5.batches-alike")
class BatchesResetModes(BugFiles):
    """A batch of writes resets modes."""

    async def write_many(self, files: Mapping[Path, bytes]) -> None:
        for path, data in files.items():
            await self.inner.write(path, data, mode=0o644)


@bug("FS-5.batches-alike")
class BatchesReplaceLinks(BugFiles):
    """A batch of writes replaces links."""

    async def write_many(self, files: Mapping[Path, bytes]) -> None:
        for path, data in files.items():
            found = await self.stat_many([path])
            if isinstance(found[0], FileStat) and found[0].type is FileType.SYMLINK:
                await self.inner.remove(path)
            await self.inner.write(path, data)


@bug("FS-5.batches-alike")
class BatchesTellNoEffect(BugFiles):
    """A batch that ends midway tells that nothing was done."""

    async def write_many(self, files: Mapping[Path, bytes]) -> None:
        for path, data in files.items():
            await self.inner.write(path, data)


@bug("FS-5.batches-alike")
class BatchesFollowLinks(BugFiles):
    """stat_many tells of what links lead to."""

    async def stat_many(self, paths: Sequence[Path]) -> Sequence[FileStat | PinfoldError]:
        found = await self.inner.stat_many(paths)
        return [
            attrs.evolve(one, type=FileType.FILE, link=None)
            if isinstance(one, FileStat) and one.type is FileType.SYMLINK
            else one
            for one in found
        ]


@bug("FS-5.listed")
class ListsWithoutModes(BugFiles):
    """A listing tells the default mode of whatever is there."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        return [attrs.evolve(one, mode=0o644) for one in await self.inner.list(path)]


@bug("FS-5.listed")
class ListsWithoutTimes(BugFiles):
    """A listing tells no times."""

    async def list(self, path: Path) -> Sequence[FileStat]:
        return [attrs.evolve(one, mtime_ns=0) for one in await self.inner.list(path)]


@bug("FS-5.listed")
class NineBits(BugFiles):
    """Of a mode the nine lowest bits alone are kept."""

    async def chmod(self, path: Path, mode: int) -> None:
        await self.inner.chmod(path, mode if mode > 0o7777 else mode & 0o777)


@bug("FS-5.listed")
class DirectoriesHaveSizes(BugFiles):
    """A directory has the size of its blocks."""

    async def stat(self, path: Path) -> FileStat:
        found = await self.inner.stat(path)
        return attrs.evolve(found, size=4096) if found.type is FileType.DIRECTORY else found

    async def list(self, path: Path) -> Sequence[FileStat]:
        found = await self.inner.list(path)
        sized = FileType.DIRECTORY
        return [attrs.evolve(one, size=4096) if one.type is sized else one for one in found]


class _Trees(BugFiles):
    """A bug of trees that go up."""

    def item(self, item: TreeItem) -> TreeItem:
        return item

    async def _items(self, items: Items) -> AsyncIterator[TreeItem]:
        async for item in each_of(items):
            yield self.item(item)

    async def upload_tree(self, path: Path, items: Items) -> int:
        return await self.inner.upload_tree(path, self._items(items))


@bug("FS-5.trees-modes")
class TreesWithoutModes(_Trees):
    """A tree that goes up loses its modes."""

    def item(self, item: TreeItem) -> TreeItem:
        return attrs.evolve(item, mode=None)


@bug("FS-5.trees-modes")
class TreesWithoutSizes(BugFiles):
    """A tree that comes down tells no sizes."""

    async def download_tree(self, path: Path) -> AsyncIterator[TreeItem]:
        async for item in self.inner.download_tree(path):
            yield attrs.evolve(item, size=0)
