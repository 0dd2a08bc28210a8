"""Targets that withhold something: a clear fault or the shell path, and the view says which.

One row for each line of the issue's "Bad input"; what is withheld is withheld by the kernel.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import anyio
import attrs
import pytest

import pinfold_helper
from pinfold.errors import Effect, NoSpace, Unavailable
from pinfold.posix import Equipment, equip
from pinfold.posix._resident import NoHelper, Resident
from pinfold.provider import ExecRequest, ExecResult, InstanceRef, RestorePlan, TerminalSize
from pinfold.spec import TreeKill
from pinfold_helper import _digests
from tests.core.posix.conftest import LocalInstance
from tests.core.posix.guests import LocalGuest
from tests.core.resident.conftest import end_marked, new_mark, until

pytestmark = pytest.mark.anyio


class Target(LocalGuest):
    """The machine itself, changed by a script that every process passes first.

    A mount namespace of its own; in `script` `$1` is a folder of the test's.
    """

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__()
        program = f'set -e; {script}\nshift; exec "$@"'
        self.prefix = ("unshare", "--mount", "sh", "-c", program, "sh", str(folder))


def old(*names: str) -> str:
    """Run what follows where a filter has an answer of its own to some system calls."""
    script = Path(__file__).parent.parent / "posix" / "old_kernel.py"
    return f'shift; set -- x {sys.executable} {script} {",".join(names)} "$@"'


#: The folders of the helper, as they are not wanted.
MOUNT = "mount -t tmpfs -o {options} none $1/t"
FILL = "; dd if=/dev/zero of=$1/t/fill bs=4k 2>/dev/null || :"


@attrs.frozen
class Row:
    """What is withheld, whether a helper runs there, and what is then said."""

    name: str
    script: str
    helper: bool
    says: str


ROWS = (
    Row("noexec everywhere", MOUNT.format(options="noexec"), False, "lets programs run"),
    Row("read-only file system", MOUNT.format(options="ro"), False, "is writable"),
    Row("full disk", MOUNT.format(options="size=64k") + FILL, False, "is writable and lets"),
    Row("no /proc", "umount -l /proc", True, "/proc: a timeout ends the command's group only"),
    Row("no openat2", old("openat2"), True, "openat2: paths are opened component by component"),
    Row("killed at openat2", old("openat2=kill"), False, "the target does not let it run"),
    Row("killed at close_range", old("close_range=kill"), False, "the target does not let it run"),
    Row("few descriptors", "ulimit -n 64", True, ""),
    Row("very few descriptors", "ulimit -n 22", True, ""),
)


@asynccontextmanager
async def equipped(tmp_path: Path, script: str, **more) -> AsyncIterator[Equipment]:
    (tmp_path / "w").mkdir(exist_ok=True)
    (tmp_path / "t").mkdir(exist_ok=True)
    guest = Target(tmp_path, script)
    identity = new_mark()
    options = {"helper": "auto", "helper_folders": (str(tmp_path / "t"),), **more}
    kit = await equip(guest, root=PurePosixPath(tmp_path / "w"), identity=identity, **options)
    try:
        yield kit
    finally:
        if kit.resident is not None:
            await kit.resident.aclose()
        end_marked(kit.mark)


async def run(kit: Equipment, *argv: str) -> ExecResult:
    instance = LocalInstance(InstanceRef(provider="test", id="x"), kit)
    return await instance.exec(ExecRequest(argv=argv))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_a_target_that_withholds_something_is_told_of(tmp_path, row) -> None:
    async with equipped(tmp_path, row.script) as kit:
        said = "\n".join(kit.details.lacks)
        assert (kit.details.helper is not None) is row.helper, said
        assert (kit.resident is not None) is row.helper
        assert row.says in said
        assert (await run(kit, "echo", "works")).stdout == b"works\n"
        await kit.files.write("/workspace/f", b"works")
        assert await kit.files.read("/workspace/f") == b"works"
        assert (kit.features.tree_kill is TreeKill.GROUP) is (row.name == "no /proc")


@pytest.mark.parametrize("helper", ["auto", "required", "never"])
async def test_a_helper_is_there_as_it_was_asked_for(tmp_path, helper) -> None:
    """Never: nothing is put into the target, and the view names none; the rest works as well."""
    async with equipped(tmp_path, ":", helper=helper) as kit:
        assert (kit.resident is None) is (helper == "never")
        assert bool(list((tmp_path / "t").iterdir())) is (helper != "never")
        named = kit.details.helper
        assert named is None if helper == "never" else named == f"resident {os.uname().machine}"
        assert not [what for what in kit.details.lacks if "helper" in what]
        expected = TreeKill.COOKIE if helper == "never" else TreeKill.SUBREAPER
        assert kit.features.tree_kill is expected
        assert (await run(kit, "echo", "works")).stdout == b"works\n"


@pytest.mark.parametrize("row", [row for row in ROWS if not row.helper], ids=lambda row: row.name)
async def test_a_required_helper_is_refused_with_the_reason(tmp_path, row) -> None:
    with pytest.raises(Unavailable, match=row.says) as caught:
        async with equipped(tmp_path, row.script, helper="required"):
            pass
    assert "auto" in caught.value.hint


NEW = ("openat2", "close_range", "pidfd_open", "faccessat2", "fchmodat2")


@pytest.mark.parametrize(
    "names",
    [
        NEW,
        [f"{name}=eperm" for name in NEW],
        # It asks for the first two at its start: who is killed for them has the shell path.
        [f"{name}=kill" for name in NEW[2:]],
    ],
    ids=["ENOSYS", "EPERM", "killed"],
)
async def test_no_operation_needs_what_a_filter_withholds(tmp_path, names) -> None:
    """A filter that knows no new calls answers as it likes, or kills: whatever is done, it is done."""
    async with equipped(tmp_path, old(*names)) as kit:
        assert kit.resident is not None
        files, work = kit.files, tmp_path / "w"
        plain = await run(kit, "sh", "-c", "sleep 60 & sleep 0.01; echo $((6 * 7)); exit 3")
        assert (plain.exit_code, plain.stdout) == (3, b"42\n")
        await files.write("/workspace/d/f", b"old", mode=0o600)
        await files.write("/workspace/d/f", b"new")
        await files.chmod("/workspace/d/f", 0o640)
        await files.symlink("/workspace/l", "d/f")
        await files.chmod("/workspace/l", 0o604)
        assert (await files.stat("/workspace/d/f")).mode == 0o604
        assert await files.read("/workspace/l") == b"new"
        await files.rename("/workspace/d/f", "/workspace/d/g")
        (work / "shut").mkdir()
        await files.write("/workspace/shut/f", bytes(3 << 20))
        await files.chmod("/workspace/shut", 0o500)
        scan = await kit.tree.scan()
        held = {
            entry.path: (work / entry.path).read_bytes() for entry in scan.entries if entry.digest
        }

        async def fetch(digest: str) -> AsyncIterator[bytes]:
            yield next(held[entry.path] for entry in scan.entries if entry.digest == digest)

        for path in ("/workspace/d", "/workspace/shut", "/workspace/l"):
            await files.remove(path, recursive=True)
        await files.write("/workspace/d", b"a file where a directory was")
        await kit.tree.restore(RestorePlan(entries=scan.entries, fetch=fetch))
        again = (await kit.tree.scan()).entries
        assert [attrs.evolve(entry, mtime_ns=0) for entry in again] == [
            attrs.evolve(entry, mtime_ns=0) for entry in scan.entries
        ]
        assert [each.path.name for each in await files.list("/workspace")] == ["d", "l", "shut"]
        assert kit.resident.restarts == 0


async def test_a_helper_of_another_version_that_runs_already_is_left_alone(tmp_path) -> None:
    """That of a controller which detached, newer or older: each has a folder and a socket of its own."""
    folder = tmp_path / "t" / ".pinfold-helper-0123456789abcdef"
    folder.mkdir(parents=True)
    program = folder / "helper"
    program.write_bytes(other_version(os.uname().machine))
    program.chmod(0o700)
    (folder / "socket").touch()
    with subprocess.Popen(
        [program, "serve", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.read(12) == b"pinfold1\2\0\0\0"
        async with equipped(tmp_path, ":", helper="required") as kit:
            assert kit.resident is not None
            assert kit.details.helper is not None
            assert (await run(kit, "echo", "works")).stdout == b"works\n"
            os.kill(kit.resident.session.greeting.pid, 9)
            await anyio.sleep(1.1)  # idle: it is asked whether it lives before a command is sent
            assert (await run(kit, "echo", "again")).stdout == b"again\n"
            assert kit.resident.restarts == 1
        assert other.poll() is None
        assert sorted(each.name for each in folder.iterdir()) == ["helper", "socket"]
        other.kill()


@pytest.mark.parametrize("machine", ["riscv64", "sparc64"])
async def test_a_machine_that_there_is_no_program_for_has_the_shell_path(tmp_path, machine) -> None:
    """Wrong architecture, as `uname -m` says it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
    (tools / "uname").chmod(0o755)
    async with equipped(tmp_path, f"PATH={tools}:$PATH; export PATH") as kit:
        assert kit.resident is None
        assert f"there is no helper for {machine}," in kit.details.lacks[0]
        assert (await run(kit, "echo", "works")).stdout == b"works\n"


