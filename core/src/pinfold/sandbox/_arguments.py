"""Arguments of file operations, held to their types before any provider sees them (FS).

A provider may trust them: what is wrong here would else come out as a fault of its own, or, like a
link whose text stands for no bytes, stay and spoil what comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinfold.errors import InvalidArgument

__all__ = ["a_text", "content", "count", "mapping", "several"]


def count(name: str, value: Any) -> None:
    """Refuse what is no number of bytes."""
    if type(value) is not int or value < 0:
        raise InvalidArgument(f"{name} is a number of bytes, 0 or more")


def content(value: Any, what: str = "a file's content") -> None:
    """Refuse what is not bytes."""
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{what} is bytes, not {type(value).__name__}")


def a_text(value: Any) -> None:
    """Refuse what no link can hold."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidArgument("a link's text is a string of at least one character, without NUL")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument("a link's text has a surrogate that stands for no byte") from None


def several(paths: Any) -> None:
    """Refuse what is no list of paths; one path is none."""
    if isinstance(paths, (str, bytes)) or not isinstance(paths, Iterable):
        raise InvalidArgument("paths is a list of paths")


def mapping(files: Any) -> None:
    """Refuse what is no mapping of paths to contents, so that none of it is written."""
    if not isinstance(files, Mapping):
        raise InvalidArgument("files is a mapping of paths to contents")
    for data in files.values():
        content(data)
