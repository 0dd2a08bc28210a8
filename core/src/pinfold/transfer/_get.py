"""Out of a sandbox, which names what it likes."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from anyio import to_thread

from pinfold._tasks import iterating
from pinfold.errors import AlreadyExists, InvalidArgument, IsADirectory, NotADirectory, NotFound
from pinfold.provider import Files, FileType, TreeItem
from pinfold.transfer._disk import Told, here, is_directory, last_name, nobody

__all__ = ["get", "get_to"]


async def get_to(
    files: Files, source: PurePosixPath | str, target: BinaryIO, *, told: Told = nobody
) -> None:
    """Copy a file of a sandbox to an open stream of this machine.

    Raises:
        PinfoldError: as `Files.download`; NotADirectory: it is a file, and named as a folder.
        OSError: what the stream raises.
    """
    if str(source).endswith("/"):
        await _is_tree(files, source)
    async with iterating(files.download(source)) as chunks:
        async for chunk in chunks:
            left = memoryview(chunk)
            while left:  # an unbuffered stream may take less
                done = await to_thread.run_sync(target.write, left)
                left = left[done:]
            told(len(chunk))
    await to_thread.run_sync(target.flush)


async def get(
    files: Files, source: PurePosixPath | str, target: Path | str, *, told: Told = nobody
) -> Path:
    """Copy a file or folder of a sandbox to this machine.

    Where the target is a folder, the copy goes into it under the source's name, or, for a source
    that ends in `/.`, the content does. Else the target is the copy itself. A file there is
    replaced in one step, a folder is filled; a device or FIFO is written to. Modes are the
    sandbox's, less what this process's umask takes.

    Args:
        files: of the sandbox.
        source: in the caller's view; a link is followed, links in a folder are copied as links.
        target: with a trailing slash a file's target must be a folder.
        told: called with the bytes of each piece.

    Returns:
        Where it is now.

    Raises:
        AlreadyExists, IsADirectory: something of another kind is in the way; it is left as it is.
        NotFound, NotADirectory, PermissionDenied, NoSpace: of this machine, or as
            `Files.download` and `Files.download_tree`. In a folder, what came before is there.
        InvalidArgument: the sandbox gives a name that leads out of the copy, or that no file of
            this machine can have.
    """
    inside, text = PurePosixPath(source), os.fspath(target)
    if not text:
        raise NotFound("on this machine, there is no ''")
    tree = await _is_tree(files, source)
    facts = None if tree else await files.stat(inside)
    place = Path(text)
    if await here(place, os.path.isdir, text):
        place /= last_name(str(source))
    elif not tree and text.endswith("/"):
        raise NotFound(
            f"this machine has no folder {text!r}",
            hint="make it first, or leave the last slash out",
        )
    if tree:
        await _fill(place, files.download_tree(inside), told)
        return place
    # The operator's own links count: the copy replaces what they lead to.
    real = Path(await here(place, os.path.realpath, place))
    if await here(real, _is_special, real):
        with await here(real, lambda: real.open("wb", buffering=0)) as stream:
            await get_to(files, inside, stream, told=told)
        return place
    folder = await here(real, os.open, real.parent, _FOLDER)
    try:
        mode = facts.mode if facts is not None and facts.type is FileType.FILE else None
        await _save(folder, real.name, files.download(inside), mode, told)
    finally:
        os.close(folder)
    return place


async def _is_tree(files: Files, source: PurePosixPath | str) -> bool:
    """Say whether it is a folder; what is named as one, by a last slash, has to be (cp, cat)."""
    inside = PurePosixPath(source)
    if await is_directory(files, inside):
        return True
    if str(source).endswith("/"):
        await files.stat(inside)
        raise NotADirectory(f"the sandbox's {str(inside)!r} is no folder")
    return False


def _is_special(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


async def _fill(root: Path, items: AsyncIterable[TreeItem], told: Told) -> None:
    """Make a folder of what a sandbox says is in one of its own."""
    made = await here(root, _make_root, root)
    top = await here(root, os.open, root, _FOLDER)  # links in it are the operator's own
    links: list[tuple[tuple[str, ...], str]] = []
    modes: list[tuple[tuple[str, ...], int]] = []
    try:
        async with iterating(items) as each:
            async for item in each:
                parts = _parts(item.path)
                if not parts:
                    if made and item.mode is not None:
                        modes.append((parts, item.mode))
                elif item.type is FileType.SYMLINK:
                    links.append((parts, item.link or ""))
                elif item.type is FileType.DIRECTORY:
                    if await here(item.path, _make_folder, top, parts) and item.mode is not None:
                        modes.append((parts, item.mode))
                elif item.type is FileType.FILE:
                    folder = await here(item.path, _descend, top, parts[:-1])
                    try:
                        await _save(folder, parts[-1], item.chunks or _none(), item.mode, told)
                    finally:
                        os.close(folder)
        # Last, so that nothing of ours can ever go through one of them.
        for parts, text in links:
            await here("/".join(parts), _make_link, top, parts, text)
        for parts, mode in reversed(modes):
            await here("/".join(parts), _narrow, top, parts, mode)
    finally:
        os.close(top)


async def _none() -> AsyncGenerator[bytes, None]:
    nothing: tuple[bytes, ...] = ()
    for chunk in nothing:
        yield chunk


def _parts(path: PurePosixPath) -> tuple[str, ...]:
    """Return a path's names, all of which are names of things in the copy."""
    parts = path.parts
    if path.is_absolute() or any(part == ".." or "\0" in part for part in parts):
        raise InvalidArgument(f"the sandbox names {str(path)!r}, which leads out of the copy")
    return parts


