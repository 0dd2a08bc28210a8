r"""Manifests: one for each directory, canonical to the byte (CP-1).

**The canonical form** of a directory is ``pinfold tree 1\n`` and then its entries, sorted by the
bytes of their names, without a separator::

    file        f MODE SIZE DIGEST NAME NUL
    directory   d MODE DIGEST NAME NUL
    link        l NAME NUL TEXT NUL

Fields are parted by one space. MODE is the permission bits in octal, SIZE decimal, both without
leading zeros. NAME and TEXT are raw bytes; they may hold spaces and newlines, and never NUL. DIGEST
is lower-case hex SHA-256: of a file's content, or of the directory's own canonical form. A link
has no mode: systems differ in what they claim. So the digest of the root's canonical form, the
`tree_digest`, depends on types, names, modes, sizes, contents and link texts, and on nothing else:
no time, no owner, no inode, no order of listing; equal trees have equal digests everywhere. The
workspace's own mode is no part of its tree.

**A stored manifest** is ``pinfold manifest 1 LENGTH\n``, the canonical form, LENGTH bytes, and one
line for each entry in the same order: its mtime in nanoseconds, and for a directory a space and the
hex SHA-256 of its own stored manifest, by which it is found. So times are kept and are checked for
damage, and are not part of the tree's identity.

Manifests are untrusted (CP-8): decoding refuses whatever a `Draft` would not have written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, cast

import attrs

from pinfold.provider import Entry, FileType

__all__ = [
    "EMPTY_DIGEST",
    "MANIFEST_BYTES",
    "Damaged",
    "Directory",
    "Draft",
    "Newer",
    "Subdirectory",
    "decode",
]

_HEADER: Final = b"pinfold tree 1\n"
_STORED: Final = re.compile(rb"pinfold manifest ([0-9]{1,9})\b(?: ([0-9]{1,12})\n)?")
VERSION: Final = 1

#: The largest stored manifest that is read or written: about a million names in one directory.
MANIFEST_BYTES: Final = 256 * 2**20
#: SHA-256 of nothing.
EMPTY_DIGEST: Final = sha256(b"").hexdigest()

_NAME = rb"[^/\0]{1,1024}+"
_MODE = rb"(?:0|[1-7][0-7]{0,3}+)"
_SIZE = rb"(?:0|[1-9][0-9]{0,17}+)"
_HEX = rb"[0-9a-f]{64}"
_ENTRY: Final = re.compile(
    rb"(?>f (%b) (%b) (%b) (%b)\0|d (%b) (%b) (%b)\0|l (%b)\0([^\0]{1,4096}+)\0)"
    % (_MODE, _SIZE, _HEX, _NAME, _MODE, _HEX, _NAME, _NAME)
)
_ENTRIES: Final = re.compile(
    rb"(?>f %b %b %b %b\0|d %b %b %b\0|l %b\0[^\0]{1,4096}+\0)*+"
    % (_MODE, _SIZE, _HEX, _NAME, _MODE, _HEX, _NAME, _NAME)
)
_TIME = rb"-?(?:0|[1-8][0-9]{18}|[1-9][0-9]{0,17}+)"
_EXTRA: Final = re.compile(rb"(?>%b(?: %b)?\n)*+" % (_TIME, _HEX))
_MAX_TIME: Final = 9 * 10**18 - 1  # the year 2255; beyond it many systems can't set a time


class Damaged(ValueError):
    """These bytes are not what pinfold wrote, or would write."""


class Newer(ValueError):
    """These bytes are of a later version of the format (SP-3)."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}, this pinfold reads {VERSION}")
        self.version = version


@attrs.frozen
class Subdirectory:
    """What a directory's manifest says of one below it."""

    digest: str  # of the canonical form
    object: str  # of the stored manifest


@attrs.frozen
class Directory:
    """One directory as it is stored.

    Attributes:
        digest: hex SHA-256 of the canonical form.
        object: hex SHA-256 of `stored`.
        stored: the manifest's bytes.
    """

    digest: str
    object: str
    stored: bytes = attrs.field(repr=False)


