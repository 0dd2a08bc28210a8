"""Output of one command on its way from the interpreter's thread to the caller."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import anyio
import anyio.from_thread

from pinfold.provider import OutputStream, Sink

if TYPE_CHECKING:
    from bashkit import ExecResult

__all__ = ["Kept", "Output", "Streamed"]

_STREAMS: Final[tuple[OutputStream, OutputStream]] = ("stdout", "stderr")
_REPLACEMENT: Final = "\ufffd"


class Kept:
    """What is there of one stream.

    bashkit shows output as it comes as text, in which bytes that are not UTF-8 are lost; the bytes
    themselves it gives only with the result of a command that came to its end by itself. So text
    that may have lost something is held back until then (EX-6).
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._size = 0
        self._pieces: list[bytes] = []
        self.total = 0
        self.sent = 0
        self.held = False

    def add(self, text: str) -> bytes | None:
        """Take text as it comes; return its bytes where they are sure to be right."""
        data = text.encode()
        self.total += len(data)
        if self._size < self._cap:
            self._pieces.append(data[: self._cap - self._size])
            self._size += len(self._pieces[-1])
        self.held = self.held or _REPLACEMENT in text
        if self.held:
            return None
        self.sent += len(data)
        return data

    def settle(self, exact: bytes) -> bytes:
        """Take the bytes of a command that ended by itself; return those not shown yet."""
        self.total = len(exact)
        self._pieces = [exact[: self._cap]]
        return exact[self.sent :]

    @property
    def data(self) -> bytes:
        """The head, up to the cap."""
        return b"".join(self._pieces)


class Output:
    """Collects; `Streamed` also shows."""

    def __init__(self, stdout_cap: int, stderr_cap: int) -> None:
        self.stdout = Kept(stdout_cap)
        self.stderr = Kept(stderr_cap)

    def __call__(self, stdout: str, stderr: str) -> None:
        """Take output; bashkit calls this in the thread that runs the command."""
        if stdout:
            self.stdout.add(stdout)
        if stderr:
            self.stderr.add(stderr)

    def release(self) -> None:
        """Hold the command back no longer: it is being ended."""

    def settle(self, result: ExecResult | None) -> None:
        """Take what the result has, once the command has ended; None when it was cut off."""
        if result is not None and result.error is None:
            self.stdout.settle(_bytes(result, "stdout_bytes"))
            self.stderr.settle(_bytes(result, "stderr_bytes"))

    def note(self, text: str) -> None:
        """Add the interpreter's own last words to stderr."""
        self.stderr.add(text)


class Streamed(Output):
    """Gives output to a sink while the command runs, which waits for the sink (EX-15)."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        self._send, self._receive = anyio.create_memory_object_stream[tuple[OutputStream, bytes]](
            math.inf  # it holds what one command wrote: the interpreter waits below
        )
        self._held_back: dict[OutputStream, list[str]] = {"stdout": [], "stderr": []}
        self._taken: anyio.Event | None = None
        self._released = False

    def __call__(self, stdout: str, stderr: str) -> None:
        for stream, text in zip(_STREAMS, (stdout, stderr), strict=True):
            if not text:
                continue
            data = getattr(self, stream).add(text)
            if data is None:
                self._held_back[stream].append(text)
            else:
                anyio.from_thread.run(self._offer, stream, data)

    async def _offer(self, stream: OutputStream, data: bytes) -> None:
        self._show(stream, data)
        if not self._released:
            self._taken = anyio.Event()
            await self._taken.wait()

    def _show(self, stream: OutputStream, data: bytes) -> None:
        if data:
            try:
                self._send.send_nowait((stream, data))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.release()  # nobody listens any more: the command is being ended

    def release(self) -> None:
        self._released = True
        if self._taken is not None:
            self._taken.set()

    def settle(self, result: ExecResult | None) -> None:
        for stream in _STREAMS:
            if result is not None and result.error is None:
                rest = getattr(self, stream).settle(_bytes(result, f"{stream}_bytes"))
            else:
                rest = "".join(self._held_back[stream]).encode()
            self._show(stream, rest)

    def note(self, text: str) -> None:
        self.stderr.add(text)
        self._show("stderr", text.encode())

    def close(self) -> None:
        """There will be no more; the pump ends when it has given all away."""
        self.release()
        self._send.close()

    async def pump(self, sink: Sink) -> None:
        """Give what comes to the sink, in the caller's own task, until `close`."""
        with self._receive:
            async for stream, data in self._receive:
                await sink(stream, data)
                if self._taken is not None:
                    self._taken.set()


def _bytes(result: ExecResult, name: str) -> bytes:
    value: bytes = getattr(result, name)  # not in bashkit's stub
    return value
