"""A helper on this machine, and connections to it that can be cut."""

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import attrs
import pytest

from pinfold.posix._resident import Resident
from pinfold.posix._resident._session import Session
from pinfold.provider import ExecResult
from tests.core.posix.guests import LocalGuest, LocalProcess, Pipe, end_all, living


@attrs.define
class Budget:
    """What a connection may still carry, both ways together; None is without end."""

    left: int | None = None
    spent: bool = False

    def spend(self, size: int) -> int:
        if self.left is None:
            return size
        allowed = min(size, self.left)
        self.left -= allowed
        self.spent = allowed < size
        return allowed


class CutPipe(Pipe):
    """A pipe that carries so many bytes, the last piece in part, and is closed then."""

    def __init__(self, pipe: Pipe, budget: Budget, *, waits: bool) -> None:
        super().__init__(pipe.fd)
        self.budget = budget
        self.waits = waits  # and sends nothing without

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self.budget.spent:
            raise anyio.EndOfStream
        data = await super().receive(max_bytes)
        return data[: self.budget.spend(len(data))] or await self.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        allowed = self.budget.spend(len(item))
        if allowed:
            await super().send(item[:allowed])
        if allowed < len(item):
            await self.aclose()
            raise anyio.BrokenResourceError

    def send_now(self, item: bytes) -> int:
        return 0 if self.waits else super().send_now(item[: self.budget.spend(len(item))])


class CuttingGuest(LocalGuest):
    """A transport that is cut after so many bytes; what ran behind it goes on."""

    def __init__(self) -> None:
        super().__init__()
        #: For the next connections, the first being that of the start.
        self.budgets: list[int] = []
        self.cuts = 0
        self.last: LocalProcess
        self.refuse: Exception | None = None

    async def spawn(self, argv, env, cwd) -> LocalProcess:
        if self.refuse is not None:
            raise self.refuse
        process = await super().spawn(argv, env, cwd)
        self.last = process
        if self.budgets:
            budget = Budget(self.budgets.pop(0))
            self.cuts += 1
            for index in (0, 1):
                waits = bool(self.cuts % 2)  # transports of both kinds
                process.pipes[index] = CutPipe(process.pipes[index], budget, waits=waits)
            process.stdin, process.stdout = process.pipes[:2]
        return process

    async def cut(self) -> None:
        """Cut the present connection."""
        await self.last.stdin.aclose()
        await self.last.stdout.aclose()


def new_mark() -> str:
    """What nobody else has: a helper that starts again ends all that bears its mark."""
    return f"resident-{secrets.token_hex(6)}-"


def end_marked(mark: str) -> None:
    """End what a test has left."""
    for pid in living(f"PINFOLD_EXEC={mark}"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end_all(mark)


@attrs.frozen
class Place:
    """A resident, and its workspace as this machine sees it."""

    resident: Resident
    guest: CuttingGuest
    workspace: Path
    outside: Path
    mark: str

    @property
    def session(self) -> Session:
        return self.resident.session

    @property
    def pid(self) -> int:
        return self.session.greeting.pid

    async def run(self, *argv: str, **more) -> ExecResult:
        options: dict[str, Any] = {
            "stdin": b"",
            "timeout_seconds": 60,
            "stdout_cap": 1 << 20,
            "stderr_cap": 1 << 20,
            "sink": None,
        }
        env = more.pop("env", {})
        cwd = PurePosixPath(self.workspace / more.pop("cwd", "."))
        return await self.resident.guest.execute(argv, env, cwd, **(options | more))

    async def sh(self, script: str, **more) -> ExecResult:
        return await self.run("/bin/sh", "-c", script, **more)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    workspace, outside = tmp_path / "w", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    guest, mark = CuttingGuest(), new_mark()
    root = PurePosixPath(workspace)
    resident = await Resident.start(guest, root=root, mark=mark)
    try:
        yield Place(resident, guest, workspace, outside, mark)
    finally:
        guest.refuse = None
        with anyio.CancelScope(shield=True):
            await resident.aclose()
        end_marked(mark)


async def until(condition, seconds: float = 10.0) -> None:
    """Poll until something is so."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
