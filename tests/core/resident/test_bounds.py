"""What a caller or a workload has too much of: a typed error, or it works; the helper lives on."""

import fcntl
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.errors import Conflict, Effect, InvalidArgument, PinfoldError, TooLarge
from pinfold.posix import equip
from pinfold.provider import ExecRequest, FileType, InstanceRef, RestorePlan, TerminalSize
from tests.core.posix.conftest import LocalInstance
from tests.core.posix.guests import LocalGuest
from tests.core.resident.conftest import end_marked, is_alive, new_mark, until
from tests.core.resident.test_bad_targets import equipped

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[LocalInstance]:
    """As callers have it, limits included."""
    (tmp_path / "w").mkdir()
    root = PurePosixPath(tmp_path / "w")
    kit = await equip(LocalGuest(), root=root, identity=new_mark(), helper="required")
    assert kit.resident is not None
    yield LocalInstance(InstanceRef(provider="test", id="x"), kit)
    with anyio.CancelScope(shield=True):
        await kit.resident.aclose()
    end_marked(kit.mark)


@pytest.mark.parametrize("size", [4100, 3 * MIB])
async def test_fs5_a_path_or_a_link_that_is_too_long_is_refused_and_ends_nothing(
    place, size
) -> None:
    """One more than a frame holds, too: the helper and what it runs know nothing of it."""
    files, pid = place.resident.files, place.pid
    long = "/workspace/" + "a/" * (size // 2) + "b"
    for call in (
        files.read(long),
        files.write(long, b"x"),
        files.stat(long),
        files.list(long),
        files.make_directory(long),
        files.remove(long),
        files.remove(long, recursive=True),
        files.rename(long, "/workspace/f"),
        files.rename("/workspace/f", long),
        files.symlink(long, "x"),
        files.symlink("/workspace/l", "x" * size),
        files.chmod(long, 0o600),
    ):
        with pytest.raises((InvalidArgument, TooLarge), match="too long") as caught:
            await call
        assert caught.value.effect is Effect.NONE
        assert len(str(caught.value)) < 1000
    for found in await files.read_many([long]) + await files.stat_many([long]):
        assert isinstance(found, InvalidArgument)
    assert (place.resident.restarts, place.pid, place.session.failure) == (0, pid, None)


@pytest.mark.parametrize("count", [400_000, 900_000])
async def test_ex11_more_arguments_than_can_be_passed_are_too_large_and_end_nothing(
    instance, count
) -> None:
    """Within the limit in bytes, but in number more than the kernel, or a frame, takes."""
    resident = instance.equipment.resident
    many = ExecRequest(argv=["true", *[""] * 200_000])
    assert (await instance.exec(many)).exit_code == 0
    with pytest.raises(TooLarge, match=r"arguments and variables|a request has at most") as caught:
        await instance.exec(ExecRequest(argv=["true", *[""] * count]))
    assert caught.value.effect is Effect.NONE
    assert (await instance.exec(ExecRequest(argv=["echo", "still"]))).stdout == b"still\n"
    assert resident.restarts == 0
    assert resident.session.failure is None


@pytest.mark.parametrize("rows", [-1, 65_536, 2.5, None])
def test_a_terminal_has_a_size_that_there_is(rows) -> None:
    with pytest.raises(InvalidArgument, match="rows"):
        TerminalSize(rows=rows)
    with pytest.raises(InvalidArgument, match="columns"):
        TerminalSize(columns=rows)
    assert TerminalSize(rows=0, columns=65_535).columns == 65_535


async def test_fs3_more_is_read_at_once_than_the_helper_holds(place) -> None:
    """200 MiB of replies, while it keeps 64 at most: what does not fit comes as a stream."""
    data = os.urandom(MIB)
    (place.workspace / "m").write_bytes(data)
    (place.workspace / "s").write_bytes(data[: 60 << 10])
    files, right = place.resident.files, []

    async def whole() -> None:
        right.append(await files.read("/workspace/m") == data)

    async def part() -> None:
        right.append(await files.read("/workspace/m", offset=7, length=MIB) == data[7:])

    async def batch() -> None:
        found = await files.read_many(["/workspace/s"] * 50)
        right.append(found == [data[: 60 << 10]] * 50)

    async with anyio.create_task_group() as tasks:
        for _ in range(70):
            for each in (whole, part, batch):
                tasks.start_soon(each)
    assert right == [True] * 210
    assert place.resident.restarts == 0


async def test_cp1_a_file_that_another_process_has_a_lease_on_is_not_left_out(place) -> None:
    """Who has it may be slow to let go: then that is said. No file goes missing by it."""
    for name in ("a", "b", "c"):
        (place.workspace / name).write_text(name)
    files, tree = place.resident.files, place.resident.tree
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(place.workspace / "b", os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(Conflict, match="lease"):
            await files.read("/workspace/b")
        with pytest.raises(Conflict, match="lease"):
            await tree.scan()
        async with anyio.create_task_group() as tasks:

            async def let_go() -> None:
                worker = Path(f"/proc/{place.pid}/task/{place.pid}/children")
                await until(lambda: worker.read_text().strip())
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)

            tasks.start_soon(let_go)
            found = await tree.scan()
        assert [entry.path for entry in found.entries] == ["a", "b", "c"]
        assert await files.read("/workspace/b") == b"b"
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, old)


