"""What is said when a target or a transport fails (EX-1, EX-14): never a guess, never a second try."""

from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.errors import (
    Lost,
    NotFound,
    OutcomeUnknown,
    PinfoldError,
    Unavailable,
    Unreachable,
)
from pinfold.posix import equip
from pinfold.provider import ExecRequest, Features
from tests.core.posix.conftest import Heartbeat, until
from tests.core.posix.guests import LocalGuest, LocalProcess, Pipe

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["shell"])]


async def test_ex14_what_never_reached_the_target_has_no_effect(box, monkeypatch) -> None:
    async def spawn(self, argv, env, cwd):
        raise Unreachable("the cable is out")

    monkeypatch.setattr(LocalGuest, "spawn", spawn)
    for operation in (lambda: box.run("true"), lambda: box.files.write("/workspace/f", b"")):
        with pytest.raises(Unreachable) as caught:
            await operation()
        assert (caught.value.effect, caught.value.retryable) == ("none", True)


async def test_ex14_a_target_that_goes_away_leaves_the_outcome_unknown(box, monkeypatch) -> None:
    spawned: list[object] = []

    async def spawn(self, argv, env, cwd):
        if spawned:
            raise Lost("it is gone")
        spawned.append(argv)
        return await original(self, argv, env, cwd)

    async def wait(self):
        await original_wait(self)
        raise Lost("it is gone")

    original, original_wait = LocalGuest.spawn, LocalProcess.wait
    monkeypatch.setattr(LocalGuest, "spawn", spawn)
    monkeypatch.setattr(LocalProcess, "wait", wait)
    with pytest.raises(OutcomeUnknown) as caught:
        await box.sh("echo x >>ran")
    assert (caught.value.effect, caught.value.retryable) == ("unknown", False)
    assert len(spawned) == 1  # table row 21: nothing is sent again


async def test_ex14_the_target_still_tells_the_outcome(box, monkeypatch) -> None:
    """The transport makes something else of the exit code: what the slot says is the result."""

    async def wait(self):
        await original(self)
        return 255

    original = LocalProcess.wait
    monkeypatch.setattr(LocalProcess, "wait", wait)
    for code in (0, 7, 200):
        assert (await box.sh(f"exit {code}")).exit_code == code


async def test_er1_what_a_target_says_of_a_process_it_could_not_start_is_told_as_it_is(
    box, monkeypatch
) -> None:
    """Such as an engine at a limit: it takes the request, and its process comes to nothing."""

    async def spawn(self, argv, env, cwd):
        return await original(self, ["false"], env, cwd)

    async def wait(self):
        await original_wait(self)
        raise Unavailable("no room for a process")

    original, original_wait = LocalGuest.spawn, LocalProcess.wait
    monkeypatch.setattr(LocalGuest, "spawn", spawn)
    monkeypatch.setattr(LocalProcess, "wait", wait)
    for operation in (lambda: box.files.read("/workspace/f"), box.tree.scan):
        with pytest.raises(Unavailable, match="no room for a process"):
            await operation()
    with pytest.raises(OutcomeUnknown):  # whose clean-up fails as it did
        await box.run("true")


@pytest.mark.parametrize("more", ["", "rm -rf {control}; "], ids=["", "and spoils what it wrote"])
async def test_a_command_that_kills_what_watches_it_has_an_unknown_outcome(box, more) -> None:
    """EX-14: it has begun, however fast it was to end its parent."""
    beat = Heartbeat(box)
    spoil = more.format(control=box.instance.equipment.control or "/nowhere")
    with anyio.fail_after(10), pytest.raises(OutcomeUnknown):
        await box.sh(f"kill -9 $PPID; {spoil}{beat.loop}")
    assert await beat.is_still()


async def test_output_that_a_transport_drops_is_never_taken_for_all(box, monkeypatch) -> None:
    """An engine that cuts the tail and says exit 0 all the same (measured)."""

    async def receive(self, max_bytes=65536):
        data = await original(self, max_bytes)
        if len(data) > 1000:
            self.close()
            return data[:500]
        return data

    original = Pipe.receive
    monkeypatch.setattr(Pipe, "receive", receive)
    with pytest.raises(PinfoldError) as caught:
        await box.sh("head -c 5000 /dev/zero")
    assert isinstance(caught.value, OutcomeUnknown)
    (box.workspace / "f").write_bytes(bytes(5000))
    with pytest.raises(Unavailable):
        await box.files.read("/workspace/f")


async def test_a_workspace_that_is_not_there_is_not_found(tmp_path, kind) -> None:
    with pytest.raises(NotFound, match="missing"):
        await equip(LocalGuest(), root=PurePosixPath(tmp_path / "missing"))


async def test_without_background_jobs_are_waited_for(tmp_path, kind) -> None:
    """EX-8: never silently killed, and all that they say is part of the output."""
    guest = LocalGuest()
    features = Features(concurrent_exec=True)
    kit = await equip(guest, root=PurePosixPath(tmp_path), features=features)
    script = "(sleep 0.3; echo late) & (sleep 0.6; touch done) >/dev/null 2>&1 & echo now"
    result = await kit.runner.run(ExecRequest(shell=script))
    assert (result.stdout, result.timed_out) == (b"now\nlate\n", False)
    assert (tmp_path / "done").exists()
    # The command's end and what its child says after it arrive in one piece.
    said = bytearray()

    async def slow(stream: str, piece: bytes) -> None:
        said.extend(piece)
        await until((tmp_path / "last").exists)

    script = "echo now; (sleep 0.3; echo late; touch last) &"
    await kit.runner.run(ExecRequest(shell=script), slow)
    assert said == b"now\nlate\n"
    result = await kit.runner.run(ExecRequest(shell="sleep 60 & echo x", timeout_seconds=0.3))
    assert (result.stdout, result.timed_out) == (b"x\n", True)


async def test_without_concurrent_exec_calls_queue_and_queueing_is_not_timed(
    tmp_path, kind
) -> None:
    """EX-13."""
    features = Features(background=True)
    kit = await equip(LocalGuest(), root=PurePosixPath(tmp_path), features=features)
    results = []

    async def one() -> None:
        request = ExecRequest(shell="echo in >>log; sleep 0.3; echo out >>log", timeout_seconds=1)
        results.append(await kit.runner.run(request))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(one)
    assert [result.timed_out for result in results] == [False] * 5
    assert (tmp_path / "log").read_text() == "in\nout\n" * 5


def mode_of(path: str) -> int | None:
    return Path(path).stat().st_mode & 0o7777 if Path(path).exists() else None


async def test_a_target_that_lives_on_is_left_as_it_was_found(box) -> None:
    """LC-9: no process and no file of ours."""
    beat = Heartbeat(box)
    await box.sh(f"setsid sh -c '{beat.loop}' </dev/null >/dev/null 2>&1 &")
    await beat.beats()
    control = box.instance.equipment.control
    assert mode_of(control) == 0o700
    await box.instance.clean_up()
    assert await beat.is_still()
    assert mode_of(control) is None
    assert (await box.sh("kill -9 $$")).signal == 9  # and it can be used again
    await box.instance.clean_up()
