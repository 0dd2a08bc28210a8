"""The lane: bashkit as a target under test (PR-1)."""

from importlib.metadata import entry_points
from pathlib import PurePosixPath

import anyio
import pytest

from pinfold.errors import Lost
from pinfold.plugins import Catalog
from pinfold.provider import Context, Owner
from pinfold.resolve import resolve
from pinfold.spec import PinnedSpec
from pinfold_bashkit import provider
from pinfold_bashkit.lane import lane
from tests.providers.bashkit.support import sh

pytestmark = pytest.mark.anyio

F = PurePosixPath("/workspace/d/f")


def test_it_is_found_by_its_entry_point():
    """PR-1."""
    (entry,) = entry_points(group="pinfold.lanes", name="bashkit")
    assert entry.load() is lane
    (entry,) = entry_points(group="pinfold.providers", name="bashkit")
    assert entry.load() is lane.provider is provider


def test_its_specs_cover_what_the_descriptor_claims():
    """TR-1: every level, network mode and durability, and each of them is sound."""
    specs = [resolve(spec, Catalog([provider])) for spec in lane.specs]
    (row,) = provider.descriptor.containment
    assert {spec.containment.level for spec in specs} == {row.level}
    assert {spec.containment.network.mode for spec in specs} == row.networks
    assert {spec.durability for spec in specs} == provider.descriptor.durabilities


@pytest.fixture
async def made():
    pinned = PinnedSpec(spec=resolve(lane.specs[0], Catalog([provider])))
    instance = await lane.make(pinned, Context(owner=Owner(store="st_lane")))
    yield instance
    await instance.destroy()


async def test_it_can_be_used_here():
    """PR-4."""
    assert await lane.unavailable() is None


async def test_the_witness_sees_what_commands_see(made):
    """The second way in leads to the same place."""
    witness = lane.witness(made)
    assert witness is not None
    await witness.write(F, b"\xff")
    await witness.link(PurePosixPath("/workspace/l"), "/etc/passwd")
    assert (await sh(made, "cat d/f; readlink l")).stdout == b"\xff/etc/passwd\n"
    await sh(made, "printf new > d/f; touch d/e")
    assert await witness.read(F) == b"new"
    assert await witness.list(PurePosixPath("/workspace/d")) == ["e", "f"]
    with pytest.raises(FileNotFoundError):
        await witness.read(PurePosixPath("/workspace/l"))


async def test_the_witness_tells_a_heartbeat(made):
    """Both ways: while a command writes, and after."""
    witness = lane.witness(made)
    assert witness is not None
    await witness.write(F, b"")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, made, "while :; do echo beat >> d/f; sleep 0.02; done")
        assert await witness.is_alive(F)
        tasks.cancel_scope.cancel()
    assert not await witness.is_alive(F)


async def test_reset_gives_a_fresh_sandbox(made):
    """Files everywhere, and everything that a command left."""
    await sh(made, "echo x > f; echo x > /tmp/f; mkdir /top")
    await lane.reset(made)
    result = await sh(made, "ls . /tmp /; cat f")
    assert "f" not in result.stdout_text.split()
    assert "top" not in result.stdout_text.split()


async def test_a_sandbox_can_be_lost(made):
    """LC-5: and is then lost, not merely unreachable."""
    assert await lane.lose(made.ref)
    with pytest.raises(Lost):
        await sh(made, "true")
    assert not await lane.cut(made.ref)
