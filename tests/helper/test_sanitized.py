"""The whole helper under address and undefined-behaviour sanitizers, and on another machine's CPU."""

import secrets
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import attrs
import pytest

import pinfold_helper
from pinfold.errors import NotFound, OutsideWorkspace
from pinfold.posix._resident import Resident
from pinfold.provider import RestorePlan, TerminalSize
from tests.core.resident.conftest import CuttingGuest, end_marked, new_mark

pytestmark = pytest.mark.anyio


@pytest.fixture
def sanitized(sanitized_program) -> bytes:
    program: bytes = sanitized_program.read_bytes()
    return program


@pytest.fixture(scope="module")
def foreign() -> bytes:
    """A program that runs the other machine's helper in an emulator."""
    if shutil.which("qemu-aarch64-static") is None:
        pytest.skip("qemu-user-static is not installed: make system")
    return pinfold_helper.load("aarch64")


class EmulatingGuest(CuttingGuest):
    """A machine whose `uname -m` says aarch64, as far as the helper is concerned."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    async def spawn(self, argv, env, cwd):
        if argv[1:2] == ["-c"]:
            script = argv[2].replace(
                'exec "$folder/helper"', 'exec qemu-aarch64-static "$folder/helper"'
            )
            assert script != argv[2]
            argv = [*argv[:2], script, *argv[3:]]
        elif argv[0].endswith("/helper"):
            argv = ["qemu-aarch64-static", *argv]
        return await super().spawn(argv, env, cwd)


@pytest.fixture(params=["sanitized", "foreign"])
async def running(request, tmp_path):
    program = request.getfixturevalue(request.param)
    workspace = tmp_path / "w"
    workspace.mkdir()
    guest = EmulatingGuest(tmp_path) if request.param == "foreign" else CuttingGuest()
    mark = new_mark()
    resident = await Resident.start(
        guest, root=PurePosixPath(workspace), mark=mark, program=lambda _: program
    )
    yield resident, guest, workspace
    with anyio.CancelScope(shield=True):
        await resident.aclose()
    end_marked(mark)


class Shell:
    """Short for a command."""

    def __init__(self, resident: Resident, workspace: Path) -> None:
        self.resident = resident
        self.root = PurePosixPath(workspace)

    async def __call__(self, script: str, **more):
        options: dict[str, Any] = {
            "stdin": b"",
            "timeout_seconds": 30.0,
            "stdout_cap": 1 << 20,
            "stderr_cap": 1 << 20,
            "sink": None,
        }
        argv = ["/bin/sh", "-c", script]
        return await self.resident.guest.execute(argv, {"A": "b"}, self.root, **(options | more))


async def test_commands(running) -> None:
    resident, _, workspace = running
    sh = Shell(resident, workspace)
    assert (await sh("echo $A; exit 3")).exit_code == 3
    assert (await sh("kill -9 $$")).signal == 9
    counted = await sh("cat", stdout_cap=10, stdin=bytes(3_000_000))
    assert (counted.stdout, counted.stdout_total) == (bytes(10), 3_000_000)
    assert (await sh("setsid sleep 60 & sleep 60", timeout_seconds=0.5)).timed_out
    assert (await sh("sleep 0.2 & echo now")).stdout == b"now\n"
    assert (await sh("exec no-such-program")).exit_code == 127
    seen = []

    async def sink(stream, data) -> None:
        seen.append(len(data))

    await sh("head -c 2000000 /dev/zero", sink=sink)
    assert sum(seen) == 2_000_000
    process = await resident.guest.spawn(["true"], {}, PurePosixPath(workspace) / "missing")
    with pytest.raises(NotFound):
        await process.wait()
    async with anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(sh, f"echo {number} >>log")
    assert len((workspace / "log").read_text().split()) == 16
    assert resident.restarts == 0


async def test_files(running) -> None:
    resident, _, workspace = running
    files = resident.files
    data = secrets.token_bytes(3_000_000)
    await files.write("/workspace/a/b/small", b"x", mode=0o600)
    await files.write("/workspace/large", data)
    assert await files.read("/workspace/large") == data
    assert await files.read("/workspace/large", offset=5, length=7) == data[5:12]
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    (workspace / "out").symlink_to(outside)
    (workspace / "in").symlink_to(workspace / "a")
    (workspace / "up").symlink_to("a/../a/b")
    with pytest.raises(OutsideWorkspace):
        await files.read("/workspace/out/secret")
    assert await files.read("/workspace/in/b/small") == b"x"
    assert await files.read("/workspace/up/small") == b"x"
    await files.rename("/workspace/large", "/workspace/moved")
    await files.chmod("/workspace/moved", 0o640)
    assert (await files.stat("/workspace/moved")).mode == 0o640
    await files.make_directory("/workspace/d/e")
    await files.symlink("/workspace/d/l", "anything")
    names = [entry.path.name for entry in await files.list("/workspace")]
    assert names == ["a", "d", "in", "moved", "out", "up"]
    deep = workspace / "deep"
    for _ in range(120):
        deep.mkdir()
        deep = deep / "x"
    await files.remove("/workspace/deep", recursive=True)
    await files.remove("/workspace/a", recursive=True)
    assert not (workspace / "a").exists()
    assert not (workspace / "deep").exists()
    assert resident.restarts == 0


async def test_trees(running) -> None:
    resident, _, workspace = running
    tree = resident.tree
    for number in range(300):
        (workspace / f"d{number % 7}").mkdir(exist_ok=True)
        (workspace / f"d{number % 7}" / f"f{number}").write_bytes(secrets.token_bytes(number * 40))
    (workspace / "l").symlink_to("nowhere")
    first = await tree.scan()
    blobs: dict[str, bytearray] = {}
    async for blob in tree.read(first.entries):
        blobs.setdefault(blob.path, bytearray()).extend(blob.data)
    held = {entry.digest: bytes(blobs[entry.path]) for entry in first.entries if entry.digest}

    async def fetch(digest):
        yield held[digest]

    (workspace / "d1" / "f1").write_text("changed")
    (workspace / "new").mkdir()
    (workspace / "l").unlink()
    await tree.restore(RestorePlan(entries=first.entries, fetch=fetch))
    again = (await tree.scan()).entries
    assert [attrs.evolve(entry, mtime_ns=0) for entry in again] == [
        attrs.evolve(entry, mtime_ns=0) for entry in first.entries
    ]
    assert not await tree.recover()
    assert resident.restarts == 0


async def test_a_terminal(running) -> None:
    resident, _, workspace = running
    size = TerminalSize(rows=33, columns=99)
    terminal = await resident.guest.open_terminal(["/bin/sh"], {}, PurePosixPath(workspace), size)
    await terminal.send(b"stty size; exit 5\n")
    said = b""
    with anyio.fail_after(20), suppress(anyio.EndOfStream):
        while True:
            said += await terminal.receive()
    assert b"33 99" in said
    assert await terminal.wait() == 5
    assert resident.restarts == 0


async def test_a_connection_that_is_cut(running) -> None:
    resident, guest, workspace = running
    sh = Shell(resident, workspace)
    for number in range(5):
        guest.budgets = [100 + 300 * number]
        await guest.cut()
        assert (await sh(f"echo {number}")).stdout == b"%d\n" % number
    assert resident.restarts == 0