async def test_a_program_that_is_not_the_recorded_one_is_not_used_and_that_is_said(
    tmp_path, monkeypatch
) -> None:
    """Stale or damaged: the view says so, and what to do; the shell path works."""
    for machine in pinfold_helper.machines():
        monkeypatch.setitem(_digests.DIGESTS, machine, "0" * 64)
    async with equipped(tmp_path, ":") as kit:
        assert kit.resident is None
        assert kit.details.helper is None
        assert "is not the recorded one: its SHA-256 is" in kit.details.lacks[0]
        assert "pinfold_helper._build" in kit.details.lacks[0]
        assert (await run(kit, "echo", "works")).stdout == b"works\n"
    with pytest.raises(Unavailable, match="is not the recorded one"):
        async with equipped(tmp_path, ":", helper="required"):
            pass


def foreign(_: str) -> bytes:
    """The program of another machine."""
    mine = os.uname().machine
    return pinfold_helper.load(next(name for name in pinfold_helper.machines() if name != mine))


def other_version(machine: str) -> bytes:
    """A program that greets in another version of the protocol."""
    greeting = b"pinfold1" + (2).to_bytes(4, "little") + bytes(72)
    octal = "".join(f"\\{byte:03o}" for byte in greeting)
    return f"#!/bin/sh\nprintf '{octal}'\nexec cat >/dev/null\n".encode()


