"""Files by shell programs in the target (contract section 5)."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from pathlib import PurePosixPath

from pinfold._tasks import iterating
from pinfold.errors import AlreadyExists, InvalidArgument, IsADirectory, NotRegular, PinfoldError
from pinfold.posix._call import Boundary
from pinfold.posix._layout import TEMPORARY, temporary
from pinfold.posix._many import ManyFiles, errors, file_stat, once, too_large
from pinfold.posix._records import from_find, from_stat, within
from pinfold.provider import FileStat, check_mode

__all__ = ["ShellFiles"]


class ShellFiles(ManyFiles):
    """Files on any target that has a shell.

    Args:
        shell: runs our programs.
        layout: where the workspace is.
        tools: what the target has.
        limits: its own.
    """

    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        for label, number in (("offset", offset), ("length", length)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgument(f"{label} is a number of bytes, 0 or more")
        limit = self._limits.read_bytes
        if length is not None and length > limit:
            raise too_large(path, limit)
        skipped = 0
        wanted = limit + 1 if length is None else length
        if (offset or length is not None) and self._tools.dd_bytes:
            part = (str(offset), str(wanted))
        else:
            part, skipped = ("", ""), offset
        data = bytearray()
        async with aclosing(self._chunks(path, part)) as chunks:
            async for chunk in chunks:
                data += chunk[skipped:]
                skipped = max(0, skipped - len(chunk))
                if len(data) > wanted:
                    break
        if len(data) > limit:
            raise too_large(path, limit)
        return bytes(data[:wanted])

    def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        return self._chunks(path, ("", ""))

    async def _chunks(
        self, path: PurePosixPath | str, part: tuple[str, str]
    ) -> AsyncGenerator[bytes]:
        place = self._layout.place(path)
        stream = self._shell.stream("paths", "read", args=(*place.args, *part))
        with errors(place.path, "read"):
            try:
                async with aclosing(stream):
                    async for chunk in stream:
                        yield chunk
            except TimeoutError:
                raise NotRegular(
                    f"can't read {str(path)!r}: it does not open",
                    hint="it was swapped for a pipe or a device while it was opened",
                    details={"path": str(path)},
                ) from None

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        self._fits(path, len(data))
        await self._write(path, once(data), mode, size=len(data))

    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        if not (self._tools.tail and self._tools.dd):
            async with iterating(chunks):
                data = b"".join([chunk async for chunk in chunks])
            await self.write(path, data, mode=mode)
            return len(data)
        return await self._write(path, chunks, mode, size=None)

    async def _write(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        mode: int | None,
        size: int | None,
    ) -> int:
        place = self._inner(path, "write", IsADirectory)
        boundary = Boundary()

        async def stream() -> AsyncIterator[bytes]:
            total = 0
            async with iterating(chunks):
                async for chunk in chunks:
                    total += len(chunk)
                    self._fits(path, total)
                    yield chunk
            if size is None:
                yield boundary.bytes

        args = (*place.args, _octal(mode), "" if size is None else str(size), temporary())
        with errors(place.path, "write"):
            answer = await self._shell.ask(
                "paths", "write", args=args, stdin=stream(), mutates=True, boundary=boundary
            )
        return int(answer.said)

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        (found,) = await self.stat_many([path])
        if isinstance(found, PinfoldError):
            raise found
        return found

    async def list(self, path: PurePosixPath | str) -> builtins.list[FileStat]:
        place = self._layout.place(path)
        how = "printf" if self._tools.find_printf else "find" if self._tools.find else "glob"
        with errors(place.path, "list"):
            said = await self._shell.call("paths", "list", args=(*place.args, how))
        text = said.decode("utf-8", "surrogateescape")
        records = from_find(text) if how == "printf" else from_stat(text)[0]
        entries = [
            file_stat(place.path / record.name, record)
            for record in within(records, deep=False)
            if not record.name.startswith(TEMPORARY)
        ]
        return sorted(entries, key=lambda entry: entry.path.name)

    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        place = self._layout.place(path)
        flags = ("1" if parents else "", "1" if exist_ok else "")
        with errors(place.path, "make the directory"):
            await self._shell.call("paths", "mkdir", args=(*place.args, *flags), mutates=True)

    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        place = self._inner(path, "remove", InvalidArgument)
        flags = ("1" if recursive else "", "1" if self._tools.rm_by_descriptor else "")
        with errors(place.path, "remove"):
            await self._shell.call("paths", "remove", args=(*place.args, *flags), mutates=True)

    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        old = self._inner(source, "rename", InvalidArgument)
        new = self._inner(target, "rename to", InvalidArgument)
        with errors(old.path, f"rename to {str(target)!r}"):
            await self._shell.call("paths", "rename", args=(*old.args, *new.args), mutates=True)

    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        if not target or "\0" in target:
            raise InvalidArgument("the text of a link is not empty and has no NUL byte")
        place = self._inner(path, "link", AlreadyExists)
        with errors(place.path, "link"):
            await self._shell.call("paths", "link", args=(*place.args, target), mutates=True)

    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        place = self._layout.place(path)
        spare = f"{self._tools.control}/{temporary()}"
        with errors(place.path, "change the mode of"):
            await self._shell.call(
                "paths", "chmod", args=(*place.args, _octal(mode), spare), mutates=True
            )


def _octal(mode: int | None) -> str:
    if mode is None:
        return ""
    check_mode(mode)
    return f"{mode:o}"
