"""LC-8: fork, migrate, drain."""

from __future__ import annotations

import anyio
import pytest

import pinfold
from pinfold.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    Unavailable,
    Unreachable,
)
from pinfold.plugins import hookimpl
from tests.core.sandbox.durable_support import (
    SPEC,
    Cloud,
    kinds,
    make_runtime,
    make_store,
    read,
    soon,
    until,
    write,
)
from tests.core.support import vfs_provider

pytestmark = pytest.mark.anyio


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
