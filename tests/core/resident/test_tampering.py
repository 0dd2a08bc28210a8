"""What commands of the same user do to the helper, and what they gain: nothing (SECURITY.md)."""

import os
import signal
from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.errors import OutcomeUnknown
from pinfold.posix._resident import Resident
from pinfold.provider import RestorePlan
from tests.core.resident.conftest import is_alive, until

pytestmark = pytest.mark.anyio

#: The seven processes of the baselines page: each gets away in another way.
TREE = r"""
echo $$ >>pids
(trap '' TERM; echo $(sh -c 'echo $PPID') >>pids; while :; do sleep 0.1; done) &
setsid -w sh -c 'echo $$ >>pids; sleep 300' &
setsid -f sh -c 'echo $$ >>pids; exec sleep 300'
(setsid -f sh -c '(setsid -f sh -c "echo \$\$ >>pids; exec sleep 300"); echo $$ >>pids; exec sleep 300')
env -i /usr/bin/setsid /bin/sh -c 'echo $$ >>pids; exec /bin/sleep 300' &
while [ $(wc -l <pids) -lt 7 ]; do sleep 0.01; done
touch ready
sleep 300
"""


def pids(place) -> list[int]:
    return [int(line) for line in (place.workspace / "pids").read_text().split()]


def owner_of(path: str) -> int:
    return Path(path).stat().st_uid


def is_there(path: str) -> bool:
    return Path(path).exists()


