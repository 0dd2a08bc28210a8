"""A sandbox's files: the instance's, guarded and audited (FS, EV-2)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import attrs

from pinfold._tasks import iterating
from pinfold.errors import PinfoldError
from pinfold.events import AuditAction
from pinfold.provider import Files, FileStat, TreeItem, check_mode
from pinfold.sandbox import _arguments as arguments
from pinfold.sandbox._callers import CallersError
from pinfold.sandbox._life import Life

__all__ = ["SandboxFiles"]


class SandboxFiles(Files):
    """The files of a sandbox; see `pinfold.provider.Files` for what each call does and raises."""

    def __init__(self, life: Life, audit: Callable[[AuditAction, Mapping[str, Any]], None]) -> None:
        self._call = life.call
        self._operation = life.operation
        self._reading = life.reading
        self._awake = life.awake
        self._record = audit

    def _audit(self, action: AuditAction, path: PurePosixPath | str, size: int) -> None:
        self._record(action, {"path": str(path), "size": size})

    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        arguments.count("offset", offset)
        if length is not None:
            arguments.count("length", length)
        data = await self._call(lambda it: it.files.read(path, offset=offset, length=length))
        self._audit(AuditAction.FILE_READ, path, len(data))
        return data

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        arguments.content(data)
        if mode is not None:
            check_mode(mode)
        await self._call(lambda it: it.files.write(path, data, mode=mode), mutates=True)
        self._audit(AuditAction.FILE_WRITE, path, len(data))

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        return await self._call(lambda it: it.files.stat(path))

    async def list(self, path: PurePosixPath | str) -> Sequence[FileStat]:
        return await self._call(lambda it: it.files.list(path))

    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await self._call(
            lambda it: it.files.make_directory(path, parents=parents, exist_ok=exist_ok),
            mutates=True,
        )

    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        await self._call(lambda it: it.files.remove(path, recursive=recursive), mutates=True)

    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        await self._call(lambda it: it.files.rename(source, target), mutates=True)

    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        arguments.a_text(target)
        await self._call(lambda it: it.files.symlink(path, target), mutates=True)

    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        check_mode(mode)
        await self._call(lambda it: it.files.chmod(path, mode), mutates=True)

    async def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        size, whole = 0, False
        try:
            async with (
                self._reading() as instance,
                iterating(instance.files.download(path)) as chunks,
            ):
                async for chunk in chunks:
                    await self._awake()
                    size += len(chunk)
                    yield chunk
            whole = True
        finally:
            if whole or size:  # what was read was read, also by who stops half way
                self._audit(AuditAction.FILE_READ, path, size)

    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        if mode is not None:
            check_mode(mode)
        own = CallersError()
        with own.raised():
            async with self._operation(mutates=True) as instance:
                size = await instance.files.upload(path, own.chunks(chunks), mode=mode)
        self._audit(AuditAction.FILE_WRITE, path, size)
        return size

    async def read_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[bytes | PinfoldError]:
        arguments.several(paths)
        results = await self._call(lambda it: it.files.read_many(paths))
        for path, result in zip(paths, results, strict=True):
            if isinstance(result, bytes):
                self._audit(AuditAction.FILE_READ, path, len(result))
        return results

    async def stat_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[FileStat | PinfoldError]:
        arguments.several(paths)
        return await self._call(lambda it: it.files.stat_many(paths))

    async def write_many(self, files: Mapping[PurePosixPath | str, bytes]) -> None:
        arguments.mapping(files)
        await self._call(lambda it: it.files.write_many(files), mutates=True)
        for path, data in files.items():
            self._audit(AuditAction.FILE_WRITE, path, len(data))

    async def download_tree(self, path: PurePosixPath | str) -> AsyncIterator[TreeItem]:
        size, whole = 0, False
        try:
            async with (
                self._reading() as instance,
                iterating(instance.files.download_tree(path)) as items,
            ):
                async for item in items:
                    await self._awake()
                    size += item.size
                    yield item
            whole = True
        finally:
            if whole or size:
                self._audit(AuditAction.FILE_READ, path, size)

    async def upload_tree(
        self,
        path: PurePosixPath | str,
        items: AsyncIterable[TreeItem] | Iterable[TreeItem],
    ) -> int:
        own, size = CallersError(), [0]
        with own.raised():
            async with self._operation(mutates=True) as instance:
                count = await instance.files.upload_tree(path, _sized(own.items(items), size))
        self._audit(AuditAction.FILE_WRITE, path, size[0])
        return count


async def _sized(items: AsyncIterable[TreeItem], size: list[int]) -> AsyncIterator[TreeItem]:
    """Pass a tree on, and add up the bytes of its files as they go by."""

    async def counted(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            size[0] += len(chunk)
            yield chunk

    async for item in items:
        if item.chunks is None:
            yield item
        else:
            yield attrs.evolve(item, chunks=counted(item.chunks))
