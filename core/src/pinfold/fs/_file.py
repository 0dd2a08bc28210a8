"""Open files of a sandbox. What is written replaces the file in one step, when it is closed."""

from __future__ import annotations

import os
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from fsspec.asyn import AbstractAsyncStreamedFile, sync
from fsspec.spec import AbstractBufferedFile

if TYPE_CHECKING:
    from pinfold.fs._system import SandboxFileSystem

__all__ = ["SandboxFile", "SandboxStream", "spool"]

#: What of a file is kept in memory; more goes to this machine's disk.
_SPOOLED_BYTES: Final = 32 << 20


def spool() -> BinaryIO:
    """Return a place for a file on its way."""
    return cast("BinaryIO", SpooledTemporaryFile(max_size=_SPOOLED_BYTES))


class SandboxFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is not typed
    """A file that is read by pieces, or written as a whole when it is closed (FS-4)."""

    fs: SandboxFileSystem
    _spool: BinaryIO | None = None

    def __init__(self, fs: SandboxFileSystem, path: str, mode: str = "rb", **more: Any) -> None:
        super().__init__(fs, path, mode, **more)
        if mode == "ab":
            self._spool = spool()
            if fs.exists(path):
                sync(fs.loop, fs._fill, path, self._spool)  # noqa: SLF001 - one thing in two parts
            self.loc = self._spool.seek(0, os.SEEK_END)

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data

    def _initiate_upload(self) -> None:
        self._spool = self._spool or spool()

    def _upload_chunk(self, final: bool = False) -> bool:  # noqa: FBT001, FBT002 - fsspec's
        assert self._spool is not None  # noqa: S101 - it was initiated
        self._spool.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Put what was written in its place."""
        if self._spool is not None:
            with self._spool as data:
                data.seek(0)
                sync(self.fs.loop, self.fs._upload, self.path, data, create=self.mode == "xb")  # noqa: SLF001
            self._spool = None

    def discard(self) -> None:
        """Forget what was written."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None


class SandboxStream(AbstractAsyncStreamedFile):  # type: ignore[misc]  # fsspec is not typed
    """The same on the caller's loop; see `SandboxFileSystem.open_async`."""

    fs: SandboxFileSystem
    _spool: BinaryIO

    async def _fetch_range(self, start: int, end: int) -> bytes:
        return await self.fs._cat_file(self.path, start, end)  # noqa: SLF001

    async def _initiate_upload(self) -> None:
        self._spool = spool()

    async def _upload_chunk(self, final: bool = False) -> bool:  # noqa: FBT001, FBT002 - fsspec's
        self._spool.write(self.buffer.getvalue())
        if final:
            with self._spool as data:
                data.seek(0)
                await self.fs._upload(self.path, data)  # noqa: SLF001
        return True