_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _make_root(root: Path) -> bool:
    try:
        root.mkdir()
    except FileExistsError:
        if not root.is_dir():
            raise
        return False
    return True


def _descend(top: int, parts: tuple[str, ...]) -> int:
    """Open a folder of the copy, going through no link."""
    here = os.dup(top)
    for part in parts:
        try:
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
        except NotADirectoryError:
            raise AlreadyExists(
                f"{part!r} is in the way of the copy: it is no folder, or a link to one"
            ) from None
        finally:
            os.close(here)
        here = below
    return here


def _make_folder(top: int, parts: tuple[str, ...]) -> bool:
    folder = _descend(top, parts[:-1])
    try:
        os.mkdir(parts[-1], dir_fd=folder)
    except FileExistsError:
        os.close(_descend(folder, parts[-1:]))
        return False
    finally:
        os.close(folder)
    return True


def _make_link(top: int, parts: tuple[str, ...], text: str) -> None:
    folder, name = _descend(top, parts[:-1]), parts[-1]
    try:
        if not text:
            raise InvalidArgument(f"the sandbox's link {name!r} leads nowhere")
        aside = _aside()
        os.symlink(text, aside, dir_fd=folder)
        try:
            _replace(folder, aside, name)
        except BaseException:
            os.unlink(aside, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def _narrow(top: int, parts: tuple[str, ...], mode: int) -> None:
    """Take from a folder that we made what the sandbox's own has not."""
    folder = _descend(top, parts)
    try:
        os.fchmod(folder, os.fstat(folder).st_mode & mode & 0o777)
    finally:
        os.close(folder)


def _aside() -> str:
    return f".pinfold-{os.urandom(16).hex()}"


def _replace(folder: int, aside: str, name: str) -> None:
    try:
        os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:
        raise IsADirectory(f"a folder {name!r} is in the way of the copy") from None


async def _save(
    folder: int, name: str, chunks: AsyncIterable[bytes], mode: int | None, told: Told
) -> None:
    """Write a file beside its name and move it there: a copy cut short leaves the old one."""
    aside = _aside()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    bits = 0o666 if mode is None else mode & 0o777  # the umask has its say
    fd = await here(name, os.open, aside, flags, bits, dir_fd=folder)
    try:
        try:
            async with iterating(chunks) as pieces:
                async for chunk in pieces:
                    await here(name, _write, fd, chunk)
                    told(len(chunk))
        finally:
            os.close(fd)
        await here(name, _replace, folder, aside, name)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside, dir_fd=folder)
        raise


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
