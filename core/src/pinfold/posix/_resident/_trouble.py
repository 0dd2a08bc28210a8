"""Typed errors from the helper's codes (FS-5)."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Final

from pinfold.errors import (
    AlreadyExists,
    CheckpointCorrupt,
    Conflict,
    Internal,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    NotRegular,
    OutsideWorkspace,
    PermissionDenied,
    PinfoldError,
    TooLarge,
    Unavailable,
)
from pinfold.posix._resident._stream import Refused
from pinfold.posix._resident._wire import Code

__all__ = ["error_of"]

_EBUSY: Final = 16
_ENAMETOOLONG: Final = 36
_ELOOP: Final = 40

_KINDS: Final[dict[Code, tuple[type[PinfoldError], str, str]]] = {
    Code.NOT_FOUND: (NotFound, "there is no such file or directory", ""),
    Code.IS_A_DIRECTORY: (IsADirectory, "it is a directory", ""),
    Code.NOT_A_DIRECTORY: (NotADirectory, "it, or a parent of it, is no directory", ""),
    Code.ALREADY_EXISTS: (AlreadyExists, "there is something already", ""),
    Code.PERMISSION_DENIED: (PermissionDenied, "the target's permissions refuse it", ""),
    Code.OUTSIDE_WORKSPACE: (
        OutsideWorkspace,
        "a link leads out of the workspace",
        "links are followed only where they stay inside",
    ),
    Code.TOO_LARGE: (TooLarge, "it is larger than the target allows", ""),
    Code.NO_SPACE: (
        NoSpace,
        "the file system is full",
        "remove something, or ask for a larger one",
    ),
    Code.NOT_REGULAR: (
        NotRegular,
        "it is no regular file",
        "only regular files can be read or written",
    ),
    Code.NOT_EMPTY: (
        Conflict,
        "the directory is not empty",
        "pass recursive=True to remove all",
    ),
    Code.INVALID_ARGUMENT: (InvalidArgument, "the target does not take that", ""),
    Code.UNAVAILABLE: (
        Unavailable,
        "the target has no process, descriptor or memory left for it",
        "a limit may be reached",
    ),
    Code.CORRUPT: (CheckpointCorrupt, "what came is not what was announced", ""),
}


def error_of(refused: Refused, path: PurePosixPath | str, doing: str) -> PinfoldError:
    """Return the typed error for a refusal.

    Args:
        refused: by the helper.
        path: in the caller's view.
        doing: what was to be done, as in `can't DOING PATH`.
    """
    details = {"path": str(path)}
    if refused.errno == _ELOOP:
        return NotFound(
            f"can't {doing} {str(path)!r}: its links lead in a circle",
            hint="remove the link",
            details=details,
        )
    if refused.errno == _ENAMETOOLONG:
        return InvalidArgument(
            f"can't {doing} {str(path)[:80]!r}: a name in it, or all of it, is too long",
            hint="on most file systems a name has at most 255 bytes, a path or a link 4095",
        )
    if refused.errno == _EBUSY:
        return Conflict(
            f"can't {doing} {str(path)!r}: another process has a lease on it, or it is a mount",
            hint="end that process, or wait for it",
            details=details,
        )
    if refused.code not in _KINDS:
        reason = os.strerror(refused.errno) if refused.errno < 4096 else str(refused.errno)
        return Internal(f"can't {doing} {str(path)!r}: {reason}", details=details)
    kind, what, hint = _KINDS[refused.code]
    return kind(f"can't {doing} {str(path)!r}: {what}", hint=hint, details=details)
