"""LC-4, LC-5, LC-6: compute that is lost is replaced, and the work is restored."""

from __future__ import annotations

import anyio
import pytest

from pinfold.errors import (
    Lost,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from pinfold.provider import ExecResult
from tests.core.sandbox.durable_support import (
    SPEC,
    kinds,
    read,
    write,
)

pytestmark = pytest.mark.anyio


async def test_lc5_the_next_operation_finds_the_loss_and_goes_on(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        last = (await box.events())[-1].id
        cloud.lose()

        assert await read(box, "a") == b"1"

        assert (box.generation, cloud.made) == (2, 2)
        events = await box.events(after=last)
        assert [str(e.type) for e in events] == ["sandbox.instance_lost", "sandbox.recovered"]
        assert all(event.data["process_state_lost"] is True for event in events)
        assert events[0].data["previous_instance_id"] == "m-1"
        assert events[1].data["current_instance_id"] == "m-2"


async def test_lc5_file_operations_and_other_handles_recover_too(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        cloud.lose()
        assert await box.files.read("/workspace/a") == b"1"
    cloud.lose()
    async with opened.again() as box:
        assert await box.files.read("/workspace/a") == b"1"
        assert box.generation == 3


async def test_lc5_one_recovery_however_many_callers_wait(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        cloud.lose()
        results = []

        async def one():
            results.append(await read(box, "a"))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(one)

        assert results == [b"1"] * 20
        assert (box.generation, cloud.made) == (2, 2)


async def test_lc5_unreachable_is_not_lost(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        cloud.unreachable = True
        with pytest.raises(Unreachable):
            await read(box, "a")
        with pytest.raises(Unreachable):
            await read(box, "a")
        cloud.unreachable = False

        assert await read(box, "a") == b"1"
        assert (box.generation, cloud.made) == (1, 1)


async def test_lc5_stopped_is_not_lost(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        next(iter(cloud.machines.values())).paused = True
        box._durable._suspect = True
        assert await read(box, "a") == b"1"
        assert (box.generation, cloud.made) == (1, 1)
        assert "sandbox.resumed" in await kinds(box)


@pytest.mark.parametrize("durability", ["none", "provider_snapshot"])
async def test_lc4_without_checkpoints_lost_is_lost_and_never_recoverable(
    opened, cloud, durability
):
    async with opened(spec={**SPEC, "durability": durability}) as box:
        await write(box, "a", "1")
        cloud.lose()
        for _ in range(2):
            with pytest.raises(Lost):
                await read(box, "a")
        assert (await box.view()).observed_state == "lost"
        assert (await kinds(box))[-1] == "sandbox.instance_lost"
        assert cloud.made == 1


async def test_ex14_an_ambiguous_failure_is_never_sent_again(opened, cloud):
    async def ambiguous(instance, request):
        if request.argv == ("write", "b", "2"):
            cloud.ran.append("write b 2")
            cloud.lose()
            raise OutcomeUnknown("the connection broke")

    async with opened() as box:
        await write(box, "a", "1")
        cloud.before_exec = ambiguous
        with pytest.raises(OutcomeUnknown):
            await write(box, "b", "2")
        assert await read(box, "a") == b"1"
        assert box.generation == 2
    assert cloud.ran.count("write b 2") == 1


async def test_lc5_recovery_bootstraps_first_and_then_restores(opened, cloud):
    spec = {**SPEC, "bootstrap": {"commands": ["prepare"]}}
    seen = []

    async def note(instance, request):
        if request.shell == "prepare":
            seen.append([entry.path.name for entry in await instance.files.list("/workspace")])

    cloud.before_exec = note
    async with opened(spec=spec) as box:
        await write(box, "a", "1")
        cloud.lose()
        assert await read(box, "a") == b"1"
    assert seen == [[], []]


async def test_lc6_a_failed_bootstrap_makes_it_failed_and_the_next_operation_tries_again(
    opened, cloud
):
    broken = True

    async def run(self, request, sink=None):
        return ExecResult(exit_code=9 if broken and request.shell else 0, stderr=b"why")

    from tests.core.sandbox.durable_support import CloudInstance

    original, CloudInstance.exec = CloudInstance.exec, run
    try:
        async with opened(spec={**SPEC, "bootstrap": {"commands": ["prepare"]}}) as box:
            with pytest.raises(Unavailable, match="exit code 9"):
                await box.exec(["true"])
            assert (await box.view()).observed_state == "failed"
            assert (await kinds(box))[-1] == "sandbox.failed"
            assert cloud.machines == {}
            broken = False
            assert (await box.exec(["true"])).exit_code == 0
            assert (await box.view()).observed_state == "ready"
    finally:
        CloudInstance.exec = original


async def test_rs6_a_create_that_fails_is_tried_again_by_the_next_operation(opened, cloud):
    cloud.fail_create = Unavailable("no room")
    async with opened() as box:
        with pytest.raises(Unavailable, match="no room"):
            await box.start()
        cloud.fail_create = None
        await write(box, "a", "1")
        assert len(cloud.machines) == 1


async def test_lc4_the_call_that_finds_the_loss_notes_it(opened, cloud):
    async with opened(spec={**SPEC, "durability": "none"}) as box:
        await box.exec(["write", "a", "1"])
        cloud.lose()
        for _ in range(2):
            with pytest.raises(Lost, match="durability none keeps no copy"):
                await box.exec(["read", "a"])
            assert await kinds(box) == ["sandbox.created", "sandbox.ready", "sandbox.instance_lost"]
            assert (await box.view()).observed_state == "lost"
        assert cloud.ran == ["write a 1"]
        await box.delete()
