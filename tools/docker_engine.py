"""Run a command where a Docker engine answers: `python -m tools.docker_engine COMMAND...`.

An engine that answers already (DOCKER_HOST, or the usual socket) is used as it is. Otherwise, as
root, a throwaway one is started, and ended by its pid when the command has ended: data, socket and
state lie in a folder of their own, and it lives, with the command, in a network namespace of its
own, so that no bridge, route or iptables rule of this machine is touched. The command sees
DOCKER_HOST, and the images `pinfold-test:busybox` and `pinfold-test:debian` (tools.docker_images),
which are removed afterwards from an engine that was not ours.

Where no engine can be had the command runs all the same, without one, and is told why on stderr.
"""

import contextlib
import ctypes
import fcntl
import http.client
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_SECONDS = 30.0
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


class UnixHTTP(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("engine", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def answers(host: str) -> bool:
    """Say whether an engine answers at `unix://PATH`."""
    connection = UnixHTTP(host.removeprefix("unix://"), 2)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def present() -> str | None:
    """Return the host of an engine that answers here already."""
    named = os.environ.get("DOCKER_HOST")
    hosts = [named] if named else ["unix:///var/run/docker.sock"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not named:
        hosts.append(f"unix://{runtime}/docker.sock")
    return next((host for host in hosts if host.startswith("unix://") and answers(host)), None)


def why_not() -> str | None:
    """Return why no engine can be started here, or None."""
    if os.geteuid() != 0:
        return "not root"
    lacking = [name for name in ("dockerd", "containerd", "iptables") if not shutil.which(name)]
    return f"not installed: {', '.join(lacking)} (make system)" if lacking else None


def leave_network() -> None:
    """Move this process to a new network namespace with a loopback of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16xH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[0]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


class Engine:
    """A dockerd of our own in a folder; may be killed and started again.

    Args:
        folder: everything of it lies there; short, since a socket's path has at most 107 bytes.
        options: for dockerd, which is the first on PATH, as its companions are.
        subordinates: lines for /etc/subuid and /etc/subgid, which it then sees with nothing else in
            them, in a mount namespace of its own.
    """

    def __init__(self, folder: Path, *options: str, subordinates: str = "") -> None:
        self.folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self._options = options
        self._subordinates = subordinates
        self._process: subprocess.Popen[bytes] | None = None

    def _alone(self) -> list[str]:
        """Return what gives it an /etc of its own: a copy, which others do not see."""
        if not self._subordinates:
            return []
        etc = self.folder / "etc"
        if not etc.exists():
            shutil.copytree("/etc", etc, symlinks=True)
        for name in ("subuid", "subgid"):
            (etc / name).write_text(self._subordinates)
        return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(etc)]

    def _shims(self) -> list[int]:
        """Return the processes that watch containers of this engine: its name is in their argv."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                argv = (process / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in argv[0] and os.fsencode(self.folder.name) in argv:
                    found.append(int(process.name))
        return found

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        for name in ("docker.pid", "docker.sock"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "config.json").write_text("{}")  # not this machine's own
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "TERM"),  # it ends with us, whatever happens
                    *self._alone(),
                    "dockerd",
                    f"--host={self.host}",
                    f"--data-root={self.folder}/data",
                    f"--exec-root={self.folder}/exec",
                    f"--pidfile={self.folder}/docker.pid",
                    f"--config-file={self.folder}/config.json",
                    f"--containerd-namespace={self.folder.name}",
                    f"--containerd-plugins-namespace={self.folder.name}-plugins",
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not answers(self.host):
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "log").read_text(errors="replace").splitlines()[-15:]
                self.stop()
                raise RuntimeError("dockerd did not come up:\n" + "\n".join(tail))
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash would; the kernel ends its containerd with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        pidfile = self.folder / "exec/containerd/containerd.pid"
        deadline = time.monotonic() + DEADLINE_SECONDS
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{int(pidfile.read_text())}/stat")
            while ") Z" not in stat.read_text() and time.monotonic() < deadline:
                time.sleep(0.02)
        pidfile.unlink(missing_ok=True)  # a dead one that nobody reaps passes for alive

    def stop(self) -> None:
        """End it and its containers."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Stop it and what a crash of it left running, and remove its folder."""
        self.stop()
        for shim in self._shims():
            with contextlib.suppress(OSError, ValueError):
                children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
                for pid in (*map(int, children), shim):
                    os.kill(pid, signal.SIGKILL)
        with Path("/proc/self/mounts").open() as mounts:
            inside = [line.split()[1] for line in mounts if f"{self.folder}/" in line]
        for point in reversed(inside):
            subprocess.run(["umount", "--lazy", point], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def throwaway(*options: str, subordinates: str = "") -> Iterator[Engine]:
    """An engine of our own in this network namespace, for a while."""
    # Its name is a containerd namespace too, which takes no underscore where mkdtemp may put one.
    folder = Path(tempfile.gettempdir()) / f"pinfold-docker-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o711)
    engine = Engine(folder, *options, subordinates=subordinates)
    try:
        engine.start()
        yield engine
    finally:
        engine.remove()


@contextlib.contextmanager
def available() -> Iterator[str | None]:
    """The host of an engine with the test images, or None."""
    from tools import docker_images

    host = present()
    if host is not None:
        with docker_images.borrowed(host):
            yield host
        return
    reason = why_not()
    if reason is not None:
        print(
            f"docker_engine: no engine answers and none can be started: {reason}", file=sys.stderr
        )
        yield None
        return
    leave_network()
    with throwaway() as engine:
        docker_images.load(engine.host)
        yield engine.host


def main(command: list[str]) -> int:
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    with available() as host:
        environ = os.environ | ({"DOCKER_HOST": host} if host else {})
        child = subprocess.Popen(command, env=environ)
        code = None
        while code is None:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                continue  # the terminal has told the child too
            except SystemExit:
                child.terminate()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