class Draft:
    """A directory's manifest while its entries are added, in any order."""

    __slots__ = ("_lines", "_links", "_names", "_subdirectories", "_times")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._lines: list[str] = []
        self._times: list[int] = []
        self._subdirectories: list[tuple[int, int]] = []  # index and mode
        self._links = 0

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry whose path ends in `name`.

        Raises:
            Damaged: no manifest can hold it.
        """
        kind = entry.type
        if kind is FileType.FILE:
            size, digest = entry.size, entry.digest
            if (not size) is not (digest == EMPTY_DIGEST) or len(digest) != 64:
                raise Damaged(f"the digest of {entry.path!r} is malformed, or not that of its size")
            self._lines.append(f"f {entry.mode:o} {size} {digest} {name}\0")
        elif kind is FileType.DIRECTORY:
            self._subdirectories.append((len(self._lines), entry.mode))
            self._lines.append("")
        elif kind is FileType.SYMLINK and entry.link is not None:
            self._links += 1
            self._lines.append(f"l {name}\0{entry.link}\0")
        else:
            raise Damaged(f"{entry.path!r} is neither a file, a directory nor a link")
        self._names.append(name)
        self._times.append(entry.mtime_ns)

    def close(self, below: Sequence[Subdirectory]) -> Directory:
        """Return the manifest.

        Args:
            below: for the directories that were added, in the same order.

        Raises:
            Damaged: what can't be in a manifest: bad names, the same name twice, absurd sizes.
        """
        extras = [f"{_sane(time)}\n" for time in self._times]
        for (index, mode), child in zip(self._subdirectories, below, strict=True):
            self._lines[index] = f"d {mode:o} {child.digest} {self._names[index]}\0"
            extras[index] = f"{_sane(self._times[index])} {child.object}\n"
        body, extra = self._in_order(extras)
        # The count tells a NUL inside a name, which could make one entry pass for two.
        if _ENTRIES.fullmatch(body) is None or body.count(b"\0") != len(self._names) + self._links:
            raise Damaged(_culprit(self._lines))
        if "." in self._names or ".." in self._names:
            raise Damaged("a name is '.' or '..'")
        canonical = _HEADER + body
        stored = b"pinfold manifest %d %d\n%b%b" % (VERSION, len(canonical), canonical, extra)
        if len(stored) > MANIFEST_BYTES:
            raise Damaged(f"a directory of {len(self._names)} names is too large")
        return Directory(sha256(canonical).hexdigest(), sha256(stored).hexdigest(), stored)

    def _in_order(self, extras: list[str]) -> tuple[bytes, bytes]:
        """Return both columns in the order of the names' bytes.

        For names in ASCII the order of code points is that of the bytes; for others it is not, as
        surrogates stand for single bytes.
        """
        lines, keys = self._lines, cast(list[Any], self._names)
        joined = "".join(lines)
        if not joined.isascii():
            try:
                keys = [name.encode("utf-8", "surrogateescape") for name in self._names]
            except UnicodeEncodeError:
                raise Damaged("a name has a surrogate that stands for no byte") from None
        if len(set(keys)) != len(keys):
            raise Damaged("a name is there twice")
        if keys != sorted(keys):
            index = sorted(range(len(keys)), key=keys.__getitem__)
            joined = "".join([lines[i] for i in index])
            extras = [extras[i] for i in index]
        try:
            return joined.encode("utf-8", "surrogateescape"), "".join(extras).encode("ascii")
        except UnicodeEncodeError:
            raise Damaged("a link's text has a surrogate that stands for no byte") from None


def _sane(time: int) -> int:
    """Return a time that can be stored; a guest may claim any, and it is not hashed."""
    if -_MAX_TIME <= time <= _MAX_TIME:
        return time
    return _MAX_TIME if time > 0 else -_MAX_TIME


def _culprit(lines: Iterable[str]) -> str:
    for line in lines:
        if not _ENTRIES.fullmatch(line.encode("utf-8", "surrogateescape")):
            return f"no manifest can hold this entry: {line[:200]!r}"
    return "a name or a digest has a NUL"


def decode(stored: bytes, prefix: str) -> tuple[list[Entry], list[Subdirectory], str]:
    """Return the entries of a stored manifest, its subdirectories in order, and its digest.

    Args:
        stored: the manifest's bytes.
        prefix: the path of the directory and `/`; empty for the workspace.

    Raises:
        Damaged: these bytes are not what a `Draft` writes (CP-8).
        Newer: they are of a later version (SP-3).
    """
    canonical, extra = _parts(stored)
    body = canonical[len(_HEADER) :]
    if not canonical.startswith(_HEADER) or _ENTRIES.fullmatch(body) is None:
        raise Damaged("an entry of a manifest is malformed")
    if _EXTRA.fullmatch(extra) is None:
        raise Damaged("a time in a manifest is malformed")
    times = extra.decode("ascii").split("\n")[:-1]
    entries: list[Entry] = []
    below: list[Subdirectory] = []
    last = b""
    matches = list(_ENTRY.finditer(body))
    if len(matches) != len(times):
        raise Damaged("a manifest has more entries than times, or fewer")
    for match, line in zip(matches, times, strict=True):
        fmode, size, fdigest, fname, dmode, ddigest, dname, lname, text = match.groups()
        raw = fname or dname or lname
        if raw <= last or raw in (b".", b".."):
            raise Damaged(f"a name in a manifest is out of order, twice there, or no name: {raw!r}")
        last = raw
        path = prefix + raw.decode("utf-8", "surrogateescape")
        time, _, child = line.partition(" ")
        if bool(child) is not bool(dname):
            raise Damaged("a manifest finds a directory where there is none, or the reverse")
        if fname:
            entry = Entry(
                path=path,
                type=FileType.FILE,
                mode=int(fmode, 8),
                size=int(size),
                digest=fdigest.decode(),
                mtime_ns=int(time),
            )
            if (entry.size == 0) is not (entry.digest == EMPTY_DIGEST):
                raise Damaged(f"the size and the digest of {path!r} contradict each other")
        elif dname:
            entry = Entry(
                path=path, type=FileType.DIRECTORY, mode=int(dmode, 8), mtime_ns=int(time)
            )
            below.append(Subdirectory(ddigest.decode(), child))
        else:
            entry = Entry(
                path=path,
                type=FileType.SYMLINK,
                mode=0o777,
                link=text.decode("utf-8", "surrogateescape"),
                mtime_ns=int(time),
            )
        entries.append(entry)
    return entries, below, sha256(canonical).hexdigest()


def _parts(stored: bytes) -> tuple[bytes, bytes]:
    head = _STORED.match(stored)
    if head is None:
        raise Damaged("this is no manifest")
    version, length = int(head[1]), int(head[2] or 0)
    if version > VERSION:
        raise Newer(version)
    start = head.end()
    if version != VERSION or head[2] is None or start + length > len(stored):
        raise Damaged("the head of a manifest is malformed")
    return stored[start : start + length], stored[start + length :]
