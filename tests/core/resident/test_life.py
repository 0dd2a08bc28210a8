"""A helper's own life: what it is started with, what it ends, and that its end is final."""

import subprocess
import sys
from pathlib import Path, PurePosixPath

import anyio
import anyio.lowlevel
import pytest

import pinfold_helper
from pinfold.errors import Effect, Lost, OutcomeUnknown, OutsideWorkspace, Unavailable
from pinfold.posix._resident import Resident
from pinfold.provider import FileType, TreeItem
from pinfold_helper import _build
from tests.core.resident.conftest import CuttingGuest, end_marked, is_alive, new_mark, until

pytestmark = pytest.mark.anyio

DEAF = """
import os, signal, sys
for number in set(signal.valid_signals()) - {9, 17, 19}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])
"""


class DeafGuest(CuttingGuest):
    """Starts everything with all signals ignored and blocked, as a shell does with some."""

    prefix: tuple[str, ...] = (sys.executable, "-c", DEAF)


async def test_ex2_a_command_starts_with_every_signal_as_it_should_be(tmp_path) -> None:
    """Whatever the engine that started the helper ignores or blocks."""
    mark, root = new_mark(), PurePosixPath(tmp_path)
    status = subprocess.run(
        [*DeafGuest.prefix, "cat", "/proc/self/status"], capture_output=True, text=True, check=True
    )
    assert "SigIgn:\t0000000000000000" not in status.stdout  # the guest does what it says
    resident = await Resident.start(DeafGuest(), root=root, mark=mark)

    async def run(*argv: str):
        return await resident.guest.execute(
            argv, {}, root, stdin=b"", timeout_seconds=60, stdout_cap=9999, stderr_cap=0, sink=None
        )

    try:
        said = (await run("cat", "/proc/self/status")).stdout.decode()
        facts = dict(line.split(":\t") for line in said.splitlines() if line.startswith("Sig"))
        assert {facts[name] for name in ("SigBlk", "SigIgn", "SigCgt")} == {"0" * 16}
        for number in (1, 2, 3, 6, 9, 13, 14, 15):
            result = await run("/bin/sh", "-c", f"kill -{number} $$; sleep 60")
            assert (result.signal, result.exit_code) == (number, 128 + number)
    finally:
        await resident.aclose()
        end_marked(mark)


async def test_a_closed_one_stays_closed(place) -> None:
    """No call starts it again, of whatever kind, and none says that anything was done."""
    resident = place.resident
    await resident.aclose()
    spawned = place.guest.spawned
    files, tree = resident.files, resident.tree
    for call in (
        place.sh("echo never"),
        files.write("/workspace/f", b"x"),
        files.read("/workspace/f"),
        files.list("/workspace"),
        files.remove("/workspace/f", recursive=True),
        tree.scan(),
        tree.recover(),
        resident.guest.spawn(["true"], {}, PurePosixPath(place.workspace)),
    ):
        with pytest.raises(Unavailable) as caught:
            await call
        assert type(caught.value) is Unavailable  # what is closed is neither lost nor away
        assert caught.value.effect is Effect.NONE
    assert place.guest.spawned == spawned
    assert resident.restarts == 0


@pytest.mark.parametrize("how", ["aclose", "detach"])
async def test_one_that_is_closed_while_it_starts_again_is_closed_then(place, how) -> None:
    place.session._fail(Lost("for a test"))  # as if it had been killed
    old = place.pid
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await place.sh("sleep 3")  # if it began, the helper that is let go ends after it

        tasks.start_soon(run)
        await until(lambda: place.guest.spawned == 2)
        await getattr(place.resident, how)()
    assert place.pid != old
    await until(lambda: not is_alive(place.pid))
    with pytest.raises(Unavailable):
        await place.sh("echo never")
    await place.guest.cut()


