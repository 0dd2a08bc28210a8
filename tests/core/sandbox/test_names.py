"""What a durable sandbox may be called, and what becomes of one that was drained."""

from __future__ import annotations

import pytest

import pinfold
from pinfold.errors import Conflict, InvalidArgument
from pinfold.provider import Features
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store
from tests.core.support import ToyProvider

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["attach", "no attach"])
def kept(request, tmp_path):
    provider = Cloud() if request.param == "attach" else ToyProvider(features=Features())
    return {"store": make_store(tmp_path), "runtime": make_runtime(provider)}


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a:b", "-a", ".a", "a b", "é", "a\n", "x" * 64, "sbx_1", "a.toml", "a.json", 1],
    ids=repr,
)
async def test_a_name_that_a_command_line_could_take_for_something_else_is_refused(kept, name):
    with pytest.raises(InvalidArgument, match="can't be called"):
        await pinfold.open(SPEC, name=name, **kept)
    async with pinfold.open(SPEC, name="box", **kept) as box:
        with pytest.raises(InvalidArgument, match="can't be called"):
            await box.fork(name=name)
    assert [view.name for view in await pinfold.list(**kept)] == ["box"]


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-9", "x" * 63, "toml", "sbx", "a.toml.bak"])
async def test_any_other_name_finds_its_sandbox_again(kept, name):
    async with pinfold.open(SPEC, name=name, **kept) as box:
        sandbox_id = box.id
    for asked in (name, sandbox_id):
        async with pinfold.reopen(asked, **kept) as box:
            assert box.id == sandbox_id


async def test_without_a_name_it_is_called_by_its_id(kept):
    async with pinfold.open(SPEC, **kept) as box:
        assert box.name == box.id


async def test_lc8_what_was_drained_stays_so_when_its_controller_ends(kept):
    async with pinfold.open(SPEC, name="box", **kept) as box:
        await box.files.write("/workspace/a", b"1")
        await box.drain(timeout_seconds=0)

    async with pinfold.reopen("box", **kept) as box:
        assert (await box.view()).observed_state == "draining"
        with pytest.raises(Conflict, match="draining"):
            await box.files.read("/workspace/a")
        other = await box.fork(name="other")
        async with other:
            assert await other.files.read("/workspace/a") == b"1"
        assert (await box.view()).observed_state == "draining"
        await box.delete()
