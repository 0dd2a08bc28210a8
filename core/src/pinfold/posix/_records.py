"""What stat and find of the target say, understood without being fooled by names.

Two forms. From `stat -c '%f %s %Y %y %Z %z %i %n//%N//'`: a name has no `//`, so that it ends
there; the text of a link follows it in `%N`, and its length is the link's size. From `find -printf`
(GNU): three fields, each ended by NUL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from pinfold.provider import FileType

__all__ = ["Record", "from_find", "from_stat"]

_SECOND: Final = 1_000_000_000
_TYPES: Final = {0o100000: FileType.FILE, 0o040000: FileType.DIRECTORY, 0o120000: FileType.SYMLINK}
_LETTERS: Final = {"f": FileType.FILE, "d": FileType.DIRECTORY, "l": FileType.SYMLINK}


@attrs.frozen
class Record:
    """One name, as lstat sees it; `name` is relative to where the program was."""

    name: str
    type: FileType
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    link: str | None = None


def from_stat(said: str) -> tuple[list[Record], str]:
    """Read records up to an empty one, or to the end.

    Args:
        said: surrogateescape text.

    Returns:
        The records, and what follows the empty one.
    """
    records: list[Record] = []
    while said:
        fields, _, rest = said.partition("//")
        if not fields:
            return records, rest.removeprefix("\n")
        mode, size, mtime, _, mclock, _, ctime, _, cclock, _, inode, name = fields.split(" ", 11)
        bits = int(mode, 16)
        kind = _TYPES.get(bits & 0o170000, FileType.OTHER)
        link = None
        if kind is FileType.SYMLINK:
            # 'NAME' -> 'TEXT', the quotes for busybox only; without them none begins like this
            quote = 1 if rest.startswith(f"'{name}'") else 0
            start = quote + len(name) + quote + len(" -> ") + quote
            text = rest.encode("utf-8", "surrogateescape")[
                len(rest[:start].encode("utf-8", "surrogateescape")) :
            ][: int(size)]
            link = text.decode("utf-8", "surrogateescape")
            rest = rest[start + len(link) :]
        else:
            rest = rest[len(name) :]
        _, _, said = rest.partition("//\n")
        records.append(
            Record(
                name=name.removeprefix("./"),
                type=kind,
                mode=bits & 0o7777,
                size=0 if kind is FileType.DIRECTORY else int(size),
                mtime_ns=int(mtime) * _SECOND + _fraction(mclock),
                ctime_ns=int(ctime) * _SECOND + _fraction(cclock),
                inode=int(inode),
                link=link,
            )
        )
    return records, ""


def _fraction(clock: str) -> int:
    _, _, digits = clock.partition(".")
    return int(digits) if digits else 0


def from_find(said: str) -> Iterator[Record]:
    """Read records of `find -printf`; what is cut off at the end is left out."""
    fields = said.split("\0")
    for facts, name, text in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        letter, mode, size, mtime, ctime, inode = facts.split(" ")
        kind = _LETTERS.get(letter, FileType.OTHER)
        yield Record(
            name,
            kind,
            int(mode, 8),
            0 if kind is FileType.DIRECTORY else int(size),
            _nanoseconds(mtime),
            _nanoseconds(ctime),
            int(inode),
            text if kind is FileType.SYMLINK else None,
        )


def _nanoseconds(stamp: str) -> int:
    seconds, _, digits = stamp.partition(".")
    return int(seconds) * _SECOND + int((digits + "000000000")[:9])
