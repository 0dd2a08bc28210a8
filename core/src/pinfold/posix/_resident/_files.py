"""Files by the helper (contract section 5)."""

from __future__ import annotations

import builtins
import itertools
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from pinfold._tasks import each_of, iterating
from pinfold.errors import (
    AlreadyExists,
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
from pinfold.provider import Files, FileStat, FileType, TreeItem, check_mode
from pinfold.spec import Limits

__all__ = ["TEMPORARY", "TYPES", "ResidentFiles", "ending", "errors", "records"]

#: How names of ours in the workspace begin, while something is written; hidden from listings.
TEMPORARY: Final = ".pinfold-tmp-"

TYPES: Final = (FileType.FILE, FileType.DIRECTORY, FileType.SYMLINK, FileType.OTHER)
_KEEP: Final = 0xFFFFFFFF
_EXDEV_AS: Final = 95  # EOPNOTSUPP: what the helper makes of a rename between file systems
_EINVAL: Final = 22
#: Bytes of contents that may be on their way at once, of many small files.
_BATCH_BYTES: Final = 4 << 20
_BATCH: Final = 256
#: A file of a tree that is read or written whole; how many of them are asked for ahead.
_SMALL: Final = 64 << 10
_AHEAD: Final = 64
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


class ResidentFiles(Files):
    """Files on a target with a helper in it.

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
            cursor = await session.call(Call.READ, head + first.to_bytes(4, "little"))
            size, data = cursor.u64(), cursor.rest()
        if len(data) > first:
            raise Unavailable("the helper broke its protocol: more than was asked for")
        if len(data) < first or len(data) == wanted or offset + len(data) >= size:
            if len(data) > limit:
                raise _too_large(path, limit)
            return data
        if length is None and size - offset > limit:
            raise _too_large(path, limit)
        parts = bytearray()
        async with aclosing(self._download(path, offset, wanted)) as chunks:
            async for chunk in chunks:
                parts += chunk
        if len(parts) > limit:
            raise _too_large(path, limit)
        return bytes(parts)

    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        if len(data) > MAX_CALL:
            await self.upload(path, _pieces(data), mode=mode)
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
        return pure, encoded + _mode(mode) + data

    async def stat(self, path: PurePosixPath | str) -> FileStat:
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        with errors(pure, "stat"):
            return _stat(pure, await session.call(Call.STAT, encoded))

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
        await self._call(Call.CHMOD, path, _mode(mode), "change the mode of")

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
        stream = session.open(Open.UPLOAD, encoded + _mode(mode))
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

    # --- many at once: on their way together ----------------------------------------------

    async def read_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> builtins.list[bytes | PinfoldError]:
        session, places = await self._current()
        found: builtins.list[bytes | PinfoldError] = []
        limit = self._limits.read_bytes
        size = min(64 << 10, limit) + 1  # a larger one is asked for again, by itself
        tail = (0).to_bytes(8, "little") + size.to_bytes(4, "little")
        waiting: builtins.list[_Waiting] = []
        for path in paths:
            waiting.append(_begin(session, places, Call.READ, path, tail))
            if len(waiting) * size >= _BATCH_BYTES:
                found += [await self._read_one(session, one, size) for one in waiting]
                waiting.clear()
        return found + [await self._read_one(session, one, size) for one in waiting]

    async def _read_one(self, session: Session, one: _Waiting, size: int) -> bytes | PinfoldError:
        try:
            with errors(one.path, "read"):
                cursor = await one.finish(session, mutates=False)
                cursor.u64()
                data = cursor.rest()
            return data if len(data) < size else await self.read(one.path)
        except PinfoldError as exc:
            return exc

    async def stat_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> builtins.list[FileStat | PinfoldError]:
        session, places = await self._current()
        found: builtins.list[FileStat | PinfoldError] = []
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            waiting = [_begin(session, places, Call.STAT, path, b"") for path in batch]
            for one in waiting:
                try:
                    with errors(one.path, "stat"):
                        cursor = await one.finish(session, mutates=False)
                        found.append(_stat(PurePosixPath(one.path), cursor))
                except PinfoldError as exc:
                    found.append(exc)
        return found

    async def write_many(self, files: Mapping[PurePosixPath | str, bytes]) -> None:
        session, places = await self._current()
        waiting: deque[_Waiting] = deque()
        first: PinfoldError | None = None
        done = 0

        async def finish_one() -> None:
            nonlocal first, done
            one = waiting.popleft()
            try:
                with errors(one.path, "write"):
                    (await one.finish(session, mutates=True)).end()
                done += 1
            except PinfoldError as exc:
                first = first or exc

        for path, data in files.items():
            if first is not None:
                break
            if len(data) > MAX_CALL:
                await self.write(path, data)
                done += 1
                continue
            try:
                pure, arguments = self._write(places, path, data, None)
            except PinfoldError as exc:
                first = exc
                break
            number, pending = session.begin_call(Call.WRITE, arguments)
            waiting.append(_Waiting(pure, number, pending))
            await session.room()
            if len(waiting) > _BATCH:
                while len(waiting) > _BATCH // 2:
                    await finish_one()
        while waiting:
            await finish_one()
        if first is not None:
            if done and first.effect is Effect.NONE:
                first.effect = Effect.DONE
            raise first

    async def download_tree(self, path: PurePosixPath | str) -> AsyncIterator[TreeItem]:
        root = await self.stat(path)
        if root.type is FileType.SYMLINK:  # it is followed, or refused, as by `list` (FS-2)
            async for item in super().download_tree(path):
                yield item
            return
        session, places = await self._current()
        pure, encoded, _ = places.locate(path)
        found: builtins.list[tuple[str, Facts, bytes]] = []
        stream = session.open(Open.SCAN, encoded + text(TEMPORARY) + bytes(32), credit=IN_CREDIT)
        async with ending(stream):
            with errors(pure, "list"):
                async with aclosing(records(stream)) as each:
                    async for facts, name, link in each:
                        own = os.fsdecode(name)
                        if any(part in ("", ".", "..") for part in own.split("/")):
                            raise Malformed(f"a path in a directory is {own!r}")
                        found.append((own, facts, link))
                await stream.finish()
        found.sort(key=lambda one: one[0])
        # Through a link to a directory it is the directory that is meant.
        mode = root.mode if root.type is FileType.DIRECTORY else None
        yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY, mode=mode)
        ahead: deque[_Waiting] = deque()  # small files, asked for before their turn
        upcoming = iter([own for own, facts, _ in found if facts.type == 1 and _is_small(facts)])
        tail = (0).to_bytes(8, "little") + MAX_CALL.to_bytes(4, "little")
        for own, facts, link in found:
            kind = TYPES[facts.type - 1]
            if kind is FileType.OTHER:
                continue
            chunks: AsyncIterator[bytes] | None = None
            if kind is FileType.FILE and _is_small(facts):
                if not ahead:  # many in one go: a message for each would cost more than they do
                    for coming in itertools.islice(upcoming, _AHEAD):
                        ahead.append(_begin(session, places, Call.READ, pure / coming, tail))
                chunks = self._read_ahead(session, ahead.popleft())
            elif kind is FileType.FILE:
                chunks = self.download(pure / own)
            yield TreeItem(
                path=PurePosixPath(own),
                type=kind,
                mode=facts.mode,
                size=facts.size if kind is FileType.FILE else 0,
                link=os.fsdecode(link) if kind is FileType.SYMLINK else None,
                chunks=chunks,
            )

    async def _read_ahead(self, session: Session, one: _Waiting) -> AsyncIterator[bytes]:
        with errors(one.path, "read"):
            cursor = await one.finish(session, mutates=False)
            size, data = cursor.u64(), cursor.rest()
        if len(data) < size:  # it has grown meanwhile
            data = await self.read(one.path)
        if data:
            yield data

    async def upload_tree(
        self,
        path: PurePosixPath | str,
        items: AsyncIterable[TreeItem] | Iterable[TreeItem],
    ) -> int:
        await self.make_directory(path)
        session, places = await self._current()
        pure, _, _ = places.locate(path)
        waiting: deque[_Waiting] = deque()
        modes: builtins.list[tuple[PurePosixPath, int]] = []
        count = 0
        try:
            async with aclosing(each_of(items)) as each:
                async for item in each:
                    if item.type is FileType.DIRECTORY and item.mode is not None:
                        modes.append((pure / item.path, item.mode))
                    await self._upload_item(session, places, pure, item, waiting)
                    count += 1
                    await session.room()
                    if len(waiting) > _BATCH:
                        while len(waiting) > _BATCH // 2:
                            await _finish_write(session, waiting.popleft())
            # Last, and the deepest first: a directory may be closed to writes.
            for place, mode in sorted(modes, key=lambda pair: len(pair[0].parts), reverse=True):
                waiting.append(_begin(session, places, Call.CHMOD, place, _mode(mode)))
            while waiting:
                await _finish_write(session, waiting.popleft())
        except PinfoldError as exc:
            if count and exc.effect is Effect.NONE:
                exc.effect = Effect.DONE
            raise
        return count

    async def _upload_item(
        self,
        session: Session,
        places: Places,
        root: PurePosixPath,
        item: TreeItem,
        waiting: deque[_Waiting],
    ) -> None:
        """Put one entry of a tree on its way, behind the others."""
        if item.path.is_absolute() or ".." in item.path.parts:
            raise InvalidArgument(
                f"an entry of a tree is not below its root: {str(item.path)!r}",
                hint="paths in a tree are relative, without '..'",
            )
        place = root / item.path
        if item.type is FileType.DIRECTORY:
            waiting.append(_begin(session, places, Call.MKDIR, place, b"\3"))
            return
        if item.type is FileType.SYMLINK:
            while waiting:  # what is there may have to be replaced
                await _finish_write(session, waiting.popleft())
            try:
                await self.symlink(place, item.link or "")
            except AlreadyExists:
                await self.remove(place)
                await self.symlink(place, item.link or "")
            return
        chunks, data = item.chunks or _pieces(b""), b""
        async with iterating(chunks):
            async for chunk in chunks:
                data += chunk
                if len(data) > _SMALL:
                    while waiting:
                        await _finish_write(session, waiting.popleft())
                    await self.upload(place, _chain(data, aiter(chunks)), mode=item.mode)
                    return
        _, arguments = self._write(places, place, data, item.mode)
        number, pending = session.begin_call(Call.WRITE, arguments)
        waiting.append(_Waiting(place, number, pending))

    def _fits(self, path: PurePosixPath | str, size: int) -> None:
        limit = self._limits.file_bytes
        if limit is not None and size > limit:
            raise TooLarge(
                f"can't write {str(path)!r}: a file has at most {limit} bytes here",
                details={"path": str(path), "limit": limit},
            )


@attrs.frozen
class _Waiting:
    """One of many, on its way; or why it never went."""

    path: PurePosixPath | str
    number: int = 0
    pending: Any = None
    error: PinfoldError | None = None

    async def finish(self, session: Session, *, mutates: bool) -> Cursor:
        if self.error is not None:
            raise self.error
        return await session.finish_call(self.number, self.pending, mutates=mutates)


def _begin(
    session: Session, places: Places, call: Call, path: PurePosixPath | str, rest: bytes
) -> _Waiting:
    try:
        pure, encoded, _ = places.locate(path)
    except PinfoldError as exc:
        return _Waiting(path, error=exc)
    number, pending = session.begin_call(call, encoded + rest)
    return _Waiting(pure, number, pending)


def _is_small(facts: Facts) -> bool:
    return facts.size <= _SMALL


async def _finish_write(session: Session, one: _Waiting) -> None:
    with errors(one.path, "write"):
        await one.finish(session, mutates=True)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _stat(path: PurePosixPath, cursor: Cursor) -> FileStat:
    facts, link = cursor.facts(), cursor.text()
    cursor.end()
    return file_stat(path, facts, link)


async def _finish(stream: Stream) -> Cursor:
    """Wait for the end of what changes something."""
    try:
        return await stream.finish()
    except PinfoldError as exc:
        raise stream.fate(exc) from exc


@asynccontextmanager
async def ending(stream: Stream) -> AsyncIterator[None]:
    """Leave nothing running, whatever happens."""
    try:
        yield
    finally:
        if not stream.ended:
            await stream.abandon(_ABANDON_SECONDS)


def _mode(mode: int | None) -> bytes:
    if mode is not None:
        check_mode(mode)
    return (_KEEP if mode is None else mode).to_bytes(4, "little")


def _too_large(path: PurePosixPath | str, limit: int) -> TooLarge:
    return TooLarge(
        f"can't read {str(path)!r} at once: more than {limit} bytes",
        hint="stream it with download, or read a range",
        details={"path": str(path), "limit": limit},
    )


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
