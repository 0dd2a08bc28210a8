"""Files by the helper (contract section 5)."""

from __future__ import annotations

import builtins
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import PurePosixPath
from typing import Final

from pinfold._tasks import iterating
from pinfold.errors import (
    Conflict,
    Effect,
    InvalidArgument,
    IsADirectory,
    PinfoldError,
    TooLarge,
    Unavailable,
)
from pinfold.posix._resident._places import Places
from pinfold.posix._resident._session import Session
from pinfold.posix._resident._stream import Refused, Stream
from pinfold.posix._resident._trouble import error_of
from pinfold.posix._resident._wire import (
    IN_CREDIT,
    MAX_CALL,
    Call,
    Cursor,
    Facts,
    Malformed,
    Open,
    text,
)
from pinfold.provider import Files, FileStat, FileType, check_mode
from pinfold.spec import Limits

__all__ = [
    "TEMPORARY",
    "TYPES",
    "Current",
    "SingleFiles",
    "encoded_mode",
    "ending",
    "errors",
    "pieces",
    "records",
    "stat_of",
    "unless_full",
]

#: How names of ours in the workspace begin, while something is written; hidden from listings.
TEMPORARY: Final = ".pinfold-tmp-"

TYPES: Final = (FileType.FILE, FileType.DIRECTORY, FileType.SYMLINK, FileType.OTHER)
_KEEP: Final = 0xFFFFFFFF
_EXDEV_AS: Final = 95  # EOPNOTSUPP: what the helper makes of a rename between file systems
_EINVAL: Final = 22
_EAGAIN: Final = 11
_ABANDON_SECONDS: Final = 4.5

Current = Callable[[], Awaitable[tuple[Session, Places]]]


@contextmanager
def errors(path: PurePosixPath | str, doing: str) -> Iterator[None]:
    """Turn the helper's refusals into typed errors."""
    try:
        yield
    except Refused as exc:
        raise error_of(exc, path, doing) from None
    except Malformed as exc:
        raise Unavailable(f"the helper broke its protocol: {exc}") from None


def file_stat(path: PurePosixPath, facts: Facts, link: bytes) -> FileStat:
    """Return a file's facts as callers get them."""
    kind = TYPES[facts.type - 1]
    return FileStat(
        path=path,
        type=kind,
        size=facts.size if kind in (FileType.FILE, FileType.SYMLINK) else 0,
        mode=facts.mode,
        mtime_ns=facts.mtime_ns,
        link=os.fsdecode(link) if kind is FileType.SYMLINK else None,
    )


async def records(stream: Stream) -> AsyncGenerator[tuple[Facts, bytes, bytes], None]:
    """Yield facts, path and link text of each record of a LIST or SCAN."""
    held = b""
    while True:
        data = stream.take(1)
        if not data:
            if stream.ended:
                break
            await stream.moved()
            continue
        stream.return_credit(1, len(data))
        held += data
        cursor, whole = Cursor(held), 0
        while True:
            try:
                record = cursor.facts(), cursor.text(), cursor.text()
            except Malformed:
                if len(held) - whole > 16384:  # no record is that long
                    raise
                break
            whole = len(held) - cursor.left
            yield record
        held = held[whole:]
    if held:
        raise Malformed("a record is cut off")


