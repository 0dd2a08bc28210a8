"""Bytes of the helper's protocol (docs/helper.md): written for it, and read as from an enemy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

import attrs

__all__ = [
    "ACK_EVERY",
    "DROP_STDERR",
    "DROP_STDOUT",
    "GREETING_BYTES",
    "IN_CREDIT",
    "MAGIC",
    "MAX_CALL",
    "MAX_OUT",
    "MAX_PAYLOAD",
    "TERMINAL",
    "UNLIMITED",
    "WELCOME_BYTES",
    "WINDOW",
    "Call",
    "Code",
    "Cursor",
    "Decoder",
    "Facts",
    "Frame",
    "From",
    "Greeting",
    "Malformed",
    "Open",
    "Output",
    "To",
    "answer",
    "frame",
    "frame_head",
    "text",
    "texts",
]

MAGIC: Final = b"pinfold1"
VERSION: Final = 1
#: Bytes of a frame behind its length: type, id and payload.
MAX_FRAME: Final = 2 << 20
#: Of them what the payload may have.
MAX_PAYLOAD: Final = MAX_FRAME - 5
MAX_CALL: Final = 1 << 20
MAX_OUT: Final = 256 << 10
IN_CREDIT: Final = 1 << 20
ACK_EVERY: Final = 256 << 10
#: Bytes that may be on their way to the helper, not acknowledged.
WINDOW: Final = 4 << 20
#: A credit that is never used up.
UNLIMITED: Final = 1 << 61

TERMINAL: Final = 1
DROP_STDOUT: Final = 2
DROP_STDERR: Final = 4

_HEAD: Final = Struct("<IBI")
#: What stands before the output itself in an OUT, its length left out.
_OUT_HEAD: Final = 6
_GREETING: Final = Struct("<8sIIIIQ16s32s")
_U8, _U32, _U64, _I64 = Struct("<B"), Struct("<I"), Struct("<Q"), Struct("<q")
_FACTS: Final = Struct("<BIQqqQQ")

GREETING_BYTES: Final = _GREETING.size
WELCOME_BYTES: Final = 8


class Malformed(Exception):
    """The helper sent what the protocol does not allow; nothing more is believed of it."""


class To(IntEnum):
    """Frames to the helper."""

    CALL = 1
    OPEN = 2
    DATA = 3
    EOF = 4
    CREDIT = 5
    SIGNAL = 6
    KILL = 7
    RESIZE = 8
    ACK = 9
    BYE = 10
    DETACH = 11


class From(IntEnum):
    """Frames from the helper."""

    REPLY = 17
    OUT = 18
    GRANT = 19
    END = 20
    ACK = 21


class Call(IntEnum):
    """Short operations."""

    ROOT = 1
    STAT = 2
    READ = 3
    WRITE = 4
    MKDIR = 5
    REMOVE = 6
    RENAME = 7
    SYMLINK = 8
    CHMOD = 9
    PING = 10
    JOBS = 11


class Open(IntEnum):
    """Long operations."""

    EXEC = 32
    LIST = 33
    SCAN = 34
    FETCH = 35
    DOWNLOAD = 36
    UPLOAD = 37
    REMOVE = 38
    RESTORE = 39
    RECOVER = 40


class Code(IntEnum):
    """What a REPLY or an END begins with."""

    OK = 0
    NOT_FOUND = 1
    IS_A_DIRECTORY = 2
    NOT_A_DIRECTORY = 3
    ALREADY_EXISTS = 4
    PERMISSION_DENIED = 5
    OUTSIDE_WORKSPACE = 6
    TOO_LARGE = 7
    NO_SPACE = 8
    NOT_REGULAR = 9
    NOT_EMPTY = 10
    INVALID_ARGUMENT = 11
    UNAVAILABLE = 12
    FAILED = 13
    LOST = 14
    CORRUPT = 15


def text(value: str | bytes) -> bytes:
    """Encode a `str` of the protocol."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return _U32.pack(len(raw) + 1) + raw + b"\0"


def texts(values: Sequence[str]) -> bytes:
    """Encode a list of them, with its count."""
    return _U32.pack(len(values)) + b"".join(map(text, values))


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return _HEAD.pack(len(payload) + 5, kind, number) + payload


def frame_head(kind: int, number: int, size: int) -> bytes:
    """Encode the beginning of a frame whose payload of `size` bytes follows."""
    return _HEAD.pack(size + 5, kind, number)


def answer(token: bytes, received: int) -> bytes:
    """Encode what follows the helper's greeting."""
    return MAGIC + token + _U64.pack(received)


@attrs.frozen
class Frame:
    """One frame from the helper, none of output."""

    kind: From
    number: int
    payload: bytes


@attrs.frozen
class Output:
    """Some bytes of an OUT; the rest of the frame, if there is one, follows."""

    number: int
    index: int
    data: bytes


