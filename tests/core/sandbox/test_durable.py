"""LC and CP on a sandbox: generation, loss and recovery, checkpoints before success, fork, rest."""

from __future__ import annotations

import time

import anyio
import attrs
import pytest

import pinfold
from pinfold._ids import Clock
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import (
    AlreadyExists,
    CheckpointCorrupt,
    Conflict,
    Effect,
    InvalidArgument,
    Lost,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    SpecInvalid,
    StaleGeneration,
    Unavailable,
    Unreachable,
)
from pinfold.plugins import hookimpl
from pinfold.provider import ExecResult, Features
from pinfold.sandbox import Store, gc, reap
from pinfold.sandbox._record import Claim
from pinfold.sandbox._replacing import LEASE_SECONDS
from pinfold.state import MemoryStateStore
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store
from tests.core.support import vfs_provider

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud():
    return Cloud()


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path)


@pytest.fixture
def opened(cloud, store):
    """Open a durable sandbox, or another handle of it."""
    runtime = make_runtime(cloud)

    def get(name="box", spec=SPEC, **more):
        return pinfold.open(spec, name=name, store=store, runtime=runtime, **more)

    get.again = lambda name="box": pinfold.reopen(name, store=store, runtime=runtime)
    get.runtime = runtime
    return get


async def kinds(box, *, after=""):
    return [str(event.type) for event in await box.events(after=after)]


async def soon(condition, seconds=10.0):
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


async def write(box, name, text):
    return await box.exec(["write", name, text])


async def read(box, name):
    return (await box.exec(["read", name])).stdout


# --- LC-1: life in the ordinary ---------------------------------------------------------------


async def test_lc1_generation_is_0_before_any_compute_and_1_with_the_first(opened, cloud):
    async with opened() as box:
        view = await box.view()
        assert (view.generation, view.observed_state, cloud.made) == (0, "absent", 0)

        result = await write(box, "a", "1")

        view = await box.view()
        assert (view.generation, view.observed_state, result.generation) == (1, "ready", 1)
        assert await kinds(box) == ["sandbox.created", "sandbox.ready", "checkpoint.created"]


