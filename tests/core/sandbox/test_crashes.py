"""A controller may die at any step (LC-2, LC-3, LC-5, LC-9, CP-3): the next one finds a whole sandbox.

Dying is simulated without mercy: from the chosen step on, the dead controller has no effect on
anything, its clean-up included. Every write of state, every step of the checkpoint store and every
call to the provider is such a step, and each is tried, before and after its effect.
"""

from __future__ import annotations

import anyio
import pytest

import pinfold
from pinfold._ids import Clock
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import PinfoldError
from pinfold.plugins import Catalog, Hooks
from pinfold.sandbox import Runtime, Store, gc
from pinfold.state import MemoryStateStore
from tests.core.sandbox.durable_support import SPEC, Cloud

pytestmark = pytest.mark.anyio


class Dead(BaseException):
    """The controller is no more."""


class Fate:
    """Counts the steps of one controller, and ends it at one of them."""

    def __init__(self, dies_at: int | None = None):
        self.dies_at = dies_at
        self.steps = 0

    def step(self, *_):
        self.steps += 1
        if self.dies_at is not None and self.steps > self.dies_at:
            raise Dead


class MortalState(MemoryStateStore):
    """A controller's view of the shared state."""

    def __init__(self, shared: MemoryStateStore, fate: Fate):
        super().__init__()
        self._shared, self._fate = shared, fate

    async def get(self, kind, key):
        self._fate.step()
        return await self._shared.get(kind, key)

    async def list(self, kind, *, after="", limit=1000):
        self._fate.step()
        return await self._shared.list(kind, after=after, limit=limit)

    async def write(self, changes=(), journal=()):
        self._fate.step()
        done = await self._shared.write(changes, journal)
        self._fate.step()
        return done

    async def journal(self, *, topic=None, after="", limit=1000):
        return await self._shared.journal(topic=topic, after=after, limit=limit)


class MortalCloud(Cloud):
    """A controller's view of the one cloud."""

    def __init__(self, shared: Cloud, fate: Fate):
        super().__init__()
        self.machines, self._shared, self._fate = shared.machines, shared, fate

    @property
    def made(self):
        return self._shared.made if hasattr(self, "_shared") else 0

    @made.setter
    def made(self, value):
        if hasattr(self, "_shared"):
            self._shared.made = value

    async def before_exec(self, instance, request):
        self._fate.step()

    async def create(self, pinned, ctx):
        self._fate.step()
        instance = await super().create(pinned, ctx)
        self._fate.step()
        return instance

    async def attach(self, ref, pinned, ctx):
        self._fate.step()
        return await super().attach(ref, pinned, ctx)

    async def list(self, owner, ctx=None):
        self._fate.step()
        return await super().list(owner, ctx)

    async def destroy(self, ref, ctx=None):
        self._fate.step()
        await super().destroy(ref, ctx)
        self._fate.step()


class World:
    """What outlives controllers: the cloud, the state, the folder of checkpoints, and time."""

    def __init__(self, folder):
        self.folder, self.cloud, self.state = folder, Cloud(), MemoryStateStore()
        self.late_ns = 0

    def controller(self, fate: Fate):
        def now():
            import time

            return time.time_ns() + self.late_ns

        runtime = Runtime(
            catalog=Catalog([MortalCloud(self.cloud, fate)]), hooks=Hooks(), clock=Clock(now_ns=now)
        )
        checkpoints = CheckpointStore(
            self.folder, fsync=False, on_step=fate.step, now_ns=now, lease_seconds=10.0
        )
        return Store(checkpoints, MortalState(self.state, fate), keep=2), runtime

    def time_passes(self):
        self.late_ns += 3600 * 1_000_000_000


async def mortal(action):
    """Let a controller act until it is done or dead; say whether it got to the end."""
    try:
        await action
    except Dead:
        return False
    except BaseExceptionGroup as group:
        rest = group.split(Dead)[1]
        if rest is not None:
            raise rest from None
        return False
    return True


