"""The durable life that core leads on a provider: nothing acknowledged is lost (LC, CP-5)."""

from __future__ import annotations

from typing import Any

from pinfold.errors import PinfoldError, Unavailable
from pinfold.events import EventType
from pinfold.provider import InstanceStatus
from pinfold.sandbox import ObservedState, reap, reopen
from pinfold_conformance._case import Case
from pinfold_conformance._expect import Inconclusive, equal, expect_raises, fail, require
from pinfold_conformance._registry import Place, check
from pinfold_conformance.checks._durable import durable

NEEDS = {"exec", "cap:portable_checkpoint", "durability:checkpointed"}
FILE = "/workspace/file"


@check("LC-3.covered", "LC-5", needs=NEEDS, place=Place.NONE, deadline_s=120)
async def covered(case: Case) -> None:
    """What an exec or a write returned from outlives the compute: it is lost, and all is back."""
    d = case.dialect
    async with durable(case) as own:
        box = own.box
        result = await box.exec(shell=d.seq(d.mkdir("deep"), d.save("deep/made", b"1"), d.exit(3)))
        equal(result.exit_code, 3, "a command that fails, and changes the tree")
        await box.files.write(FILE, b"2")
        await box.files.write("/workspace/gone", b"3")
        await box.files.remove("/workspace/gone")
        before, current = box.generation, (await box.checkpoints())[-1].tree_digest
        if not await case.site.lane.lose(own.instance.ref):
            raise Inconclusive("the lane can't destroy compute behind the controller's back")
        equal(await box.files.read("/workspace/deep/made"), b"1", "what the exec wrote")
        result = await box.exec(shell=d.seq(d.load("file"), d.exists("gone")))
        equal((result.stdout, result.exit_code), (b"2", 1), "what was written, and removed")
        equal(box.generation, before + 1, "the generation after a loss (LC-1)")
        equal((await box.checkpoint()).tree_digest, current, "the tree after recovery")
        events = [one for one in await box.events() if one.type in _OF_A_LOSS]
        equal([one.type for one in events], list(_OF_A_LOSS), "events of a loss, in order (LC-5)")
        equal(events[-1].data.get("process_state_lost"), True, "process_state_lost")


_OF_A_LOSS = (EventType.INSTANCE_LOST, EventType.RECOVERED)


def _bootstrap(script: str) -> dict[str, Any]:
    return {"commands": [script]}


@check("LC-6.bootstrap", needs={*NEEDS, "cap:native_processes"}, place=Place.NONE, deadline_s=120)
async def bootstrap(case: Case) -> None:
    """A bootstrap command that fails makes the sandbox failed, with its output; then again."""
    d = case.dialect
    script = d.seq(d.out(b"why it failed"), d.exit(9))
    async with durable(case, bootstrap=_bootstrap(script)) as own:
        for _ in range(2):  # the next operation tries again
            with expect_raises(Unavailable, what="a start whose bootstrap fails") as caught:
                await own.box.start()
            told = caught.error
            require(told is not None and "why it failed" in str(told.to_dict()), "no output")
            state = (await own.box.view()).observed_state
            equal(state, ObservedState.FAILED, "the state after a bootstrap that failed")
    scratch = case.name("made-")
    async with durable(case, bootstrap=_bootstrap(d.save(scratch, b"1"))) as own:
        equal(await own.box.files.read(f"/workspace/{scratch}"), b"1", "what a bootstrap made")


@check("LC-7.idle", "LC-1", needs={*NEEDS, "attach"}, place=Place.NONE, deadline_s=120)
async def idle(case: Case) -> None:
    """Past its idle deadline any controller stops it; what it was like is there at the next use."""
    lifecycle = {"idle_after_seconds": 60, "idle_action": "checkpoint_and_stop"}
    async with durable(case, lifecycle=lifecycle) as own:
        box = own.box
        await box.exec(shell=case.dialect.save("file", b"kept"))
        require(((await box.view()).details or {}).get("idle_deadline"), "no deadline is shown")
        equal((await reap(own.store, own.runtime)).done, (), "what is stopped before its deadline")
        equal(await own.instance.status(), InstanceStatus.RUNNING, "before the deadline")
        own.later(120)  # the deadline is written with some slack
        equal((await reap(own.store, own.runtime)).done, (box.id,), "what is stopped after it")
        status = await own.instance.status()
        require(
            status in (InstanceStatus.PAUSED, InstanceStatus.ABSENT),
            f"the compute of a sandbox at rest is {status}",
        )
        again = await reopen(box.id, store=own.store, runtime=own.runtime)
        try:
            equal(await again.files.read(FILE), b"kept", "a file after a rest")
        finally:
            await again.close()


@check("LC-8.fork", needs=NEEDS, place=Place.NONE, deadline_s=180)
async def fork(case: Case) -> None:
    """A fork begins with the source's tree and shares nothing with it from there on."""
    d = case.dialect
    async with durable(case) as own:
        await own.box.exec(shell=d.seq(d.save("file", b"source"), d.save("other", b"1")))
        other = await own.box.fork()
        try:
            equal(await other.files.read(FILE), b"source", "a file in the fork")
            await other.exec(shell=d.seq(d.save("file", b"fork"), d.remove("other")))
            equal(await own.box.files.read(FILE), b"source", "the source's file")
            await own.box.files.write(FILE, b"source, later")
            equal((await other.exec(shell=d.load("file"))).stdout, b"fork", "the fork's file")
        finally:
            await other.delete()
            await other.close()
        found = await own.box.exec(shell=d.seq(d.load("file"), d.load("other")))
        equal(found.stdout, b"source, later1", "the source after the fork's end")


@check("LC-8.drain", needs=NEEDS, place=Place.NONE, deadline_s=180)
async def drain(case: Case) -> None:
    """A migration goes on elsewhere with the same tree; the source is drained, not destroyed."""
    d = case.dialect
    async with durable(case) as own:
        await own.box.exec(shell=d.save("file", b"moved"))
        source = own.instance
        moved = await own.box.migrate(own.box.pinned.spec)
        try:
            equal((await moved.exec(shell=d.load("file"))).stdout, b"moved", "the file elsewhere")
            try:
                await own.box.exec(shell=d.out(b"x"))
            except PinfoldError as exc:
                case.evidence["refused by"] = exc.code
            else:
                fail("a drained sandbox takes new work (LC-8)")
            equal(await source.status(), InstanceStatus.RUNNING, "the drained compute")
            equal(await source.files.read(FILE), b"moved", "its file")
        finally:
            await moved.delete()
            await moved.close()


@check("CP-5.proportion", needs=NEEDS, place=Place.NONE, deadline_s=180)
async def proportion(case: Case) -> None:
    """A second checkpoint reads what changed, not the whole tree; the first is as it was."""
    size, count = 20_000, 40
    async with durable(case) as own:
        box = own.box
        async with box.batch():
            for number in range(count):
                await box.files.write(f"/workspace/d{number % 5}/f{number}", case.bytes(size))
        first = await box.checkpoint()
        before = own.bytes_read
        require(before >= size * count, f"a first checkpoint read {before} bytes of {size * count}")
        await box.files.write("/workspace/d1/f1", case.bytes(size))
        second = await box.checkpoint()
        require(second.checkpoint_id != first.checkpoint_id, "a change is no new checkpoint")
        read = own.bytes_read - before
        case.evidence.update(first=before, second=read)
        require(
            read <= 2 * size,
            f"a checkpoint of {size} changed bytes read {read} (CP-5)",
        )
        await box.restore(first.checkpoint_id)
        equal((await box.checkpoint()).tree_digest, first.tree_digest, "the first, restored")
