"""What both levels share: a command in hand, on pipes or in a terminal."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import anyio

from pinfold.posix import SupervisedProcess
from pinfold.provider import Terminal, TerminalSize
from pinfold_host._streams import Drain, PipeReader, PipeWriter

__all__ = ["Child", "Ended", "PipedProcess", "Pipes", "PtyTerminal", "until_gone"]


def _nothing(_: object) -> None:
    return None


class Child(ABC):
    """A started command, without its streams.

    Attributes:
        on_close: called once it is closed.
    """

    on_close: Callable[[Child], None] = staticmethod(_nothing)

    @abstractmethod
    async def wait(self) -> int:
        """Return its exit status, -n for a signal."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to its group; never raises."""

    @abstractmethod
    async def kill_tree(self, grace_seconds: float) -> None:
        """End all that it started; see `SupervisedProcess.kill_tree`."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held on this side; idempotent."""


class Ended(Child):
    """A command that could not be run, and so has ended already."""

    def __init__(self, status: int) -> None:
        self._status = status

    async def wait(self) -> int:
        """Return the status at once."""
        return self._status

    async def signal(self, number: int) -> None:
        """Do nothing."""

    async def kill_tree(self, grace_seconds: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


async def until_gone(pidfd: int) -> None:
    """Wait until a process has ended; any number of tasks may wait for the same one."""
    own = os.dup(pidfd)
    try:
        await anyio.wait_readable(own)
    finally:
        os.close(own)


class Pipes:
    """Three pipes, ours and theirs, each closed once."""

    def __init__(self) -> None:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        self.ours = [stdin[1], stdout[0], stderr[0]]
        self.theirs = [stdin[0], stdout[1], stderr[1]]

    @classmethod
    @contextmanager
    def handed_over(cls) -> Iterator[Self]:
        """Close the command's ends after the block, and ours too where it fails."""
        pipes = cls()
        try:
            yield pipes
        except BaseException:
            pipes.close_ours()
            raise
        finally:
            pipes.close_theirs()

    def close_ours(self) -> None:
        """Close the controller's ends."""
        while self.ours:
            os.close(self.ours.pop())

    def close_theirs(self) -> None:
        """Close the command's ends."""
        while self.theirs:
            os.close(self.theirs.pop())


class PipedProcess(SupervisedProcess):
    """A command on pipes.

    Args:
        child: the command.
        pipes: what it was started with; our ends are taken over.
        drain: reads on for jobs that outlive the exec.
    """

    def __init__(self, child: Child, pipes: Pipes, drain: Drain) -> None:
        self._child = child
        stdin, stdout, stderr = pipes.ours
        pipes.ours = []
        self.stdin = PipeWriter(stdin)
        self._stdout = PipeReader(stdout, drain)
        self._stderr = PipeReader(stderr, drain)
        self.stdout, self.stderr = self._stdout, self._stderr

    async def wait(self) -> int:
        """Return the exit status."""
        return await self._child.wait()

    async def signal(self, number: int) -> None:
        """Send a signal to the group."""
        await self._child.signal(number)

    async def kill_tree(self, grace_seconds: float) -> None:
        """End everything."""
        await self._child.kill_tree(grace_seconds)

    async def settle(self) -> None:
        """End the streams where they are empty."""
        self._stdout.settle()
        self._stderr.settle()

    async def aclose(self) -> None:
        """Let go."""
        for stream in (self.stdin, self._stdout, self._stderr):
            await stream.aclose()
        self._child.close()


class PtyTerminal(Terminal):
    """A command in a pseudo-terminal.

    Args:
        child: the command.
        master: the controlling side, taken over.
    """

    def __init__(self, child: Child, master: int) -> None:
        self._child = child
        self._master: int | None = master
        self._reader = PipeReader(os.dup(master), None)
        self._writer = PipeWriter(os.dup(master))

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next output."""
        return await self._reader.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        """Type."""
        await self._writer.send(data)

    async def resize(self, size: TerminalSize) -> None:
        """Set the size; the kernel tells the foreground group (SIGWINCH)."""
        if self._master is not None:
            set_size(self._master, size)

    async def wait(self) -> int:
        """Return the exit code, 128+n for a signal."""
        status = await self._child.wait()
        return status if status >= 0 else 128 - status

    async def aclose(self) -> None:
        """Hang up, and end what does not go."""
        master, self._master = self._master, None
        if master is None:
            return
        with anyio.CancelScope(shield=True):
            await self._child.signal(signal.SIGHUP)
            await self._child.signal(signal.SIGCONT)
            await self._reader.aclose()
            await self._writer.aclose()
            os.close(master)
            await self._child.kill_tree(0.5)
            self._child.close()


def set_size(terminal: int, size: TerminalSize) -> None:
    """Give a terminal its size."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
