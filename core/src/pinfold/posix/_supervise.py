"""Who watches a command: a shell of ours in the guest, or the guest itself."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

import attrs

from pinfold.errors import OutcomeUnknown, PinfoldError, Unavailable
from pinfold.posix._call import Boundary, ProgramFailed, Shell
from pinfold.posix._guest import (
    COOKIE,
    ExecutingGuest,
    Process,
    SupervisedProcess,
    SupervisingGuest,
)
from pinfold.posix._layout import Layout
from pinfold.posix._probe import Tools
from pinfold.posix._signals import signal_number
from pinfold.posix._trouble import error_of
from pinfold.provider import ExecRequest, ExecResult, LimitMet, Sink
from pinfold.spec import TreeKill

__all__ = [
    "Command",
    "GuestSupervisor",
    "Outcome",
    "Running",
    "ShellSupervisor",
    "Supervisor",
]

#: How variables of ours begin; a request has none of them (EX-12).
_OURS: Final = "PINFOLD_"

#: Exit codes up to this say what they say; above, a signal may stand behind them.
_PLAIN: Final = 127

#: The highest exit code that there is.
_LAST: Final = 255

#: What the system does to a command that goes beyond what it may: the signals' numbers.
_BY_SIGNAL: Final[Mapping[int | None, LimitMet]] = {24: "cpu", 25: "disk"}
#: How a status says that processes were refused.
_REFUSED: Final = "refused"

#: What a guest's way to start a program says of one that can't be started.
_NO_SHELL: Final = (126, 127)


@attrs.frozen(kw_only=True)
class Command:
    """A command, ready to be started.

    Attributes:
        argv: the program and its arguments.
        env: all that is added to the target's defaults but the cookie.
        cwd: as the target names it.
        has_stdin: something will be sent.
        cookie: marks its processes; begins with the instance's own mark.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: PurePosixPath
    has_stdin: bool
    cookie: str


@attrs.frozen(kw_only=True)
class Outcome:
    """How a command ended.

    Attributes:
        exit_code: 0..255; 128+n for signal n (EX-2).
        signal: the signal's number, where it can be told.
        limit: what it has met, where that is known.
    """

    exit_code: int
    signal: int | None = None
    limit: LimitMet | None = None

    @classmethod
    def of(cls, exit_code: int, signal: int | None = None, *, refused: bool = False) -> Outcome:
        """Make the outcome of a command that ended by itself, or by a signal.

        Args:
            exit_code: without a signal.
            signal: the number.
            refused: a process was refused to it, or to others in its control group.
        """
        code = exit_code if signal is None else 128 + signal
        limit = _BY_SIGNAL.get(signal) or ("pids" if refused and code else None)
        return cls(exit_code=code, signal=signal, limit=limit)


class Running(ABC):
    """A command that runs.

    Attributes:
        process: its pipes.
        boundary: what ends its output on both streams; None where the streams just end.
    """

    process: Process
    boundary: Boundary | None = None

    @abstractmethod
    async def outcome(self, status: bytes) -> Outcome:
        """Return how it ended, once `process.wait` has returned or both streams have told.

        Args:
            status: what stood behind the boundary; nothing where it was not seen on both streams.

        Raises:
            NotFound, NotADirectory, OutsideWorkspace: the cwd; it was not started.
            Unavailable: it was not started (`effect` none).
            OutcomeUnknown: it was started, and nobody saw how it ended.
        """

    async def aclose(self) -> None:
        """Let go of it; never raises."""
        await self.process.aclose()


