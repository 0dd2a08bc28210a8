"""A socket to an engine, as an anyio byte stream that never stays unread for long.

An engine drops the tail of a command's output, and still reports exit 0, when the command has ended
and nobody reads its stream for two seconds (measured on 20.10 and 26.1). What is at stake then is
what lies in a pipe, some 100 KiB. So a stream that nobody reads is read all the same, by one thread
for all streams, little by little: enough that nothing is lost, little enough that a slow reader
still slows the command down (EX-15).
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

__all__ = ["EngineSocket", "Spool", "connect_tcp", "connect_unix"]

CHUNK_BYTES: Final = 256 * 1024
#: Unread for this long, in seconds, a stream is read by the guard; well below the engine's two.
IDLE_SECONDS: Final = 0.4
#: What the guard reads of a stream at once; thrice in two seconds is more than a pipe holds.
DRIP_BYTES: Final = 128 * 1024
MEMORY_BYTES: Final = 1024 * 1024
#: As much as the kernel allows, twice its default: half the wake-ups of a long upload.
SEND_BUFFER_BYTES: Final = 1024 * 1024
#: Reads that found something at once, after which other tasks have a turn.
EAGER_READS: Final = 8


class Spool:
    """Bytes in order: in memory up to a size, in an unlinked file beyond it."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._pieces: deque[bytes] = deque()
        self._begun = 0  # bytes of the first piece that are gone
        self._held = 0
        self._file: int | None = None
        self._read = self._written = 0

    def __len__(self) -> int:
        return self._held + self._written - self._read

    def put(self, data: bytes) -> None:
        if self._file is None:
            if self._held + len(data) <= self._memory_bytes:
                if data:
                    self._pieces.append(data)
                    self._held += len(data)
                return
            descriptor, name = tempfile.mkstemp(prefix="pinfold-")
            Path(name).unlink()
            self._file = descriptor
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file, view, self._written)
            self._written += count
            view = view[count:]

    def get(self, max_bytes: int) -> bytes:
        """Return what comes next, as it was put where it fits; empty if nothing is held."""
        if self._pieces:
            data = self._pieces[0][self._begun : self._begun + max_bytes]
            self._begun += len(data)
            self._held -= len(data)
            if self._begun == len(self._pieces[0]):
                self._pieces.popleft()
                self._begun = 0
            return data
        if self._file is None:
            return b""
        data = os.pread(self._file, max_bytes, self._read)
        self._read += len(data)
        if self._read == self._written:
            self.close()
        return data

    def close(self) -> None:
        self._pieces.clear()
        self._begun = self._held = 0
        if self._file is not None:
            os.close(self._file)
        self._file, self._read, self._written = None, 0, 0


class _Guard:
    """The one thread that reads what nobody reads; there while there are guarded streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[EngineSocket] = weakref.WeakSet()
        self._running = False

    def add(self, stream: EngineSocket) -> None:
        with self._lock:
            self._streams.add(stream)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="pinfold-docker-guard", daemon=True).start()

    def discard(self, stream: EngineSocket) -> None:
        with self._lock:
            self._streams.discard(stream)

    def _run(self) -> None:
        quiet_since = time.monotonic()
        while True:
            time.sleep(IDLE_SECONDS / 2)
            now = time.monotonic()
            with self._lock:
                streams = list(self._streams)
                if streams:
                    quiet_since = now
                elif now - quiet_since > 10 * IDLE_SECONDS:
                    self._running = False
                    return
            for stream in streams:
                stream.drip(now)


_guard = _Guard()


class EngineSocket(ByteStream):
    """A connected, non-blocking socket.

    One task may receive and one may send at a time.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._lock = threading.Lock()  # between the receiving task and the guard
        self._spool = Spool()
        self._receiving = False
        self._idle_since = time.monotonic()
        self._eager = 0
        self._ended = self._closed = False
        self._failure: OSError | None = None

    def guard(self) -> None:
        """From now on never leave the stream unread for long."""
        _guard.add(self)

    def drip(self, now: float) -> None:
        """Read a little ahead if nobody has read for a while; for the guard's thread."""
        with self._lock:
            idle = now - self._idle_since
            if self._receiving or self._ended or self._closed or idle < IDLE_SECONDS:
                return
            try:
                data = self._socket.recv(DRIP_BYTES)
            except BlockingIOError:
                return
            except OSError as exc:
                self._ended, self._failure = True, exc
                return
            if data:
                self._spool.put(data)
            else:
                self._ended = True

    def has_ended(self) -> bool:
        """Say whether the other side is known to have ended, before it is read to the end."""
        if self._closed or self._ended:
            return True
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def receive(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        with self._lock:
            self._receiving = True
        try:
            data = self._spool.get(max_bytes)
            if data:
                await anyio.lowlevel.cancel_shielded_checkpoint()
                return data
            while not self._ended:
                if self._closed:
                    raise anyio.ClosedResourceError
                try:
                    data = self._socket.recv(max_bytes)
                except BlockingIOError:
                    await anyio.wait_readable(self._socket)
                    self._eager = 0
                    continue
                except OSError as exc:
                    raise anyio.BrokenResourceError from exc
                if data:
                    self._eager += 1
                    if self._eager == EAGER_READS:  # others have a turn, too
                        self._eager = 0
                        await anyio.lowlevel.cancel_shielded_checkpoint()
                    return data
                self._ended = True
            if self._failure is not None:
                raise anyio.BrokenResourceError from self._failure
            raise anyio.EndOfStream
        finally:
            with self._lock:
                self._receiving = False
                self._idle_since = time.monotonic()

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        view = memoryview(item)
        while view:
            if self._closed:
                raise anyio.ClosedResourceError
            try:
                view = view[self._socket.send(view[:CHUNK_BYTES]) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as exc:
                raise anyio.BrokenResourceError from exc

    def send_now(self, item: bytes) -> int:
        """Send as much as the kernel takes at once; never while `send` is under way."""
        if self._closed:
            return 0
        try:
            return self._socket.send(item)
        except OSError:  # full, or broken: `send` says which
            return 0

    async def send_eof(self) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):  # the other side may be gone
                self._socket.shutdown(socket.SHUT_WR)
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once; idempotent."""
        if self._closed:
            return
        _guard.discard(self)
        with self._lock:
            self._closed = True
            self._spool.close()
        with contextlib.suppress(RuntimeError):  # no event loop, so nobody waits
            anyio.notify_closing(self._socket)
        self._socket.close()

    async def aclose(self) -> None:
        self.close()
        await anyio.lowlevel.checkpoint()


async def connect_unix(path: str) -> EngineSocket:
    """Connect to a Unix socket.

    Raises:
        OSError: as `connect(2)`.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setblocking(False)
        while True:
            try:
                sock.connect(path)
                return EngineSocket(sock)
            except BlockingIOError:  # the listener's queue is full
                await anyio.sleep(0.01)
    except BaseException:
        sock.close()
        raise


async def connect_tcp(host: str, port: int) -> EngineSocket:
    """Connect to the first address of a host that answers.

    Raises:
        OSError: none does, or the name is unknown.
    """
    failure: OSError = OSError(f"no address for {host}")
    for family, kind, protocol, _, address in await anyio.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
            await anyio.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                return EngineSocket(sock)
            failure = OSError(code, os.strerror(code))
        except OSError as exc:
            failure = exc
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise failure
