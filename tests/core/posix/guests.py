"""Guests for tests: the machine itself, and a root that holds nothing but busybox."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from pinfold.errors import NotADirectory, NotFound, OutsideWorkspace
from pinfold.posix import Guest, SupervisedProcess, SupervisingGuest
from pinfold.spec import TreeKill


class Pipe(ByteReceiveStream, ByteSendStream):
    """One end of a pipe; after `settle` it ends where it would have to wait."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.settled = False
        os.set_blocking(fd, False)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while self.fd >= 0:
            try:
                data = os.read(self.fd, max_bytes)
            except BlockingIOError:
                if self.settled:
                    break
                await anyio.wait_readable(self.fd)
            else:
                if data:
                    return data
                break
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        while item:
            if self.fd < 0:
                raise anyio.ClosedResourceError
            try:
                item = item[os.write(self.fd, item) :]
            except BlockingIOError:
                await anyio.wait_writable(self.fd)
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    def send_now(self, item: bytes) -> int:
        try:
            return os.write(self.fd, item) if self.fd >= 0 else 0
        except OSError:
            return 0

    def close(self) -> None:
        if self.fd >= 0:
            anyio.notify_closing(self.fd)
            os.close(self.fd)
            self.fd = -1

    async def aclose(self) -> None:
        self.close()


class LocalProcess(SupervisedProcess):
    tells_signals = False

    def __init__(self, popen: subprocess.Popen[bytes], pipes: list[int]) -> None:
        self.popen = popen
        self.stdin, self.stdout, self.stderr = self.pipes = [Pipe(fd) for fd in pipes]

    async def wait(self) -> int:
        if self.popen.poll() is None:
            fd = os.pidfd_open(self.popen.pid)
            try:
                await anyio.wait_readable(fd)
            finally:
                os.close(fd)
        code = self.popen.wait()
        return code if code >= 0 or self.tells_signals else 128 - code

    async def signal(self, number: int) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def send_now(self, data: bytes) -> int:
        return self.pipes[0].send_now(data)

    def was_cut(self) -> bool:
        watch = select.poll()
        if (fd := self.pipes[1].fd) >= 0:
            watch.register(fd, select.POLLIN)
        return fd < 0 or any(events == select.POLLHUP for _, events in watch.poll(0))

    async def aclose(self) -> None:
        self.popen.poll()
        self.pipes[0].close()
        for pipe in self.pipes[1:]:
            if pipe.fd >= 0 and not at_end(pipe.fd):
                os.set_blocking(pipe.fd, True)
                drain = ["cat"]
                STARTED.append(subprocess.Popen(drain, stdin=pipe.fd, stdout=subprocess.DEVNULL))
            pipe.close()

    async def kill_tree(self, grace_seconds: float) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGTERM)
        with anyio.move_on_after(grace_seconds):
            await self.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    async def settle(self) -> None:
        for pipe in self.pipes[1:]:
            pipe.settled = True
            anyio.notify_closing(pipe.fd)


#: All that was started and may still run: commands, and who drains what their children write.
STARTED: list[subprocess.Popen[bytes]] = []


def living(variable: str) -> list[int]:
    """Find the processes that have a variable (its beginning), as this machine sees them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def end_all(workspace: str) -> None:
    """End what a test has left: nothing outlives it."""
    for pid in living(f"PINFOLD_WORKSPACE={workspace}"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for popen in STARTED:
        if popen.poll() is None:
            popen.kill()
        popen.wait()
    STARTED.clear()


def at_end(fd: int) -> bool:
    try:
        while os.read(fd, 65536):
            pass
    except BlockingIOError:
        return False
    return True


class LocalGuest(Guest):
    """Spawns on this machine, with an environment of its own."""

    default_env: Mapping[str, str] = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
    }
    process: type[LocalProcess] = LocalProcess
    prefix: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.spawned = 0

    def close(self) -> None:
        """End what was made for it."""

    async def spawn(self, argv, env, cwd) -> LocalProcess:
        await anyio.lowlevel.checkpoint()
        self.spawned += 1
        ours, theirs = [], []
        for output in (False, True, True):
            reading, writing = os.pipe()
            ours.append(reading if output else writing)
            theirs.append(writing if output else reading)
        popen = subprocess.Popen(
            [os.fsencode(arg) for arg in (*self.prefix, *argv)],
            env={**self.default_env, **env},
            cwd=cwd,
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            start_new_session=True,
        )
        STARTED.append(popen)
        for fd in theirs:
            os.close(fd)
        return self.process(popen, ours)


class OldKernelGuest(LocalGuest):
    """A kernel without the system calls that the helper likes best."""

    script = str(Path(__file__).with_name("old_kernel.py"))
    prefix: tuple[str, ...] = (sys.executable, script, "openat2,close_range,pidfd_open,fchmodat2")


class SupervisedLocalProcess(LocalProcess):
    tells_signals = True


class SupervisingLocalGuest(LocalGuest, SupervisingGuest):
    """Does without our shell: what is above the seam must not differ for it."""

    tree_kill = TreeKill.GROUP
    process: type[LocalProcess] = SupervisedLocalProcess

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self.workspace = workspace

    async def spawn(self, argv, env, cwd) -> LocalProcess:
        if str(cwd) != "/":
            self.check(Path(cwd))
        try:
            return await super().spawn(argv, env, cwd)
        except OSError as exc:
            code = 127 if isinstance(exc, FileNotFoundError) or not argv[0] else 126
            text = f"{argv[0]}: {exc.strerror}"
            script = 'printf "%s\\n" "$1" >&2; exit "$2"'
            return await super().spawn(["/bin/sh", "-c", script, "sh", text, str(code)], env, "/")

    def check(self, cwd: Path) -> None:
        """A check with a gap: good enough where nobody attacks."""
        if not (real := cwd.resolve()).is_relative_to(self.workspace):
            raise OutsideWorkspace(f"{cwd} leads out")
        if not real.exists():
            raise NotFound(f"there is no {cwd}")
        if not real.is_dir():
            raise NotADirectory(f"{cwd} is no directory")


class BusyboxGuest(LocalGuest):
    """A root that holds busybox and a workspace, nothing else: bubblewrap makes it, nsenter enters.

    As with a remote target, a signal reaches only what stands for the process on this side.
    """

    default_env: Mapping[str, str] = {"PATH": "/bin"}

    def __init__(self, root: Path, workspace: Path, *options: str) -> None:
        super().__init__()
        reading, writing = os.pipe()
        self.holder = subprocess.Popen(
            [
                "bwrap", "--unshare-all", "--die-with-parent", "--info-fd", str(writing),
                "--bind", str(root), "/", "--bind", str(workspace), "/workspace",
                "--dev", "/dev", "--proc", "/proc", *options, "--",
                "sh", "-c", "echo ready; exec sleep 1000000",
            ],
            pass_fds=[writing],
            env=self.default_env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        assert self.holder.stdout
        with self.holder.stdout as said:
            assert said.readline() == b"ready\n"
        with os.fdopen(reading) as info:
            pid = json.load(info)["child-pid"]
        namespaces = ("--user", "--mount", "--pid", "--ipc", "--net", "--uts")
        self.prefix = (shutil.which("nsenter") or "nsenter", "-t", str(pid), *namespaces, "--")

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()


def busybox_root(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Make a root with busybox alone, some of its commands left out."""
    busybox = shutil.which("busybox")
    assert busybox, "install busybox-static"
    for name in ("bin", "dev", "proc", "tmp", "workspace"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin" / "busybox")
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        if name not in {*without, "busybox", "[["}:
            (folder / "bin" / name).symlink_to("busybox")
    return folder
