"""LC-4, LC-5: what is lost without a copy is said and noted by the very call that finds it."""

from __future__ import annotations

import pytest

import pinfold
from pinfold.errors import Lost
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store

pytestmark = pytest.mark.anyio


async def test_lc4_the_call_that_finds_the_loss_notes_it(tmp_path):
    cloud = Cloud()
    spec = {**SPEC, "durability": "none"}
    kept = {"store": make_store(tmp_path), "runtime": make_runtime(cloud)}
    async with pinfold.open(spec, name="box", **kept) as box:
        await box.exec(["write", "a", "1"])
        cloud.lose()
        for _ in range(2):
            with pytest.raises(Lost, match="durability none keeps no copy"):
                await box.exec(["read", "a"])
            kinds = [str(event.type) for event in await box.events()]
            assert kinds == ["sandbox.created", "sandbox.ready", "sandbox.instance_lost"]
            assert (await box.view()).observed_state == "lost"
        assert cloud.ran == ["write a 1"]
        await box.delete()