PROGRAMS: tuple[tuple[Callable[[str], bytes], str], ...] = (
    (foreign, "the target does not let it run"),
    (other_version, "speaks version 2 of the protocol, not 1"),
    (lambda _: b"#!/bin/sh\nexit 0\n", "the target does not let it run"),
    (lambda _: b"#!/bin/sh\nhead -c 300 /dev/urandom; exec sleep 1\n", "no greeting"),
)


@pytest.mark.parametrize(("program", "says"), PROGRAMS, ids=range(len(PROGRAMS)))
async def test_what_is_not_our_helper_is_not_talked_to(tmp_path, program, says) -> None:
    with pytest.raises(NoHelper, match=says):
        await Resident.start(
            LocalGuest(), root=PurePosixPath(tmp_path), mark=new_mark(), program=program,
            folders=(str(tmp_path),),
        )  # fmt: skip
    with anyio.fail_after(10):
        while any(tmp_path.glob(".pinfold-helper-*/helper")):  # nothing of it stays
            await anyio.sleep(0.02)


class PlainUser(LocalGuest):
    """A user of its own: limits hold for it, as they do not for root."""

    uid = 50_000 + os.getpid() % 10_000
    prefix: tuple[str, ...] = (
        "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs",
    )  # fmt: skip


@pytest.fixture
async def plain(tmp_path) -> AsyncIterator[Equipment]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user can be taken on only by root, with setpriv")
    workspace = tmp_path / "w"
    workspace.mkdir()
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    os.chown(workspace, PlainUser.uid, PlainUser.uid)
    root = PurePosixPath(workspace)
    kit = await equip(PlainUser(), root=root, identity=new_mark(), helper="required")
    assert kit.resident is not None
    yield kit
    await kit.resident.aclose()
    end_marked(kit.mark)


