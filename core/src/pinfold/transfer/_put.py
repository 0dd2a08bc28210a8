"""Into a sandbox."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import anyio
from anyio import to_thread

from pinfold.errors import InvalidArgument, NotFound, NotRegular
from pinfold.provider import Files, FileType, TreeItem
from pinfold.transfer._disk import CHUNK, Told, here, is_directory, last_name, nobody

__all__ = ["put", "put_from"]


async def put(
    files: Files,
    source: Path | str,
    target: PurePosixPath | str,
    *,
    told: Told = nobody,
    skipped: Callable[[Path], object] = nobody,
) -> PurePosixPath:
    """Copy a file or folder of this machine into a sandbox.

    Where the target is a folder, the copy goes into it under the source's name, or, for a source
    of `.` or `..`, which have none, the content does. Else the target is the copy itself; missing
    parents are made. A file there is replaced, a folder is filled.

    Args:
        files: of the sandbox.
        source: a file or a folder; links in a folder are copied as links.
        target: in the caller's view; with a trailing slash a file's target must be a folder.
        told: called with the bytes of each piece.
        skipped: called with each FIFO, socket and device in the folder: they are not copied.

    Returns:
        Where it is now.

    Raises:
        NotFound, PermissionDenied, NotADirectory: the source can't be read, or the target is to
            be a folder and is none. In a folder, what came before has been copied.
        NotRegular: the source is neither a file nor a folder.
        PinfoldError: as `Files.upload` and `Files.upload_tree`.
    """
    text = os.fspath(source)
    info = await here(text, os.stat, text)
    place = PurePosixPath(target)
    if await is_directory(files, place):
        place /= last_name(text)
    elif not stat.S_ISDIR(info.st_mode) and str(target).endswith("/"):
        raise NotFound(
            f"the sandbox has no folder {str(place)!r}",
            hint="make it first, or leave the last slash out",
        )
    if stat.S_ISDIR(info.st_mode):
        async with aclosing(_items(Path(text), told, skipped)) as items:
            await files.upload_tree(place, items)
    elif stat.S_ISREG(info.st_mode):
        async with aclosing(_read(Path(text), told)) as chunks:
            await files.upload(place, chunks, mode=info.st_mode & 0o777)
    else:
        raise NotRegular(
            f"{text!r} is neither a file nor a folder", hint="give it as standard input"
        )
    return place


async def put_from(
    files: Files, source: BinaryIO, target: PurePosixPath | str, *, told: Told = nobody
) -> None:
    """Copy an open stream of this machine into a file of a sandbox.

    An unbuffered pipe, socket or terminal may be left at any time; any other stream must not wait
    for ever.

    Raises:
        InvalidArgument: the target ends in a slash: a stream has no name to go by in a folder.
        PinfoldError: as `Files.upload`.
    """
    if str(target).endswith("/"):
        raise InvalidArgument(
            "a stream has no name to go by in a folder", hint="give the whole target"
        )

    async def chunks() -> AsyncGenerator[bytes, None]:
        while data := await _next(source):
            told(len(data))
            yield data

    async with aclosing(chunks()) as pieces:
        await files.upload(target, pieces)


async def _next(source: BinaryIO) -> bytes:
    if isinstance(source, io.FileIO) and _may_wait(source.fileno()):
        # No thread: nobody could end one that waits for what never comes.
        await anyio.wait_readable(source.fileno())
        return os.read(source.fileno(), CHUNK)
    return await to_thread.run_sync(source.read, CHUNK)


def _may_wait(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


async def _read(path: Path, told: Told) -> AsyncGenerator[bytes, None]:
    # Should the name lead to something else by now, nothing here waits for it.
    fd = await here(path, os.open, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while data := await here(path, os.read, fd, CHUNK):
            told(len(data))
            yield data
    finally:
        os.close(fd)


async def _items(
    root: Path, told: Told, skipped: Callable[[Path], object]
) -> AsyncGenerator[TreeItem, None]:
    mode = (await here(root, os.stat, root)).st_mode & 0o777
    yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY, mode=mode)
    pending = [PurePosixPath()]
    while pending:
        folder = pending.pop()
        for entry, info in await here(root / folder, _scan, root / folder):
            inner, mode = folder / entry.name, info.st_mode & 0o777
            if stat.S_ISDIR(info.st_mode):
                pending.append(inner)
                yield TreeItem(path=inner, type=FileType.DIRECTORY, mode=mode)
            elif stat.S_ISLNK(info.st_mode):
                link = await here(entry, os.readlink, entry)
                yield TreeItem(path=inner, type=FileType.SYMLINK, link=link)
            elif stat.S_ISREG(info.st_mode):
                async with aclosing(_read(entry, told)) as chunks:
                    yield TreeItem(
                        path=inner,
                        type=FileType.FILE,
                        mode=mode,
                        size=info.st_size,
                        chunks=chunks,
                    )
            else:
                skipped(entry)


def _scan(folder: Path) -> list[tuple[Path, os.stat_result]]:
    def each() -> Iterator[tuple[Path, os.stat_result]]:
        for entry in sorted(folder.iterdir()):
            yield entry, entry.lstat()

    return list(each())
