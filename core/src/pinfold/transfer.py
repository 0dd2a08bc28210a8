"""Copying between the operator's disk and a sandbox, with cp's rules about folders.

The sandbox is hostile (contract section 0): nothing that it names can make us write outside of the
folder that the operator named. Names are checked, links are made last and never followed, and
every file is opened relative to a folder that was opened before, without following a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from anyio import to_thread

from pinfold.errors import (
    AlreadyExists,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    NotRegular,
    PermissionDenied,
)
from pinfold.provider import Files, FileType, TreeItem

__all__ = ["get", "get_to", "put", "put_from"]

CHUNK: Final = 1 << 20

Told = Callable[[int], object]


def _nobody(_: int) -> None:
    return None


# --- into the sandbox ---------------------------------------------------------------------------


async def put(
    files: Files, source: Path, target: PurePosixPath | str, *, told: Told = _nobody
) -> PurePosixPath:
    """Copy a file or folder of this machine into a sandbox.

    Args:
        files: of the sandbox.
        source: a file or a folder; links in a folder are copied as links.
        target: in the caller's view. With a trailing slash, or where it is a folder already, the
            copy goes into it under the source's name.
        told: called with the bytes of each piece.

    Returns:
        Where it is now.

    Raises:
        NotFound, PermissionDenied: the source can't be read.
        NotRegular: the source is neither a file nor a folder.
        PinfoldError: as `Files.upload_tree`.
    """
    kind = await to_thread.run_sync(_kind, source)
    place = await _place(files, target, source.name)
    if kind is FileType.DIRECTORY:
        await files.upload_tree(place, _walk(source, told))
    elif kind is FileType.FILE:
        mode = (await to_thread.run_sync(source.stat)).st_mode & 0o777
        await files.upload(place, _read(source, told), mode=mode)
    else:
        raise NotRegular(f"{source} is neither a file nor a folder")
    return place


async def put_from(
    files: Files, source: BinaryIO, target: PurePosixPath | str, *, told: Told = _nobody
) -> None:
    """Copy an open stream of this machine into a file of a sandbox."""

    async def chunks() -> AsyncIterator[bytes]:
        while data := await to_thread.run_sync(source.read, CHUNK):
            told(len(data))
            yield data

    await files.upload(target, chunks())


async def _place(files: Files, target: PurePosixPath | str, name: str) -> PurePosixPath:
    place = PurePosixPath(target)
    if str(target).endswith("/") or await _is_directory(files, place):
        if not name or name in (".", ".."):
            raise InvalidArgument("the source has no name: give the whole target")
        return place / name
    return place


async def _is_directory(files: Files, path: PurePosixPath) -> bool:
    try:
        await files.list(path)
    except (NotFound, NotADirectory):
        return False
    return True


def _kind(path: Path) -> FileType:
    with _local_errors(path):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return FileType.DIRECTORY
    return FileType.FILE if stat.S_ISREG(mode) else FileType.OTHER


async def _read(path: Path, told: Told) -> AsyncIterator[bytes]:
    with _local_errors(path):
        file = await to_thread.run_sync(path.open, "rb")
    try:
        while data := await to_thread.run_sync(file.read, CHUNK):
            told(len(data))
            yield data
    finally:
        file.close()


async def _walk(root: Path, told: Told) -> AsyncIterator[TreeItem]:
    entries = await to_thread.run_sync(lambda: list(_entries(root)))
    for inner, path, info in entries:
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode):
            yield TreeItem(path=inner, type=FileType.DIRECTORY, mode=mode)
        elif stat.S_ISLNK(info.st_mode):
            yield TreeItem(path=inner, type=FileType.SYMLINK, link=os.readlink(path))  # noqa: PTH115 - verbatim
        elif stat.S_ISREG(info.st_mode):
            yield TreeItem(
                path=inner,
                type=FileType.FILE,
                mode=mode,
                size=info.st_size,
                chunks=_read(path, told),
            )


def _entries(root: Path) -> Iterator[tuple[PurePosixPath, Path, os.stat_result]]:
    with _local_errors(root):
        yield PurePosixPath("."), root, root.stat()
        pending = [(PurePosixPath(), root)]
        while pending:
            inner, folder = pending.pop()
            for path in sorted(folder.iterdir()):
                info = path.lstat()
                yield inner / path.name, path, info
                if stat.S_ISDIR(info.st_mode):
                    pending.append((inner / path.name, path))


@contextmanager
def _local_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as exc:
        raise NotFound(f"there is no {exc.filename or path} on this machine") from None
    except PermissionError as exc:
        raise PermissionDenied(f"this machine refuses {exc.filename or path}") from None
    except NotADirectoryError as exc:
        raise NotADirectory(f"{exc.filename or path} is no folder of this machine") from None


# --- out of the sandbox -------------------------------------------------------------------------


async def get_to(
    files: Files, source: PurePosixPath | str, target: BinaryIO, *, told: Told = _nobody
) -> None:
    """Copy a file of a sandbox to an open stream of this machine."""
    async for chunk in files.download(source):
        await to_thread.run_sync(target.write, chunk)
        told(len(chunk))
    await to_thread.run_sync(target.flush)


async def get(
    files: Files, source: PurePosixPath | str, target: Path | str, *, told: Told = _nobody
) -> Path:
    """Copy a file or folder of a sandbox to this machine.

    Args:
        files: of the sandbox.
        source: in the caller's view; a link is followed, links in a folder are copied as links.
        target: with a trailing slash, or where it is a folder already, the copy goes into it
            under the source's name. A file there is replaced, a folder is filled.
        told: called with the bytes of each piece.

    Returns:
        Where it is now.

    Raises:
        AlreadyExists: something of another kind is in the way; it is left as it is.
        PinfoldError: as `Files.download_tree`.
    """
    source = PurePosixPath(source)
    place = Path(target)
    if str(target).endswith("/") or await to_thread.run_sync(place.is_dir):
        place /= source.name
    if await _is_directory(files, source):
        async with _closing(files.download_tree(source)) as items:
            await _fill(place, items, told)
    else:
        folder, name = place.parent, place.name
        with _local_errors(place):
            fd = await to_thread.run_sync(_open_folder, folder)
        try:
            await _save(fd, name, files.download(source), None, told)
        finally:
            os.close(fd)
    return place


class _closing:  # noqa: N801 - reads as contextlib's
    def __init__(self, items: AsyncIterator[TreeItem]) -> None:
        self._items = items

    async def __aenter__(self) -> AsyncIterator[TreeItem]:
        return self._items

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


async def _fill(root: Path, items: AsyncIterator[TreeItem], told: Told) -> None:
    with _local_errors(root):
        await to_thread.run_sync(lambda: root.mkdir(exist_ok=True))
        top = await to_thread.run_sync(_open_folder, root)
    links: list[tuple[PurePosixPath, str]] = []
    modes: list[tuple[PurePosixPath, int]] = []
    try:
        async for item in items:
            parts = _parts(item.path)
            if not parts:
                continue
            folder = await to_thread.run_sync(_descend, top, parts[:-1])
            try:
                if item.type is FileType.DIRECTORY:
                    await to_thread.run_sync(_make_folder, folder, parts[-1])
                    if item.mode is not None:
                        modes.append((item.path, item.mode & 0o777))
                elif item.type is FileType.SYMLINK:
                    links.append((item.path, item.link or ""))
                elif item.chunks is not None:
                    await _save(folder, parts[-1], item.chunks.__aiter__(), item.mode, told)
            finally:
                os.close(folder)
        # Last, so that nothing of ours can ever go through one of them.
        for path, text in links:
            await to_thread.run_sync(_make_link, top, _parts(path), text)
        for path, mode in reversed(modes):
            await to_thread.run_sync(_set_mode, top, _parts(path), mode)
    finally:
        os.close(top)


def _parts(path: PurePosixPath) -> tuple[str, ...]:
    parts = path.parts
    if path.is_absolute() or any(part in ("..", "") or "\0" in part for part in parts):
        raise InvalidArgument(f"the sandbox names {str(path)!r}, which leads out of the copy")
    return parts


_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)


def _open_folder(path: Path) -> int:
    return os.open(path, _FOLDER)  # the operator's own path: links in it are the operator's


def _descend(top: int, parts: tuple[str, ...]) -> int:
    here = os.dup(top)
    for part in parts:
        try:
            below = os.open(part, _FOLDER | _NO_LINK, dir_fd=here)
        except OSError:
            raise AlreadyExists(f"{part!r} is in the way of the copy, and no folder") from None
        finally:
            os.close(here)
        here = below
    return here


def _make_folder(folder: int, name: str) -> None:
    try:
        os.mkdir(name, 0o777, dir_fd=folder)
    except FileExistsError:
        os.close(_descend(folder, (name,)))


def _make_link(top: int, parts: tuple[str, ...], text: str) -> None:
    folder = _descend(top, parts[:-1])
    try:
        _clear(folder, parts[-1])
        os.symlink(text, parts[-1], dir_fd=folder)
    finally:
        os.close(folder)


def _set_mode(top: int, parts: tuple[str, ...], mode: int) -> None:
    folder = _descend(top, parts)
    try:
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def _clear(folder: int, name: str) -> None:
    try:
        info = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(info.st_mode):
        raise AlreadyExists(f"a folder {name!r} is in the way of the copy")
    os.unlink(name, dir_fd=folder)


async def _save(
    folder: int, name: str, chunks: AsyncIterator[bytes], mode: int | None, told: Told
) -> None:
    """Write a file beside its name and move it there: a copy cut short leaves the old one."""
    aside = f".{name[:64]}.pinfold-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(aside, flags, 0o666, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            async for chunk in chunks:
                await to_thread.run_sync(file.write, chunk)
                told(len(chunk))
            if mode is not None:
                os.fchmod(fd, mode & 0o777)
        try:
            os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            raise IsADirectory(f"a folder {name!r} is in the way of the copy") from None
    except BaseException:
        os.unlink(aside, dir_fd=folder)
        raise
