"""Places that lack something: what still works, and what is said (PR-4, PR-7).

macOS itself can't be had here. What it lacks is taken away from this Linux, in a process of its
own, before the provider is imported.
"""

import subprocess
import sys

import pytest

from pinfold.provider import ExecRequest
from pinfold_host import _local
from tests.providers.host.support import are_still, create, grows, heartbeat, sh, workspace

ELSEWHERE = """
import asyncio, ctypes, fcntl, os, signal, subprocess, sys
import anyio, anyio.abc, anyio.to_thread, anyio._backends._asyncio
import attrs, cattrs, platformdirs

# What macOS has not, or has otherwise.
for name in ("O_PATH", "pidfd_open", "memfd_create", "waitid", "P_PIDFD"):
    if hasattr(os, name):
        delattr(os, name)
if hasattr(signal, "pidfd_send_signal"):
    del signal.pidfd_send_signal
real_fcntl, readlink = fcntl.fcntl, os.readlink
def darwin_fcntl(fd, command, argument=0):
    if command == 50:  # F_GETPATH
        return os.fsencode(readlink(f"/proc/self/fd/{fd}")).ljust(1024, b"\\0")
    return real_fcntl(fd, command, argument)
fcntl.fcntl = darwin_fcntl
real_open = open
def no_proc(call):
    def checked(path, *args, **kwargs):
        assert not str(path).startswith("/proc"), path
        return call(path, *args, **kwargs)
    return checked
import builtins
builtins.open, os.listdir = no_proc(open), no_proc(os.listdir)
os.chmod, os.readlink = no_proc(os.chmod), no_proc(os.readlink)
def no_libc(*args, **kwargs):
    raise AssertionError("libc by hand")
ctypes.CDLL = no_libc
sys.platform = "darwin"
import platform
platform.system = lambda: "Darwin"

from tests.providers.host.support import *
import tests.providers.host.test_tree as trees
import time

async def main():
    found = await provider.probe()
    assert found.available and found.levels == ("none",), found
    assert "needs Linux; this is Darwin" in found.details["native"], found.details
    try:
        await create("native")
    except Exception as error:
        assert type(error).__name__ == "Unavailable" and "needs Linux" in str(error), error
    else:
        raise AssertionError
    box = await create("none")
    assert box.features.tree_kill == "group" and not box.features.non_utf8_names
    assert not box.files.roots.is_direct
    result = await sh(box, "echo out; echo err >&2; pwd -P; exit 3")
    assert result.exit_code == 3 and result.stderr == b"err\\n", result
    assert (await sh(box, "kill -9 $$")).signal == 9
    assert (await run(box, "no-such-program")).exit_code == 127
    started = time.monotonic()
    result = await sh(box, f"({heartbeat('hb1')}) & {heartbeat('hb2')}", timeout_seconds=0.3)
    assert result.exit_code == 124 and time.monotonic() - started < 5, result
    assert await are_still(workspace(box) / "hb1", workspace(box) / "hb2")
    before = time.monotonic()
    result = await sh(box, "sleep 30 & echo now")
    assert result.stdout == b"now\\n" and time.monotonic() - before < 15
    await box.files.write("/workspace/a/b", b"x", mode=0o640)
    await box.files.symlink("/workspace/link", "a/b")
    assert await box.files.read("/workspace/link") == b"x"
    await box.files.chmod("/workspace/link", 0o600)
    assert (await box.files.stat("/workspace/a/b")).mode == 0o600
    await box.files.symlink("/workspace/out", "/etc/passwd")
    try:
        await box.files.read("/workspace/out")
    except Exception as error:
        assert type(error).__name__ == "OutsideWorkspace", error
    else:
        raise AssertionError
    await out(box, "rm -f hb1 hb2")
    point = await trees.Checkpoint.of(box)
    await out(box, "rm -r a; mkdir new; chmod 700 new")
    await box.tree.restore(point.plan)
    assert (await trees.facts(box)) == point.facts
    await box.files.remove("/workspace/a", recursive=True)
    terminal = await box.open_terminal()
    await terminal.send(b"exit 4\\n")
    assert await terminal.wait() == 4
    await terminal.aclose()
    await box.destroy()
    assert not is_there(box)
    print("all of it")

anyio.run(main)
"""


def test_level_none_works_where_nothing_of_linux_is(data_home):
    """Issue: imports and level none work on macOS, with tree_kill group; native says why not."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ELSEWHERE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all of it\n", done.stderr


def test_nothing_of_linux_is_imported_with_the_package():
    """PR-1: cheap to import, on any system: no ctypes, no thread, no look at the machine."""
    program = (
        "import sys; before = set(sys.modules); import pinfold_host; "
        "print([m for m in ('ctypes', 'trio', 'pty') if m in set(sys.modules) - before])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pty" not in done.stdout


DISKS = """
import os, sys
import anyio
from pathlib import Path, PurePosixPath
from pinfold.errors import NoSpace, PermissionDenied
from pinfold.posix import Gate
from pinfold.provider import FileType, TreeItem
from pinfold.spec import WORKSPACE, Limits
from pinfold_host._beneath import Root, Roots
from pinfold_host._files import DirectFiles
from pinfold_host._linux import Identity

