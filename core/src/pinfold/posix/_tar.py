"""Just enough of tar to send many files through one pipe, both ways, without a temporary file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator
from typing import Final

import attrs

from pinfold.errors import Unavailable

__all__ = ["BLOCK", "END", "Member", "Reader", "folder", "header", "padding"]

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
_PIECE: Final = 1 << 20
_NAME_FIELD: Final = 100
_OCTAL_LIMIT: Final = 8**11
_REGULAR: Final = b"0"
_DIRECTORY: Final = b"5"
_LONG_NAME: Final = b"L"
_PAX: Final = b"x"
_EXTENSIONS: Final = {_LONG_NAME, _PAX, b"g", b"K"}  # the last two say nothing that is needed
_CONTENT: Final = {_REGULAR, b"\0", b"7"}
#: Name, size, checksum, kind, magic and version, the first byte of the name's beginning.
_HEADER: Final = struct.Struct("100s 24x 12s 12x 8s c 100x 8s 80x c 166x")
_SPACES: Final = 8 * 0x20
_ADLER: Final = 65_521


def padding(size: int) -> bytes:
    """Return the zeros that fill up the last block of a content."""
    return bytes(-size % BLOCK)


def folder(name: str) -> bytes:
    """Return the header of a directory."""
    return _block(f"{name}/".encode(), 0, 0o755, 0, _DIRECTORY)


def header(name: str, size: int, mode: int = 0o644, mtime_ns: int = 0) -> bytes:
    """Return the header of a regular file, in GNU form; a long name goes before it."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) > _NAME_FIELD:
        text = raw + b"\0"
        long = _block(b"././@LongLink", len(text), 0o644, 0, _LONG_NAME)
        return b"".join(
            (long, text, padding(len(text)), _block(raw[:_NAME_FIELD], size, mode, mtime_ns))
        )
    return _block(raw, size, mode, mtime_ns)


