"""Commands as plain processes of this machine: level none."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import anyio
import anyio.to_thread

from pinfold.errors import Internal, TooLarge, Unavailable
from pinfold.posix import COOKIE, SupervisedProcess, SupervisingGuest, TerminalGuest
from pinfold.provider import Terminal, TerminalSize
from pinfold.spec import RETURN_GRACE_SECONDS, TreeKill
from pinfold_host import _starter
from pinfold_host._beneath import Roots
from pinfold_host._errors import lost, typed
from pinfold_host._linux import O_PATH
from pinfold_host._process import (
    Child,
    Ended,
    PipedProcess,
    Pipes,
    PtyTerminal,
    set_size,
    until_gone,
)
from pinfold_host._processes import can_find_marked, end_marked, signal_marked
from pinfold_host._streams import Drain

__all__ = ["LocalGuest"]

_NOT_FOUND: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_NOT_RUNNABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR})
_F_GETPATH: Final = 50


class LocalGuest(SupervisingGuest, TerminalGuest):
    """Spawns on this machine, as this user.

    Args:
        roots: where a cwd may lie, the workspace first; paths are the caller's.
        env: the default environment, all of it.
        rlimits: each command's soft and hard limits by their names in the resource module.
        drain: reads on for jobs that outlive their exec.
        is_ending: the instance has been, or is being, removed.
    """

    def __init__(
        self,
        *,
        roots: Roots,
        env: Mapping[str, str],
        rlimits: Mapping[str, tuple[int, int]],
        drain: Drain,
        is_ending: Callable[[], bool],
    ) -> None:
        self._roots = roots
        self._env = dict(env)
        self._rlimits = dict(rlimits)
        self._drain = drain
        self._is_ending = is_ending
        self._finds_marked = can_find_marked()
        self._running: set[Child] = set()
        # Threads that only wait for an end are not to take those that work.
        self._waiters = anyio.CapacityLimiter(1_000_000)
        self.tree_kill = TreeKill.COOKIE if self._finds_marked else TreeKill.GROUP

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> SupervisedProcess:
        """Start a command."""
        with Pipes.handed_over() as pipes:
            child = self._start(argv, env, cwd, pipes.theirs)
        return PipedProcess(child, pipes, self._drain)

    async def open_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        size: TerminalSize,
    ) -> Terminal:
        """Start a command in a new terminal."""
        master, slave = os.openpty()
        try:
            set_size(master, size)
            child = self._start(argv, env, cwd, [slave] * 3, terminal=True)
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return PtyTerminal(child, master)

    def _start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        streams: Sequence[int],
        *,
        terminal: bool = False,
    ) -> Child:
        whole = {**self._env, **env}
        cookie = whole.setdefault(COOKIE, secrets.token_hex(16))
        todo = _starter.words(self._rlimits, terminal=terminal)
        with contextlib.ExitStack() as stack:
            place = self._cwd(cwd, stack)
            try:
                if not argv[0]:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                popen = subprocess.Popen(
                    _starter.command(todo, list(argv), whole),
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    env=whole,
                    cwd=place,
                    start_new_session=True,
                    umask=0o022,
                )
            except OSError as error:
                return _not_started(error, argv[0], streams[2])
        mark = os.fsencode(f"{COOKIE}={cookie}")
        child = (
            _PidfdChild(popen, mark, self._is_ending)
            if self._finds_marked
            else _GroupChild(popen, self._waiters)
        )
        child.on_close = self._running.discard
        self._running.add(child)
        return child

    @property
    def is_busy(self) -> bool:
        """A command or a terminal is in hand."""
        return bool(self._running)

    async def end_jobs(self) -> bool:
        """End what commands have left running, as far as it can be found."""
        if not self._finds_marked:
            return False
        mark = b"PINFOLD_WORKSPACE=" + self._roots.roots[0].guest
        return await anyio.to_thread.run_sync(_end_jobs, mark)

    def _cwd(self, cwd: PurePosixPath, stack: contextlib.ExitStack) -> str:
        """Open the directory, and return a path that leads to what was opened, whatever comes."""
        if self._roots.are_lost():
            raise lost()
        place = cwd
        try:
            place = self._roots.as_caller(cwd)
            fd = self._roots.open(place, O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise typed(error, place) from error
        stack.callback(os.close, fd)
        return f"/proc/self/fd/{fd}" if O_PATH != os.O_RDONLY else _where_is(fd)


def _where_is(fd: int) -> str:
    """Ask macOS where an open directory is."""
    import fcntl

    return os.fsdecode(fcntl.fcntl(fd, _F_GETPATH, bytes(1024)).rstrip(b"\0"))


def _end_jobs(mark: bytes) -> bool:
    found = signal_marked(mark, signal.SIGKILL) > 0
    end_marked(mark, time.monotonic() + RETURN_GRACE_SECONDS)
    return found


def _not_started(error: OSError, program: str, stderr: int) -> Child:
    """Return the end of a command that is not there or can't be run, as a shell tells it (EX-2)."""
    if error.errno in _NOT_FOUND or error.errno in _NOT_RUNNABLE:
        text = f"{program}: {os.strerror(error.errno or 0)}\n"
        os.write(stderr, os.fsencode(text))
        return Ended(127 if error.errno in _NOT_FOUND else 126)
    if error.errno == errno.E2BIG:
        raise TooLarge(
            "argv and env together are more than this machine lets a program be given",
            hint="put large data into a file",
        ) from error
    raise Unavailable(f"this machine can't start a process now: {error.strerror}") from error


