"""What fsspec is told of a name, and pieces of files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Final

from pinfold._tasks import iterating
from pinfold.errors import (
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    PermissionDenied,
)
from pinfold.provider import Files, FileStat, FileType
from pinfold.spec import WORKSPACE

__all__ = ["is_there", "listed", "named", "read"]

#: One read; within every target's `limits.read_bytes`.
_PIECE: Final = 8 << 20
#: Of the way that a link leads; more is a circle.
_STEPS: Final = 400
_TYPES: Final = {
    FileType.FILE: "file",
    FileType.DIRECTORY: "directory",
    FileType.SYMLINK: "link",
    FileType.OTHER: "other",
}


def facts_of(found: FileStat, led_to: FileStat | None = None) -> dict[str, Any]:
    facts = led_to or found
    return {
        "name": str(found.path),
        "size": facts.size,
        "type": _TYPES[facts.type],
        "mode": facts.mode,
        "mtime": facts.mtime_ns / 1e9,
        "islink": found.type is FileType.SYMLINK,
        "destination": found.link,
    }


async def named(files: Files, path: str) -> dict[str, Any]:
    """Return the facts of what a path leads to; of a link that leads nowhere, its own."""
    found = await files.stat(path)
    if found.type is not FileType.SYMLINK:
        return facts_of(found)
    facts = facts_of(found, await _led_to(files, found))
    if facts["type"] == "link":  # only the target itself may know its way
        with suppress(NotFound, InvalidArgument, PermissionDenied):
            try:
                async with iterating(files.download(path)) as chunks:
                    size = sum([len(chunk) async for chunk in chunks])
                facts |= {"type": "file", "size": size}
            except IsADirectory:  # an InvalidArgument too
                facts |= {"type": "directory", "size": 0}
    return facts


async def listed(files: Files, path: str) -> list[dict[str, Any]]:
    try:
        entries = await files.list(path)
    except NotADirectory:
        return [await named(files, path)]
    infos = []
    for entry in entries:
        led_to = await _led_to(files, entry) if entry.type is FileType.SYMLINK else None
        is_file = led_to is not None and led_to.type is FileType.FILE
        infos.append(facts_of(entry, led_to if is_file else None))
    return infos


async def _led_to(files: Files, link: FileStat) -> FileStat | None:
    """Return what a link leads to within the workspace; None where it is not to be seen so."""
    if not link.path.is_relative_to(WORKSPACE):
        return None
    here, found = WORKSPACE, None
    pending = [*reversed(link.path.relative_to(WORKSPACE).parts)]
    for _ in range(_STEPS):
        if not pending:
            return found or await files.stat(here)
        part = pending.pop()
        if part == "..":
            if here == WORKSPACE:
                return None
            here, found = here.parent, None
            continue
        try:
            found = await files.stat(here / part)
        except (NotFound, NotADirectory, OutsideWorkspace, PermissionDenied):
            return None
        if found.type is not FileType.SYMLINK:
            here = found.path
            continue
        text, found = PurePosixPath(found.link or ""), None
        if text.is_absolute():
            if not text.is_relative_to(WORKSPACE):
                return None
            here, text = WORKSPACE, text.relative_to(WORKSPACE)
        pending += reversed(text.parts)
    return None


async def is_there(files: Files, path: str) -> bool:
    try:
        await files.stat(path)
    except NotFound:
        return False
    return True


async def read(files: Files, path: str, first: int, last: int | None) -> bytes:
    pieces: list[bytes] = []
    while last is None or first < last:
        wanted = _PIECE if last is None else min(_PIECE, last - first)
        piece = await files.read(path, offset=first, length=wanted)
        pieces.append(piece)
        first += len(piece)
        if len(piece) < wanted:
            break
    return b"".join(pieces)