async def test_lc1_another_handle_takes_the_same_instance_up(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")

    async with opened.again() as box:
        assert await read(box, "a") == b"1"
        assert (box.generation, cloud.made) == (1, 1)


async def test_lc1_pause_and_resume_keep_the_generation_and_say_what_was_lost(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        await box.pause()
        assert (await box.view()).observed_state == "paused"
        await box.pause()

        assert await read(box, "a") == b"1"

        assert (box.generation, cloud.made) == (1, 1)
        events = await box.events()
        assert [str(e.type) for e in events][-2:] == ["sandbox.paused", "sandbox.resumed"]
        assert events[-1].data["process_state_lost"] is True


async def test_lc1_without_attach_the_next_controller_claims_the_next_generation(tmp_path):
    from tests.core.support import ToyProvider

    store, runtime = make_store(tmp_path), make_runtime(ToyProvider(features=Features()))
    async with pinfold.open(SPEC, name="box", store=store, runtime=runtime) as box:
        await box.files.write("/workspace/a", b"1")
    (view,) = await pinfold.list(store=store, runtime=runtime)
    assert (view.observed_state, view.generation) == ("paused", 1)

    async with pinfold.reopen("box", store=store, runtime=runtime) as box:
        assert await box.files.read("/workspace/a") == b"1"
        assert box.generation == 2
        events = await box.events()
    assert [str(e.type) for e in events][-2:] == ["sandbox.paused", "sandbox.resumed"]
    assert events[-1].data["process_state_lost"] is True


async def test_sp0_without_a_target_files_are_durable_by_checkpoints(tmp_path):
    store, runtime = make_store(tmp_path), make_runtime(Cloud())
    async with pinfold.open({"target": None}, name="notes", store=store, runtime=runtime) as box:
        await box.files.write("/workspace/a", b"1")
    async with pinfold.reopen("notes", store=store, runtime=runtime) as box:
        assert await box.files.read("/workspace/a") == b"1"
        assert box.generation == 2


async def test_names_are_unique_until_they_are_free_again(opened):
    async with opened() as box:
        with pytest.raises(AlreadyExists):
            await opened()
        await box.delete()
        await box.delete()
    async with opened() as other:
        assert other.id != box.id
        with pytest.raises(NotFound):
            await opened.again("nobody")
        with pytest.raises(NotFound):
            await opened.again("sbx_" + "0" * 32)


async def test_rs_a_stored_sandbox_resolves_with_its_kinds_durability(opened):
    async with opened(spec={"target": {"kind": "container"}}) as box:
        assert box.pinned.spec.durability == "checkpointed"
    with pytest.raises(SpecInvalid):
        await opened("other", {**SPEC, "durability": "nope"})


# --- LC-3: a checkpoint before success --------------------------------------------------------


async def test_lc3_every_mutation_is_covered_before_its_call_returns(opened, store):
    async with opened() as box:
        for change in (
            lambda: write(box, "a", "1"),
            lambda: box.exec(["fail"]),
            lambda: box.files.write("/workspace/b", b"2"),
            lambda: box.files.remove("/workspace/b"),
            lambda: box.files.chmod("/workspace/a", 0o600),
        ):
            before = (await box.view()).current_checkpoint_id
            await change()
            after = (await box.view()).current_checkpoint_id
            assert after != before
            record = await store.checkpoints.record(after)
            (tree_now,) = [r for r in await box.checkpoints() if r.checkpoint_id == after]
            assert record == tree_now


async def test_lc3_what_changes_nothing_makes_no_checkpoint(opened):
    async with opened() as box:
        await write(box, "a", "1")
        before = await box.checkpoints()

        await box.exec(["true"])
        await read(box, "a")
        await box.files.read("/workspace/a")

        assert await box.checkpoints() == before


async def test_lc3_a_batch_is_one_checkpoint(opened):
    async with opened() as box:
        async with box.batch():
            for number in range(5):
                await box.files.write(f"/workspace/{number}", b"x")
            assert await box.checkpoints() == ()
        assert len(await box.checkpoints()) == 1


async def test_lc3_calls_that_end_together_may_share_one(opened):
    async with opened() as box:
        await box.start()
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(write, box, f"f{number}", "x")
        made = await box.checkpoints()
        assert 1 <= len(made) <= 20
        assert made[-1].checkpoint_id == (await box.view()).current_checkpoint_id
        assert made[-1].entries == 20


async def test_lc3_a_checkpoint_that_fails_fails_the_call_with_effect_done(
    opened, store, monkeypatch
):
    async with opened() as box:
        await write(box, "a", "1")
        before = (await box.view()).current_checkpoint_id

        async def full(*args, **kwargs):
            raise NoSpace("the disk is full")

        monkeypatch.setattr(store.checkpoints, "commit", full)
        with pytest.raises(NoSpace) as caught:
            await write(box, "b", "2")
        assert caught.value.effect is Effect.DONE
        assert (await box.view()).current_checkpoint_id == before

        monkeypatch.undo()
        await write(box, "c", "3")
        assert (await box.checkpoints())[-1].entries == 3


async def test_retention_keeps_the_newest_and_the_tagged(cloud, tmp_path):
    store, runtime = make_store(tmp_path, keep=2), make_runtime(cloud)
    async with pinfold.open(SPEC, store=store, runtime=runtime) as box:
        await write(box, "a", "1")
        first = await box.checkpoint(tag="first")
        for number in range(5):
            await write(box, "a", f"{number} more")
        kept = [record.checkpoint_id for record in await box.checkpoints()]
        assert first.checkpoint_id in kept
        assert len(kept) == 3


# --- LC-5: loss and recovery --------------------------------------------------------------------


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


# --- LC-2: the fence ------------------------------------------------------------------------------


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


# --- CP: rollback, fork, migrate -----------------------------------------------------------------


async def test_cp2_a_rollback_is_exactly_that_tree_and_leaves_the_others(opened):
    async with opened() as box:
        await write(box, "a", "1")
        first = (await box.view()).current_checkpoint_id
        await write(box, "b", "2")
        second = (await box.view()).current_checkpoint_id

        await box.restore(first)

        assert [entry.path.name for entry in await box.files.list("/workspace")] == ["a"]
        assert (await box.view()).current_checkpoint_id == first
        await box.restore(second)
        assert await read(box, "b") == b"2"
        assert (await kinds(box)).count("checkpoint.restored") == 2
        with pytest.raises(NotFound):
            await box.restore("cp_" + "0" * 32)


async def test_cp3_a_rollback_is_refused_while_work_is_in_flight(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        checkpoint = (await box.view()).current_checkpoint_id
        async with anyio.create_task_group() as group:
            group.start_soon(box.exec, ["wait"])
            await soon(lambda: "wait" in cloud.ran)
            with pytest.raises(Conflict):
                await box.restore(checkpoint)
            with pytest.raises(Conflict):
                await box.pause()
            cloud.release.set()


async def test_cp3_a_rollback_cut_short_is_finished_by_the_next_operation(
    opened, store, monkeypatch
):
    async with opened() as box:
        await write(box, "a", "1")
        first = (await box.view()).current_checkpoint_id
        await write(box, "b", "2")

        async def dies(*args, **kwargs):
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr("pinfold.sandbox._durable.DurableLife._finish_restore", dies)
            with pytest.raises(RuntimeError):
                await box.restore(first)
    async with opened.again() as box:
        assert [entry.path.name for entry in await box.files.list("/workspace")] == ["a"]
        assert (await box.view()).current_checkpoint_id == first


async def test_cp8_a_damaged_checkpoint_does_not_keep_others_from_being_restored(
    opened, cloud, store, tmp_path
):
    """Also where compute is gone, and would be made from the damaged one."""
    async with opened() as box:
        await write(box, "a", "1")
        first = (await box.view()).current_checkpoint_id
        await write(box, "a", "2")
        second = (await box.view()).current_checkpoint_id
        objects = tmp_path / "checkpoints" / "objects"
        kept = {path: path.read_bytes() for path in objects.rglob("*") if path.is_file()}
        records = await box.checkpoints()
        manifests = [record.manifest.removeprefix("sha256:") for record in records]
        places = [objects / digest[:2] / digest[2:] for digest in manifests]
        for place in places:
            place.write_bytes(b"damaged")
        cloud.lose()
        fresh = CheckpointStore(tmp_path / "checkpoints", fsync=False)
        again = Store(fresh, store.state)
        async with await pinfold.reopen("box", store=again, runtime=opened.runtime) as other:
            for _ in range(2):
                with pytest.raises(CheckpointCorrupt, match=second):
                    await read(other, "a")
                with pytest.raises(CheckpointCorrupt, match=first):
                    await other.restore(first)
            places[0].write_bytes(kept[places[0]])
            with pytest.raises(CheckpointCorrupt, match=second):
                await read(other, "a")

            await other.restore(first)

            assert await read(other, "a") == b"1"
            assert (await other.view()).current_checkpoint_id == first
            assert (await kinds(other))[-1] == "checkpoint.restored"
            assert len(cloud.machines) == 1
            report = await gc(again, opened.runtime)
            assert [(what, second in why) for what, why in report.failed] == [("the store", True)]


async def test_cp3_a_rollback_that_another_controller_finished_takes_nothing_back(
    opened, cloud, store
):
    """Both found it under way; what was written since stays current (LC-2)."""
    async with opened() as one, opened.again() as two:
        await write(one, "a", "1")
        first = (await one.view()).current_checkpoint_id
        await write(one, "b", "2")
        assert await read(two, "a") == b"1"
        await one.restore(first)
        await write(one, "c", "3")
        current = (await one.view()).current_checkpoint_id

        await two._durable._finish_restore(two._durable._instance, first)

        assert (await two.view()).current_checkpoint_id == current != first
        assert (await kinds(two)).count("checkpoint.restored") == 1


async def test_lc8_a_fork_has_the_same_pins_and_leaves_its_source_alone(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        other = await box.fork(name="other")
        async with other:
            assert other.pinned == box.pinned
            assert (await other.view()).generation == 0
            assert await read(other, "a") == b"1"
            await write(other, "a", "2")
        assert await read(box, "a") == b"1"
        assert (await kinds(box))[-1] == "sandbox.forked"
        early = await box.fork(checkpoint_id=(await box.checkpoints())[0].checkpoint_id)
        assert await read(early, "a") == b"1"
        await early.close()
        with pytest.raises(AlreadyExists):
            await box.fork(name="other")
        assert len(cloud.machines) == 3


async def test_lc8_a_migration_goes_on_elsewhere_and_drains_its_source(tmp_path):
    cloud = Cloud()
    runtime = make_runtime(cloud)
    runtime.catalog._given["bashkit"] = runtime.catalog._given["toy"].__class__(
        name="bashkit", value=vfs_provider()
    )
    store = make_store(tmp_path)
    async with pinfold.open(SPEC, name="box", store=store, runtime=runtime) as box:
        await write(box, "a", "1")
        other = await box.migrate({"target": {"kind": "vfs"}}, name="there")
        async with other:
            assert other.pinned.spec.target.kind == "vfs"
            assert await other.files.read("/workspace/a") == b"1"
        assert (await box.view()).observed_state == "draining"
        with pytest.raises(Conflict, match="draining"):
            await read(box, "a")
        assert len(cloud.machines) == 1


async def test_lc8_what_is_drained_already_migrates_as_well(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        await box.drain(timeout_seconds=0)
        async with await box.migrate({"target": {"kind": "container"}}, name="there") as other:
            assert await read(other, "a") == b"1"
        cloud.fail_create = Unavailable("no room")
        with pytest.raises(Unavailable):
            await box.migrate({"target": {"kind": "container"}}, name="nowhere")
        with pytest.raises(NotFound):
            await opened.again("nowhere")
        assert (await box.view()).observed_state == "draining"


async def test_lc8_a_migration_whose_source_cannot_be_drained_leaves_no_other(
    opened, cloud, monkeypatch
):
    async with opened() as box:
        await write(box, "a", "1")

        async def away(*args, **kwargs):
            raise Unreachable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr("pinfold.sandbox._durable.DurableLife.drain", away)
            with pytest.raises(Unreachable):
                await box.migrate({"target": {"kind": "container"}}, name="there")
        with pytest.raises(NotFound):
            await opened.again("there")
        assert await read(box, "a") == b"1"
        assert len(cloud.machines) == 1


async def test_lc8_a_migration_that_fails_leaves_everything_as_it_was(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        cloud.fail_create = Unavailable("no room")
        with pytest.raises(Unavailable):
            await box.migrate({"target": {"kind": "container"}}, name="there")
        cloud.fail_create = None
        assert await read(box, "a") == b"1"
        with pytest.raises(NotFound):
            await opened.again("there")


async def test_lc8_drain_waits_for_what_runs_refuses_new_work_and_destroys_nothing(opened, cloud):
    async with opened() as box:
        await write(box, "a", "1")
        done = []

        async def work():
            done.append(await box.exec(["wait"]))

        async def drain():
            done.append(await box.drain(timeout_seconds=10, command=["write", "last", "x"]))

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await soon(lambda: "wait" in cloud.ran)
            group.start_soon(drain)

            async def draining():
                return (await box.view()).observed_state == "draining"

            await until(draining)
            with pytest.raises(Conflict):
                await read(box, "a")
            assert done == []
            cloud.release.set()
        assert done[1] is True
        assert cloud.machines
        assert (await box.checkpoints())[-1].entries == 2


async def test_ev2_the_command_of_a_drain_is_audited_as_any_other(cloud, store):
    told = []

    class Listener:
        @hookimpl
        def pinfold_audit(self, record):
            told.append(record)

    runtime = make_runtime(cloud, Listener())
    async with pinfold.open(SPEC, name="box", store=store, runtime=runtime) as box:
        await box.drain(timeout_seconds=0, command=["fail"])
    (record,) = told
    assert (record.action, record.sandbox_id, record.generation) == ("session.exec", box.id, 1)
    assert (record.data["argv"], record.data["exit_code"]) == (["fail"], 7)


async def test_lc8_drain_gives_up_at_its_deadline(opened, cloud):
    async with opened() as box, anyio.create_task_group() as group:
        group.start_soon(box.exec, ["wait"])
        await soon(lambda: "wait" in cloud.ran)
        assert await box.drain(timeout_seconds=0.05) is False
        cloud.release.set()


# --- LC-7, LC-9: rest and upkeep ------------------------------------------------------------------

IDLE = {**SPEC, "lifecycle": {"idle_after_seconds": 1}}


async def until(condition, seconds=10.0):
    with anyio.fail_after(seconds):
        while not await condition():
            await anyio.sleep(0.02)


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


# --- EV, SP-3 ---------------------------------------------------------------------------------------


async def test_ev1_the_journal_is_ordered_complete_and_told_to_the_hooks(cloud, store):
    told = []

    class Listener:
        @hookimpl
        def pinfold_event(self, event):
            told.append(event)

    runtime = make_runtime(cloud, Listener())
    async with pinfold.open(SPEC, store=store, runtime=runtime) as box:
        await write(box, "a", "1")
        cloud.lose()
        await read(box, "a")
        journal = await box.events()
    assert list(journal) == told[: len(journal)]
    assert [event.id for event in journal] == sorted(event.id for event in journal)
    assert [event.generation for event in journal] == [0, 1, 1, 2, 2]


async def test_sp3_a_newer_record_is_refused_by_name(opened, store):
    async with opened() as box:
        record = await store.state.get("sandbox", box.id)
        await store.state.put(
            "sandbox", box.id, {**record.value, "version": 2}, expect=record.version
        )
        with pytest.raises(InvalidArgument, match="version 2"):
            await box.exec(["true"])


async def test_tr2_the_view_tells_template_checkpoint_and_states(opened):
    async with opened() as box:
        await write(box, "a", "1")
        view = (await box.view()).to_dict()
    assert view["current_checkpoint_id"].startswith("cp_")
    assert view["last_activity_at"].endswith("Z")
    assert view["role"] == "primary"
    assert view["details"]["features"]["attach"] is True


async def test_a_store_has_a_folder_and_a_file_beside_it(tmp_path, monkeypatch):
    store = Store(tmp_path / "deep" / "here")
    async with pinfold.open({"target": None}, store=store, runtime=make_runtime(Cloud())) as box:
        await box.files.write("/workspace/a", b"1")
    assert (tmp_path / "deep" / "here.sqlite").is_file()
    with pytest.raises(InvalidArgument):
        Store(tmp_path / "x", keep=0)
    with pytest.raises(InvalidArgument):
        Store(CheckpointStore(tmp_path / "x"))
    with pytest.raises(InvalidArgument, match="can be no store"):
        Store("/")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, folder in (
        (".", tmp_path), ("deep/..", tmp_path), ("~/z/", tmp_path / "z"), ("~none/z", tmp_path / "~none/z")
    ):  # fmt: skip
        here = Store(name)
        assert here.checkpoints._io.objects.root == str(folder)
        assert here.state.path == folder.with_name(f"{folder.name}.sqlite")
    assert isinstance(Store(tmp_path / "y", MemoryStateStore()).state, MemoryStateStore)