class _PidfdChild(Child):
    """A process on Linux; it is reaped last of all, so that its number stays its own."""

    def __init__(
        self, popen: subprocess.Popen[bytes], mark: bytes, is_ending: Callable[[], bool]
    ) -> None:
        self._popen = popen
        self._mark = mark
        self._is_ending = is_ending
        self._pidfd: int | None = os.pidfd_open(popen.pid)
        self._status: int | None = None

    async def wait(self) -> int:
        if self._status is None:
            if self._pidfd is None:
                raise anyio.ClosedResourceError
            await until_gone(self._pidfd)
            self._status = _status(self._popen.pid)
            if self._status == -signal.SIGKILL and self._is_ending():
                raise lost()  # that end was not its own
        return self._status

    async def signal(self, number: int) -> None:
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)

    async def kill_tree(self, grace_seconds: float) -> None:
        await self.signal(signal.SIGTERM)
        await anyio.to_thread.run_sync(self._end_marked, grace_seconds)
        await self.signal(signal.SIGKILL)
        # A process that dies has no mark any more before it can be reaped.
        if self._pidfd is not None:
            with anyio.move_on_after(RETURN_GRACE_SECONDS):
                await until_gone(self._pidfd)

    def _end_marked(self, grace_seconds: float) -> None:
        end = time.monotonic() + grace_seconds
        pause = 0.005
        while signal_marked(self._mark, signal.SIGTERM) and time.monotonic() < end:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(pause * 2, 0.1)
        end_marked(self._mark, time.monotonic() + RETURN_GRACE_SECONDS)

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
            self._popen.poll()
            self.on_close(self)


def _status(pid: int) -> int:
    """Return how a process ended that has ended, and leave it to be reaped."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if ended is None:
        raise Internal("a process is still running after it was told to be gone")
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class _GroupChild(Child):
    """A process elsewhere: its group is what can be ended."""

    def __init__(self, popen: subprocess.Popen[bytes], waiters: anyio.CapacityLimiter) -> None:
        self._popen = popen
        self._waiters = waiters

    async def wait(self) -> int:
        return await anyio.to_thread.run_sync(
            self._popen.wait, abandon_on_cancel=True, limiter=self._waiters
        )

    async def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)

    async def kill_tree(self, grace_seconds: float) -> None:
        await self.signal(signal.SIGTERM)
        with anyio.move_on_after(grace_seconds):
            await self.wait()
        await self.signal(signal.SIGKILL)
        with anyio.move_on_after(RETURN_GRACE_SECONDS):
            await self.wait()

    def close(self) -> None:
        self._popen.poll()
        self.on_close(self)
