"""The floor of the docker benchmarks: an engine's API, in plain blocking Python."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from tools import docker_engine

__all__ = ["RawEngine"]

_HEADER_BYTES = 8  # of each frame of output


class RawEngine:
    """The floor: the fewest requests, on connections that are kept, in plain blocking Python."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: list[docker_engine.UnixHTTP] = []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        connection = self._kept.pop() if self._kept else docker_engine.UnixHTTP(self._path, 60)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        self._kept.append(connection)
        return json.loads(answer) if answer.strip() else None

    def exec(self, container: str, argv: list[str]) -> bytes:
        """Run a command that says little."""
        pieces: list[bytes] = []
        self.run(container, argv, pieces.append)
        _, _, frames = b"".join(pieces).partition(b"\r\n\r\n")
        output = b""
        while frames:
            size = int.from_bytes(frames[4:8], "big")
            output += frames[8 : 8 + size]
            frames = frames[8 + size :]
        return output

    def run(
        self,
        container: str,
        argv: list[str],
        take: Callable[[bytes], object],
        stdin: BinaryIO | None = None,
    ) -> None:
        """Run a command; what comes is passed on as it comes: the head, and frames."""
        exec_id, stream = self._start(container, argv, reads=stdin is not None)
        with stream:
            if stdin is not None:
                take(stream.recv(256 * 1024))  # the head: from now on the stream is the command's
                stream.sendfile(stdin)
                stream.shutdown(socket.SHUT_WR)
            while piece := stream.recv(256 * 1024):
                take(piece)
        facts = self.call("GET", f"/exec/{exec_id}/json")
        if facts["ExitCode"] != 0:
            raise RuntimeError(facts)

    @contextmanager
    def echo(self, container: str) -> Iterator[Callable[[bytes], None]]:
        """Keep a `cat` there, and send it something that it gives back: a round trip, no more."""
        _, stream = self._start(container, ["cat"], reads=True)
        with stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += stream.recv(1)

            def send(data: bytes) -> None:
                stream.sendall(data)
                size = 0
                while size < _HEADER_BYTES + len(data):  # little enough for one frame
                    size += len(stream.recv(256 * 1024))

            yield send

    def _start(self, container: str, argv: list[str], *, reads: bool) -> tuple[str, socket.socket]:
        config = {"AttachStdin": reads, "AttachStdout": True, "AttachStderr": True, "Cmd": argv}
        exec_id = self.call("POST", f"/containers/{container}/exec", config)["Id"]
        body = b'{"Detach": false, "Tty": false}'
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(self._path)
        stream.sendall(
            b"POST /exec/%b/start HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n%b"
            % (exec_id.encode(), len(body), body)
        )
        return exec_id, stream
