"""The resident helper in containers: who detaches, who attaches, and what a removal says."""

import hashlib
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from pinfold.errors import Effect, Lost, OutcomeUnknown
from pinfold.provider import Context, ExecRequest
from pinfold_docker import DockerProvider
from tests.providers.docker.support import OWNER, box, eventually, pinned, resolved, said, sh

pytestmark = pytest.mark.anyio

#: A job that is no child of a command any more, in a session of its own.
JOB = "setsid sh -c 'echo $$ >job; while :; do echo >>beat; sleep 0.05; done' </dev/null >/dev/null 2>&1 &"
STARTED = "while [ ! -s job ]; do sleep 0.02; done; cat job"


async def beats(instance) -> bool:
    """Whether the job's file grows."""
    before = (await instance.files.stat("/workspace/beat")).size

    async def more() -> bool:
        return (await instance.files.stat("/workspace/beat")).size > before

    await eventually(more)
    return True


def helper_pid(instance) -> int:
    return instance._inner.equipment.resident.session.greeting.pid


async def test_background_jobs_live_on_from_one_controller_to_the_next(provider, client) -> None:
    """Feature `attach`: detached, they are ended by no grace; the next controller finds them."""
    async with box(provider) as first:
        assert first.details.helper is not None
        await sh(first, JOB)
        job = (await said(first, STARTED)).strip()
        helper = helper_pid(first)
        await first.detach()
        ctx = Context(owner=OWNER)
        second = await DockerProvider().attach(first.ref, await pinned(provider, resolved()), ctx)
        assert helper_pid(second) != helper
        assert await beats(second)
        await said(second, f"kill -0 {job} && kill -0 {helper}")  # it stays as long as its jobs
        await said(second, f"kill -9 {job}")
        gone = f"! [ -e /proc/{helper} ] || grep -q '^State:.Z' /proc/{helper}/status"

        async def ended() -> bool:
            return (await sh(second, gone)).exit_code == 0

        await eventually(ended)
        await second.detach()


async def test_a_helper_that_is_started_again_has_ended_all_but_the_container_s_own(
    provider, client
) -> None:
    """Jobs of an earlier controller too; not what process 1 was given, so that it lives on."""
    async with box(provider) as first:
        await sh(first, JOB)
        job = (await said(first, STARTED)).strip()
        own = (await said(first, "cat /proc/1/task/1/children")).split()
        assert own
        await first.detach()
        ctx = Context(owner=OWNER)
        second = await DockerProvider().attach(first.ref, await pinned(provider, resolved()), ctx)
        with pytest.raises(OutcomeUnknown):
            await sh(second, f"kill -9 {helper_pid(second)}; sleep 60")
        alive = await said(second, "for p in /proc/[0-9]*; do echo ${p#/proc/}; done")
        assert job not in alive.split()
        assert own[0] in alive.split()
        state = client.containers.get(first.ref.id).attrs["State"]
        assert state["Running"]
        await second.detach()


async def test_a_full_tmp_does_not_keep_a_helper_from_being_started_again(provider) -> None:
    """It lies in a memory of its own, which only its user may enter."""
    async with box(provider, tmp_bytes=2**20) as instance:
        assert (await sh(instance, "cat /dev/zero >/tmp/all")).exit_code != 0
        with pytest.raises(OutcomeUnknown):
            await sh(instance, f"kill -9 {helper_pid(instance)}; sleep 60")
        script = "ls -A /tmp; stat -c '%a %u' /run/pinfold /run/pinfold/.pinfold-helper-*/helper"
        first, *modes = (await said(instance, script)).splitlines()
        assert first == "all"
        assert len(modes) == 2  # what the one that was killed has left is gone
        assert set(modes) == {"700 1000"}


def test_pinfold_run_uses_it_by_default(flavour) -> None:
    """As its users have it, on busybox and on GNU: nothing is asked for, and nothing is left out."""
    pinfold = str(Path(sys.executable).with_name("pinfold"))
    # Who runs the command is the supervisor, and that is the program in the helper's folder.
    script = "echo ran by $(cat /proc/$PPID/comm); ls -d /run/pinfold/.pinfold-helper-*/socket"
    argv = [
        pinfold,
        "run",
        "--provider",
        "docker",
        "--option",
        f"image={flavour}",
        "--shell",
        script,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "ran by helper"
    assert second.startswith("/run/pinfold/.pinfold-helper-")


@pytest.mark.nightly
async def test_ex15_64_mib_to_a_reader_that_sleeps_6_s_arrive_whole(provider) -> None:
    """Of an exec that has ended an engine drops what its reader has not taken within 2 s."""
    digest, seen = hashlib.sha256(), 0

    async def sink(stream, data) -> None:
        nonlocal seen
        if not seen:
            await anyio.sleep(6)
        seen += len(data)
        digest.update(data)

    async with box(provider) as instance:
        made = await said(instance, "head -c 67108864 /dev/urandom >big; sha256sum <big")
        result = await instance.exec(ExecRequest(shell="cat big"), sink)
    assert (result.exit_code, result.stdout_total, seen) == (0, 64 * 2**20, 64 * 2**20)
    assert digest.hexdigest() == made.split()[0]


async def test_ex14_the_first_call_after_a_removal_says_lost(provider, client) -> None:
    """Nothing was sent: it is no `outcome_unknown`, of whatever kind the call is."""
    calls = (
        lambda instance: instance.files.write("/workspace/f", b"after"),
        lambda instance: instance.files.read("/workspace/f"),
        lambda instance: instance.files.remove("/workspace/f"),
        lambda instance: sh(instance, "echo never"),
    )
    for call in calls:
        async with box(provider) as instance:
            await instance.files.write("/workspace/f", b"before")
            client.containers.get(instance.ref.id).remove(force=True)
            with pytest.raises(Lost) as caught:
                await call(instance)
            assert caught.value.effect is Effect.NONE
