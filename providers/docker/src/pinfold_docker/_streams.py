"""An exec's multiplexed stream, taken apart into stdout and stderr."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream

from pinfold_docker._engine import Hijacked
from pinfold_docker._socket import Spool

__all__ = ["Demultiplexer", "OutputStream", "StdinStream"]

HEADER: Final = Struct(">BxxxI")
HEADER_BYTES: Final = HEADER.size
#: What is read for somebody who has not asked yet; half of what a spool holds in memory.
AHEAD_BYTES: Final = 512 * 1024
STDOUT: Final = 1
STDERR: Final = 2


class Demultiplexer:
    """Reads frames for whoever asks, and keeps what is the other stream's.

    Frames are a header (stream number, three zero bytes, size as four bytes, the high one first)
    and a payload of at most 32 KiB. Payload is passed on as it comes: a frame need not be complete.
    """

    def __init__(self, source: Hijacked) -> None:
        self._source = source
        self._pumping = anyio.Lock(fast_acquire=True)
        self._full, self._less = False, anyio.Event()
        self._queues = {STDOUT: Spool(), STDERR: Spool()}
        self._header = bytearray()
        self._into = STDOUT
        self._left = 0
        self.totals = {STDOUT: 0, STDERR: 0}
        self.ended = False
        self.broken = False

    async def receive(self, number: int, max_bytes: int) -> bytes:
        """Return the next bytes of one stream.

        Raises:
            anyio.EndOfStream: there are none to come.
        """
        queue = self._queues[number]
        while True:
            data = queue.get(max_bytes)
            if data:
                if self._full and self.held < AHEAD_BYTES:
                    self._full = False
                    self._less.set()
                return data
            if self.ended:
                raise anyio.EndOfStream
            if not await self._ahead(lambda: bool(queue)):
                await self._until_less()

    async def until_end(self) -> None:
        """Return once all has been read, by whoever asks; read ahead of them, but not far.

        Nobody may be asking at all, and whoever asks slowly is to slow the command down.
        """
        while not self.ended:
            if not await self._ahead():
                await self._until_less()

    async def _ahead(self, enough: Callable[[], bool] = lambda: False) -> bool:
        """Read once, if that is still needed; return False where too much is held for others."""
        async with self._pumping:
            if not self.ended and not enough():
                if self.held >= AHEAD_BYTES:
                    return False
                await self._pump()
        return True

    async def _until_less(self) -> None:
        if not self._full:
            self._full, self._less = True, anyio.Event()
        await self._less.wait()

    async def discard(self) -> None:
        """Read until the end, and drop everything."""
        while not self.ended:
            async with self._pumping:
                if not self.ended:
                    await self._pump()
            for queue in self._queues.values():
                queue.close()

    @property
    def held(self) -> int:
        """Bytes that nobody has asked for yet."""
        return sum(len(queue) for queue in self._queues.values())

    async def _pump(self) -> None:
        try:
            self._take(await self._source.receive())
        except anyio.EndOfStream:
            self.ended = True
            self.broken = bool(self._left or self._header)
        except anyio.BrokenResourceError:
            self.ended = self.broken = True
        if self.ended:
            self._less.set()

    def _take(self, data: bytes) -> None:
        parts: dict[int, list[memoryview]] = {STDOUT: [], STDERR: []}
        view, at = memoryview(data), 0
        while at < len(data):
            if self._left:
                part = view[at : at + self._left]
                parts[self._into].append(part)
                self._left -= len(part)
                at += len(part)
                continue
            missing = HEADER_BYTES - len(self._header)
            self._header += view[at : at + missing]
            at += missing
            if len(self._header) == HEADER_BYTES:
                number, self._left = HEADER.unpack(self._header)
                self._into = STDERR if number == STDERR else STDOUT
                self._header.clear()
        for number, found in parts.items():
            joined = b"".join(found)  # one copy, which holds nothing of the other stream
            self._queues[number].put(joined)
            self.totals[number] += len(joined)

    def close(self) -> None:
        """Forget what nobody asked for."""
        self.ended = True
        self._less.set()
        self._source.close()
        for queue in self._queues.values():
            queue.close()


class OutputStream(ByteReceiveStream):
    """One of the two, as a stream."""

    def __init__(self, source: Demultiplexer, number: int) -> None:
        self._source = source
        self._number = number

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._source.receive(self._number, max_bytes)

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


class StdinStream(ByteSendStream):
    """What goes in; closing it is the end-of-file."""

    def __init__(self, target: Hijacked) -> None:
        self._target = target
        self._closed = False

    async def send(self, item: bytes) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        await self._target.send(item)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._target.send_eof()
