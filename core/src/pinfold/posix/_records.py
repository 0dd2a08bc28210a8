"""What stat and find of the target say, understood without being fooled by names.

Two forms. From `stat -c '%f %s %Y %y %Z %z %i %n//%N//'`: a name has no `//`, so that it ends
there; the text of a link follows it in `%N`, and its length is the link's size. From `find -printf`
(GNU): three fields, each ended by NUL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from pinfold.errors import Unavailable
from pinfold.provider import FileType

__all__ = ["Record", "from_find", "from_stat", "unreadable", "within"]

_SECOND: Final = 1_000_000_000
_TYPES: Final = {0o100000: FileType.FILE, 0o040000: FileType.DIRECTORY, 0o120000: FileType.SYMLINK}
_LETTERS: Final = {"f": FileType.FILE, "d": FileType.DIRECTORY, "l": FileType.SYMLINK}


class Record(NamedTuple):  # there are many: made in a third of the time that attrs takes
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

    Raises:
        Unavailable: these are no records.
    """
    with _readable():
        return _from_stat(said)


def _from_stat(said: str) -> tuple[list[Record], str]:
    records: list[Record] = []
    at = 0
    while at < len(said):
        end = said.index("//", at)
        if end == at:
            return records, said[end + 2 :].removeprefix("\n")
        mode, size, mtime, _, mclock, _, ctime, _, cclock, _, inode, name = said[at:end].split(
            " ", 11
        )
        bits = int(mode, 16)
        kind = _TYPES.get(bits & 0o170000, FileType.OTHER)
        link = None
        if kind is FileType.SYMLINK:
            link, at = _link(said, end + 2, name, int(size))
        else:
            at = _after(said, end + 2 + len(name))
        if kind is FileType.SYMLINK and link is None:
            continue
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


def _link(said: str, at: int, name: str, size: int) -> tuple[str | None, int]:
    """Return a link's text, None where it is no link any more; and where the next record begins."""
    # 'NAME' -> 'TEXT', the quotes for busybox only; without them none begins like this
    quote = "'" if said.startswith(f"'{name}'", at) else ""
    arrow = f"{quote}{name}{quote} -> {quote}"
    if not said.startswith(arrow, at):
        return None, _after(said, at)
    at += len(arrow)
    raw = said[at : at + size].encode("utf-8", "surrogateescape")[:size]
    text = raw.decode("utf-8", "surrogateescape")
    if not said.startswith(f"{quote}//\n", at + len(text)):  # another link took its place
        text = said[at : said.index(f"{quote}//\n", at)]
    return text, _after(said, at + len(text))


def _after(said: str, at: int) -> int:
    """Return where the record ends that we are in."""
    return said.index("//\n", at) + 3


def _fraction(clock: str) -> int:
    _, _, digits = clock.partition(".")
    return int(digits) if digits else 0


def from_find(said: str) -> list[Record]:
    """Read records of `find -printf`; what is cut off at the end is left out.

    Raises:
        Unavailable: these are no records.
    """
    fields = said.split("\0")
    directory, link = FileType.DIRECTORY, FileType.SYMLINK
    records = []
    with _readable():
        for facts, name, text in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
            letter, mode, size, mtime, ctime, inode = facts.split(" ")
            kind = _LETTERS.get(letter, FileType.OTHER)
            records.append(
                Record(
                    name,
                    kind,
                    int(mode, 8),
                    0 if kind is directory else int(size),
                    _nanoseconds(mtime),
                    _nanoseconds(ctime),
                    int(inode),
                    text if kind is link else None,
                )
            )
    return records


def within(records: Sequence[Record], *, deep: bool) -> Sequence[Record]:
    """Return what a target says is in a directory, once no name in it leads elsewhere.

    Args:
        records: with names relative to the directory.
        deep: names may be of things in directories below.

    Raises:
        Unavailable: one does; a listing is as untrusted as all that comes from a guest.
    """
    for record in records:
        name = f"/{record.name}/"
        if "//" in name or "/./" in name or "/../" in name or (not deep and "/" in record.name):
            raise unreadable(f"{record.name!r} is no name in a directory")
    return records


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        raise unreadable(str(exc)) from None


def unreadable(what: str) -> Unavailable:
    """Return the error for what a target has sent in place of a listing."""
    return Unavailable(f"the target sent a listing that can't be read: {what}")


def _nanoseconds(stamp: str) -> int:
    if stamp[-11:-10] == ".":  # GNU find has a digit more than there are nanoseconds
        return int(stamp[:-11] + stamp[-10:-1])
    seconds, _, digits = stamp.partition(".")
    return int(seconds + (digits + "000000000")[:9])
