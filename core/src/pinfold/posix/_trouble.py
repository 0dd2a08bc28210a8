"""Typed errors from what programs in the target say (FS-5)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from pinfold.errors import (
    AlreadyExists,
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
)
from pinfold.posix._call import ProgramFailed

__all__ = ["error_of"]

#: What our programs answer: the class, what is wrong, what to do.
_CODES: Final[dict[str, tuple[type[PinfoldError], str, str]]] = {
    "already_exists": (AlreadyExists, "there is something already", ""),
    "changed": (Conflict, "it was changed by others meanwhile", "try it again"),
    "into_itself": (Conflict, "a directory can't be moved into itself", ""),
    "is_a_directory": (IsADirectory, "it is a directory", ""),
    "link_loop": (NotFound, "its links lead in a circle", "remove the link"),
    "not_a_directory": (NotADirectory, "it, or a parent of it, is no directory", ""),
    "not_empty": (Conflict, "the directory is not empty", "pass recursive=True to remove all"),
    "not_found": (NotFound, "there is no such file or directory", ""),
    "not_regular": (
        NotRegular,
        "it is no regular file",
        "only regular files can be read or written",
    ),
    "no_space": (NoSpace, "the file system is full", "remove something, or ask for a larger one"),
    "other_file_system": (
        Conflict,
        "source and target are on different file systems",
        "copy it, then remove the source",
    ),
    "outside_workspace": (
        OutsideWorkspace,
        "a link leads out of the workspace",
        "links are followed only where they stay inside",
    ),
    "permission_denied": (PermissionDenied, "the target's permissions refuse it", ""),
    "too_long": (InvalidArgument, "the name or the path is too long for the target", ""),
}

#: What the C library calls an error (glibc, musl, dash's own), in the order they are looked for.
_TEXTS: Final = (
    ("No space left", "no_space"),
    ("quota exceeded", "no_space"),
    ("Quota exceeded", "no_space"),
    ("Directory not empty", "not_empty"),
    ("Permission denied", "permission_denied"),
    ("Operation not permitted", "permission_denied"),
    ("Read-only file system", "permission_denied"),
    ("ame too long", "too_long"),
    ("Not a directory", "not_a_directory"),
    ("s a directory", "is_a_directory"),
    ("File exists", "already_exists"),
    ("subdirectory of itself", "into_itself"),
    ("No such file", "not_found"),
    ("no such file", "not_found"),
    ("nonexistent", "not_found"),
    ("oo many levels of symbolic links", "link_loop"),
)


def error_of(failure: ProgramFailed, path: PurePosixPath | str, doing: str) -> PinfoldError:
    """Return the typed error for a program's failure.

    Args:
        failure: what the program said.
        path: in the caller's view.
        doing: what was to be done, as in `can't DOING PATH`.
    """
    code = failure.code
    if code == "failed" and not failure.trouble:
        code = "changed"  # no tool complained: a check of ours found something else than before
    elif code == "failed":
        code = next((code for text, code in _TEXTS if text in failure.trouble), code)
    details = {"path": str(path)}
    if code not in _CODES:
        return Internal(
            f"can't {doing} {str(path)!r}: {failure.trouble or failure.code}", details=details
        )
    kind, what, hint = _CODES[code]
    return kind(f"can't {doing} {str(path)!r}: {what}", hint=hint, details=details)
