"""A controller of a few lines, made from docs/helper.md alone: what it takes to talk to a helper.

It says whatever a test wants, also what the real one never would.
"""

import platform
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pinfold_helper import _build

PROGRAM = _build.HERE / "programs" / platform.machine()

CALL, OPEN, DATA, EOF, CREDIT, SIGNAL, KILL, RESIZE, ACK, BYE, DETACH = range(1, 12)
REPLY, OUT, GRANT, END, ACKED = range(17, 22)
ROOT, STAT, READ, WRITE, MKDIR, REMOVE, RENAME, SYMLINK, CHMOD, PING, JOBS = range(1, 12)
EXEC, LIST, SCAN, FETCH, DOWNLOAD, UPLOAD, REMOVE_TREE, RESTORE, RECOVER = range(32, 41)
KEEP = 0xFFFFFFFF


def u16(value: int) -> bytes:
    return value.to_bytes(2, "little")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def text(value: bytes) -> bytes:
    return u32(len(value) + 1) + value + b"\0"


def path(value: bytes = b"", root: int = 0) -> bytes:
    return bytes((root,)) + text(value)


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return u32(len(payload) + 5) + bytes((kind,)) + u32(number) + payload


def opened(number: int, operation: int, arguments: bytes, credit: int = 1 << 40) -> bytes:
    return frame(OPEN, number, bytes((operation,)) + u64(credit) + arguments)


def command(argv: Sequence[bytes], *, grace_ms: int = 0, timeout_ms: int = 0) -> bytes:
    """The arguments of EXEC in the root."""
    head = path() + b"\0" + u64(1 << 40) + u64(timeout_ms) + u32(grace_ms) + u16(0) + u16(0)
    return head + u32(len(argv)) + b"".join(map(text, argv)) + u32(0)


class Helper:
    """A helper that is talked to over its stdin and stdout; its root 0 is `root`."""

    def __init__(
        self, folder: Path, root: Path, prefix: Sequence[str] = (), *, program: Path = PROGRAM
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, program, "serve", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        greeting = self.read(80)
        assert greeting[:12] == b"pinfold1" + u32(1)
        self.facts = int.from_bytes(greeting[12:16], "little")
        self.pid = int.from_bytes(greeting[16:20], "little")
        self.send(b"pinfold1" + secrets.token_bytes(32) + u64(0))
        assert self.read(8) == u64(0)
        self.received = 0
        code, rest = self.call(ROOT, text(bytes(root)))
        assert (code, rest[:1]) == (0, b"\0")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()  # supervisors see it go, and end what they have
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(size)
        assert len(data) == size, "the helper has ended"
        return data

    def send(self, *data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(data))
        self.process.stdin.flush()

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame but ACK, as type, id and payload; it is acknowledged."""
        while True:
            length = int.from_bytes(self.read(4), "little")
            assert 5 <= length <= 2 << 20
            data = self.read(length)
            self.received += 4 + length
            self.send(frame(ACK, 0, u64(self.received)))
            if data[0] != ACKED:
                return data[0], int.from_bytes(data[1:5], "little"), data[5:]

    def call(self, operation: int, arguments: bytes = b"") -> tuple[int, bytes]:
        """Carry out a CALL; its code and what follows."""
        self.send(frame(CALL, 99, bytes((operation,)) + arguments))
        kind, number, payload = self.receive()
        assert (kind, number) == (REPLY, 99)
        return payload[0], payload[1:]

    def end(self, number: int) -> tuple[int, bytes, bytes]:
        """Wait for an END: its code, what follows, and all output before it."""
        output = b""
        while True:
            kind, got, payload = self.receive()
            assert got == number
            if kind == END:
                return payload[0], payload[1:], output
            if kind == OUT:
                output += payload[1:]
            else:
                assert kind == GRANT

    def status(self) -> int:
        """Wait until it has ended."""
        return self.process.wait(timeout=60)


def refusal(rest: bytes) -> tuple[int, bytes]:
    """The errno and the text of a REPLY or an END that is none of success."""
    size = int.from_bytes(rest[4:8], "little")
    assert len(rest) == 8 + size
    assert rest.find(0, 8) == len(rest) - 1
    return int.from_bytes(rest[:4], "little"), rest[8:-1]
