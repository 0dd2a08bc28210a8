"""LC-7, LC-9: rest of the idle, by their controller or by reap; gc."""

from __future__ import annotations

import time

import anyio
import attrs
import pytest

import pinfold
from pinfold._ids import Clock
from pinfold.errors import (
    Unreachable,
)
from pinfold.sandbox import gc, reap
from tests.core.sandbox.durable_support import (
    IDLE,
    SPEC,
    read,
    soon,
    until,
    write,
)

pytestmark = pytest.mark.anyio


async def test_lc7_a_controller_puts_an_idle_sandbox_to_rest(opened, cloud):
    async with opened(spec=IDLE) as box:
        await write(box, "a", "1")
        assert (await box.view()).details["idle_deadline"]

        async def paused():
            return (await box.view()).observed_state == "paused"

        await until(paused)
        assert await read(box, "a") == b"1"
        assert cloud.made == 1


async def test_lc7_work_in_flight_is_activity(opened, cloud):
    async with opened(spec=IDLE) as box, anyio.create_task_group() as group:
        group.start_soon(box.exec, ["wait"])
        await soon(lambda: "wait" in cloud.ran)
        await anyio.sleep(2.0)
        assert (await box.view()).observed_state == "ready"
        cloud.release.set()


async def test_lc7_a_clock_that_jumped_back_keeps_nobody_awake(opened, cloud, store):
    """A deadline that it left far ahead is set anew by the next activity, or by whoever holds it."""
    ahead = [86_400 * 10**9]
    clock = Clock(now_ns=lambda: time.time_ns() + ahead[0])
    runtime = attrs.evolve(opened.runtime, clock=clock)
    async with pinfold.open(IDLE, name="box", store=store, runtime=runtime) as box:
        await write(box, "a", "1")
        ahead[0] = 0

        async def paused():
            return (await box.view()).observed_state == "paused"

        await until(paused)
        ahead[0] = 86_400 * 10**9
        await write(box, "a", "2")
        await box.close()
    ahead[0] = 0
    box = await opened.again()
    assert await read(box, "a") == b"2"
    await box.close()

    async def reaped():
        return (await reap(store, opened.runtime)).done == (box.id,)

    await until(reaped)


async def test_lc7_reap_acts_for_those_that_nobody_holds(opened, cloud, store):
    box = await opened(spec=IDLE)
    await write(box, "a", "1")
    await box.close()
    assert (await reap(store, opened.runtime)).done == ()

    async def overdue():
        (view,) = await pinfold.list(store=store, runtime=opened.runtime)
        return bool(view.details and view.details.get("overdue"))

    await until(overdue)
    assert (await reap(store, opened.runtime)).done == (box.id,)
    (view,) = await pinfold.list(store=store, runtime=opened.runtime)
    assert view.observed_state == "paused"
    assert next(iter(cloud.machines.values())).paused


@pytest.mark.parametrize("action", ["keep_running", "stop"])
async def test_lc7_the_idle_action_is_what_the_spec_says(opened, cloud, store, action):
    box = await opened(spec={**SPEC, "lifecycle": {"idle_after_seconds": 1, "idle_action": action}})
    await write(box, "a", "1")
    await box.close()
    await anyio.sleep(1.3)
    done = (await reap(store, opened.runtime)).done
    assert bool(done) is (action == "stop")


async def test_lc9_gc_removes_what_has_no_live_sandbox_in_its_own_store_and_nothing_else(
    opened, cloud, store, tmp_path
):
    from pinfold.provider import InstanceRef, Owner
    from tests.core.sandbox.durable_support import Machine

    def plant(name, store_id, sandbox):
        ref = InstanceRef(provider="toy", id=name, sandbox=sandbox)
        cloud.machines[name] = Machine(ref, Owner(store=store_id, sandbox=sandbox))

    async with opened() as box:
        await write(box, "a", "1")
        mine = await store.state.identity()
        plant("orphan", mine, "sbx_gone")
        plant("old", mine, box.id)
        plant("foreign", "another-store", "sbx_gone")
        plant("foreign-same", "another-store", box.id)

        report = await gc(store, opened.runtime)

        assert sorted(report.done) == ["old", "orphan"]
        assert set(cloud.machines) == {"m-1", "foreign", "foreign-same"}
        assert await read(box, "a") == b"1"
        assert (await gc(store, opened.runtime)).done == ()


async def test_lc9_gc_finishes_a_deletion_that_was_cut_short(opened, cloud, store):
    async with opened() as box:
        await write(box, "a", "1")
        cloud.unreachable = True
        with pytest.raises(Unreachable):
            await box.delete()
        assert (await box.view()).desired_state == "deleted"
        cloud.unreachable = False
        assert box.id in (await gc(store, opened.runtime)).done
        assert cloud.machines == {}
        assert (await box.view()).observed_state == "deleted"


async def test_lc9_gc_leaves_alone_what_somebody_is_making(opened, cloud, store):
    cloud.slow_create = anyio.Event()
    async with opened() as box:
        async with anyio.create_task_group() as group:
            group.start_soon(box.start)
            await soon(lambda: cloud.made)
            assert (await gc(store, opened.runtime)).done == ()
            cloud.slow_create.set()
        await write(box, "a", "1")