def test_a_purge_leaves_process_1_what_it_needs() -> None:
    """What process 1 has started itself lives on; all else, in whatever session, does not."""
    program = _build.HERE / "programs" / sys.implementation._multiarch.partition("-")[0]
    assert program.name in pinfold_helper.machines()
    script = f"""
    sleep 300 & needed=$!
    env -i /usr/bin/setsid /bin/sleep 301 &
    setsid -f sh -c 'PINFOLD_EXEC=mark-1 sleep 302 & exec sleep 303'
    setsid -f sh -c 'exec sleep 304'
    while [ $(ls -d /proc/[0-9]* | wc -l) -lt 8 ]; do :; done
    {program} purge PINFOLD_EXEC=mark- 1; code=$?
    {program} purge PINFOLD_EXEC=mark- 1; again=$?
    for e in /proc/[0-9]*/cmdline; do case $(tr '\\0' ' ' <$e) in *sleep*) cat $e; echo; esac; done
    kill -0 $needed && echo needed $code $again
    """
    done = subprocess.run(
        [*"unshare --pid --fork --mount-proc --kill-child setsid -w sh -c".split(), script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    alive = [n for n in range(300, 305) if f"sleep\0{n}\0" in done.stdout]
    assert alive == [300]
    assert done.stdout.endswith("needed 7 0\n")


async def test_the_first_write_to_a_target_that_is_gone_says_lost(place) -> None:
    """EX-14: the transport has ended before anything was sent: nothing was done, and that is said."""
    await place.resident.files.write("/workspace/f", b"before")
    place.guest.last.popen.kill()  # the transport's end, as of a container that was removed
    place.guest.refuse = Lost("for a test")
    await until(place.guest.last.was_cut)
    for call in (
        place.resident.files.write("/workspace/f", b"after"),
        place.sh("echo never"),
        place.resident.files.remove("/workspace/f"),
    ):
        with pytest.raises(Lost) as caught:
            await call
        assert caught.value.effect is Effect.NONE


async def test_what_was_never_sent_was_never_done(place) -> None:
    """EX-14: while there is no connection nothing is; what had been sent before is unknown."""
    files = place.resident.files
    async with anyio.create_task_group() as tasks:

        async def first() -> None:
            with pytest.raises(OutcomeUnknown):
                await place.sh("touch started; sleep 60")
            assert place.guest.refuse is not None

        tasks.start_soon(first)
        await until((place.workspace / "started").exists)
        session, places = await place.resident._current()
        place.guest.refuse = Unavailable("for a test")
        await place.guest.cut()
        await until(lambda: session._link is None)
        _, encoded, _ = places.locate("/workspace/f")
        from pinfold.posix._resident._wire import Call

        number, pending = session.begin_call(Call.WRITE, encoded + b"\xff\xff\xff\xff" + b"new")
        place.guest.refuse = Lost("for a test")
        with pytest.raises(Lost) as caught:
            await session.finish_call(number, pending, mutates=True)
        assert caught.value.effect is Effect.NONE
    with pytest.raises(Lost):
        await files.write("/workspace/f", b"never")
    assert not (place.workspace / "f").exists()


@pytest.mark.parametrize("text", ["absolute", "relative", "dangling"])
async def test_fs2_a_tree_through_a_link_that_leads_out_is_outside(place, text) -> None:
    files = place.resident.files
    (place.outside / "secret").write_text("OUTSIDE")
    target = {
        "absolute": place.outside,
        "relative": Path("..", place.outside.name),
        "dangling": place.outside / "none",
    }[text]
    (place.workspace / "l").symlink_to(target)
    item = TreeItem(path=PurePosixPath("planted"), type=FileType.DIRECTORY)
    with pytest.raises(OutsideWorkspace):
        [one async for one in files.download_tree("/workspace/l")]
    with pytest.raises(OutsideWorkspace):
        await files.upload_tree("/workspace/l", [item])
    with pytest.raises(OutsideWorkspace):
        await files.make_directory("/workspace/l")
    assert [path.name for path in place.outside.iterdir()] == ["secret"]


async def test_fs2_a_tree_through_a_link_that_stays_inside_is_the_directory_s(place) -> None:
    files = place.resident.files
    (place.workspace / "d").mkdir(mode=0o750)
    (place.workspace / "d" / "f").write_text("inside")
    (place.workspace / "l").symlink_to("d")
    found = [one async for one in files.download_tree("/workspace/l")]
    assert [(str(one.path), one.type) for one in found] == [
        (".", FileType.DIRECTORY),
        ("f", FileType.FILE),
    ]
    item = TreeItem(path=PurePosixPath("new"), type=FileType.DIRECTORY)
    assert await files.upload_tree("/workspace/l", [item]) == 1
    assert (place.workspace / "d" / "new").is_dir()
