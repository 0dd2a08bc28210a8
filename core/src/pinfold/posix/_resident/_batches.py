"""Many files by the helper, and whole trees: on their way together (contract section 5)."""

from __future__ import annotations

import builtins
import itertools
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from pinfold._tasks import each_of, iterating
from pinfold.errors import AlreadyExists, Effect, InvalidArgument, PinfoldError
from pinfold.posix._resident._files import (
    TEMPORARY,
    TYPES,
    SingleFiles,
    encoded_mode,
    ending,
    errors,
    pieces,
    records,
    stat_of,
    unless_full,
)
from pinfold.posix._resident._places import Places
from pinfold.posix._resident._session import Session
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
from pinfold.provider import FileStat, FileType, TreeItem

__all__ = ["ResidentFiles"]

#: How many small operations may be on their way at once.
_BATCH: Final = 256
#: A file that is read or written whole; how many of them are asked for ahead: 4 MiB at most.
_SMALL: Final = 64 << 10
_AHEAD: Final = 64
#: Of a READ: from its beginning, as much as a small file has.
_WHOLE: Final = (0).to_bytes(8, "little") + _SMALL.to_bytes(4, "little")


class ResidentFiles(SingleFiles):
    """Files on a target with a helper in it."""

    async def read_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> builtins.list[bytes | PinfoldError]:
        session, places = await self._current()
        size = (
            min(_SMALL, self._limits.read_bytes) + 1
        )  # a larger one is asked for again, by itself
        tail = (0).to_bytes(8, "little") + size.to_bytes(4, "little")
        begun = (_begin(session, places, Call.READ, path, tail) for path in paths)
        async with aclosing(_ahead(session, begun, _AHEAD)) as each:
            return [await self._read_one(session, one, size) async for one in each]

    async def _read_one(self, session: Session, one: _Waiting, size: int) -> bytes | PinfoldError:
        try:
            with errors(one.path, "read"):
                cursor = await unless_full(one.finish(session, mutates=False))
                if cursor is not None:
                    cursor.u64()
                    data = cursor.rest()
                    if len(data) < size:
                        return data
            return await self.read(one.path)
        except PinfoldError as exc:
            return exc

    async def stat_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> builtins.list[FileStat | PinfoldError]:
        session, places = await self._current()
        begun = (_begin(session, places, Call.STAT, path, b"") for path in paths)
        async with aclosing(_ahead(session, begun, _BATCH)) as each:
            return [await self._stat_one(session, one) async for one in each]

    async def _stat_one(self, session: Session, one: _Waiting) -> FileStat | PinfoldError:
        try:
            with errors(one.path, "stat"):
                cursor = await one.finish(session, mutates=False)
                return stat_of(PurePosixPath(one.path), cursor)
        except PinfoldError as exc:
            return exc

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
        small = (
            _Waiting(
                pure / own, *session.begin_call(Call.READ, places.inside(encoded, own) + _WHOLE)
            )
            for own, facts, _ in found
            if _is_small(facts)
        )
        async with aclosing(_ahead(session, small, _AHEAD)) as reads:
            for own, facts, link in found:
                kind = TYPES[facts.type - 1]
                if kind is FileType.OTHER:
                    continue
                chunks: AsyncIterator[bytes] | None = None
                if _is_small(facts):
                    chunks = self._read_ahead(session, await anext(reads))
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
            cursor = await unless_full(one.finish(session, mutates=False))
            size, data = (cursor.u64(), cursor.rest()) if cursor is not None else (1, b"")
        if len(data) < size:  # it has grown meanwhile
            async with aclosing(self._download(one.path, 0, 1 << 62)) as chunks:
                async for chunk in chunks:
                    yield chunk
        elif data:
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
                waiting.append(_begin(session, places, Call.CHMOD, place, encoded_mode(mode)))
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
        chunks, data = item.chunks or pieces(b""), b""
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


async def _ahead(
    session: Session, begun: Iterator[_Waiting], most: int
) -> AsyncGenerator[_Waiting, None]:
    """Yield what is begun, in turn, with up to `most` on their way, so that neither side waits.

    Many are sent at once: a message for each would cost more than they do.
    """
    waiting: deque[_Waiting] = deque()
    while True:
        if len(waiting) <= most // 2:
            waiting.extend(itertools.islice(begun, most - len(waiting)))
            await session.flush()
        if not waiting:
            return
        yield waiting.popleft()


def _is_small(facts: Facts) -> bool:
    return facts.type == 1 and facts.size <= _SMALL


async def _finish_write(session: Session, one: _Waiting) -> None:
    with errors(one.path, "write"):
        await one.finish(session, mutates=True)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
