"""From creation to the end, and what is left when the end comes another way (LC-9, EX-5)."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import pinfold
from pinfold.errors import Lost, OutcomeUnknown, PinfoldError
from pinfold.provider import Context, ExecRequest, InstanceRef, Owner
from pinfold_host import provider
from pinfold_host._place import base_folder
from pinfold_host._processes import signal_marked
from tests.providers.host.support import (
    STORE,
    are_still,
    context,
    create,
    grows,
    heartbeat,
    is_there,
    out,
    pinned,
    run,
    sh,
    until,
    workspace,
)

pytestmark = pytest.mark.anyio

CONTROLLER = """
import sys
import anyio
import pinfold

async def main() -> None:
    spec = {{
        "target": {{"kind": "host", "provider": "host"}},
        "containment": {{"level": {level!r}}},
    }}
    async with await pinfold.open(spec) as box:
        script = {script!r}
        await box.exec(shell=script)
        where = await box.exec(shell="echo $PINFOLD_WORKSPACE")
        print("ready", flush=True)
        await box.exec(shell={foreground!r}, timeout_seconds=None)

anyio.run(main, backend={backend!r})
"""


@pytest.fixture
def controller(level, anyio_backend, data_home):
    """Another process that holds a sandbox with jobs of every kind; started, and watched."""
    script = f"({heartbeat('hb1')}) & setsid sh -c '{heartbeat('hb2')}' & (trap '' TERM HUP INT; {heartbeat('hb3')}) & :"
    program = CONTROLLER.format(
        level=level, script=script, foreground=heartbeat("hb4"), backend=anyio_backend
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    collect_garbage()  # no test's jobs outlive it


def folders() -> list[Path]:
    return sorted(base_folder().iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_the_controllers_end_leaves_nothing(controller, level, number, tmp_path, data_home):
    """LC-9: after Ctrl-C at once; after a kill its processes go by themselves or by `gc`."""
    folder = folders()[0]
    beats = [folder / "workspace" / f"hb{n}" for n in range(1, 5)]
    for beat in beats:
        await grows(beat)
    open_beats = [os.open(beat, os.O_RDONLY) for beat in beats]
    mine = await create(level, sandbox="sbx_mine")
    await sh(mine, f"({heartbeat('hb')}) & :")
    sentinel = workspace(mine) / "hb"
    await grows(sentinel)

    controller.send_signal(number)
    with anyio.fail_after(15):
        await anyio.to_thread.run_sync(controller.wait, abandon_on_cancel=True)
    if number != signal.SIGINT:
        said = await anyio.to_thread.run_sync(collect_garbage)
        assert said.returncode == 0, said.stderr
    assert not folder.exists()
    before = [os.fstat(fd).st_size for fd in open_beats]
    await anyio.sleep(0.3)
    assert [os.fstat(fd).st_size for fd in open_beats] == before
    for fd in open_beats:
        os.close(fd)
    await grows(sentinel)
    assert await out(mine, "echo untouched") == "untouched\n"
    await mine.destroy()
    assert list((data_home / "pinfold" / "ephemeral").glob("*.lock")) == []


async def test_an_error_in_the_body_is_the_one_that_comes_out_and_leaves_nothing(level, data_home):
    """LC-9, row 50 of the trackers' table: also with a job that would go on."""

    class Broken(Exception):
        pass

    spec = {
        "target": {"kind": "host", "provider": "host"},
        "containment": {"level": level},
        "durability": "none",
    }
    fds = []

    async def break_off() -> None:
        async with pinfold.open(spec) as box:
            await box.exec(shell=f"({heartbeat('hb')}) & :")
            (folder,) = folders()
            beat = folder / "workspace" / "hb"
            await grows(beat)
            fds.append(os.open(beat, os.O_RDONLY))
            raise Broken

    with pytest.raises(Broken):
        await break_off()
    (fd,) = fds
    before = os.fstat(fd).st_size
    await anyio.sleep(0.3)
    assert os.fstat(fd).st_size == before
    os.close(fd)
    assert folders() == []
    assert list((data_home / "pinfold" / "ephemeral").glob("*.lock")) == []


def collect_garbage() -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "pinfold", "gc"], capture_output=True, check=False)


