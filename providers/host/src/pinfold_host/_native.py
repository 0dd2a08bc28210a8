"""Commands inside a boundary of bubblewrap's: level native. The launcher's other end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import anyio

from pinfold.errors import PinfoldError, TooLarge, Unavailable
from pinfold.posix import SupervisedProcess, SupervisingGuest, TerminalGuest
from pinfold.provider import Terminal, TerminalSize
from pinfold.spec import RETURN_GRACE_SECONDS, TreeKill
from pinfold_host._errors import lost, typed
from pinfold_host._files import DirectFiles
from pinfold_host._process import Child, PipedProcess, Pipes, PtyTerminal, until_gone
from pinfold_host._streams import Drain

__all__ = ["Launcher", "NativeGuest"]

_PROGRAM: Final = str(Path(__file__).with_name("_launcher.py"))
_START_SECONDS: Final = 30
_DYING_SECONDS: Final = 0.5
_EVERYONE: Final = 0x80


class Launcher:
    """One sandbox's launcher process; see `_launcher.py`. It ends when this process does.

    Use `start`, then `aclose`.
    """

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._popen = popen
        self._control: socket.socket | None = control
        self._pidfd = os.pidfd_open(popen.pid)

    @classmethod
    async def start(cls, config: Mapping[str, Any]) -> Launcher:
        """Start it, and wait until the boundary stands.

        Args:
            config: as `_launcher.main` reads it.

        Raises:
            Unavailable: the boundary can't be built here; the reason is bubblewrap's own.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220  microseconds: it is vfork and exec
                [sys.executable, "-I", "-S", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        launcher = cls(popen, ours)
        try:
            await launcher._start(config)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await launcher.aclose()
            raise
        return launcher

    async def _start(self, config: Mapping[str, Any]) -> None:
        reply: dict[str, Any] = {"error": "the launcher ended early"}
        with anyio.move_on_after(_START_SECONDS) as scope:
            await self.send(json.dumps(config).encode(), [])
            data = await _receive(self.control)
            if data[0]:
                reply = json.loads(data[0])
        if scope.cancelled_caught:
            reply = {"error": f"bubblewrap was not ready within {_START_SECONDS} seconds"}
        if "error" in reply:
            raise Unavailable(
                f"the boundary of level native can't be built here: {reply['error']}",
                hint="user namespaces may be switched off; see the host provider's documentation",
            )

    @property
    def control(self) -> socket.socket:
        """The socket to it.

        Raises:
            Lost: it is closed.
        """
        if self._control is None:
            raise lost()
        return self._control

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        """It, and with it the boundary, still stands."""
        return self._control is not None and self._popen.poll() is None

    async def ends_soon(self) -> bool:
        """Say whether it has ended, or is about to: an exec's end can be the first sign of it."""
        if self._control is None:
            return True
        with anyio.move_on_after(_DYING_SECONDS):
            await until_gone(self._pidfd)
            return True
        return False

    async def send(self, data: bytes, fds: Sequence[int]) -> None:
        """Send one message with descriptors.

        Raises:
            Lost: it is gone; nothing was sent.
        """
        while True:
            try:
                socket.send_fds(self.control, [data], fds)
            except BlockingIOError:
                await anyio.wait_writable(self.control)
            except OSError:
                raise lost() from None
            else:
                return

    async def aclose(self) -> None:
        """End it with all that runs inside, and return when nothing of it is left; idempotent."""
        control, self._control = self._control, None
        if control is None:
            return
        anyio.notify_closing(control)
        control.close()
        await until_gone(self._pidfd)
        self._popen.wait()
        os.close(self._pidfd)


async def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message, empty when the other end is gone."""
    while True:
        try:
            data, fds, *_ = socket.recv_fds(sock, 4096, 4)
        except BlockingIOError:
            await anyio.wait_readable(sock)
        except OSError:
            return b"", []
        else:
            return data, fds


class NativeGuest(SupervisingGuest, TerminalGuest):
    """Spawns inside the boundary.

    Args:
        launcher: holds the boundary.
        env: the default environment, all of it.
        files: knows the workspace from outside: its roots, and where links lead.
        rlimits: soft and hard ones by their names in the resource module.
        drain: reads on for jobs that outlive their exec.
    """

    tree_kill = TreeKill.NAMESPACE

    def __init__(
        self,
        *,
        launcher: Launcher,
        env: Mapping[str, str],
        files: DirectFiles,
        rlimits: Mapping[str, tuple[int, int]],
        drain: Drain,
    ) -> None:
        self._launcher = launcher
        self._env = dict(env)
        self._roots = [os.fsdecode(root.guest) for root in files.roots.roots]
        self._rlimits = dict(rlimits)
        self._drain = drain
        self._files = files
        self._running: set[_NativeChild] = set()
        self._left: set[int] = set()  # pidfds of inits whose exec has returned

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> SupervisedProcess:
        """Start a command."""
        with Pipes.handed_over() as pipes:
            child, _ = await self._start(argv, env, cwd, pipes.theirs, None)
        return PipedProcess(child, pipes, self._drain)

    async def open_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        size: TerminalSize,
    ) -> Terminal:
        """Start a command in a new terminal."""
        child, fds = await self._start(argv, env, cwd, [], size)
        return PtyTerminal(child, fds[0])

    @property
    def is_busy(self) -> bool:
        """An exec or a terminal is in hand."""
        return bool(self._running)

    async def end_jobs(self) -> bool:
        """End what execs have left running; return whether there was anything."""
        self._prune()
        left, self._left = self._left, set()
        for pidfd in left:
            await _end(pidfd)
            os.close(pidfd)
        return bool(left)

    def close(self) -> None:
        """Let go of what execs left; the boundary's own end is theirs."""
        while self._left:
            os.close(self._left.pop())

    async def _start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        streams: Sequence[int],
        size: TerminalSize | None,
    ) -> tuple[_NativeChild, list[int]]:
        if self._files.roots.are_lost():
            raise lost()
        self._prune()
        request = {
            "argv": list(argv),
            "env": {**self._env, **env},
            "cwd": str(cwd),
            "roots": self._roots,
            "rlimits": self._rlimits,
            "size": None if size is None else [size.rows, size.columns],
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        child = _NativeChild(self._launcher, ours, self._ended)
        self._running.add(child)
        try:
            with theirs, _memory_file(json.dumps(request).encode()) as document:
                await self._launcher.send(b"x", [document, theirs.fileno(), *streams])
            fds = await child.started()
        except _BadCwd as error:
            child.close()
            raise self._refusal(cwd, error) from None
        except BaseException:
            with anyio.CancelScope(shield=True):
                await child.kill_tree(0)
            child.close()
            raise
        return child, fds

    def _refusal(self, cwd: PurePosixPath, error: OSError) -> PinfoldError:
        """Return why a cwd was refused: one that is not there may be so because it leads out."""
        try:
            self._files.find_directory(cwd)
        except PinfoldError as refusal:
            return refusal
        return typed(error, cwd)

    def _ended(self, child: _NativeChild, pidfd: int | None) -> None:
        self._running.discard(child)
        if pidfd is not None:
            self._left.add(pidfd)

    def _prune(self) -> None:
        for pidfd in [fd for fd in self._left if _has_ended(fd)]:
            self._left.discard(pidfd)
            os.close(pidfd)


class _BadCwd(OSError):
    """The launcher could not enter the working directory."""


class _NativeChild(Child):
    """One exec: its init's pidfd, and a socket to it."""

    def __init__(
        self,
        launcher: Launcher,
        talk: socket.socket,
        ended: Callable[[_NativeChild, int | None], None],
    ) -> None:
        self._launcher = launcher
        self._talk: socket.socket | None = talk
        self._on_end = ended
        self._pidfd: int | None = None
        self._status: int | None = None
        self._killed = False

    async def started(self) -> list[int]:
        """Wait until the command is on its way; return the descriptors that came for it.

        Raises:
            _BadCwd: nothing was started.
            Unavailable, Lost: likewise.
        """
        fds: list[int] | None = None
        while fds is None or self._pidfd is None:
            kind, code, text, received = await self._next()
            if kind == b"p":
                self._pidfd = received[0]
            elif kind == b"r":
                fds = received
            elif kind == b"x":  # it may well have ended before we are told of its init
                self._status = os.waitstatus_to_exitcode(code)
            elif kind == b"n":
                raise _BadCwd(code, text)
            elif kind == b"f":
                raise _cannot_start(code, text)
            else:
                raise await self._gone()
        return fds

    async def wait(self) -> int:
        while self._status is None:
            kind, code, text, _ = await self._next()
            if kind == b"x":
                self._status = os.waitstatus_to_exitcode(code)
            elif kind == b"f":
                raise _cannot_start(code, text)
            elif self._killed or not await self._launcher.ends_soon():
                self._status = -signal.SIGKILL  # with its whole tree, by us or by the kernel
            else:
                raise lost()
        return self._status

    async def signal(self, number: int) -> None:
        self._send(number)

    async def kill_tree(self, grace_seconds: float) -> None:
        self._killed = True
        with anyio.move_on_after(RETURN_GRACE_SECONDS):
            while self._pidfd is None:  # it was given up before it had started
                kind, _, _, received = await self._next()
                if kind == b"p":
                    self._pidfd = received[0]
                elif not kind:
                    return
        if self._pidfd is None:
            return
        if grace_seconds > 0:
            self._send(_EVERYONE | signal.SIGTERM)
            with anyio.move_on_after(grace_seconds):
                await until_gone(self._pidfd)
        await _end(self._pidfd)

    def close(self) -> None:
        talk, self._talk = self._talk, None
        if talk is None:
            return
        anyio.notify_closing(talk)
        talk.close()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None and _has_ended(pidfd):
            os.close(pidfd)
            pidfd = None
        self._on_end(self, pidfd)

    def _send(self, word: int) -> None:
        if self._talk is not None:
            with contextlib.suppress(OSError):
                self._talk.send(bytes([word]))

    async def _next(self) -> tuple[bytes, int, str, list[int]]:
        if self._talk is None:
            raise anyio.ClosedResourceError
        data, fds = await _receive(self._talk)
        code = struct.unpack("=i", data[1:5])[0] if len(data) >= 5 else 0
        return data[:1], code, data[5:].decode(errors="replace"), fds

    async def _gone(self) -> PinfoldError:
        if await self._launcher.ends_soon():
            return lost()
        return Unavailable("the command could not be started: its init ended early")


async def _end(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    with anyio.move_on_after(RETURN_GRACE_SECONDS):
        await until_gone(pidfd)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _cannot_start(code: int, text: str) -> PinfoldError:
    if code == errno.E2BIG:
        return TooLarge(
            "argv and env together are more than this machine lets a program be given",
            hint="put large data into a file",
        )
    return Unavailable(f"the command could not be started: {text}")


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("request")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
