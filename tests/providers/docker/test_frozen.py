"""A container that somebody freezes (`docker pause`): told, waited for, never run twice (EX-14)."""

from pathlib import PurePosixPath

import anyio
import pytest

import pinfold
from pinfold.errors import Effect, OutcomeUnknown, Unavailable
from pinfold.posix._resident import _session
from pinfold.provider import Context, ExecRequest, InstanceStatus
from pinfold.sandbox import Store
from pinfold_docker._guest import DockerGuest
from tests.providers.docker.support import (
    BUSYBOX,
    OWNER,
    eventually,
    make,
    pinned,
    resolved,
    said,
    sh,
    strays,
)

pytestmark = pytest.mark.anyio

RAN = PurePosixPath("/workspace/ran")
GO = PurePosixPath("/workspace/go")
#: Tells that it has begun, and waits.
WAITS = "echo ran >>ran; echo begun; while [ ! -e go ]; do sleep 0.1; done; echo over"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Each test takes seconds: one event loop is enough, the one that is stricter."""
    return "trio"


@pytest.fixture(params=["required", "never"], ids=["helper", "shell"])
def helper(request) -> str:
    return request.param


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Have silence noticed soon; return who was asked whether it is frozen, each time."""
    monkeypatch.setattr(_session, "_QUIET_SECONDS", 0.25)
    monkeypatch.setattr(_session, "_PROMPT_SECONDS", 0.25)
    monkeypatch.setattr(_session, "_GRACE_SECONDS", 2.0)
    times: list[str] = []
    honest = DockerGuest.suspended

    async def suspended(self: DockerGuest) -> Unavailable | None:
        times.append(self.container)
        return await honest(self)

    monkeypatch.setattr(DockerGuest, "suspended", suspended)
    return times


@pytest.fixture
async def target(provider, client, helper, asked):
    """A sandbox and its container as docker-py has it; thawed at the end, if it is still there."""
    instance = await make(provider, helper=helper)
    container = client.containers.get(instance.ref.id)
    yield instance, container
    await instance.destroy()
    assert strays(client) == []


async def running(tasks, instance, timeout_seconds, ended):
    """Start the command that waits; return once it has told that it began."""
    begun = anyio.Event()

    async def sink(_: str, data: bytes) -> None:
        if b"begun" in data:
            begun.set()

    async def run() -> None:
        try:
            request = ExecRequest(shell=WAITS, timeout_seconds=timeout_seconds)
            ended.append(await instance.exec(request, sink))
        except Unavailable as exc:
            ended.append(exc)

    tasks.start_soon(run)
    await begun.wait()


async def test_ex14_a_command_that_was_frozen_meanwhile_tells_its_own_end(target, helper, asked):
    instance, container = target
    ended: list[object] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await running(tasks, instance, 120, ended)
            container.pause()
            assert await instance.status() is InstanceStatus.PAUSED
            if helper == "required":  # it would have been given up by then
                await eventually(lambda: len(asked) > 12)
            assert ended == []
            container.unpause()
            await instance.files.write(GO, b"")
    (result,) = ended
    assert (result.exit_code, result.timed_out) == (0, False)
    assert result.stdout_total == len(b"begun\nover\n")
    assert await instance.files.read(RAN) == b"ran\n"  # once


async def test_ex4_a_timeout_of_a_frozen_command_is_no_result(target, helper):
    """EX-14: nobody can end it, and how it will end is unknown; it is not run again."""
    instance, container = target
    ended: list[object] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await running(tasks, instance, 3, ended)
            container.pause()
    (error,) = ended
    assert isinstance(error, OutcomeUnknown)
    assert "frozen" in error.message
    assert "unpause" in error.hint
    container.unpause()
    assert await said(instance, "cat ran") == "ran\n"
    if helper == "required":  # its timeout has ended it by now, or does so at once
        await instance.files.write(GO, b"")
        gone = "! cat /proc/[0-9]*/cmdline 2>/dev/null | grep -q 'whil[e]'"

        async def none_left() -> bool:
            return (await sh(instance, gone)).exit_code == 0

        await eventually(none_left)