def _block(name: bytes, size: int, mode: int, mtime_ns: int, kind: bytes = _REGULAR) -> bytes:
    length = b"%011o\0" % size if size < _OCTAL_LIMIT else b"\x80" + size.to_bytes(11, "big")
    seconds = min(max(mtime_ns // 1_000_000_000, 0), _OCTAL_LIMIT - 1)
    fields = b"%-100b%07o\0%07o\0%07o\0%b%011o\0%8b%b%100b" % (
        name.ljust(_NAME_FIELD, b"\0"),
        mode & 0o7777,
        0,
        0,
        length,
        seconds,
        b"",
        kind,
        bytes(100),
    )
    block = bytearray((fields + b"ustar  \0").ljust(BLOCK, b"\0"))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@attrs.frozen
class Member:
    """One member of an archive: its name, whether it is a regular file with content, its size."""

    name: str
    regular: bool
    size: int


class Reader:
    """Reads what comes in chunks: lines, exact lengths, and archives.

    What ends too early, or is no tar, raises `Unavailable`.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self._at = 0

    async def _more(self) -> bool:
        async for chunk in self._chunks:
            self._held = self._held[self._at :] + chunk
            self._at = 0
            return True
        return False

    async def line(self) -> str | None:
        """Return the next line without its end, or None at the end."""
        while (end := self._held.find(b"\n", self._at)) < 0:
            if not await self._more():
                if self._at < len(self._held):
                    raise _broken("a line has no end")
                return None
        text = _text(self._held[self._at : end])
        self._at = end + 1
        return text

    async def exactly(self, size: int) -> bytes:
        """Return so many bytes."""
        end = self._at + size
        if end <= len(self._held):
            start, self._at = self._at, end
            return self._held[start:end]
        parts, left = [self._held[self._at :]], end - len(self._held)
        while left > 0:
            self._at = len(self._held)
            if not await self._more():
                raise _broken(f"{left} bytes are missing")
            self._at = min(left, len(self._held))
            parts.append(self._held[: self._at])
            left -= self._at
        return b"".join(parts)

    async def content(self, size: int) -> bytes:
        """Return a member's content."""
        return (await self.exactly(size - size % -BLOCK))[:size]

    async def skip(self, size: int) -> None:
        """Pass over a member's content."""
        left = size - size % -BLOCK
        while left:
            step = min(left, _PIECE)
            await self.exactly(step)
            left -= step

    async def files(self, wanted: dict[str, int], largest: int) -> list[tuple[int, bytes]]:
        """Read an archive to its end.

        Args:
            wanted: numbers by names; those that come are taken out.
            largest: regular files beyond it are passed over, as is what nobody wants.

        Returns:
            The numbers and contents of what came.
        """
        found: list[tuple[int, bytes]] = []
        while True:
            self._take_plain(wanted, largest, found)
            member = await self.member()
            if member is None:
                return found
            number = wanted.pop(member.name, None) if member.regular else None
            if number is None or member.size > largest:
                await self.skip(member.size)
            else:
                found.append((number, await self.content(member.size)))

    def _take_plain(
        self, wanted: dict[str, int], largest: int, found: list[tuple[int, bytes]]
    ) -> None:
        """Take the files that have come whole, as most have, up to what takes more than a look."""
        held, at = self._held, self._at
        while (start := at + BLOCK) <= len(held):
            raw, length, said, kind, _, prefix = _HEADER.unpack_from(held, at)
            if kind != _REGULAR or prefix != b"\0" or not _sum_is_right(held[at:start], said):
                break
            size = _number(length)
            end = start + size - size % -BLOCK
            if end > len(held):
                break
            number = wanted.pop(_text(raw.partition(b"\0")[0]), None)
            if number is not None and size <= largest:
                found.append((number, held[start : start + size]))
            at = end
        self._at = at

    async def member(self) -> Member | None:
        """Return the next member, or None at the archive's end, which it passes over."""
        long_name: str | None = None
        long_size: int | None = None
        while True:
            block = await self.exactly(BLOCK)
            if block[:1] == b"\0" and not block.strip(b"\0"):
                await self._pass_zeros()
                return None
            raw, length, said, kind, magic, prefix = _HEADER.unpack(block)
            if not _sum_is_right(block, said):
                raise _broken("it is no tar archive")
            size = _number(length)
            if kind in _EXTENSIONS:
                if size > _PIECE:
                    raise _broken("a header is absurdly long")
                data = await self.content(size)
                if kind == _LONG_NAME:
                    long_name = _text(data.rstrip(b"\0"))
                elif kind == _PAX:
                    facts = _pax(data)
                    long_name = facts.get("path", long_name)
                    long_size = int(facts["size"]) if "size" in facts else long_size
                continue
            name = raw.split(b"\0")[0]
            if magic.startswith(b"ustar\0") and prefix != b"\0":
                name = block[345:500].split(b"\0")[0] + b"/" + name
            regular = kind in _CONTENT
            size = size if long_size is None else long_size
            return Member(long_name or _text(name), regular, size if regular else 0)

    async def _pass_zeros(self) -> None:
        while True:
            rest = self._held[self._at :].lstrip(b"\0")
            if rest:
                self._held, self._at = rest, 0
                return
            self._at = len(self._held)
            if not await self._more():
                return


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise _broken("a size is no number") from None


def _sum_is_right(block: bytes, said: bytes) -> bool:
    try:
        wanted = int(said.strip(b"\0 ") or b"0", 8)
    except ValueError:
        return False
    # Adler-32 has one more than the sum in its lower half, modulo a prime; to sum is slower by far.
    low = zlib.adler32(block) & 0xFFFF
    return (wanted + sum(said) - _SPACES + 1 - low) % _ADLER == 0


def _pax(data: bytes) -> dict[str, str]:
    facts = {}
    while data:
        digits, _, _ = data.partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(data):
            raise _broken("an extended header is malformed")
        key, _, value = data[len(digits) + 1 : int(digits) - 1].partition(b"=")
        facts[_text(key)] = _text(value)
        data = data[int(digits) :]
    return facts


def _broken(what: str) -> Unavailable:
    return Unavailable(f"the target sent an archive that can't be read: {what}")
