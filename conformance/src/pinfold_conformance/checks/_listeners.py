"""Listeners of our own, which remember who came: TCP, UDP and Unix sockets (TR-1)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pinfold_conformance._expect import Inconclusive
from pinfold_conformance.dialects import QUESTION, Means

__all__ = ["Listener", "listening"]

_ANSWER: Final = b"HTTP/1.0 204 No Content\r\n\r\n"
_PATIENCE_S: Final = 20.0  # for a port that somebody else has at the moment


class Listener:
    """One listener; it counts its callers, and answers each.

    Attributes:
        port: that it has.
        callers: how many came.
        at_its_address: it listens at the very address that was asked for; else on every one of
            this machine's, and whether that address is this machine is the lane's word.

    Args:
        means: tcp, udp or unix.
        address: to listen on; of a Unix socket its path, or `@` and its name in the kernel.
        port: 0 is any that is free.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, means: Means, address: str, port: int = 0) -> None:
        self._means = means
        if means == "unix":
            self._family, self._at = socket.AF_UNIX, address.replace("@", "\0", 1)
        else:
            self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._at = address
        kind = socket.SOCK_DGRAM if means == "udp" else socket.SOCK_STREAM
        self._kind = kind
        self.at_its_address = True
        self._socket = socket.socket(self._family, kind)
        try:
            if means == "tcp":
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bind(port)
            if means != "udp":
                self._socket.listen(16)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1] if means != "unix" else 0
        self.callers = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _bind(self, port: int) -> None:
        if self._means == "unix":
            self._socket.bind(self._at)
            return
        try:
            self._socket.bind((self._at, port))
        except OSError:
            if port or self._family is socket.AF_INET6:
                raise
            # The address is somebody else's word for this machine.
            self._at, self.at_its_address = "127.0.0.1", False
            self._socket.bind(("", port))

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                if self._means == "udp":
                    data, caller = self._socket.recvfrom(512)
                    if caller is None:  # it was shut down
                        return
                    self.callers += 1
                    self._socket.sendto(data, caller)
                    continue
                stream, _ = self._socket.accept()
                self.callers += 1
                with stream, suppress(OSError):
                    # To close with a question unread would reset the connection, answer and all.
                    stream.settimeout(2)
                    stream.recv(4096)
                    stream.sendall(_ANSWER)
                    stream.shutdown(socket.SHUT_WR)
                    stream.recv(4096)

    def reached_from_here(self) -> bool:
        """Positive control: the listener can be reached at all."""
        with socket.socket(self._family, self._kind) as caller:
            caller.settimeout(2)
            try:
                caller.connect(self._at if self._means == "unix" else (self._at, self.port))
                caller.send(QUESTION)
                caller.recv(512)
            except OSError:
                return False
        return self.seen(1)

    def seen(self, count: int, within: float = 2.0) -> bool:
        """Say whether so many callers came, waiting a little for the last."""
        end = time.monotonic() + within
        while self.callers < count and time.monotonic() < end:
            time.sleep(0.005)
        return self.callers >= count

    def close(self) -> None:
        """Stop; a thread that waits in it wakes up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def listening(means: Means, address: str, port: int = 0) -> Iterator[Listener]:
    """Listen while the body runs.

    Raises:
        Inconclusive: this machine can't, or not even we reach it.
    """
    listener = _made(means, address, port)
    try:
        if not listener.reached_from_here():
            raise Inconclusive("our own listener can't be reached from here")
        yield listener
    finally:
        listener.close()


def _made(means: Means, address: str, port: int) -> Listener:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return Listener(means, address, port)
        except OSError as exc:
            if port == 0 or isinstance(exc, PermissionError) or time.monotonic() > end:
                what = "has no IPv6" if address == "::1" else f"can't listen on {address}:{port}"
                raise Inconclusive(f"this machine {what}: {exc.strerror}") from exc
        time.sleep(0.05)