async def test_ex5_the_whole_tree_is_dead_within_100_ms_of_a_cancellation(place) -> None:
    """EX-4, EX-5: sessions, daemons, `trap`, `env -i`: all descend from the command."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await place.sh(TREE)

        tasks.start_soon(run)
        await until((place.workspace / "ready").exists)
        began = anyio.current_time()
        tasks.cancel_scope.cancel()
    assert anyio.current_time() - began < 2.0  # on a machine that does much else besides
    assert len(pids(place)) == 7
    assert not [pid for pid in pids(place) if is_alive(pid)]


async def test_ex4_a_timeout_leaves_none_either(place) -> None:
    result = await place.sh(TREE, timeout_seconds=1.5)
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert not [pid for pid in pids(place) if is_alive(pid)]


async def test_ex5_a_tree_that_grows_while_it_is_killed_is_gone(place) -> None:
    script = "n=$1; [ $n -gt 12 ] && exec sleep 60; " + "sh bomb $((n+1)) & sh bomb $((n+1)) & wait"
    (place.workspace / "bomb").write_text("echo $$ >>pids; sleep 0.02; " + script)
    (place.workspace / "pids").touch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.sh, "exec sh bomb 7")
        await until(lambda: len(pids(place)) > 5)
        tasks.cancel_scope.cancel()
    assert not [pid for pid in pids(place) if is_alive(pid)]


async def test_a_command_that_kills_the_helper_is_told_of_and_outlived(place) -> None:
    """Its death is noticed at once; what it leaves in sessions of their own goes, too."""
    first, folder = place.pid, place.resident._running.folder
    script = f"setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; while [ ! -s pids ]; do :; done; kill -9 {first}; sleep 300"
    began = anyio.current_time()
    with pytest.raises(OutcomeUnknown):
        await place.sh(script)
    assert anyio.current_time() - began < 5
    assert (await place.sh("echo again")).stdout == b"again\n"
    assert place.resident.restarts == 1
    assert place.pid != first
    assert not is_there(folder)  # that of the dead one
    assert is_there(place.resident._running.folder)
    await until(lambda: not [pid for pid in pids(place) if is_alive(pid)])


async def test_what_a_killed_helper_has_left_is_swept_up(place) -> None:
    """On a machine, which outlives its sandboxes, too."""
    folder = place.resident._running.folder
    os.kill(place.pid, signal.SIGKILL)
    await place.resident.aclose()
    assert is_there(f"{folder}/helper")
    await place.resident.sweep()
    assert not is_there(folder)


async def test_a_command_that_kills_helper_and_supervisors_leaves_nothing(place) -> None:
    """Nobody is left to end its children: the next helper ends them before it serves."""
    script = f"""
    (setsid sh -c 'echo $$ >>pids; exec sleep 300' </dev/null >/dev/null 2>&1 &)
    while [ ! -s pids ]; do sleep 0.01; done
    kill -STOP {place.pid}; kill -9 $(cat /proc/{place.pid}/task/*/children) {place.pid}
    sleep 300
    """
    with pytest.raises(OutcomeUnknown):
        await place.sh(script)
    assert (await place.sh("echo again")).stdout == b"again\n"
    assert not [pid for pid in pids(place) if is_alive(pid)]


async def test_background_jobs_go_with_a_helper_that_was_killed(place) -> None:
    """process_state_lost: none is left that nobody could end any more."""
    await place.sh(
        "setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; while [ ! -s pids ]; do :; done"
    )
    assert is_alive(pids(place)[0])
    os.kill(place.pid, signal.SIGKILL)
    await anyio.sleep(1.1)  # idle: it is asked whether it lives before a command is sent (EX-14)
    assert (await place.sh("echo again")).stdout == b"again\n"
    assert not is_alive(pids(place)[0])


async def test_a_killed_supervisor_takes_its_command_along(place) -> None:
    """EX-4 holds for what its supervisor was killed for; it is never taken for the command's end."""
    script = "setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; while [ ! -s pids ]; do :; done; echo $$ >>pids; kill -9 $PPID; sleep 300"
    with pytest.raises(OutcomeUnknown):
        await place.sh(script)
    assert len(pids(place)) == 2
    await until(lambda: not [pid for pid in pids(place) if is_alive(pid)])
    assert (await place.sh("echo still")).stdout == b"still\n"
    assert place.resident.restarts == 0


async def test_a_stopped_supervisor_holds_nothing_up(place) -> None:
    began = anyio.current_time()
    with pytest.raises(OutcomeUnknown):
        await place.sh("echo $$ >>pids; kill -STOP $PPID; sleep 300", timeout_seconds=0.5)
    assert anyio.current_time() - began < 12
    await until(lambda: not is_alive(pids(place)[0]))


@pytest.mark.nightly
async def test_a_stopped_helper_is_noticed(place) -> None:
    with pytest.raises(OutcomeUnknown), anyio.fail_after(60):
        await place.sh(f"kill -STOP {place.pid}; sleep 300")
    assert (await place.sh("echo again")).stdout == b"again\n"


async def test_its_memory_and_descriptors_are_out_of_reach(place) -> None:
    """Not dumpable: unless the workload is root, it can't look inside a process of its own user."""
    script = f"kill -0 {place.pid}; ls /proc/{place.pid}/fd; cat /proc/{place.pid}/environ"
    assert owner_of(f"/proc/{place.pid}/environ") == 0
    if os.geteuid() != 0:
        result = await place.sh(script)
        assert result.stdout == b""
        assert result.exit_code != 0


async def test_a_command_holds_no_descriptor_of_the_helpers(place) -> None:
    result = await place.sh("ls -l /proc/self/fd")
    kinds = [
        line.split(" -> ")[1] for line in result.stdout.decode().splitlines() if " -> " in line
    ]
    assert sum(kind.startswith("pipe:") for kind in kinds) == 3
    assert not [
        kind for kind in kinds if kind.startswith(("socket:", "/work", str(place.workspace)))
    ]
    assert len(kinds) == 4  # and the folder that ls reads


async def test_a_detached_helper_ends_with_its_controller(place) -> None:
    """BYE: everything is ended, and the folder is gone."""
    folder = place.resident._running.folder
    await place.sh(
        "setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; while [ ! -s pids ]; do :; done"
    )
    pid = place.pid
    await place.resident.aclose()
    await until(lambda: not is_alive(pid))
    assert not is_alive(pids(place)[0])
    assert not is_there(folder)


async def test_background_jobs_outlive_a_controller_that_detaches(place) -> None:
    """Feature `attach`: they are ended by no time limit, and the helper goes when the last has."""
    await place.sh(
        "setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; while [ ! -s pids ]; do :; done"
    )
    pid = place.pid
    await place.resident.detach()
    await anyio.sleep(1.0)
    assert is_alive(pid)
    assert is_alive(pids(place)[0])
    os.kill(pids(place)[0], signal.SIGKILL)
    await until(lambda: not is_alive(pid))


async def test_cp3_a_restore_ends_the_jobs_of_a_controller_before_it(place) -> None:
    await place.sh(
        "setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; while [ ! -s pids ]; do :; done"
    )
    job = pids(place)[0]
    await place.resident.detach()
    root = PurePosixPath(place.workspace)
    second = await Resident.start(place.guest, root=root, mark=place.mark)
    assert is_alive(job)
    report = await second.tree.restore(RestorePlan(entries=(), fetch=place.resident.files.download))
    assert report.processes_ended
    assert not is_alive(job)
    again = await second.tree.restore(RestorePlan(entries=(), fetch=place.resident.files.download))
    assert not again.processes_ended
    await second.aclose()


async def test_ex8_output_of_background_jobs_is_taken_and_dropped(place) -> None:
    """EX-8: the job lives on, and does not die of a closed pipe."""
    job = "i=0; while [ $i -lt 300 ]; do echo noise; i=$((i+1)); done; echo $i >done"
    result = await place.sh(f"(sleep 0.2; {job}) & echo now")
    assert result.stdout == b"now\n"
    await until((place.workspace / "done").exists)
    assert (place.workspace / "done").read_text() == "300\n"


@pytest.mark.parametrize(
    "count",
    [
        5_000,
        pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1500)]),
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_memory_is_flat_over_many_commands(place, count) -> None:
    async def many(number: int) -> None:
        async def some() -> None:
            for _ in range(number // 8):
                assert (await place.run("true")).exit_code == 0

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(some)

    def kib(what: str) -> int:
        text = Path(f"/proc/{place.pid}/status").read_text()
        return int(text.partition(f"{what}:")[2].split()[0])

    await many(2000)  # until its buffers have the size that they need
    before = kib("VmData")
    await many(count)
    # Buffers grow by steps of their own; 200 bytes lost with each of 5,000 would show.
    assert kib("VmData") - before <= 1024
    assert kib("VmRSS") < 1024
    assert len(list(os.scandir(f"/proc/{place.pid}/fd"))) < 16
