"""bashkit's errors are texts; here each becomes one of ours, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    OutcomeUnknown,
    PermissionDenied,
    PinfoldError,
    TooLarge,
    Unavailable,
)

__all__ = ["contained", "translated", "translation"]

#: The first text that is found decides; the order matters where one contains another.
_TEXTS: Final[tuple[tuple[str, type[PinfoldError], str], ...]] = (
    ("file too large", TooLarge, "the file is too large"),
    ("filesystem full", NoSpace, "the virtual file system is full"),
    ("too many files", NoSpace, "the virtual file system has too many files"),
    ("too many directories", NoSpace, "the virtual file system has too many directories"),
    ("unsafe character", InvalidArgument, "the name has a character that bashkit refuses"),
    ("filename too long", InvalidArgument, "the name is too long"),
    ("path too long", InvalidArgument, "the path is too long"),
    ("path too deep", InvalidArgument, "the path is too deep"),
    ("file over directory", IsADirectory, "a directory is in the way"),
    ("directory over file", NotADirectory, "a file is in the way"),
    ("into itself", Conflict, "a directory can't be moved into itself"),
    ("not empty", Conflict, "the directory is not empty"),
    ("is a directory", IsADirectory, "it is a directory"),
    ("not a directory", NotADirectory, "it is not a directory"),
    ("exists", AlreadyExists, "something of that name is there already"),
    ("not found", NotFound, "there is no such file or directory"),
    ("read-only", PermissionDenied, "it is read-only"),
    ("Too many open files", Unavailable, "this process has no file descriptor left"),
)


def translation(exc: Exception, path: str) -> PinfoldError:
    """Return the typed error for what bashkit said about `path`."""
    if isinstance(exc, UnicodeEncodeError):
        return InvalidArgument(
            f"{path!a} is not UTF-8, and this target's names are",
            hint="choose a name that is valid UTF-8",
        )
    text = str(exc)
    for part, kind, words in _TEXTS:
        if part in text:
            return kind(f"{path!r}: {words}", details={"path": path, "bashkit": text})
    return Internal(f"bashkit failed at {path!r}: {text}", details={"path": path})


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise bashkit's errors as typed ones, about `path` in the caller's view."""
    try:
        yield
    except (RuntimeError, UnicodeEncodeError) as exc:
        raise translation(exc, path) from exc


@contextmanager
def contained() -> Iterator[None]:
    """Let no failure of the interpreter itself out untyped.

    A panic in bashkit is no `Exception`: it would end the whole program, for what a guest did.
    """
    try:
        yield
    except Exception as exc:
        raise _failed(exc) from exc
    except BaseException as exc:
        if type(exc).__name__ != "PanicException":
            raise
        raise _failed(exc) from None


def _failed(exc: BaseException) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the interpreter failed: {type(exc).__name__}: {exc}",
        hint="the command may have run in part; this is a bug of bashkit",
    )
