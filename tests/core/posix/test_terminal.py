"""A terminal starts where and with what it was asked for, or it is refused."""

from pathlib import PurePosixPath

import anyio
import pytest

from pinfold.errors import NotFound, OutsideWorkspace
from pinfold.posix import PosixTerminalInstance, TerminalGuest, equip
from pinfold.provider import (
    ExecRequest,
    InstanceRef,
    InstanceStatus,
    Terminal,
    Terminals,
    TerminalSize,
)
from tests.core.posix.guests import LocalGuest, end_all

pytestmark = pytest.mark.anyio


class PipeTerminal(Terminal):
    """No terminal at all: it shows what was started."""

    def __init__(self, process, size: TerminalSize) -> None:
        self.process = process
        self.size = size

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self.process.stdout.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        await self.process.stdin.send(data)

    async def resize(self, size: TerminalSize) -> None:
        self.size = size

    async def wait(self) -> int:
        return await self.process.wait()

    async def aclose(self) -> None:
        await self.process.stdin.aclose()
        await self.process.wait()
        await self.process.aclose()


class PipeTerminalGuest(LocalGuest, TerminalGuest):
    async def open_terminal(self, argv, env, cwd, size) -> Terminal:
        return PipeTerminal(await self.spawn(argv, env, cwd), size)


class Instance(PosixTerminalInstance):
    async def status(self) -> InstanceStatus:
        return InstanceStatus.RUNNING

    async def destroy(self) -> None:
        await self.clean_up()


@pytest.fixture
async def instance(tmp_path):
    (tmp_path / "w" / "d").mkdir(parents=True)
    (tmp_path / "w" / "out").symlink_to("/etc")
    kit = await equip(PipeTerminalGuest(), root=PurePosixPath(tmp_path / "w"))
    made = Instance(InstanceRef(provider="test", id="x"), kit)
    yield made
    await made.destroy()
    end_all(str(tmp_path))


async def everything(terminal: Terminal) -> bytes:
    said = b""
    with anyio.fail_after(5):
        while True:
            try:
                said += await terminal.receive()
            except anyio.EndOfStream:
                return said


async def test_the_feature_is_there_with_the_power(instance, tmp_path) -> None:
    assert instance.features.pty
    assert isinstance(instance, Terminals)
    plain = await equip(LocalGuest(), root=PurePosixPath(tmp_path / "w"))
    assert not plain.features.pty
    await Instance(InstanceRef(provider="test", id="y"), plain).clean_up()


async def test_a_terminal_starts_the_shell_in_the_workspace(instance, tmp_path) -> None:
    terminal = await instance.open_terminal()
    await terminal.send(b"pwd; echo $PINFOLD_WORKSPACE; exit 3\n")
    assert await everything(terminal) == f"{tmp_path}/w\n{tmp_path}/w\n".encode()
    assert await terminal.wait() == 3
    await terminal.aclose()


async def test_a_terminal_runs_a_command_with_its_variables(instance, tmp_path) -> None:
    request = ExecRequest(
        argv=["sh", "-c", 'pwd; printf "%s" "$A" "$1"', "sh", "a\nb"],
        env={"A": "x y", "PINFOLD_EXEC": "mine"},
        cwd="/workspace/d",
    )
    terminal = await instance.open_terminal(request, TerminalSize(10, 20))
    assert await everything(terminal) == f"{tmp_path}/w/d\nx ya\nb".encode()
    await terminal.aclose()


@pytest.mark.parametrize(("cwd", "error"), [("out", OutsideWorkspace), ("none", NotFound)])
async def test_a_terminal_elsewhere_is_refused(instance, cwd, error) -> None:
    with pytest.raises(error):
        await instance.open_terminal(ExecRequest(argv=["sh"], cwd=f"/workspace/{cwd}"))