class SingleFiles(Files):
    """Files on a target with a helper in it, one at a time.

    Args:
        current: gives the session that works now.
        limits: the target's own.
    """

    def __init__(self, current: Current, limits: Limits) -> None:
        self._current = current
        self._limits = limits

    # --- one at a time ------------------------------------------------------------------------

    async def _call(self, call: Call, path: PurePosixPath | str, rest: bytes, doing: str) -> Cursor:
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        with errors(pure, doing):
            return await session.call(call, encoded + rest, mutates=call is not Call.STAT)

    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        for label, number in (("offset", offset), ("length", length)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgument(f"{label} is a number of bytes, 0 or more")
        limit = self._limits.read_bytes
        if length is not None and length > limit:
            raise _too_large(path, limit)
        wanted = limit + 1 if length is None else length
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        head = encoded + min(offset, 1 << 62).to_bytes(8, "little")
        with errors(pure, "read"):
            first = min(wanted, MAX_CALL)
            cursor = await unless_full(session.call(Call.READ, head + first.to_bytes(4, "little")))
            size, data = (cursor.u64(), cursor.rest()) if cursor is not None else (0, b"")
        if len(data) > first:
            raise Unavailable("the helper broke its protocol: more than was asked for")
        if cursor is not None:
            if len(data) < first or len(data) == wanted or offset + len(data) >= size:
                if len(data) > limit:
                    raise _too_large(path, limit)
                return data
            if length is None and size - offset > limit:
                raise _too_large(path, limit)
        parts = bytearray()
        async with aclosing(self._download(path, min(offset, 1 << 62), wanted)) as chunks:
            async for chunk in chunks:
                parts += chunk
        if len(parts) > limit:
            raise _too_large(path, limit)
        return bytes(parts)

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        if len(data) > MAX_CALL:
            await self.upload(path, pieces(data), mode=mode)
            return
        session, places = await self._current()
        pure, arguments = self._write(places, path, data, mode)
        with errors(pure, "write"):
            (await session.call(Call.WRITE, arguments, mutates=True)).end()

    def _write(
        self, places: Places, path: PurePosixPath | str, data: bytes, mode: int | None
    ) -> tuple[PurePosixPath, bytes]:
        pure, encoded, is_root = places.locate(path)
        if is_root:
            raise IsADirectory(f"can't write {str(path)!r}: it is a directory")
        self._fits(path, len(data))
        return pure, encoded + encoded_mode(mode) + data

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        with errors(pure, "stat"):
            return stat_of(pure, await session.call(Call.STAT, encoded))

    async def list(self, path: PurePosixPath | str) -> builtins.list[FileStat]:
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        found: builtins.list[FileStat] = []
        stream = session.open(Open.LIST, encoded, credit=IN_CREDIT)
        async with ending(stream):
            with errors(pure, "list"):
                async with aclosing(records(stream)) as each:
                    async for facts, name, link in each:
                        own = os.fsdecode(name)
                        if "/" in own or own in ("", ".", ".."):
                            raise Malformed(f"a name in a directory is {own!r}")
                        if not own.startswith(TEMPORARY):
                            found.append(file_stat(pure / own, facts, link))
                await stream.finish()
        return sorted(found, key=lambda entry: entry.path.name)

    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await self._call(Call.MKDIR, path, bytes((parents | exist_ok << 1,)), "make the directory")

    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        session, places = await self._current()
        pure, encoded, is_root = places.locate(path)
        if is_root:
            raise InvalidArgument(f"can't remove {str(path)!r}: it is a root of the sandbox")
        with errors(pure, "remove"):
            if not recursive:
                await session.call(Call.REMOVE, encoded, mutates=True)
                return
            stream = session.open(Open.REMOVE, encoded)
            async with ending(stream):
                await _finish(stream)

    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        session, places = await self._current()
        old, encoded, from_root = places.locate(source)
        _, target_encoded, to_root = places.locate(target)
        if from_root or to_root:
            raise InvalidArgument("a root of the sandbox can't be renamed, nor replaced")
        try:
            await session.call(Call.RENAME, encoded + target_encoded, mutates=True)
        except Refused as exc:
            what = f"can't rename {str(source)!r} to {str(target)!r}"
            details = {"path": str(source)}
            if exc.errno == _EINVAL:
                raise Conflict(
                    f"{what}: a directory can't be moved into itself", details=details
                ) from None
            if exc.errno == _EXDEV_AS:
                raise Conflict(
                    f"{what}: source and target are on different file systems",
                    hint="copy it, then remove the source",
                    details=details,
                ) from None
            raise error_of(exc, old, f"rename to {str(target)!r}") from None

    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        if not target or "\0" in target:
            raise InvalidArgument("the text of a link is not empty and has no NUL byte")
        try:
            encoded_text = text(target)
        except UnicodeEncodeError:
            raise InvalidArgument(
                "the text of a link has a surrogate that stands for no byte"
            ) from None
        await self._call(Call.SYMLINK, path, encoded_text, "link")

    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        await self._call(Call.CHMOD, path, encoded_mode(mode), "change the mode of")

    # --- streams ----------------------------------------------------------------------------------

    def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        return self._download(path, 0, 1 << 62)

    async def _download(
        self, path: PurePosixPath | str, offset: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        span = offset.to_bytes(8, "little") + length.to_bytes(8, "little")
        stream = session.open(Open.DOWNLOAD, encoded + span, credit=2 * IN_CREDIT)
        async with ending(stream):
            with errors(pure, "read"):
                while True:
                    data = stream.take(1)
                    if data:
                        stream.return_credit(1, len(data))
                        yield data
                    elif stream.ended:
                        break
                    else:
                        await stream.moved()
                await stream.finish()

    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        session, places = await self._current()
        pure, encoded, is_root = places.locate(path)
        if is_root:
            raise IsADirectory(f"can't write {str(path)!r}: it is a directory")
        stream = session.open(Open.UPLOAD, encoded + encoded_mode(mode))
        total = 0
        async with ending(stream):
            with errors(pure, "write"):
                async with iterating(chunks):
                    async for chunk in chunks:
                        total += len(chunk)
                        self._fits(path, total)
                        if not await stream.send(chunk):
                            break
                stream.end_input()
                cursor = await _finish(stream)
                written = cursor.u64()
                cursor.end()
        if written != total:
            raise Unavailable(f"the helper wrote {written} bytes of {total}", effect=Effect.DONE)
        return total

    def _fits(self, path: PurePosixPath | str, size: int) -> None:
        limit = self._limits.file_bytes
        if limit is not None and size > limit:
            raise TooLarge(
                f"can't write {str(path)!r}: a file has at most {limit} bytes here",
                details={"path": str(path), "limit": limit},
            )


def stat_of(path: PurePosixPath, cursor: Cursor) -> FileStat:
    """Return what a STAT has come to."""
    facts, link = cursor.facts(), cursor.text()
    cursor.end()
    return file_stat(path, facts, link)


async def _finish(stream: Stream) -> Cursor:
    """Wait for the end of what changes something."""
    try:
        return await stream.finish()
    except PinfoldError as exc:
        raise stream.fate(exc) from exc


async def unless_full(reply: Awaitable[Cursor]) -> Cursor | None:
    """Return what a READ has come to; None if the helper holds too many replies already.

    It is then to be read as a stream, which waits until there is room.
    """
    try:
        return await reply
    except Refused as exc:
        if exc.errno != _EAGAIN:
            raise
        return None


@asynccontextmanager
async def ending(stream: Stream) -> AsyncIterator[None]:
    """Leave nothing running, whatever happens."""
    try:
        yield
    finally:
        if not stream.ended:
            await stream.abandon(_ABANDON_SECONDS)


def encoded_mode(mode: int | None) -> bytes:
    """Encode a mode; None keeps what is there."""
    if mode is not None:
        check_mode(mode)
    return (_KEEP if mode is None else mode).to_bytes(4, "little")


def _too_large(path: PurePosixPath | str, limit: int) -> TooLarge:
    return TooLarge(
        f"can't read {str(path)!r} at once: more than {limit} bytes",
        hint="stream it with download, or read a range",
        details={"path": str(path), "limit": limit},
    )


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    """Yield it, as a stream."""
    yield data