async def writes(world, fate, texts):
    """Write to one file again and again; return what was acknowledged last."""
    acknowledged = []
    store, runtime = world.controller(fate)

    async def act():
        box = await pinfold.reopen("box", store=store, runtime=runtime)
        for text in texts:
            await box.exec(["write", "a", text])
            acknowledged.append(text)

    await mortal(act())
    return acknowledged


async def look(world):
    """Take the sandbox up as the next controller does, and return what is in it."""
    world.time_passes()
    store, runtime = world.controller(Fate())
    box = await pinfold.reopen("box", store=store, runtime=runtime)
    text = (await box.exec(["read", "a"])).stdout.decode()
    await box.exec(["write", "b", "works"])
    view = await box.view()
    return text, view, await gc(store, runtime), store, box


async def begin(tmp_path, number):
    world = World(tmp_path / str(number))
    store, runtime = world.controller(Fate())
    box = await pinfold.open(SPEC, name="box", store=store, runtime=runtime)
    await box.exec(["write", "a", "0"])
    await box.close()
    return world


async def count(tmp_path, scenario):
    """Count the steps of a scenario that nothing cuts short."""
    fate = Fate()
    world = await begin(tmp_path, "count")
    await scenario(world, fate)
    return fate.steps


async def every_death(tmp_path, scenario, check, *, stride=1):
    total = await count(tmp_path, scenario)
    assert total > 10
    for number in range(0, total, stride):
        world = await begin(tmp_path, number)
        outcome = await scenario(world, Fate(number))
        await check(world, outcome)
    return total


async def test_lc3_whenever_a_writer_dies_the_file_is_the_old_or_the_new_one(tmp_path):
    async def scenario(world, fate):
        return await writes(world, fate, ["1", "2"])

    async def check(world, acknowledged):
        text, view, report, _, _ = await look(world)
        last = acknowledged[-1] if acknowledged else "0"
        following = {"0": "1", "1": "2", "2": "2"}[last]
        assert text in (last, following)
        assert view.observed_state == "ready"
        assert len(world.cloud.machines) == 1
        assert report.failed == ()

    assert await every_death(tmp_path, scenario, check) >= 20


async def test_lc5_whenever_a_recovery_is_cut_short_the_next_one_finishes_it_and_nothing_leaks(
    tmp_path,
):
    async def scenario(world, fate):
        world.cloud.machines.clear()
        return await writes(world, fate, ["1"])

    async def check(world, acknowledged):
        text, view, report, _, _ = await look(world)
        assert text in ({"1"} if acknowledged else {"0", "1"})
        assert view.observed_state == "ready"
        assert view.generation >= 2
        assert len(world.cloud.machines) == 1
        assert report.failed == ()

    assert await every_death(tmp_path, scenario, check) >= 20


async def test_cp3_whenever_a_rollback_is_cut_short_it_is_finished_or_undone(tmp_path):
    async def scenario(world, fate):
        store, runtime = world.controller(Fate())
        box = await pinfold.reopen("box", store=store, runtime=runtime)
        first = (await box.view()).current_checkpoint_id
        await box.exec(["write", "a", "1"])
        await box.close()
        store, runtime = world.controller(fate)

        async def act():
            box = await pinfold.reopen("box", store=store, runtime=runtime)
            await box.restore(first)

        return await mortal(act())

    async def check(world, done):
        text, _, _, store, box = await look(world)
        assert text in ({"0"} if done else {"0", "1"})
        current = (await box.view()).current_checkpoint_id
        record = await store.checkpoints.record(current)
        assert record.entries == 2

    assert await every_death(tmp_path, scenario, check) >= 10