async def test_cp1_times_beyond_nanoseconds_are_kept_as_far_as_they_go(place) -> None:
    """A year after 2262, as `touch` can make it: never one of the past."""
    (place.workspace / "f").write_text("x")
    os.utime(place.workspace / "f", (1 << 34, 1 << 34))
    held = min((place.workspace / "f").stat().st_mtime_ns, (1 << 63) - 1)
    scan = await place.resident.tree.scan()
    assert [entry.mtime_ns for entry in scan.entries] == [held]
    assert (await place.resident.files.stat("/workspace/f")).mtime_ns == held
    (place.workspace / "f").write_text("y")

    async def fetch(digest: str) -> AsyncIterator[bytes]:
        yield b"x"

    await place.resident.tree.restore(RestorePlan(entries=scan.entries, fetch=fetch))
    assert (await place.resident.files.stat("/workspace/f")).mtime_ns == held
    again = await place.resident.tree.scan()
    assert again.entries == scan.entries
    assert scan.entries[0].type is FileType.FILE


async def test_ex4_without_proc_the_group_of_a_background_job_is_ended(tmp_path) -> None:
    """`tree_kill: group` is what is in force there, after the command's own end as well."""
    async with equipped(tmp_path, "umount -l /proc") as kit:
        assert kit.resident is not None
        sandbox = LocalInstance(InstanceRef(provider="test", id="x"), kit)

        async def start() -> list[int]:
            script = "sleep 300 & echo $!; (sleep 301 & echo $!)"
            result = await sandbox.exec(ExecRequest(shell=script))
            return [int(pid) for pid in result.stdout.split()]

        jobs = await start()
        assert len(jobs) == 2
        assert all(map(is_alive, jobs))
        try:
            assert await kit.resident.session.end_jobs() == 0
            assert not any(map(is_alive, jobs))
            jobs = await start()
            await kit.resident.aclose()
            await until(lambda: not any(map(is_alive, jobs)))
        finally:
            for pid in jobs:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


async def test_nothing_that_is_too_large_is_taken_for_a_loss(place) -> None:
    """FS-5: whatever is refused for its size leaves a command in flight undisturbed."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            script = "touch on; while [ ! -e go ]; do sleep 0.01; done; echo whole"
            assert (await place.sh(script)).stdout == b"whole\n"

        tasks.start_soon(run)
        await until((place.workspace / "on").exists)
        for call in (
            place.resident.files.symlink("/workspace/l", "x" * (3 * MIB)),
            place.run("true", *["x" * 100_000] * 30),
            place.run("true", env={f"A{number}": "x" * 100_000 for number in range(30)}),
        ):
            with pytest.raises(PinfoldError) as caught:
                await call
            assert caught.value.code == "too_large"
        (place.workspace / "go").touch()
    assert place.resident.restarts == 0
