"""Guest paths, as callers name them (FS-1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from pinfold.errors import InvalidArgument, OutsideWorkspace
from pinfold.spec import WORKSPACE

__all__ = ["guest_path", "guest_text", "leads_out"]

#: The text of most paths, in which `guest_path` finds nothing: the workspace, or printable names
#: below it that are neither `.` nor `..`. To look at it part by part costs as much as a round trip.
_PLAIN: Final = re.compile(rf"{WORKSPACE}(?:/(?!\.{{1,2}}(?:/|$))[ -.0-~]+)*")

#: Far beyond what any target takes; to look at more costs time in which nothing else is done.
_MOST_CHARACTERS: Final = 32_768


def guest_path(
    path: PurePosixPath | str,
    roots: Sequence[PurePosixPath] = (),
    *,
    what: str = "the path",
) -> PurePosixPath:
    """Return `path` when it lies, by its text, in the workspace or a writable root.

    This judges names only. That the thing named lies there too is the provider's to enforce, with
    no gap between check and use (FS-2).

    Args:
        path: absolute, in the caller's view.
        roots: writable roots besides the workspace.
        what: how to call it in an error.

    Raises:
        InvalidArgument: relative, with `..`, with NUL, absurdly long, or text that stands for no
            bytes.
        OutsideWorkspace: elsewhere, look-alikes such as /workspacefoo included.
    """
    text = guest_text(path, roots, what=what)
    return path if type(path) is PurePosixPath and str(path) == text else PurePosixPath(text)


def guest_text(
    path: PurePosixPath | str,
    roots: Sequence[PurePosixPath] = (),
    *,
    what: str = "the path",
) -> str:
    """Do as `guest_path`, and return the text alone: a path object costs more than the look."""
    if not isinstance(path, (str, PurePosixPath)):
        raise InvalidArgument(f"{what} is a path, not {type(path).__name__}")
    text = str(path)
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(
            f"{what} is too long: {len(text)} characters, {text[:80]!r} and so on",
            hint=f"no target takes one of more than {_MOST_CHARACTERS}, most take 4095 bytes",
        )
    if _PLAIN.fullmatch(text):
        return text
    if "\0" in text:
        raise InvalidArgument(f"{what} has a NUL byte")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} has a surrogate that stands for no byte") from None
    pure = PurePosixPath(text)
    if not pure.is_absolute():
        raise InvalidArgument(f"{what} is relative: {text!r}", hint=f"start it with {WORKSPACE}")
    if ".." in pure.parts:
        raise InvalidArgument(f"{what} has '..': {text!r}", hint="name the place directly")
    if text.startswith("//"):  # POSIX leaves its meaning open; PurePosixPath keeps it
        pure = PurePosixPath("/" + text.lstrip("/"))
    if not any(pure == root or root in pure.parents for root in (WORKSPACE, *roots)):
        allowed = ", ".join(str(root) for root in (WORKSPACE, *roots))
        raise OutsideWorkspace(
            f"{what} is outside the workspace: {text!r}",
            hint=f"name something under {allowed}",
            details={"path": text},
        )
    return str(pure)


def leads_out(path: str, text: str) -> bool:
    """Say whether a link at `path` leads out of the workspace, by its text alone (CP-2).

    Args:
        path: of the link, relative to the workspace.
        text: the link's text; absolute ones are in the caller's view.
    """
    if text.startswith("/"):
        parts = list(PurePosixPath(text).parts[1:])
        root = list(WORKSPACE.parts[1:])
        if parts[: len(root)] != root:
            return True
        parts = parts[len(root) :]
    else:
        parts = [*path.split("/")[:-1], *text.split("/")]
    depth = 0
    for part in parts:
        if part == "..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in ("", "."):
            depth += 1
    return False