@attrs.frozen(kw_only=True)
class Greeting:
    """What a helper says of itself; its own word only.

    Attributes:
        openat2, proc, subreaper, close_range, counters: what the kernel and the target allow.
        pid: the helper's, in the target.
        uid: its effective user.
        started: when it started, in the kernel's ticks since boot.
        session: random; tells one helper from the next.
        digest: hex SHA-256 of the program it runs from; all zeros where it can't tell.
    """

    openat2: bool
    proc: bool
    subreaper: bool
    close_range: bool
    counters: bool
    pid: int
    uid: int
    started: int
    session: bytes
    digest: str

    @classmethod
    def parse(cls, raw: bytes) -> Greeting:
        """Decode a greeting.

        Raises:
            Malformed: it is none, or of another version.
        """
        if len(raw) != GREETING_BYTES:
            raise Malformed(f"a greeting has {GREETING_BYTES} bytes, not {len(raw)}")
        magic, version, facts, pid, uid, started, session, digest = _GREETING.unpack(raw)
        if magic != MAGIC:
            raise Malformed("that is no greeting of a helper")
        if version != VERSION:
            raise Malformed(f"the helper speaks version {version} of the protocol, not {VERSION}")
        return cls(
            openat2=bool(facts & 1),
            proc=bool(facts & 2),
            subreaper=bool(facts & 4),
            close_range=bool(facts & 8),
            counters=bool(facts & 16),
            pid=pid,
            uid=uid,
            started=started,
            session=session,
            digest=digest.hex(),
        )


@attrs.frozen
class Facts:
    """Facts about a name, as the kernel told the helper; `type` is 1 to 4."""

    type: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class Cursor:
    """A strict reader of one payload.

    Every method raises `Malformed` when what it wants isn't there.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> int:
        at = self._at
        if len(self._data) - at < size:
            raise Malformed(f"{size} bytes are missing in a payload of {len(self._data)}")
        self._at = at + size
        return at

    def u8(self) -> int:
        """Read a byte."""
        return self._data[self._take(1)]

    def flag(self) -> bool:
        """Read a byte that is 0 or 1."""
        value = self.u8()
        if value > 1:
            raise Malformed(f"a flag is {value}")
        return bool(value)

    def u32(self) -> int:
        """Read four bytes."""
        value: int = _U32.unpack_from(self._data, self._take(4))[0]
        return value

    def u64(self) -> int:
        """Read eight bytes."""
        value: int = _U64.unpack_from(self._data, self._take(8))[0]
        return value

    def i64(self) -> int:
        """Read eight bytes, signed."""
        value: int = _I64.unpack_from(self._data, self._take(8))[0]
        return value

    def take(self, size: int) -> bytes:
        """Read that many bytes."""
        at = self._take(size)
        return self._data[at : at + size]

    def text(self) -> bytes:
        """Read a `str`, without its NUL."""
        size = self.u32()
        if size == 0:
            raise Malformed("a text has no end")
        raw = self.take(size)
        if raw.find(0) != size - 1:
            raise Malformed("a text has a NUL inside, or none at its end")
        return raw[:-1]

    def facts(self) -> Facts:
        """Read facts."""
        values = _FACTS.unpack_from(self._data, self._take(_FACTS.size))
        if not 1 <= values[0] <= 4 or values[1] > 0o7777 or values[2] >= 1 << 63:
            raise Malformed(f"impossible facts about a name: {values}")
        return Facts(*values)

    def rest(self) -> bytes:
        """Read all that is left."""
        return self.take(len(self._data) - self._at)

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._at

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self.left:
            raise Malformed(f"{self.left} bytes too many in a payload")


class Decoder:
    """Makes frames of a stream of bytes, in bounded memory; output is passed on as it comes."""

    def __init__(self) -> None:
        self._held = bytearray()  # the beginning of a frame
        self._number = self._index = self._left = 0  # of the OUT that is under way

    def feed(self, data: bytes) -> Iterator[Frame | Output]:
        """Yield the frames that are whole now, and of an OUT what there is of it.

        Raises:
            Malformed: the stream can't be believed any more.
        """
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                yield Output(self._number, self._index, piece)
            elif self._held:
                missing = _together(self._held, 0) - len(self._held)
                self._held += data[at : at + missing]
                at = min(at + missing, len(data))
                if len(self._held) == _together(self._held, 0):
                    frame_, self._held = bytes(self._held), bytearray()
                    yield from self._begin(frame_, 0, len(frame_))
            elif (end := at + _together(data, at)) <= len(data):
                yield from self._begin(data, at, end)
                at = end
            else:
                self._held += data[at:]
                at = len(data)

    def _begin(self, data: bytes, at: int, end: int) -> tuple[Frame, ...]:
        length, kind, number = _HEAD.unpack_from(data, at)
        if kind != From.OUT:
            return (Frame(From(kind), number, data[at + _HEAD.size : end]),)
        self._number, self._index, self._left = number, data[end - 1], length - _OUT_HEAD
        return ()


def _together(data: bytes | bytearray, at: int) -> int:
    """Return how many bytes of a frame have to be together, as far as can be told."""
    if len(data) - at < _HEAD.size:
        return _HEAD.size
    length, kind, _ = _HEAD.unpack_from(data, at)
    if not 5 <= length <= MAX_FRAME or not From.REPLY <= kind <= From.ACK:
        raise Malformed(f"a frame of kind {kind} with {length} bytes")
    if kind != From.OUT:
        return 4 + int(length)
    if not _OUT_HEAD < length <= _OUT_HEAD + MAX_OUT:
        raise Malformed(f"an output frame with {length} bytes")
    return _HEAD.size + 1
