"""CP-2, CP-3, CP-8: back to a checkpoint, exactly, though cut short or damaged."""

from __future__ import annotations

import anyio
import pytest

import pinfold
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import (
    CheckpointCorrupt,
    Conflict,
    NotFound,
)
from pinfold.sandbox import Store, gc
from tests.core.sandbox.durable_support import (
    kinds,
    read,
    soon,
    write,
)

pytestmark = pytest.mark.anyio


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