async def test_a_native_sandbox_dies_with_its_controller(anyio_backend, native, data_home):
    """Issue: without any gc, by the kernel: nothing waits to be collected but files."""
    program = CONTROLLER.format(
        level="native",
        script=f"({heartbeat('hb1')}) & :",
        foreground=heartbeat("hb2"),
        backend="asyncio",
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    beats = [folders()[0] / "workspace" / name for name in ("hb1", "hb2")]
    for beat in beats:
        await grows(beat)
    process.kill()
    process.wait()
    process.stdout.close()

    async def dead() -> bool:
        return await are_still(*beats)

    await until(dead)
    collect_garbage()
    assert folders() == []


async def test_gc_touches_no_sandbox_that_lives(controller, data_home):
    """LC-9: its lock is held."""
    folder = folders()[0]
    said = await anyio.to_thread.run_sync(collect_garbage)
    assert said.returncode == 0
    await grows(folder / "workspace" / "hb1")
    assert controller.poll() is None


async def test_a_cancelled_create_leaves_nothing(level, anyio_backend, data_home):
    """Peers' row 30: at ten moments; what was registered can be destroyed, and is."""
    known: list[InstanceRef] = []

    async def register(ref: InstanceRef) -> None:
        assert not os.path.exists(ref.data["folder"]), "before the effect"  # noqa: ASYNC240, PTH110
        known.append(ref)

    ctx = Context(owner=Owner(store=STORE, sandbox="sbx_c"), register=register)
    for delay in (0, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08):
        with anyio.move_on_after(delay):
            instance = await provider.create(pinned(level), ctx)
            with anyio.CancelScope(shield=True):
                await instance.destroy()
    assert len(known) > 3
    assert await provider.list(Owner(store=STORE)) == []
    for ref in known:
        assert not os.path.exists(ref.data["folder"])  # noqa: ASYNC240, PTH110
        await provider.destroy(ref)


async def test_destroy_is_idempotent_and_what_comes_after_is_lost(instance):
    """LC-5."""
    await instance.files.write("/workspace/f", b"x")
    await instance.destroy()
    await instance.destroy()
    assert await instance.status() == "absent"
    for call in (
        lambda: run(instance, "true"),
        lambda: instance.files.read("/workspace/f"),
        lambda: instance.files.write("/workspace/f", b""),
        lambda: instance.files.list("/workspace"),
        instance.tree.scan,
        instance.open_terminal,
    ):
        with pytest.raises(Lost):
            await call()


async def test_destroying_by_the_ref_alone(instance):
    """LC-9: another process can, also with commands running: their outcome is nobody's."""
    outcome: list[object] = []

    async def command() -> None:
        try:
            outcome.append(await sh(instance, heartbeat("hb")))
        except (Lost, OutcomeUnknown) as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(command)
        await grows(workspace(instance) / "hb")
        await provider.destroy(instance.ref)
    assert isinstance(outcome[0], (Lost, OutcomeUnknown))
    assert not is_there(instance)
    with pytest.raises(Lost):
        await run(instance, "true")
    assert await instance.status() == "absent"


async def test_only_an_owners_instances_are_listed(level, anyio_backend):
    """LC-9: by store, and by sandbox."""
    one = await create(level, sandbox="sbx_1")
    two = await create(level, sandbox="sbx_2")
    other = await provider.create(
        pinned(level), Context(owner=Owner(store="another", sandbox="sbx_1"))
    )
    try:
        refs = await provider.list(Owner(store=STORE))
        assert {ref.id for ref in refs} == {one.ref.id, two.ref.id}
        assert {ref.sandbox for ref in refs} == {"sbx_1", "sbx_2"}
        assert [r.id for r in await provider.list(Owner(store=STORE, sandbox="sbx_2"))] == [
            two.ref.id
        ]
        assert await provider.list(Owner(store="nobody")) == []
    finally:
        for instance in (one, two, other):
            await instance.destroy()


@pytest.mark.parametrize("name", ["..", "../../etc", "", "nosuch", "0" * 16, "/etc", "x" * 16])
async def test_no_ref_leads_anywhere_else(anyio_backend, name, data_home, tmp_path):
    """LC-9: a ref is data, and may be anything."""
    base_folder().mkdir(parents=True)
    (tmp_path / "kept").write_text("x")
    await provider.destroy(InstanceRef(provider="host", id=name, data={"folder": str(tmp_path)}))
    assert (tmp_path / "kept").exists()
    assert base_folder().exists()


async def test_a_launcher_that_was_killed_is_a_lost_sandbox(anyio_backend, native):
    """LC-5: definite absence, found by the next operation; nothing of it runs on."""
    instance = await create("native")
    try:
        await sh(instance, f"({heartbeat('hb')}) & :")
        beat = workspace(instance) / "hb"
        await grows(beat)
        os.kill(launcher_of(instance), signal.SIGKILL)
        with pytest.raises((Lost, OutcomeUnknown)):
            await _run_for_ever(instance)
        assert await instance.status() == "absent"
        await until(lambda: are_still(beat))
    finally:
        await instance.destroy()


def launcher_of(instance: Any) -> int:
    return int(instance._held.launcher.pid)


async def _run_for_ever(instance) -> None:
    for _ in range(100):
        await run(instance, "true")
        await anyio.sleep(0.01)


async def test_two_hundred_commands_leave_no_descriptor_and_no_process(instance):
    """Nothing leaks: descriptors, threads, children."""
    await sh(instance, "true")
    await anyio.sleep(0.05)
    before = (len(os.listdir("/proc/self/fd")), threading.active_count())  # noqa: PTH208
    for number in range(200):
        if number % 20 == 0:
            await sh(instance, "sleep 0.01 & :")
            await sh(instance, "sleep 5", timeout_seconds=0.01)
        await run(instance, "true")
    await anyio.sleep(0.2)
    await run(instance, "true")
    after = (len(os.listdir("/proc/self/fd")), threading.active_count())  # noqa: PTH208
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 8
    assert len(children_of_this()) <= 1, "the launcher, at most"


def children_of_this() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def test_twenty_sandboxes_one_after_the_other(level, anyio_backend):
    """Nothing of a sandbox is left in its controller."""
    await (await create(level)).destroy()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        instance = await create(level)
        await out(instance, "true")
        await instance.destroy()
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
    assert list(base_folder().iterdir()) == []


async def test_a_folder_that_cannot_be_made_is_said(anyio_backend, data_home, level):
    """Bad input: a typed error, nothing left."""
    data_home.write_text("a file where the folder should be")
    with pytest.raises(PinfoldError) as caught:
        await provider.create(pinned(level), context())
    assert type(caught.value) is not PinfoldError


async def test_marks_find_exactly_their_own(anyio_backend, data_home):
    """EX-4: a mark is a whole variable, not a part of one."""
    instance = await create("none")
    try:
        await sh(instance, "sleep 30 & :", env={"TEST_MARK": "abc"})
        assert signal_marked(b"TEST_MARK=ab", 0) == 0
        assert signal_marked(b"TEST_MARK=abcd", 0) == 0
        assert signal_marked(b"EST_MARK=abc", 0) == 0
        assert signal_marked(b"TEST_MARK=abc", 0) == 1
    finally:
        await instance.destroy()
    assert signal_marked(b"TEST_MARK=abc", 0) == 0


async def test_terminals(instance):
    """Capability pty: a size that can be changed, job control, the shell's exit code, its end."""
    from pinfold.provider import TerminalSize

    terminal = await instance.open_terminal(size=TerminalSize(rows=11, columns=33))
    await terminal.send(b"stty size; tty; exec 2>&1; trap 'stty size' WINCH; echo rea''dy\n")
    assert b"11 33" in await _until(terminal, b"ready\r\n")
    await terminal.resize(TerminalSize(rows=22, columns=44))
    await terminal.send(b"stty size; echo ag''ain\n")
    assert b"22 44" in await _until(terminal, b"again\r\n")
    await terminal.send(b"sleep 100\n")
    await anyio.sleep(0.1)
    await terminal.send(b"\x03")
    await terminal.send(b"echo inter''rupted; exit 7\n")
    await _until(terminal, b"interrupted\r\n")
    assert await terminal.wait() == 7
    with pytest.raises(anyio.EndOfStream):
        await _until(terminal, b"what never comes")
    await terminal.aclose()
    await terminal.aclose()


async def _until(terminal, what: bytes) -> bytes:
    got = b""
    with anyio.fail_after(10):
        while what not in got:
            got += await terminal.receive()
    return got


async def test_a_terminal_that_is_closed_ends_what_runs_in_it(instance):
    """Terminal.aclose: the shell and its foreground."""
    request = ExecRequest(shell=f"trap '' HUP; {heartbeat('hb')}")
    terminal = await instance.open_terminal(request)
    beat = workspace(instance) / "hb"
    await grows(beat)
    await terminal.aclose()
    assert await are_still(beat)
    with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
        await terminal.send(b"x")


async def test_a_folder_that_is_moved_or_replaced_is_lost(instance):
    """LC-5: nothing is done in what is no longer the sandbox's, and no empty tree is taken for it."""
    await instance.files.write("/workspace/f", b"x")
    real = workspace(instance)
    aside = real.with_name("aside")
    real.rename(aside)
    for replaced in (False, True):
        if replaced:
            real.mkdir()
        for call in (
            lambda: run(instance, "true"),
            lambda: instance.files.read("/workspace/f"),
            lambda: instance.files.write("/workspace/f", b""),
            lambda: instance.files.list("/workspace"),
            lambda: instance.files.stat("/workspace/f"),
            instance.tree.scan,
        ):
            with pytest.raises(Lost):
                await call()
        assert await instance.status() == "absent"
    real.rmdir()
    aside.rename(real)
    assert await instance.files.read("/workspace/f") == b"x"
    assert await instance.status() == "running"


LEAVER = """
import anyio, sys
from tests.providers.host.support import *

async def main() -> None:
    box = await create("none")
    noise = "while :; do echo noise; echo noise >&2; printf x >> hb; sleep 0.02; done"
    await sh(box, f"({noise}) & :")
    print(box.ref.id, flush=True)
    await box.detach()

anyio.run(main)
"""


async def test_jobs_live_on_when_their_controller_has_detached(anyio_backend, data_home):
    """LC-1, feature attach: also those that write to pipes which nobody here holds any more."""
    said = await anyio.run_process([sys.executable, "-c", LEAVER])
    ref = InstanceRef(provider="host", id=said.stdout.decode().strip(), sandbox="sbx_test")
    beat = base_folder() / ref.id / "workspace" / "hb"
    for _ in range(3):
        await grows(beat)
    again = await provider.attach(ref, pinned("none"), context())
    assert (await run(again, "test", "-s", "hb")).exit_code == 0
    await again.destroy()
    assert not beat.exists()
