"""LC-2: of two controllers one claims the next generation; a stale handle touches nothing."""

from __future__ import annotations

import time

import anyio
import attrs
import pytest

import pinfold
from pinfold._ids import Clock
from pinfold.errors import (
    StaleGeneration,
)
from pinfold.sandbox._record import Claim
from pinfold.sandbox._replacing import LEASE_SECONDS
from tests.core.sandbox.durable_support import (
    SPEC,
    read,
    soon,
    write,
)

pytestmark = pytest.mark.anyio


async def test_lc2_two_controllers_one_replacement_the_loser_is_told_both_numbers(opened, cloud):
    async with opened() as one, opened.again() as two:
        await write(one, "a", "1")
        assert await read(two, "a") == b"1"
        cloud.lose()
        outcomes = []

        async def use(box):
            try:
                outcomes.append(await read(box, "a"))
            except StaleGeneration as exc:
                outcomes.append((exc.code, dict(exc.details)))

        async with anyio.create_task_group() as group:
            group.start_soon(use, one)
            group.start_soon(use, two)

        assert cloud.made == 2
        assert sorted(outcomes, key=str) == [
            ("stale_generation", {"carried": 1, "current": 2}),
            b"1",
        ] or sorted(outcomes, key=str) == [b"1", ("stale_generation", {"carried": 1, "current": 2})]


async def test_lc2_a_stale_handle_is_refused_everywhere_and_touches_nothing(opened, cloud):
    async with opened() as stale:
        await write(stale, "a", "1")
        async with opened.again() as current:
            assert await read(current, "a") == b"1"
            cloud.lose()
            await write(current, "a", "2")
            ran = list(cloud.ran)
            for call in (
                lambda: stale.exec(["write", "a", "3"]),
                lambda: stale.files.write("/workspace/a", b"3"),
                lambda: stale.files.remove("/workspace/a"),
                stale.pause,
                stale.checkpoint,
                lambda: stale.drain(timeout_seconds=0),
                stale.start,
            ):
                with pytest.raises(StaleGeneration) as caught:
                    await call()
                assert caught.value.details == {"carried": 1, "current": 2}
            assert cloud.ran == ran
            assert await read(current, "a") == b"2"
            assert (await current.view()).observed_state == "ready"


async def test_lc2_a_claim_past_its_lease_is_taken_and_what_it_labelled_is_removed(
    opened, cloud, store, monkeypatch
):
    monkeypatch.setattr("pinfold.sandbox._replacing.LEASE_SECONDS", 0.3)
    dead = await opened()
    cloud.slow_create = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(dead.start)
        await soon(lambda: cloud.made)
        # The claimant dies where it stands: nobody renews, nobody lets go.
        dead._durable._give_up = _never
        group.cancel_scope.cancel()
    from pinfold.provider import InstanceRef, Owner
    from tests.core.sandbox.durable_support import Machine

    owner = Owner(store=await store.state.identity(), sandbox=dead.id)
    cloud.machines["half"] = Machine(InstanceRef(provider="toy", id="half", sandbox=dead.id), owner)
    cloud.slow_create = None
    async with opened.again() as box:
        await write(box, "a", "1")
        assert "half" not in cloud.machines
        assert len(cloud.machines) == 1
        assert box.generation == 2


async def _never(*args):
    return None


async def test_lc2_a_dead_claim_is_taken_though_the_clock_jumped_back(
    opened, cloud, store, monkeypatch
):
    """It was made when the clock was a day ahead, and is never renewed."""
    monkeypatch.setattr("pinfold.sandbox._replacing.LEASE_SECONDS", 0.3)
    day = 86_400 * 10**9
    early = attrs.evolve(opened.runtime, clock=Clock(now_ns=lambda: time.time_ns() + day))
    dead = await pinfold.open(SPEC, name="box", store=store, runtime=early)
    cloud.slow_create = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(dead.start)
        await soon(lambda: cloud.made)
        dead._durable._give_up = _never
        group.cancel_scope.cancel()
    cloud.slow_create = None
    async with opened.again() as box:
        with anyio.fail_after(30):
            await write(box, "a", "1")
        assert box.generation == 2
        assert len(cloud.machines) == 1


async def test_lc2_a_claim_is_believed_for_as_long_as_it_is_renewed_and_no_longer(opened, store):
    seconds = [0.0]
    clock = Clock(now_ns=lambda: 10**18, monotonic=lambda: seconds[0])
    runtime = attrs.evolve(opened.runtime, clock=clock)
    box = await pinfold.open(SPEC, name="box", store=store, runtime=runtime)
    alive = box._durable._is_alive
    hour = 3600 * 10**6
    for number in range(10):
        renewed = Claim(owner="ctl_other", expires_us=10**15 + hour + number)
        assert alive(renewed)
        seconds[0] += LEASE_SECONDS - 1
        assert alive(renewed)
    seconds[0] += 2
    assert not alive(renewed)
    assert not alive(Claim(owner="ctl_other", expires_us=10**15 - 1))
    assert alive(Claim(owner="ctl_third", expires_us=10**15 + hour))


async def test_lc2_a_claim_that_is_alive_is_waited_for(opened, cloud):
    cloud.slow_create = anyio.Event()
    async with opened() as one, opened.again() as two:
        async with anyio.create_task_group() as group:
            group.start_soon(one.start)
            await soon(lambda: cloud.made)
            group.start_soon(two.start)
            await anyio.sleep(0.2)
            assert cloud.made == 1
            cloud.slow_create.set()
        assert (one.generation, two.generation, cloud.made) == (1, 1, 1)
