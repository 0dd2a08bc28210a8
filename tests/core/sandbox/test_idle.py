"""LC-7: whatever makes a sandbox ready, or uses it, says when it is to rest."""

from __future__ import annotations

import anyio
import pytest

import pinfold
from pinfold.sandbox import reap
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store

pytestmark = pytest.mark.anyio

QUICK = {**SPEC, "lifecycle": {"idle_after_seconds": 1}}


@pytest.fixture
def kept(tmp_path):
    return {"store": make_store(tmp_path), "runtime": make_runtime(Cloud())}


async def deadline(box):
    return (await box.view()).details.get("idle_deadline")


async def later(box, than):
    with anyio.fail_after(10):
        while (found := await deadline(box)) in (None, than):
            await anyio.sleep(0.01)
    return found


async def exec_(box):
    await box.exec(["true"])


async def checkpoint(box):
    await box.checkpoint()


async def restore(box):
    await box.restore((await box.checkpoints())[0].checkpoint_id)


async def write(box):
    await box.files.write("/workspace/b", b"1")


async def rest_and_wake(box):
    await box.pause()
    assert await deadline(box) is None
    await box.start()


@pytest.mark.parametrize("use", [exec_, checkpoint, restore, write, rest_and_wake])
async def test_whatever_is_done_moves_the_deadline(kept, use):
    async with pinfold.open(QUICK, name="box", **kept) as box:
        await box.files.write("/workspace/a", b"1")
        before = await deadline(box)
        assert before is not None
        await anyio.sleep(0.2)  # beyond the slack in which it need not be written
        await use(box)
        assert await later(box, before) > before


async def test_what_was_only_made_rests_though_its_controller_did_nothing_with_it(kept):
    box = await pinfold.open(QUICK, name="box", **kept)
    await box.start()
    assert await deadline(box) is not None
    await box.close()

    with anyio.fail_after(30):
        while not (done := (await reap(**kept)).done):
            await anyio.sleep(0.05)
    assert done == (box.id,)
    (view,) = await pinfold.list(**kept)
    assert view.observed_state == "paused"


async def test_what_is_to_run_on_has_no_deadline(kept):
    spec = {**SPEC, "lifecycle": {"idle_action": "keep_running", "idle_after_seconds": None}}
    async with pinfold.open(spec, name="box", **kept) as box:
        await box.files.write("/workspace/a", b"1")
        assert await deadline(box) is None
