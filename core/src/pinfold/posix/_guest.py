"""What a POSIX target must offer: one primitive, and two optional richer forms of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from anyio.abc import ByteReceiveStream, ByteSendStream

from pinfold.errors import Unavailable
from pinfold.provider import ExecResult, Sink, Terminal, TerminalSize
from pinfold.spec import TreeKill

__all__ = [
    "COOKIE",
    "TASK",
    "ExecutingGuest",
    "Guest",
    "Process",
    "SupervisedProcess",
    "SupervisingGuest",
    "TerminalGuest",
]

#: The variable that marks every process of a command.
COOKIE: Final = "PINFOLD_EXEC"
#: The variable that marks our own programs in the same way.
TASK: Final = "PINFOLD_TASK"


class Process(ABC):
    """A process that a guest spawned, with its three pipes.

    Attributes:
        stdin: `send` may raise `anyio.BrokenResourceError` once nobody reads; `aclose` is its
            end-of-file.
        stdout: raises `anyio.EndOfStream` when all that hold the other end are gone.
        stderr: likewise.
        distant: `wait` takes a round trip or more, and is left out where a shell of ours has told
            how a command ended: that shell then ends by itself, perhaps a moment after `aclose`.
            The streams end soon after the process, whoever holds them.
    """

    stdin: ByteSendStream
    stdout: ByteReceiveStream
    stderr: ByteReceiveStream
    distant: bool = False

    @abstractmethod
    async def wait(self) -> int:
        """Return the exit status once the process has ended: 0..255, or -n for signal n.

        A transport that can't tell signals returns whatever it makes of them, 128+n usually.
        What children still write may come after it.

        Raises:
            Lost, Unreachable: the target went away; how the process ended is unknown.
        """

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the process, and to its group where that is as easy; never raises.

        Best effort: a transport that can't do it does nothing.
        """

    def send_now(self, data: bytes) -> int:
        """Send to stdin as much as can be sent without waiting; return how many bytes that was.

        Where a transport can't, none; what is wrong with it `stdin.send` says. Never while a `send`
        is under way.
        """
        return 0

    def was_cut(self) -> bool:
        """Say whether the other side is known to be gone, before anything is sent to it.

        It asks nobody and never waits. Where a transport can't tell, False.
        """
        return False

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of it: free what is held on this side. Idempotent; never raises.

        It kills nothing. Children that live on and hold the pipes go on undisturbed as far as the
        transport allows: best is to go on draining, unseen, what they write (EX-8).
        """


class Guest(ABC):
    """A place where processes can be spawned: the one primitive that `PosixInstance` needs."""

    @abstractmethod
    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> Process:
        """Start a program in a process group (better: a session) of its own.

        Every signal is at its default and none is blocked: whatever is ignored in the process that
        spawns would stay ignored in the command, past all that a shell can do about it.

        Args:
            argv: passed exactly, as bytes: str with surrogateescape. Never through a shell that
                would read it; where the transport has one in between, all is quoted.
            env: added to the target's own default environment, which has nothing of the
                controller's (EX-12).
            cwd: a directory, as the target names it.

        Raises:
            Lost, Unreachable, Unavailable: with `effect` none, nothing was started.
            OutcomeUnknown: it may have been started.

        A cancellation may leave the process running: the caller ends it by its cookie.
        """

    async def suspended(self) -> Unavailable | None:
        """Return what is to be told if all of the target stands still, kept from running by others.

        What runs there is not lost, and goes on once the target may. Asked where nothing has been
        heard of it for a while; never raises. Where that can't be known, or can't be, None.
        """
        return None


class SupervisedProcess(Process):
    """The command itself, with nothing of ours between: see `SupervisingGuest`."""

    @abstractmethod
    async def kill_tree(self, grace_seconds: float) -> None:
        """End the process and all that it started, as far as the guest's `tree_kill` reaches.

        TERM first; KILL after the grace, again and again until none is left (EX-4). Returns as soon
        as they are gone. Also called when the process itself has ended. Never raises.
        """

    @abstractmethod
    async def settle(self) -> None:
        """Told once, after `wait`: from now on the streams end with what has been written so far.

        So that an exec can return though children hold the pipes (EX-8), with nothing lost that
        the command itself wrote.
        """


class SupervisingGuest(Guest):
    """A guest that supervises commands itself; `PosixInstance` then puts no shell in between.

    What it spawns is the command, `wait` tells its own end, with -n for a signal, 127 for a program
    that isn't there and 126 for one that can't be run (EX-2).

    Attributes:
        tree_kill: how far `kill_tree` reaches.
    """

    tree_kill: TreeKill

    @abstractmethod
    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> SupervisedProcess:
        """Start a command, as `Guest.spawn`, but in a cwd that is checked without a gap (FS-2).

        Programs of ours, which check for themselves, are started in `/`: that is never refused.

        Raises:
            NotFound, NotADirectory, PermissionDenied: the cwd; nothing was started.
            OutsideWorkspace: a link leads the cwd out; nothing was started.
            Lost, Unreachable, Unavailable: with `effect` none, nothing was started.
            OutcomeUnknown: it may have been started.

        A cancellation leaves nothing running.
        """


class ExecutingGuest(SupervisingGuest):
    """A guest that runs a whole command in one exchange: pipes, caps and deadline on its side."""

    @abstractmethod
    async def execute(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        *,
        stdin: bytes,
        timeout_seconds: float | None,
        stdout_cap: int,
        stderr_cap: int,
        sink: Sink | None,
    ) -> ExecResult:
        """Run a command to its end; as `Instance.exec`, with `argv`, `env` and `cwd` as `spawn`.

        `env_dropped` and `generation` of the result are the caller's to fill in.

        Raises: as `spawn`, and OutcomeUnknown when nobody can tell how it ended.

        On cancellation the whole tree is killed before it propagates (EX-5).
        """


class TerminalGuest(Guest):
    """A guest that can open terminals; without it the feature `pty` is absent."""

    @abstractmethod
    async def open_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        size: TerminalSize,
    ) -> Terminal:
        """Start a program in a new terminal, as `spawn`.

        Raises: as `spawn`.
        """