class Supervisor(ABC):
    """Starts commands and ends them.

    Attributes:
        signals: it can tell which signal ended a command.
        tree_kill: how far `end` reaches.
    """

    signals: bool
    tree_kill: TreeKill

    @abstractmethod
    async def start(self, command: Command) -> Running:
        """Start a command.

        Raises: as `Running.outcome`, where it is known at once, and as `Guest.spawn`.
        """

    async def execute(
        self, command: Command, request: ExecRequest, sink: Sink | None
    ) -> ExecResult | None:
        """Run a command to its end, where that can be done at once; else return None.

        Raises: as `ExecutingGuest.execute`.
        """
        return None

    @abstractmethod
    async def end(self, command: Command, running: Running | None, grace: float) -> None:
        """End all that a command started: TERM, the grace, then KILL until none is left (EX-4).

        Args:
            command: the command.
            running: None when `start` was interrupted, so that it may or may not run.
            grace: seconds.

        Never raises.
        """

    @abstractmethod
    async def idle(self, command: Command, running: Running) -> None:
        """Return when nothing of a command runs any more (EX-8 without `background`)."""

    @abstractmethod
    async def suspended(self) -> Unavailable | None:
        """As `Guest.suspended`."""


class _Watched(Running):
    """A command under `supervise.sh`."""

    def __init__(
        self,
        process: Process,
        boundary: Boundary,
        slot: str,
        cwd: PurePosixPath,
        owner: ShellSupervisor,
    ) -> None:
        self.process = process
        self.boundary = boundary
        self.slot = slot
        self.line = boundary.tail
        self._cwd = cwd
        self._owner = owner

    async def outcome(self, status: bytes) -> Outcome:
        if status and self.process.distant:
            return _outcome(status)
        code = await self.process.wait()
        if status:
            told = _told(status)
            if 0 <= code <= _PLAIN and (told is None or told.exit_code != code):
                return Outcome(exit_code=code)  # that word was forged
            return _outcome(status)
        said = await self._owner.look(self)
        if "done" in said:
            return _outcome(said["done"].encode())
        if "files" in said and "started" not in said:
            raise Unavailable(
                "the target lets what watches a command open too few files: none was started",
                hint="raise the limit on open files (ulimit -n) to 16 at least",
                details={"limit": "files"},
            )
        if "failed" in said:
            raise Unavailable(
                "the target can't start another process",
                hint="a limit on processes or memory may be reached",
                details={"limit": "pids"},
            )
        if "refused" in said:
            await self._owner.judge(self._cwd)
            raise Unavailable("the cwd was not usable for a moment")
        if "started" in said:
            raise OutcomeUnknown(
                "what watched the command was ended before the command was",
                hint="a command must not end its parent; look what it has done",
            )
        if code in _NO_SHELL:
            raise Unavailable(
                f"the target's shell could not start the command: it ended with {code}",
                hint="see that the target has a working sh",
                details={"exit_code": code},
            )
        raise OutcomeUnknown(  # a command can spoil the slot
            f"what watched the command ended with {code}, and left no word of it",
            hint="look what it has done before it is run again",
        )

    async def aclose(self) -> None:
        await self.process.aclose()
        self._owner.free(self)


def _told(status: bytes) -> Outcome | None:
    """Read `CODE REFUSED SIGNAL`; a command that knows the boundary may have forged it."""
    code, _, rest = status.decode("utf-8", "replace").partition(" ")
    refused, _, signal = rest.partition(" ")
    whole = int(code) if code.isascii() and code.isdecimal() else -1
    outcome = Outcome.of(whole, signal_number(signal), refused=refused == _REFUSED)
    return outcome if 0 <= outcome.exit_code <= _LAST else None


def _outcome(status: bytes) -> Outcome:
    outcome = _told(status)
    if outcome is None:
        raise OutcomeUnknown(
            f"what watched the command says {status!r} of its end",
            hint="look what it has done before it is run again",
        )
    return outcome


