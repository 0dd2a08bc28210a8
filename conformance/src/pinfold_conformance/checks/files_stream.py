"""Streams of any size in bounded memory (FS-7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256

from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, require
from pinfold_conformance._memory import MemoryWatch
from pinfold_conformance._registry import check

MIB = 1024 * 1024
BLOCK = 256 * 1024


@check("FS-7.large", deadline_s=240)
async def large(case: Case) -> None:
    """A large file goes up and comes down whole, with the caller's memory bounded."""
    path = await case.scratch() / "large"
    size = case.profile.file_bytes
    for limit in (case.limits.file_bytes, case.limits.workspace_bytes):
        size = size if limit is None else min(size, limit // 2)
    pattern = case.bytes(BLOCK)
    digest, sent = sha256(), 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < size:
            piece = pattern[: min(BLOCK, size - sent)]
            sent += len(piece)
            digest.update(piece)
            yield piece

    with MemoryWatch() as watch:
        equal(await case.files.upload(path, chunks()), size, "bytes uploaded")
        found, received, longest = sha256(), 0, 0
        async for piece in case.files.download(path):
            found.update(piece)
            received += len(piece)
            longest = max(longest, len(piece))
    equal(received, size, "bytes downloaded")
    equal(found.hexdigest(), digest.hexdigest(), "the content")
    equal((await case.files.stat(path)).size, size, "the size")
    case.evidence.update(bytes=size, longest_piece=longest, memory_growth_bytes=watch.growth)
    require(longest <= 4 * MIB, f"a download gave a piece of {longest} bytes: no stream (FS-7)")


@check("FS-7.small-pieces")
async def small_pieces(case: Case) -> None:
    """An upload of many tiny pieces, empty ones among them, is one file; its mode is kept."""
    path = await case.scratch() / "file"
    pieces = [b"", b"a", b"", b"bc", b"\0", b""] * 200

    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    equal(await case.files.upload(path, chunks()), len(b"".join(pieces)), "bytes uploaded")
    equal(await case.files.read(path), b"".join(pieces), "the content")
    if case.features.modes:
        await case.files.chmod(path, 0o750)
        await case.files.upload(path, chunks())
        equal((await case.files.stat(path)).mode, 0o750, "the mode after a second upload")


@check("FS-7.abandoned")
async def abandoned(case: Case) -> None:
    """A download that is given up in the middle costs nothing: the next operation works."""
    path, data = await case.scratch() / "file", case.bytes(2 * MIB)
    await case.files.write(path, data)
    for _ in range(3):
        stream = case.files.download(path)
        first = await anext(stream)
        require(first, "the first piece is empty")
        equal(data[: len(first)], first, "the first piece")
        await stream.aclose()
    equal(await case.files.read(path), data, "the file afterwards")
