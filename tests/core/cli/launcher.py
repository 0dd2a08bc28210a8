"""Commands in processes of their own, without the half second in which each imports pinfold.

One process imports it all, and forks for every command. What a command is given, its descriptors,
folder, environment and arguments, is what `python -W error -m pinfold` would be given.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PREPARE = """
import sys
from tests.core.cli.launcher import serve
serve(int(sys.argv[1]))
"""
_NUMBER = struct.Struct("i")
_MESSAGE = 1 << 20


class Launcher:
    """Runs commands one at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _PREPARE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[3],
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def run(
        self, args: list[str], stdin: bytes, cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """As `subprocess.run`, with both outputs captured."""
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = (
            os.pipe() for _ in range(3)
        )
        job = json.dumps({"args": args, "cwd": str(cwd), "env": env}).encode()
        socket.send_fds(self._socket, [job], [read_in, write_out, write_err])
        for fd in (read_in, write_out, write_err):
            os.close(fd)
        pid = self._number()
        try:
            out, err = _converse(write_in, stdin, read_out, read_err, timeout)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._number()
            raise
        return subprocess.CompletedProcess(args, self._number(), out, err)

    def _number(self) -> int:
        (number,) = _NUMBER.unpack(self._socket.recv(_NUMBER.size))
        return int(number)


def _converse(
    write_in: int, stdin: bytes, read_out: int, read_err: int, timeout: float
) -> tuple[bytes, bytes]:
    """Write and read until both outputs are at their end; all three are closed then."""
    deadline = time.monotonic() + timeout
    found = {read_out: b"", read_err: b""}
    rest = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        for fd in found:
            selector.register(fd, selectors.EVENT_READ)
        selector.register(write_in, selectors.EVENT_WRITE)
        os.set_blocking(write_in, False)
        try:
            while not found.keys().isdisjoint(selector.get_map()):
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd == write_in:
                        try:
                            rest = rest[os.write(write_in, rest) :] if rest else rest
                        except BrokenPipeError:
                            rest = rest[:0]
                        ended = not rest
                    else:
                        data = os.read(key.fd, 65_536)
                        found[key.fd] += data
                        ended = not data
                    if ended:
                        selector.unregister(key.fd)
                        os.close(key.fd)
        finally:
            for key in list(selector.get_map().values()):
                os.close(key.fd)
    return found[read_out], found[read_err]


def serve(number: int) -> None:
    """Fork for each command that comes, until nobody is left to send one."""
    for package in ("pinfold", "pinfold_bashkit", "pinfold_host"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for module in pkgutil.walk_packages(spec.submodule_search_locations, f"{package}."):
            if module.name not in ("pinfold.__main__", "pinfold.state.suite"):
                importlib.import_module(module.name)
    for name in ("anyio._backends._asyncio", "platformdirs.unix", "sqlite3", "zstandard"):
        importlib.import_module(name)
    gc.freeze()
    commands = socket.socket(fileno=number)
    while True:
        message, fds, _, _ = socket.recv_fds(commands, _MESSAGE, 3)
        if not message:
            commands.close()
            return
        pid = os.fork()
        if pid == 0:
            commands.close()
            _become(json.loads(message), fds)
        for fd in fds:
            os.close(fd)
        commands.send(_NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        commands.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(job: dict[str, Any], fds: list[int]) -> None:
    from pinfold.cli import main

    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.path.remove("")  # as for a command, the folder that it is called in holds no modules
    sys.argv = ["pinfold", *job["args"]]
    sys.exit(main())
