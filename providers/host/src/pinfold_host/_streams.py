"""Pipes as anyio streams, on asyncio and trio alike."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream

__all__ = ["Drain", "PipeReader", "PipeWriter"]

_CHUNK: Final = 65_536


class PipeReader(ByteReceiveStream):
    """The reading end of a pipe, which it owns.

    Args:
        fd: the descriptor, made non-blocking here.
        drain: goes on reading, unseen, what is written after `aclose`.
    """

    def __init__(self, fd: int, drain: Drain | None) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._drain = drain
        self._settled = False
        self._at_end = False
        self._waiting: anyio.CancelScope | None = None

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        """Return what is there, once something is.

        Raises:
            EndOfStream: all writers are gone, or it has settled and is empty.
        """
        await anyio.lowlevel.checkpoint()  # much output is not to keep others from their turn
        while True:
            if self._fd is None:
                raise anyio.ClosedResourceError
            try:
                data = os.read(self._fd, max_bytes)
            except BlockingIOError:
                if self._settled:
                    raise anyio.EndOfStream from None
            except OSError:  # EIO: a terminal whose last user is gone
                self._at_end = True
                raise anyio.EndOfStream from None
            else:
                if data:
                    return data
                self._at_end = True
                raise anyio.EndOfStream
            with anyio.CancelScope() as self._waiting:
                await anyio.wait_readable(self._fd)
            self._waiting = None

    def settle(self) -> None:
        """From now on end where the pipe is empty, whoever may still hold its other end."""
        self._settled = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        """Let go of it; the drain takes it over where writers may be left."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._waiting is not None:
            anyio.notify_closing(fd)
        if self._drain is None or self._at_end:
            os.close(fd)
        else:
            self._drain.take(fd)


class PipeWriter(ByteSendStream):
    """The writing end of a pipe, which it owns."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._has_waited = False

    async def send(self, item: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenResourceError: nobody reads any more.
        """
        await anyio.lowlevel.checkpoint()
        view = memoryview(item)
        while view:
            if self._fd is None:
                raise anyio.ClosedResourceError
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                self._has_waited = True
                await anyio.wait_writable(self._fd)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close it: end-of-file for the reader."""
        fd, self._fd = self._fd, None
        if fd is not None:
            if self._has_waited:  # somebody may do so now
                anyio.notify_closing(fd)
            os.close(fd)


class Drain:
    """Reads and drops what jobs write after their exec has returned (EX-8).

    Without a reader their next write would end them. One thread serves all pipes of an instance,
    and there is none while there is no pipe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def take(self, fd: int) -> None:
        """Own `fd` from now on, until its writers are gone."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if not os.read(fd, _CHUNK):
                    os.close(fd)
                    return
        with self._lock:
            selector = self._selector or self._start()
            selector.register(fd, selectors.EVENT_READ)
            self._poke(b"+")

    def close(self) -> None:
        """Let go of all pipes; the jobs are to be gone by now."""
        with self._lock:
            self._poke(b"x")

    def leave(self) -> None:
        """Leave the pipes to processes that read on when this one has ended, until the jobs do."""
        with self._lock:
            thread = self._thread
            self._poke(b"l")
        if thread is not None:
            thread.join()

    def _start(self) -> selectors.BaseSelector:
        selector, wake = selectors.DefaultSelector(), os.pipe()
        selector.register(wake[0], selectors.EVENT_READ)
        self._selector, self._wake = selector, wake
        self._thread = threading.Thread(
            target=self._run, args=(selector, *wake), name="pinfold-drain", daemon=True
        )
        self._thread.start()
        return selector

    def _poke(self, word: bytes) -> None:
        if self._wake is not None:
            os.write(self._wake[1], word)

    def _run(self, selector: selectors.BaseSelector, wake: int, waker: int) -> None:
        words = b""
        while True:
            for key, _ in selector.select():
                if key.fd == wake:
                    words += os.read(wake, 512).strip(b"+")
                elif not _drop(key.fd):
                    selector.unregister(key.fd)
                    os.close(key.fd)
            with self._lock:
                pipes = [key.fd for key in selector.get_map().values() if key.fd != wake]
                if pipes and not words:
                    continue
                if b"l" in words:
                    for fd in pipes:
                        _read_on(fd)
                for fd in (*pipes, wake, waker):
                    os.close(fd)
                selector.close()
                self._selector = self._wake = self._thread = None
                return


def _read_on(fd: int) -> None:
    """Start what reads a pipe to its end, whatever becomes of this process."""
    os.set_blocking(fd, True)
    reader = subprocess.Popen(
        ["cat"],
        stdin=fd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        cwd="/",
        start_new_session=True,
    )
    reader.returncode = 0  # it is nobody's to wait for


def _drop(fd: int) -> bool:
    """Read and forget; false at the end."""
    try:
        return bool(os.read(fd, _CHUNK))
    except BlockingIOError:
        return True
    except OSError:
        return False