class ShellSupervisor(Supervisor):
    """A shell between us and the command, on any target.

    Args:
        shell: to run it.
        layout: where the workspace is.
        tools: what the target has.
    """

    def __init__(self, shell: Shell, layout: Layout, tools: Tools) -> None:
        self._shell = shell
        self._layout = layout
        self._tools = tools
        self._slots: set[int] = set()
        self.signals = bool(tools.witness)
        self.tree_kill = TreeKill.COOKIE

    async def start(self, command: Command) -> Running:
        boundary = Boundary()
        number = next(n for n in itertools.count() if n not in self._slots)
        slot = f"{self._tools.control}/{number}"
        # Ours do no harm to the shell, and are given to it: that saves starting env for them.
        ours = {name: value for name, value in command.env.items() if name.startswith(_OURS)}
        env = [f"{name}={value}" for name, value in command.env.items() if name not in ours]
        starter = ["setsid"] if self._tools.setsid else []
        if self._tools.witness == "jobs":
            starter.append("env --default-signal")
        elif env or not starter:
            starter.append("env")
        argv = command.argv
        if argv[0] == "-" or "=" in argv[0]:  # env would take it for something else
            argv = [self._shell.path, "-c", 'exec "$@"', "sh", *argv]
        args = (
            slot,
            str(command.cwd),
            "1" if command.has_stdin else "",
            self._tools.witness,
            " ".join(starter),
            f"{COOKIE}={command.cookie}",
            *env,
            *argv,
        )
        self._slots.add(number)
        try:
            process = await self._shell.guest.spawn(
                self._shell.argv(boundary, ("supervise",), *args),
                {**ours, COOKIE: command.cookie},
                PurePosixPath("/"),
            )
        except BaseException:
            self._slots.discard(number)
            raise
        return _Watched(process, boundary, slot, command.cwd, self)

    async def end(self, command: Command, running: Running | None, grace: float) -> None:
        await self._reap(command, f"{grace:g}")

    async def idle(self, command: Command, running: Running) -> None:
        await self._reap(command, "")

    async def _reap(self, command: Command, grace: str) -> None:
        with suppress(PinfoldError, ProgramFailed):
            await self._shell.reap(f"{COOKIE}={command.cookie}", grace)

    async def suspended(self) -> Unavailable | None:
        return await self._shell.guest.suspended()

    async def look(self, running: _Watched) -> dict[str, str]:
        """Return what the slot says of a command: word to the rest of its line."""
        try:
            said = await self._shell.call("slot", args=(running.slot,))
        except (PinfoldError, ProgramFailed) as exc:
            raise OutcomeUnknown(
                "the target went away while the command ran",
                hint="look what it has done before it is run again",
            ) from exc
        lines = said.decode("utf-8", "replace").splitlines()
        words = (line.split(" ", 2) for line in lines)
        return {w[1]: w[2] for w in words if len(w) == 3 and w[0] == running.line}

    async def judge(self, cwd: PurePosixPath) -> None:
        """Raise why a cwd can't be used."""
        try:
            await self._shell.call("paths", "check", args=(str(cwd.parent), cwd.name))
        except ProgramFailed as exc:
            raise error_of(exc, cwd, "use as cwd") from None

    def free(self, running: _Watched) -> None:
        """Give the slot to the next command."""
        self._slots.discard(int(running.slot.rpartition("/")[2]))


class _Direct(Running):
    def __init__(self, process: SupervisedProcess) -> None:
        self.process = process
        self.command = process

    async def outcome(self, status: bytes) -> Outcome:
        code = await self.process.wait()
        return Outcome.of(code) if code >= 0 else Outcome.of(0, -code)


class GuestSupervisor(Supervisor):
    """A guest that does it itself."""

    signals = True

    def __init__(self, guest: SupervisingGuest) -> None:
        self._guest = guest
        self.tree_kill = guest.tree_kill

    async def execute(
        self, command: Command, request: ExecRequest, sink: Sink | None
    ) -> ExecResult | None:
        if not isinstance(self._guest, ExecutingGuest):
            return None
        return await self._guest.execute(
            command.argv,
            {**command.env, COOKIE: command.cookie},
            command.cwd,
            stdin=request.stdin,
            timeout_seconds=request.timeout_seconds,
            stdout_cap=request.stdout_cap,
            stderr_cap=request.stderr_cap,
            sink=sink,
        )

    async def start(self, command: Command) -> Running:
        env = {**command.env, COOKIE: command.cookie}
        return _Direct(await self._guest.spawn(command.argv, env, command.cwd))

    async def end(self, command: Command, running: Running | None, grace: float) -> None:
        if isinstance(running, _Direct):
            await running.command.kill_tree(grace)

    async def idle(self, command: Command, running: Running) -> None:
        # Its streams have ended: whoever still runs has let go of them.
        return None

    async def suspended(self) -> Unavailable | None:
        return await self._guest.suspended()
