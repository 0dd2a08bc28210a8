"""From a checkpoint to a workspace: everything verified on its way (CP-3, CP-8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final

import anyio
import attrs
from anyio.streams.memory import MemoryObjectSendStream

from pinfold._tasks import background
from pinfold.checkpoint._codec import unpack
from pinfold.checkpoint._commit import Progress
from pinfold.checkpoint._io import Io, in_thread
from pinfold.checkpoint._keys import chunked_key, object_key
from pinfold.checkpoint._manifest import Damaged, Newer
from pinfold.checkpoint._merkle import corrupt, newer
from pinfold.checkpoint._record import CheckpointRecord
from pinfold.checkpoint._upload import CHUNK, CHUNK_LIST_BYTES, LARGE, chunks_from
from pinfold.errors import Internal, PinfoldError
from pinfold.provider import Entry, FileType

__all__ = ["Contents"]

_AHEAD_BYTES: Final = 8 * 2**20
_AHEAD_FILES: Final = 256
_IN_EARNEST: Final = 16  # from so many at a time on, a helper goes ahead
_PIECE: Final = 2**20
_CHUNKS_AT_ONCE: Final = 2


@attrs.define(eq=False)
class _Load:
    """Some contents that are being fetched."""

    digests: Sequence[str]
    done: anyio.Event
    found: dict[str, bytes | PinfoldError] = attrs.Factory(dict)
    error: BaseException | None = None


class Contents:
    """The contents of a checkpoint's files, by digest; each byte is verified before it is given.

    Files asked for one after the other, in the order of the entries, are read ahead, more at a
    time the longer that goes on; within `reading_ahead` also while the last ones are put to use.
    """

    def __init__(
        self,
        io: Io,
        record: CheckpointRecord,
        entries: Sequence[Entry],
        progress: Progress | None = None,
    ) -> None:
        self._io = io
        self._record = record
        self._sizes: dict[str, int] = {}
        for entry in entries:
            if entry.type is not FileType.FILE:
                continue
            if self._sizes.setdefault(entry.digest, entry.size) != entry.size:
                key = object_key(record.manifest.removeprefix("sha256:"))
                raise corrupt(record, key, "two files of one digest differ in size")
        self._order = [d for d, size in self._sizes.items() if 0 < size <= LARGE]
        self._place = {digest: index for index, digest in enumerate(self._order)}
        self._at_hand: dict[str, bytes | PinfoldError] = {}
        self._coming: _Load | None = None
        self._helper: MemoryObjectSendStream[_Load] | None = None
        self._next = 0
        self._window = 1
        self._lock = anyio.Lock(fast_acquire=True)
        self._progress = progress
        self._done = 0
        self._total = sum(self._sizes.values())

    @asynccontextmanager
    async def reading_ahead(self) -> AsyncIterator[None]:
        """Let a helper fetch what will be asked for next."""
        send, receive = anyio.create_memory_object_stream[_Load](1)

        async def help_out() -> None:
            async for load in receive:
                try:
                    load.found = await self._fetched(load.digests)
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as exc:  # noqa: BLE001 - handed over
                    load.error = exc
                load.done.set()

        with send, receive:
            async with background(help_out):
                self._helper = send
                try:
                    yield
                finally:
                    self._helper = None

    async def fetch(self, digest: str) -> AsyncIterator[bytes]:
        """Yield a file's content in pieces of at most 1 MiB.

        Raises:
            CheckpointCorrupt: an object is missing or damaged, by name; nothing that was yielded
                before may be used.
            InvalidArgument: an object is of a later version (SP-3).
            Internal: no file of the checkpoint has this digest.
        """
        size = self._sizes.get(digest)
        if size is None:
            raise Internal(f"the checkpoint has no file of digest {digest!r:.80}")
        if size > LARGE:
            async for data in self._large(digest, size):
                for piece in _pieces(data):
                    yield piece
        elif size:
            for piece in _pieces(await self._small(digest)):
                yield piece
        self._done += size
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))

    async def _small(self, digest: str) -> bytes:
        found = self._at_hand.get(digest)
        if found is None:
            async with self._lock:
                if digest not in self._at_hand:
                    await self._bring(digest)
                # Kept until the next load: another file may have the same content.
                found = self._at_hand[digest]
        if isinstance(found, PinfoldError):
            raise found
        return found

    async def _bring(self, digest: str) -> None:
        coming, place = self._coming, self._place[digest]
        if coming is not None and digest in coming.digests:
            self._coming = None
            await coming.done.wait()
            if coming.error is not None:
                raise coming.error
            self._at_hand = coming.found
        elif place < self._next:  # the same content once more
            self._at_hand |= await self._fetched([digest])
            return
        else:
            self._coming = None
            if place >= self._next + self._window:
                self._window = 1
            self._next = place
            self._at_hand = await self._fetched(self._following())
        if self._helper is not None and self._window >= _IN_EARNEST and self._coming is None:
            self._coming = _Load(self._following(), anyio.Event())
            await self._helper.send(self._coming)

    def _following(self) -> list[str]:
        """Return what to fetch next, twice as much as the last time, within bounds."""
        batch: list[str] = []
        total = 0
        for digest in self._order[self._next : self._next + self._window]:
            total += self._sizes[digest]
            if batch and total > _AHEAD_BYTES:
                break
            batch.append(digest)
        self._next += len(batch)
        self._window = min(self._window * 2, _AHEAD_FILES)
        return batch

    async def _fetched(self, batch: Sequence[str]) -> dict[str, bytes | PinfoldError]:
        keys = [object_key(digest) for digest in batch]
        packed = await self._io.find(keys)

        def check() -> dict[str, bytes | PinfoldError]:
            found: dict[str, bytes | PinfoldError] = {}
            for key, digest in zip(keys, batch, strict=True):
                try:
                    packed_one = packed.pop(key, None)
                    found[digest] = self._verified(key, packed_one, digest, self._sizes[digest])
                except PinfoldError as exc:  # raised when, and if, this one is asked for
                    found[digest] = exc
            return found

        return await in_thread(check)

    def _verified(self, key: str, packed: bytes | None, digest: str, size: int) -> bytes:
        if packed is None:
            raise corrupt(self._record, key, "it is missing")
        try:
            data = unpack(packed, size)
        except Damaged as exc:
            raise corrupt(self._record, key, str(exc)) from exc
        if len(data) != size or sha256(data).hexdigest() != digest:
            raise corrupt(self._record, key, "its content does not have this size and digest")
        return data

    async def _large(self, digest: str, size: int) -> AsyncIterator[bytes]:
        key = chunked_key(digest)
        packed = (await self._io.find([key])).get(key)
        if packed is None:
            raise corrupt(self._record, key, "it is missing")
        try:
            chunks = chunks_from(unpack(packed, CHUNK_LIST_BYTES), size)
        except Newer as exc:
            raise newer(self._record, key, exc) from exc
        except Damaged as exc:
            raise corrupt(self._record, key, str(exc)) from exc
        whole = sha256()
        for start in range(0, len(chunks), _CHUNKS_AT_ONCE):
            batch = chunks[start : start + _CHUNKS_AT_ONCE]
            found = await self._io.find([object_key(chunk) for chunk in dict.fromkeys(batch)])
            for index, chunk in enumerate(batch, start):
                name = object_key(chunk)
                length = min(CHUNK, size - index * CHUNK)

                def check() -> bytes:
                    data = self._verified(name, found.get(name), chunk, length)  # noqa: B023
                    whole.update(data)
                    return data

                yield await in_thread(check)
        if whole.hexdigest() != digest:
            raise corrupt(self._record, key, "its chunks do not make the file")


def _pieces(data: bytes) -> Iterator[bytes]:
    if len(data) <= _PIECE:
        yield data
        return
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]
