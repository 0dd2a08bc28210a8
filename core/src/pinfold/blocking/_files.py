"""A sandbox's files, without async."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import PurePosixPath

import attrs

from pinfold.blocking._portal import Facade, call, chunks_of, iterate, no_running_loop, pull
from pinfold.provider import Files, TreeItem

__all__ = ["BlockingFiles"]


class BlockingFiles(Facade):
    """A sandbox's files; `pinfold.provider.Files` says what each call does and raises."""

    read = call(Files.read)
    write = call(Files.write)
    stat = call(Files.stat)
    list = call(Files.list)
    make_directory = call(Files.make_directory)
    remove = call(Files.remove)
    rename = call(Files.rename)
    symlink = call(Files.symlink)
    chmod = call(Files.chmod)
    download = iterate(Files.download)
    read_many = call(Files.read_many)
    write_many = call(Files.write_many)
    stat_many = call(Files.stat_many)
    upload_tree = call(Files.upload_tree)

    def upload(
        self, path: PurePosixPath | str, chunks: Iterable[bytes], *, mode: int | None = None
    ) -> int:
        """Write a file from chunks, in bounded memory; see `Files.upload`."""

        async def work() -> int:
            size: int = await self._target.upload(path, chunks_of(chunks), mode=mode)
            return size

        return self._run(work)

    def download_tree(self, path: PurePosixPath | str) -> Iterator[TreeItem]:
        """Yield a directory and all in it, each file's content read whole; see `Files`."""
        no_running_loop()

        async def with_content() -> AsyncIterator[TreeItem]:
            async for item in self._target.download_tree(path):
                if item.chunks is None:
                    yield item
                    continue
                data = b"".join([chunk async for chunk in item.chunks])
                yield attrs.evolve(item, chunks=_Whole(data))

        return pull(self._portal, with_content())


class _Whole(AsyncIterable[bytes]):
    """Content that is at hand; `bytes()` gives it, and it can be uploaded again."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bytes__(self) -> bytes:
        return self._data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
