"""What a check can ask a guest to do, whatever its shell speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Final, Literal

__all__ = ["QUESTION", "Dialect", "How", "Means"]

Means = Literal["tcp", "udp", "unix"]

#: A DNS question: the address of pinfold.invalid.
QUESTION: Final = (
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07pinfold\x07invalid\x00\x00\x01\x00\x01"
)


class How(StrEnum):
    """How a script starts another."""

    CHILD = "child"  # waits for it
    HOLDING = "holding"  # goes on; it holds the output of its parent
    QUIET = "quiet"  # goes on; its output and input are closed
    SESSION = "session"  # as quiet, in a session of its own
    CLEAN = "clean"  # as session, with an empty environment


class Dialect(ABC):
    """Renders each thing that checks do into a script of the guest's shell.

    Every method returns a script; `seq` makes one of several, run in order, whose exit code is the
    last one's. Paths in scripts are relative to the cwd, or are physical: command text is never
    rewritten. `PINFOLD_WORKSPACE` gives the physical root.

    Attributes:
        name: of the dialect.
        hows: the ways in which scripts can be started.
    """

    name: str
    hows: frozenset[How] = frozenset(How)

    @abstractmethod
    def seq(self, *scripts: str) -> str:
        """Run scripts in order, whatever their exit codes."""

    @abstractmethod
    def argv(self, script: str, *args: str) -> tuple[str, ...]:
        """Return the argv that runs a script with arguments."""

    @abstractmethod
    def show_args(self, *args: str) -> tuple[str, ...]:
        """Return the argv of a program that writes each argument and a NUL."""

    @abstractmethod
    def out(self, data: bytes) -> str:
        """Write bytes to stdout."""

    @abstractmethod
    def err(self, data: bytes) -> str:
        """Write bytes to stderr."""

    @abstractmethod
    def fill(self, count: int, stream: Literal["stdout", "stderr"] = "stdout") -> str:
        """Write `count` times the byte `x`, in chunks."""

    @abstractmethod
    def exit(self, code: int) -> str:
        """End with a code."""

    @abstractmethod
    def die(self, signal: int) -> str:
        """Be killed by a signal."""

    @abstractmethod
    def cat(self) -> str:
        """Copy stdin to stdout."""

    @abstractmethod
    def count(self) -> str:
        """Write the number of bytes on stdin, as decimal text."""

    @abstractmethod
    def keep(self, path: str) -> str:
        """Copy stdin to a file."""

    @abstractmethod
    def sleep(self, seconds: float) -> str:
        """Wait."""

    @abstractmethod
    def spin(self) -> str:
        """Compute without end."""

    @abstractmethod
    def beat(self, path: str, every: float = 0.05) -> str:
        """Append one byte to a file, again and again, without end."""

    @abstractmethod
    def wait_for(self, path: str) -> str:
        """Wait until there is such a file."""

    @abstractmethod
    def save(self, path: str, data: bytes) -> str:
        """Replace a file."""

    @abstractmethod
    def append(self, path: str, data: bytes) -> str:
        """Append to a file."""

    @abstractmethod
    def load(self, path: str) -> str:
        """Copy a file to stdout."""

    @abstractmethod
    def exists(self, path: str) -> str:
        """Exit 0 when there is such a name (a dangling link counts), else 1."""

    @abstractmethod
    def remove(self, *paths: str) -> str:
        """Remove files and whole directories; those that are not there are no fault."""

    @abstractmethod
    def mkdir(self, path: str) -> str:
        """Make a directory and its parents."""

    @abstractmethod
    def rename(self, source: str, target: str) -> str:
        """Rename."""

    @abstractmethod
    def link(self, path: str, text: str) -> str:
        """Make a symbolic link."""

    @abstractmethod
    def hardlink(self, path: str, existing: str) -> str:
        """Give a file a second name."""

    @abstractmethod
    def fifo(self, path: str) -> str:
        """Make a FIFO."""

    @abstractmethod
    def chmod(self, path: str, mode: int) -> str:
        """Set permission bits."""

    @abstractmethod
    def copy_times(self, path: str, reference: str) -> str:
        """Give a file the times of another."""

    @abstractmethod
    def env(self) -> str:
        """Write the whole environment."""

    @abstractmethod
    def var(self, name: str) -> str:
        """Write the value of a variable, nothing else; nothing when it is not set."""

    @abstractmethod
    def leak(self) -> str:
        """Change all that a shell can change: variable, export, function, cwd, umask, option."""

    @abstractmethod
    def leaked(self) -> str:
        """Write the name of each thing that `leak` changed and that is still so."""

    @abstractmethod
    def pwd(self) -> str:
        """Write the physical cwd and a newline."""

    @abstractmethod
    def uid(self) -> str:
        """Write the numeric user id, or nothing where there is none."""

    @abstractmethod
    def ignore_signals(self) -> str:
        """Ignore every polite signal from here on."""

    @abstractmethod
    def start(self, script: str, how: How) -> str:
        """Start another process with a script."""

    @abstractmethod
    def swap(self, first: str, second: str, count_to: str) -> str:
        """Exchange two names without end, appending one byte to a file for each exchange."""

    @abstractmethod
    def connect(self, address: str, port: int, means: Means = "tcp") -> str:
        """Write `reached` when there is an answer or a connection, `refused` when not, `no tool`.

        Over udp `QUESTION` is sent. A Unix socket's address is its path, or `@` and its name in
        the kernel; it has no port.
        """

    @abstractmethod
    def packages(self) -> str:
        """Write `yes` when system packages could be installed, else `no`."""

    @abstractmethod
    def listen(self, port: int, greeting: bytes) -> str:
        """Serve TCP on a port of every interface, greeting each caller; `no tool` if it can't."""

    @abstractmethod
    def is_tty(self) -> str:
        """Write `tty` when stdin is a terminal, else `no tty`."""

    @property
    @abstractmethod
    def probe(self) -> tuple[str, bytes]:
        """A script that only this dialect runs, and what it writes."""
