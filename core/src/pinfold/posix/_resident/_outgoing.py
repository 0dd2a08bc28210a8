"""What goes out in a session: kept until it is acknowledged, and sent again after a cut."""

from __future__ import annotations

from collections import deque
from typing import Final

from pinfold.posix._resident._wire import Malformed

__all__ = ["SMALL", "Outgoing"]

#: The most that small frames are put together to.
_PIECE: Final = 256 << 10
#: What is larger is a piece by itself, and is not copied.
SMALL: Final = _PIECE // 4


class Outgoing:
    """The stream of frames to the helper: what of it was sent and not acknowledged, then the rest.

    Attributes:
        base: where in the stream that begins: all before is acknowledged.
        held: how many bytes there are from there on.
    """

    def __init__(self) -> None:
        self.base = 0
        self.held = 0
        self._sent: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()

    @property
    def end(self) -> int:
        """Where in the stream the next frame begins."""
        return self.base + self.held

    def waits(self) -> bool:
        """Whether there is anything to be sent."""
        return bool(self._unsent)

    def was_given(self, start: int) -> bool:
        """Say whether a connection was given the byte at `start`, or was to carry it."""
        return start < self.base + sum(map(len, self._sent))

    def put(self, data: bytes) -> None:
        """Put frames, or parts of one, behind all else."""
        self._unsent.append(data)
        self.held += len(data)

    def next_piece(self) -> bytes:
        """Take what is to be sent next: `sent` is to say of it what was."""
        piece = self._unsent.popleft()
        if len(piece) >= SMALL or not self._unsent:
            return piece
        parts, size = [piece], len(piece)
        while self._unsent and size + len(self._unsent[0]) <= _PIECE:
            parts.append(self._unsent.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def sent(self, piece: bytes, size: int) -> None:
        """Take note that so much of a piece was given to a connection; the rest comes next."""
        if size:
            self._sent.append(piece[:size])
        if size < len(piece):
            self._unsent.appendleft(piece[size:])

    def acknowledged(self, total: int) -> None:
        """Let go of what the helper has.

        Args:
            total: so many bytes of the stream, from its beginning.

        Raises:
            Malformed: fewer than before, or more than was sent.
        """
        if total < self.base:
            raise Malformed("it takes an acknowledgement back")
        while self._sent and self.base + len(self._sent[0]) <= total:
            size = len(self._sent.popleft())
            self.base += size
            self.held -= size
        if total > self.base + sum(map(len, self._sent)):
            raise Malformed("it acknowledges what was never sent")

    def go_on_from(self, total: int) -> None:
        """Begin again on a new connection, behind what the helper has.

        Raises:
            Malformed: as `acknowledged`.
        """
        self.acknowledged(total)
        dropped = total - self.base
        again = b"".join(self._sent)[dropped:]
        if again:
            self._unsent.appendleft(again)
        self._sent.clear()
        self.base += dropped
        self.held -= dropped