async def test_lc8_whenever_a_fork_is_cut_short_the_source_is_whole_and_the_fork_is_there_or_not(
    tmp_path,
):
    async def scenario(world, fate):
        store, runtime = world.controller(fate)

        async def act():
            box = await pinfold.reopen("box", store=store, runtime=runtime)
            other = await box.fork(name="other")
            await other.exec(["write", "a", "forked"])

        return await mortal(act())

    async def check(world, done):
        text, _, _, store, _ = await look(world)
        assert text == "0"
        _, runtime = world.controller(Fate())
        names = [view.name for view in await pinfold.list(store=store, runtime=runtime)]
        assert names == ["box"] or sorted(names) == ["box", "other"]
        if "other" in names:
            other = await pinfold.reopen("other", store=store, runtime=runtime)
            assert (await other.exec(["read", "a"])).stdout in (b"0", b"forked")
        assert done <= ("other" in names)

    assert await every_death(tmp_path, scenario, check) >= 20


async def test_lc9_whenever_a_deletion_is_cut_short_gc_finishes_it(tmp_path):
    async def scenario(world, fate):
        store, runtime = world.controller(fate)

        async def act():
            box = await pinfold.reopen("box", store=store, runtime=runtime)
            await box.delete()

        return await mortal(act())

    async def check(world, done):
        world.time_passes()
        store, runtime = world.controller(Fate())
        (view,) = await pinfold.list(store=store, deleted=True, runtime=runtime)
        await gc(store, runtime)
        (after,) = await pinfold.list(store=store, deleted=True, runtime=runtime)
        if view.desired_state == "deleted":
            assert after.observed_state == "deleted"
            assert world.cloud.machines == {}
        else:
            assert not done
            assert len(world.cloud.machines) == 1

    assert await every_death(tmp_path, scenario, check) >= 8


async def test_cp10_whenever_a_collector_dies_every_live_checkpoint_is_whole(tmp_path):
    async def scenario(world, fate):
        store, runtime = world.controller(Fate())
        box = await pinfold.reopen("box", store=store, runtime=runtime)
        for text in ("1", "2", "3"):
            await box.exec(["write", "a", text])
        await box.close()
        store, runtime = world.controller(fate)
        return await mortal(gc(store, runtime))

    async def check(world, _):
        text, _, _, store, box = await look(world)
        assert text == "3"
        assert (await store.checkpoints.verify(box.id)).problems == ()

    assert await every_death(tmp_path, scenario, check) >= 10


@pytest.mark.nightly
async def test_nightly_two_controllers_die_one_after_the_other_at_every_pair_of_steps(tmp_path):
    async def first(world, fate):
        world.cloud.machines.clear()
        return await writes(world, fate, ["1"])

    total = await count(tmp_path, first)
    for one in range(0, total, 2):
        for two in range(0, total, 2):
            world = await begin(tmp_path, f"{one}-{two}")
            acknowledged = await first(world, Fate(one))
            world.time_passes()
            acknowledged += await writes(world, Fate(two), ["1"])
            text, view, _, _, _ = await look(world)
            assert text in ({"1"} if acknowledged else {"0", "1"})
            assert view.observed_state == "ready"
            assert len(world.cloud.machines) == 1


async def test_a_store_that_fails_every_third_write_loses_nothing(tmp_path):
    class Flaky(MemoryStateStore):
        writes = 0

        async def write(self, changes=(), journal=()):
            Flaky.writes += 1
            if Flaky.writes % 3 == 0:
                from pinfold.errors import Unavailable

                raise Unavailable("busy")
            return await super().write(changes, journal)

    cloud = Cloud()
    runtime = Runtime(catalog=Catalog([cloud]), hooks=Hooks())
    store = Store(CheckpointStore(tmp_path / "c", fsync=False), Flaky())
    acknowledged = None
    box = None
    for number in range(60):
        try:
            if box is None:
                box = await pinfold.open(SPEC, name=f"box{number}", store=store, runtime=runtime)
            await box.exec(["write", "a", str(number)])
            acknowledged = str(number)
        except PinfoldError:
            continue
    assert box is not None
    assert acknowledged is not None
    for _ in range(5):
        try:
            text = (await box.exec(["read", "a"])).stdout.decode()
            break
        except PinfoldError:
            await anyio.lowlevel.checkpoint()
    else:
        pytest.fail("it never works again")
    assert int(text) >= int(acknowledged)
    assert len(cloud.machines) == 1