def files_in(folder, way):
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    root = Root(caller=WORKSPACE, guest=os.fsencode(folder), fd=fd, folder=folder)
    roots = Roots([root], use_openat2=None if way == "openat2" else False)
    return DirectFiles(roots, Limits(), Identity(None), Gate())

async def chunks(data):
    yield data

def item(data):
    return TreeItem(
        path=PurePosixPath("g"), type=FileType.FILE, mode=0o644, size=len(data), chunks=chunks(data)
    )

async def refuses(kind, calls):
    for number, call in enumerate(calls):
        try:
            await call()
        except kind as error:
            assert type(error) is kind and error.effect == "none", (number, error)
        else:
            raise AssertionError(number)

async def read_only(files):
    await refuses(PermissionDenied, [
        lambda: files.write("/workspace/f", b"new"),
        lambda: files.write("/workspace/n/g", b"new"),
        lambda: files.upload("/workspace/g", chunks(b"new")),
        lambda: files.write_many({"/workspace/f": b"new", "/workspace/d/g": b"new"}),
        lambda: files.upload_tree("/workspace/d", [item(b"new")]),
        lambda: files.make_directory("/workspace/n"),
        lambda: files.remove("/workspace/f"),
        lambda: files.remove("/workspace/d", recursive=True),
        lambda: files.rename("/workspace/f", "/workspace/g"),
        lambda: files.symlink("/workspace/l", "f"),
        lambda: files.chmod("/workspace/f", 0o600),
    ])
    assert await files.read("/workspace/f") == b"old"
    assert [entry.path.name for entry in await files.list("/workspace")] == ["d", "f"]

async def small(files):
    await files.write("/workspace/f", b"old")
    await files.make_directory("/workspace/d", exist_ok=True)
    much = bytes(2 * 1024 * 1024)
    await refuses(NoSpace, [
        lambda: files.write("/workspace/f", much),
        lambda: files.upload("/workspace/f", chunks(much)),
    ])
    assert await files.read("/workspace/f") == b"old"
    assert [entry.path.name for entry in await files.list("/workspace")] == ["d", "f"]
    await files.write("/workspace/d/f", bytes(800 * 1024))  # nothing was left behind
    await files.remove("/workspace/d/f")

async def main(read_only_folder, small_folder, way):
    await read_only(files_in(read_only_folder, way))
    await small(files_in(small_folder, way))
    print("all of it")

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.usefixtures("native")  # bubblewrap, which mounts them
@pytest.mark.parametrize("way", ["openat2", "walk"])
def test_a_read_only_disk_and_a_full_one(tmp_path, way):
    """FS-4, FS-5: real ones; every change is refused, and nothing has changed."""
    closed, little = tmp_path / "closed", tmp_path / "little"
    (closed / "d").mkdir(parents=True)
    (closed / "f").write_bytes(b"old")
    little.mkdir()
    mounts = ["--ro-bind", closed, closed, "--size", str(1024 * 1024), "--tmpfs", little]
    program = [sys.executable, "-c", DISKS, closed, little, way]
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *mounts, "--", *program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all of it\n", done.stderr


@pytest.mark.anyio
async def test_without_proc_the_group_is_what_dies(anyio_backend, monkeypatch):
    """PR-7, EX-4: it is said in the features; who leaves the group is not reached."""
    monkeypatch.setattr(_local, "can_find_marked", lambda: False)
    instance = await create("none")
    try:
        assert instance.features.tree_kill == "group"
        script = f"({heartbeat('hb1')}) & (trap '' TERM; {heartbeat('hb2')}) & {heartbeat('hb3')}"
        await sh(instance, script, timeout_seconds=0.5)
        beats = [workspace(instance) / f"hb{n}" for n in (1, 2, 3)]
        assert all(beat.stat().st_size > 2 for beat in beats)
        assert await are_still(*beats)
        result = await instance.exec(ExecRequest(shell="kill -15 $$"))
        assert (result.exit_code, result.signal) == (143, 15)
        await sh(instance, f"setsid sh -c '{heartbeat('away')}' & sleep 9", timeout_seconds=0.3)
        await grows(workspace(instance) / "away")  # not reached, as the feature says
    finally:
        monkeypatch.undo()
        await instance.destroy()


@pytest.mark.anyio
async def test_python_without_pidfds_is_told(anyio_backend, monkeypatch):
    """PR-4: the reason names what is missing."""
    from pinfold_host import _boundary, provider

    _boundary.missing.cache_clear()
    monkeypatch.delattr("os.pidfd_open")
    try:
        found = await provider.probe()
        assert found.levels == ("none",)
        assert "pidfd_open" in found.details["native"]
    finally:
        monkeypatch.undo()
        _boundary.missing.cache_clear()