async def test_ex14_a_command_for_a_frozen_container_is_not_begun(target, monkeypatch):
    instance, container = target
    monkeypatch.setattr(_session, "_IDLE_SECONDS", 0.0)  # as after a while without a command
    container.pause()
    with anyio.fail_after(60), pytest.raises(Unavailable, match="frozen") as caught:
        await sh(instance, "echo ran >>ran")
    assert caught.value.effect is Effect.NONE
    assert "resume" in caught.value.hint
    assert await instance.resume() is False  # no process is lost
    assert await said(instance, "ls") == ""


async def test_fs5_file_operations_on_a_frozen_container_do_not_hang(target, helper, monkeypatch):
    """What has been sent may be done later; what only reads is simply unavailable."""
    instance, container = target
    await instance.files.write(RAN, b"old")
    monkeypatch.setattr(_session, "_IDLE_SECONDS", 60.0)  # nobody asks before
    container.pause()
    with anyio.fail_after(60):
        with pytest.raises(Unavailable, match="frozen") as caught:
            await instance.files.read(RAN)
        assert caught.value.effect is Effect.NONE
        with pytest.raises(Unavailable, match="frozen") as caught:
            await instance.files.write(RAN, b"new")
        assert isinstance(caught.value, OutcomeUnknown) is (helper == "required")
        with pytest.raises(Unavailable, match="frozen"):
            await instance.tree.scan(None)
    assert await instance.resume() is False
    await instance.files.write(RAN, b"newer")
    assert await said(instance, "cat ran") == "newer"


async def test_a_frozen_container_is_taken_up_and_resumed(target, provider):
    """LC-5: it is not lost; what runs in it is not, either."""
    instance, container = target
    await said(instance, "(while :; do sleep 0.1; done) >/dev/null 2>&1 &")
    await instance.detach()
    container.pause()
    ctx = Context(owner=OWNER)
    again = await provider.attach(instance.ref, await pinned(provider, resolved(), ctx), ctx)
    try:
        with pytest.raises(Unavailable, match="frozen"):
            await sh(again, "true")
        assert await again.resume() is False
        assert await said(again, "echo here") == "here\n"
    finally:
        await again.detach()


async def test_ex14_a_sandbox_thaws_its_container_and_runs_the_command_once(
    client, helper, asked, monkeypatch, tmp_path
):
    """It is told once, and the next operation finds out and resumes it (LC-5)."""
    monkeypatch.setattr(_session, "_IDLE_SECONDS", 0.0)
    options = {"image": BUSYBOX, "helper": helper}
    target = {"kind": "container", "provider": "docker", "options": options}
    sandbox = await pinfold.open({"target": target, "durability": "none"}, store=Store(tmp_path))
    try:
        assert (await sandbox.exec(shell="echo ran >>ran")).exit_code == 0
        labels = {"label": f"pinfold.sandbox={sandbox.id}"}
        (container,) = client.containers.list(filters=labels)
        container.pause()
        with anyio.fail_after(60):
            with pytest.raises(Unavailable, match="frozen") as caught:
                await sandbox.exec(shell="echo ran >>ran")
            assert caught.value.effect is Effect.NONE
            await sandbox.exec(shell="echo ran >>ran")
        assert (await sandbox.exec(shell="cat ran")).stdout == b"ran\nran\n"
        container.reload()
        assert container.status == "running"
    finally:
        await sandbox.delete()


async def test_a_frozen_container_can_be_paused_and_resumed(target):
    instance, container = target
    await instance.files.write(RAN, b"1")
    container.pause()
    await instance.pause()
    assert await instance.resume() is True
    assert await said(instance, "cat ran") == "1"
    container.pause()  # and it can be destroyed so: the fixture does
