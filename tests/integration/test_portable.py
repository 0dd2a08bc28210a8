"""CP-1, CP-4, LC-8: a checkpoint taken on any provider restores on any other, byte for byte."""

from __future__ import annotations

import itertools

import attrs
import pytest

import pinfold
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import InvalidArgument
from pinfold.plugins import Entries, Hooks, Loaded
from pinfold.provider import FileType
from pinfold.sandbox import Runtime, Store
from pinfold.spec import Durability, Spec
from pinfold.state import MemoryStateStore

pytestmark = pytest.mark.anyio

#: One lane for each provider and level that keeps portable checkpoints; "nothing" has no compute.
LANES = ["nothing", "bashkit", "host-none", "host-native", "docker"]
W = "/workspace"


async def spec_of(name: str) -> Spec | None:
    """Return the usual spec of a lane, checkpointed; a lane that is away fails under strict."""
    if name == "nothing":
        return Spec(target=None)
    found = Entries("pinfold.lanes").load(name)
    if not isinstance(found, Loaded):
        pytest.fail(f"lane {name} is not there: {found}")
    lane = found.value
    reason = await lane.unavailable()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return attrs.evolve(lane.specs[0], durability=Durability.CHECKPOINTED)


@pytest.fixture
def store(tmp_path):
    return Store(CheckpointStore(tmp_path / "checkpoints", fsync=False), MemoryStateStore())


async def plant(box) -> None:
    """Make a tree of everything that every target can represent."""
    async with box.batch():
        await box.files.write(f"{W}/plain", b"text\n")
        await box.files.write(f"{W}/bytes", bytes(range(256)) * 5)
        await box.files.write(f"{W}/empty", b"")
        await box.files.write(f"{W}/large", b"0123456789abcdef" * (9 << 16))  # chunked: over 8 MiB
        await box.files.write(f"{W}/run me", b"#!/bin/sh\necho hi\n", mode=0o755)
        await box.files.write(f"{W}/d/deep/er/é ü-_.~", b"x", mode=0o600)
        await box.files.make_directory(f"{W}/d/nothing/in here")
        await box.files.symlink(f"{W}/link", "d/deep")
        await box.files.symlink(f"{W}/dangling", "not/there")
        await box.files.symlink(f"{W}/out", "/etc/passwd")


async def entries(box):
    """Return what a tree is, times aside: they are stored, not compared (CP-1)."""
    record = await box.checkpoint()
    found = await box.store.checkpoints.entries(record)
    return record.tree_digest, [attrs.evolve(entry, mtime_ns=0) for entry in found]


@pytest.mark.parametrize(
    ("source", "target"),
    [pair for pair in itertools.permutations(LANES, 2) if "bashkit" in pair or "host-none" in pair],
)
async def test_cp4_a_checkpoint_goes_there_and_back_byte_for_byte(
    store, source, target, anyio_backend_name
):
    runtime = Runtime(hooks=Hooks())
    here, there = await spec_of(source), await spec_of(target)

    box = await pinfold.open(here, name="here", store=store, runtime=runtime)
    try:
        await plant(box)
        before = await entries(box)
        other = await box.fork(name="there", spec=there)
        try:
            assert await entries(other) == before
            back = await other.fork(name="back", spec=here)
            try:
                assert await entries(back) == before
                assert await back.files.read(f"{W}/bytes") == bytes(range(256)) * 5
            finally:
                await back.delete()
        finally:
            await other.delete()
        assert await entries(box) == before
    finally:
        await box.delete()


async def test_cp4_what_a_target_cannot_represent_is_refused_by_name_and_nothing_is_left(store):
    runtime = Runtime(hooks=Hooks())
    here, there = await spec_of("host-none"), await spec_of("bashkit")

    box = await pinfold.open(here, name="here", store=store, runtime=runtime)
    try:
        await box.files.write(f"{W}/two\nlines", b"x")
        other = await box.fork(name="there", spec=there)
        with pytest.raises(InvalidArgument, match=r"two\\nlines"):
            await other.start()
        await other.delete()
        with pytest.raises(InvalidArgument, match=r"two\\nlines"):
            await box.migrate(there, name="elsewhere")
        assert await box.files.read(f"{W}/two\nlines") == b"x"
        names = [view.name for view in await pinfold.list(store=store, runtime=runtime)]
        assert names == ["here"]
    finally:
        await box.delete()


async def test_the_tree_that_is_planted_has_every_kind_of_entry(store):
    box = await pinfold.open({"target": None}, store=store, runtime=Runtime(hooks=Hooks()))
    await plant(box)
    _, found = await entries(box)
    assert {entry.type for entry in found} == {FileType.FILE, FileType.DIRECTORY, FileType.SYMLINK}
    assert len(found) == 14
