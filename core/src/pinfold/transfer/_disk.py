"""What both directions share: the operator's disk with typed errors, and cp's rules about names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final, ParamSpec, TypeVar

from anyio import to_thread

from pinfold.errors import (
    AlreadyExists,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    PermissionDenied,
    PinfoldError,
    Unavailable,
)
from pinfold.provider import Files, FileType

__all__ = ["CHUNK", "Told", "here", "is_directory", "last_name", "nobody"]

CHUNK: Final = 1 << 20

Told = Callable[[int], object]
Local = str | os.PathLike[str]

P = ParamSpec("P")
R = TypeVar("R")


def nobody(_: object) -> None:
    """Be told, and do nothing."""


async def here(where: Local, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do something to the operator's disk, off the loop.

    Args:
        where: what to name where the system does not.
        work: what.

    Raises:
        NotFound, AlreadyExists, PermissionDenied, NoSpace, IsADirectory, NotADirectory,
        InvalidArgument, Unavailable: what the system says.
    """
    with _typed(where):
        return await to_thread.run_sync(lambda: work(*args, **kwargs))


_TYPES: Final[dict[int, tuple[type[PinfoldError], str]]] = {
    errno.ENOENT: (NotFound, "there is no {}"),
    errno.EEXIST: (AlreadyExists, "{} is in the way of the copy"),
    errno.ENOTDIR: (NotADirectory, "{} is no folder"),
    errno.EISDIR: (IsADirectory, "a folder {} is in the way of the copy"),
    errno.EACCES: (PermissionDenied, "no permission for {}"),
    errno.EPERM: (PermissionDenied, "no permission for {}"),
    errno.EROFS: (PermissionDenied, "a read-only disk has {}"),
    errno.ENOSPC: (NoSpace, "no space is left for {}"),
    errno.EDQUOT: (NoSpace, "the quota leaves no space for {}"),
    errno.ENAMETOOLONG: (InvalidArgument, "too long a name: {}"),
}


@contextmanager
def _typed(where: Local) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads our output has gone: the command line's affair
    except OSError as exc:
        name, told = os.fspath(where), exc.filename
        if isinstance(told, str) and told.startswith(name):
            name = told  # something below; else it is a name of our own
        kind, text = _TYPES.get(exc.errno or 0, (Unavailable, f"{{}}: {exc.strerror}"))
        raise kind(f"on this machine, {text.format(repr(name))}") from None
    except ValueError:  # a NUL, or what no file system's encoding has
        raise InvalidArgument(f"no file of this machine can be called {where!r}") from None


def last_name(path: str) -> str:
    """Return the name that cp gives to a copy in a folder; empty for `.`, `..` and `/`.

    With an empty name it is the content that is copied, as cp does.
    """
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name in (".", "..") else name


async def is_directory(files: Files, path: PurePosixPath) -> bool:
    """Say whether a path of a sandbox leads to a directory, through links that stay inside."""
    try:
        found = await files.stat(path)
        if found.type is FileType.SYMLINK:
            await files.list(path)
            return True
    except (NotFound, NotADirectory):
        return False
    return found.type is FileType.DIRECTORY
