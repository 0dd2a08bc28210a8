"""File contents on their way into a store: hashed, packed and put while they stream (CP-5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import anyio
import attrs

from pinfold._tasks import iterating
from pinfold.checkpoint._codec import pack
from pinfold.checkpoint._io import Io, in_thread
from pinfold.checkpoint._keys import chunked_key, object_key
from pinfold.checkpoint._manifest import Damaged, Newer
from pinfold.checkpoint._tasks import one_error
from pinfold.errors import Internal
from pinfold.provider import Blob, Entry, Tree

__all__ = ["CHUNK", "CHUNK_LIST_BYTES", "LARGE", "Stored", "chunks_from", "upload"]

#: Files above this are kept in chunks.
LARGE: Final = 8 * 2**20
CHUNK: Final = 4 * 2**20
#: The largest list of chunks: of a file of about 3 TiB.
CHUNK_LIST_BYTES: Final = 64 * 2**20
_BATCH_BYTES: Final = 4 * 2**20
_BATCH_FILES: Final = 256
_WORKERS: Final = 3


@attrs.frozen
class Stored:
    """What was read of one file, and is in the store now."""

    digest: str
    size: int


@attrs.define
class _File:
    """One file while it is read. Above LARGE it leaves in chunks."""

    path: str
    pieces: list[bytes] = attrs.Factory(list)
    held: int = 0
    size: int = 0
    whole: Any = None
    chunks: list[str] = attrs.Factory(list)

    def add(self, data: bytes) -> None:
        self.pieces.append(data)
        self.held += len(data)
        self.size += len(data)

    def take(self, count: int) -> bytes:
        data = b"".join(self.pieces)
        rest = data[count:]
        self.pieces, self.held = ([rest] if rest else []), len(rest)
        return data[:count]


@attrs.define
class _Batch:
    """Small files, each whole, or one chunk of a large one."""

    files: list[tuple[str, bytes]] = attrs.Factory(list)
    size: int = 0
    chunk_of: _File | None = None
    index: int = 0


async def upload(
    io: Io, tree: Tree, entries: Sequence[Entry], moved: Callable[[int], None]
) -> dict[str, Stored | None]:
    """Read files from a target and put them into the store, in bounded memory.

    Args:
        io: the store.
        tree: the target's side.
        entries: the files.
        moved: told the bytes that arrived, now and then.

    Returns:
        For each path what was really read; None for a file that is gone.

    Raises:
        Internal: the target answered with something else than the files asked for.
        PinfoldError: as `Objects.put` and `Tree.read`.
    """
    results: dict[str, Stored | None] = {}
    large: list[_File] = []
    send, receive = anyio.create_memory_object_stream[_Batch](0)

    async def work() -> None:
        async for batch in receive:
            await _put(io, batch, results)

    with one_error(), receive:
        async with anyio.create_task_group() as tasks, send:
            for _ in range(_WORKERS):
                tasks.start_soon(work)
            await _read(tree, entries, send.send, results, large, moved)
    lists: dict[str, bytes] = {}
    for file in large:
        digest = file.whole.hexdigest()
        results[file.path] = Stored(digest, file.size)
        lists[chunked_key(digest)] = _chunk_list(file)
    await io.put(lists)
    return results


async def _read(
    tree: Tree,
    entries: Sequence[Entry],
    send: Callable[[_Batch], Any],
    results: dict[str, Stored | None],
    large: list[_File],
    moved: Callable[[int], None],
) -> None:
    wanted = {entry.path for entry in entries}
    file: _File | None = None
    batch = _Batch()
    async with iterating(tree.read(entries)) as blobs:
        async for blob in blobs:
            if file is None:
                if blob.path not in wanted:
                    raise _confused(f"sent {blob.path!r:.300}, which was not asked for")
                wanted.remove(blob.path)
                file = _File(blob.path)
            elif blob.path != file.path:
                raise _confused(f"sent {blob.path!r:.300} in the middle of {file.path!r:.300}")
            file.add(blob.data)
            moved(len(blob.data))
            while file.held > LARGE or (file.whole is not None and file.held >= CHUNK):
                await _cut(file, send)
            if not blob.last:
                continue
            if file.whole is not None:
                while file.held:
                    await _cut(file, send)
                large.append(file)
            elif _gone(blob, file):
                results[file.path] = None
            else:
                batch.files.append((file.path, file.take(file.held)))
                batch.size += file.size
                if batch.size >= _BATCH_BYTES or len(batch.files) >= _BATCH_FILES:
                    await send(batch)
                    batch = _Batch()
            file = None
    if file is not None or wanted:
        raise _confused("stopped before it had sent every file")
    if batch.files:
        await send(batch)


def _gone(blob: Blob, file: _File) -> bool:
    return not blob.digest and not file.size


def _confused(what: str) -> Internal:
    return Internal(f"the target {what}", hint="this is an error of its provider")


async def _cut(file: _File, send: Callable[[_Batch], Any]) -> None:
    data = file.take(CHUNK)
    if file.whole is None:
        file.whole = sha256()
    await in_thread(lambda: file.whole.update(data))
    index = len(file.chunks)
    file.chunks.append("")
    await send(_Batch([(file.path, data)], len(data), file, index))


async def _put(io: Io, batch: _Batch, results: dict[str, Stored | None]) -> None:
    if batch.chunk_of is not None:
        data = batch.files[0][1]
        digest = await in_thread(lambda: sha256(data).hexdigest())
        batch.chunk_of.chunks[batch.index] = digest
        key = object_key(digest)
        if not await io.rely([key]):
            await io.run("put", key, lambda: io.objects.put({key: pack(data)}))
        return

    def store() -> list[str]:
        digests = [sha256(data).hexdigest() for _, data in batch.files]
        io.objects.put(
            {
                object_key(digest): pack(data)
                for digest, (_, data) in zip(digests, batch.files, strict=True)
                if data
            }
        )
        return digests

    digests = await io.run("put", batch.files[0][0], store)
    for digest, (path, data) in zip(digests, batch.files, strict=True):
        results[path] = Stored(digest, len(data))


def _chunk_list(file: _File) -> bytes:
    body = {"version": 1, "size": file.size, "chunk_size": CHUNK, "chunks": file.chunks}
    return pack(json.dumps(body, separators=(",", ":")).encode("ascii"))


def chunks_from(data: bytes, size: int | None) -> list[str]:
    """Return the digests of the chunks of a large file, from an unpacked list.

    Args:
        data: the list.
        size: the file's, or None where it is not known.

    Raises:
        Damaged: this is no list of chunks, or not one of a file of this size.
        Newer: it is of a later version (SP-3).
    """
    try:
        body = json.loads(data)
        version, stated, chunks = body["version"], body["size"], body["chunks"]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise Damaged("this is no list of chunks") from exc
    count = -(-stated // CHUNK) if type(stated) is int and stated > LARGE else -1
    if type(version) is not int:
        raise Damaged("a list of chunks has no version")
    if version > 1:
        raise Newer(version)
    if (
        version != 1
        or body.get("chunk_size") != CHUNK
        or not isinstance(chunks, list)
        or len(chunks) != count
        or (size is not None and size != stated)
    ):
        raise Damaged("a list of chunks is malformed, or another file's")
    for chunk in chunks:
        if not (isinstance(chunk, str) and len(chunk) == 64 and set(chunk) <= _HEX):
            raise Damaged("a list of chunks names something that is no digest")
    return chunks


_HEX: Final = frozenset("0123456789abcdef")
