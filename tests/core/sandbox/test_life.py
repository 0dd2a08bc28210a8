"""LC-1, LC-3, EV: a sandbox in the ordinary: generation, a checkpoint before success, journal."""

from __future__ import annotations

import anyio
import pytest

import pinfold
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import (
    AlreadyExists,
    Effect,
    InvalidArgument,
    NoSpace,
    NotFound,
    SpecInvalid,
)
from pinfold.plugins import hookimpl
from pinfold.provider import Features
from pinfold.sandbox import Store
from pinfold.state import MemoryStateStore
from tests.core.sandbox.durable_support import (
    SPEC,
    Cloud,
    kinds,
    make_runtime,
    make_store,
    read,
    write,
)

pytestmark = pytest.mark.anyio


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