def limit(pid: int, what: str, value: int) -> None:
    command = [*PlainUser.prefix, "prlimit", f"--pid={pid}", f"--{what}={value}:"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("what", ["nproc", "nofile"])
async def test_at_a_limit_what_can_not_be_started_is_refused_and_the_helper_lives(
    plain, what
) -> None:
    """Processes, descriptors: nothing was done, and it is said; what needs none goes on."""
    assert plain.resident is not None
    pid = plain.resident.session.greeting.pid
    limit(pid, what, 1 if what == "nproc" else 10)
    for operation in (run(plain, "true"), plain.files.list("/workspace"), plain.tree.scan()):
        with pytest.raises(Unavailable, match=r"limit|process") as caught:
            await operation
        assert caught.value.effect is Effect.NONE
        assert type(caught.value) is Unavailable
    limit(pid, what, 4096)
    assert (await run(plain, "echo", "works")).stdout == b"works\n"
    assert plain.resident.restarts == 0
    assert plain.resident.session.greeting.pid == pid


async def test_at_no_limit_is_a_descriptor_lost(plain) -> None:
    """However many are left: of what can't be started all is closed that was opened for it."""
    assert plain.resident is not None
    guest, root = plain.resident.guest, plain.layout.root
    pid = plain.resident.session.greeting.pid

    def held() -> set[int]:
        return set(map(int, os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208 - names alone

    async def terminal() -> None:
        process = await guest.open_terminal(["true"], {}, root, TerminalSize())
        await process.wait()

    before, refused = held(), 0
    for more in range(1, 16):
        limit(pid, "nofile", max(before) + more)
        for operation in (run(plain, "true"), plain.files.list("/workspace"), terminal()):
            try:
                await operation
            except Unavailable:
                refused += 1
        await until(lambda: held() == before)
    assert 3 < refused < 45  # the last were many enough
    assert plain.resident.restarts == 0


async def test_its_memory_and_descriptors_are_out_of_reach_of_its_own_user(plain) -> None:
    """Not dumpable: the token can't be read, and no descriptor be taken (SECURITY.md)."""
    assert plain.resident is not None
    pid = plain.resident.session.greeting.pid
    assert (await run(plain, "kill", "-0", str(pid))).exit_code == 0  # the same user
    for name in ("mem", "environ", "maps", "fd/3", "exe"):
        refused = await run(plain, "head", "-c", "1", f"/proc/{pid}/{name}")
        assert (refused.exit_code, refused.stdout) == (1, b""), name
        assert b"denied" in refused.stderr
    assert (await run(plain, "ls", f"/proc/{pid}/fd")).exit_code == 2


async def test_a_disk_that_fills_up_refuses_the_write_and_keeps_what_was_there(tmp_path) -> None:
    """FS-4, FS-5: no_space; the old file stands and the helper goes on."""
    script = "mount -t tmpfs -o size=256k none $1/w"
    async with equipped(tmp_path, f"{script}; mount -t tmpfs none $1/t") as kit:
        assert kit.resident is not None
        await kit.files.write("/workspace/f", b"old")
        for size in (1 << 19, 3 << 20):  # in one frame, and streamed
            with pytest.raises(NoSpace):
                await kit.files.write("/workspace/f", bytes(size))
            assert await kit.files.read("/workspace/f") == b"old"
        assert [entry.path.name for entry in await kit.files.list("/workspace")] == ["f"]
        assert (await run(kit, "ls", "-A")).stdout == b"f\n"
        assert kit.resident.restarts == 0
