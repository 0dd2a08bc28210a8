"""CP-8: a store that is damaged, or not ours alone, or of a later version."""

import json
import os
import shutil
from pathlib import Path

import anyio
import pytest

from pinfold.checkpoint import CheckpointRecord, CheckpointStore, LocalObjects
from pinfold.checkpoint._keys import object_key, record_key
from pinfold.errors import (
    CheckpointCorrupt,
    Internal,
    InvalidArgument,
    NotFound,
)
from pinfold.provider import RestorePlan
from tests.core.checkpoint.folder import FolderTree, contents
from tests.core.checkpoint.world import World, in_other_process

pytestmark = pytest.mark.anyio

MIB = 2**20


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def swap(path: Path) -> None:
    """Another object's bytes, themselves in order."""
    others = [p for p in path.parents[2].rglob("*") if p.is_file() and p.parent != path.parent]
    path.write_bytes(max(others, key=lambda p: p.parents[1] == path.parents[1]).read_bytes())


DAMAGE = {
    "flipped": flip,
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "swapped": swap,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"more"),
}


@pytest.fixture
def world(tmp_path):
    """Two checkpoints; the second shares some contents and has a large file of its own."""
    world = World(tmp_path)
    store = world.open()
    (world.tree.root / "kept").write_bytes(b"in both")
    world.change_small()
    in_other_process(lambda: anyio.run(world.commit_async, store))
    (world.tree.root / "large").write_bytes(os.urandom(9 * MIB))
    (world.tree.root / "sub").mkdir()
    (world.tree.root / "sub" / "own").write_bytes(b"of the second alone")
    in_other_process(lambda: anyio.run(world.commit_async, store))
    return world


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_is_refused_by_name_and_touches_nothing_else(world, name):
    """CP-8: every object in turn. The live tree is untouched, the other checkpoint still works."""
    root = world.place / "store"
    (first, first_tree), (second, _) = world.acknowledged.values()
    needed = {}
    for record in (first, second):
        needed[record.checkpoint_id] = keys_of(root, record)
    only_second = needed[second.checkpoint_id] - needed[first.checkpoint_id]
    assert len(only_second) >= 7  # root, sub, own, list, three chunks
    live = FolderTree(world.place / "live")
    (live.root / "precious").write_bytes(b"x")
    for key in sorted(only_second):
        kept = (root / key).read_bytes()
        DAMAGE[name](root / key)
        store = world.open()
        gone = name == "missing" and key.startswith("records/")
        with pytest.raises(NotFound if gone else CheckpointCorrupt) as caught:
            await store.restore(live, await store.record(second.checkpoint_id, sandbox="sbx_w"))
        assert contents(live.root).keys() == {"precious"}
        report = await store.verify()
        if not gone:
            assert caught.value.details["object"] == key
            assert key in str(caught.value)
            assert [problem.object for problem in report.problems] == [key]
            assert report.problems[0].checkpoints == (second.checkpoint_id,)
        target = FolderTree(world.place / "target")
        await store.restore(target, first)
        assert contents(target.root) == first_tree
        shutil.rmtree(target.root)
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(kept)
    assert (await world.open().verify()).problems == ()


def keys_of(root: Path, record: CheckpointRecord) -> set[str]:
    """All that a record needs, found without the code under test but for its collector."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    store = CheckpointStore(LocalObjects(copy), lease_seconds=0.0)

    async def leave_it_alone() -> None:
        for other in await store.list("sbx_w"):
            if other.checkpoint_id != record.checkpoint_id:
                await store.drop("sbx_w", other.checkpoint_id)
        await store.collect()

    in_other_process(lambda: anyio.run(leave_it_alone))
    found = {str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file()}
    shutil.rmtree(copy)
    return {key for key in found if key.startswith(("objects/", "chunked/", "records/"))}


@pytest.mark.parametrize("name", ["flipped", "missing"])
async def test_a_damaged_manifest_stops_a_collection(world, name):
    """CP-10: what can't be understood may need anything."""
    _, second = (record for record, _ in world.acknowledged.values())
    key = object_key(second.manifest.removeprefix("sha256:"))
    DAMAGE[name](world.place / "store" / key)
    store = world.open()
    before = world.keys()
    with pytest.raises(CheckpointCorrupt, match=key):
        await store.collect()
    assert world.keys() == before
    assert await store.drop("sbx_w", second.checkpoint_id)
    await store.collect()
    assert (await store.verify()).problems == ()


async def test_a_damaged_base_costs_work_and_no_more(world):
    """A checkpoint whose base can't be read is made whole from the workspace itself."""
    _, second = (record for record, _ in world.acknowledged.values())
    (world.place / "store" / object_key(second.manifest.removeprefix("sha256:"))).unlink()
    (world.tree.root / "new").write_bytes(b"new")
    store = world.open()
    record = await world.commit_async(store)
    target = FolderTree(world.place / "target")
    await store.restore(target, record)
    assert contents(target.root) == contents(world.tree.root)


async def test_a_damaged_record_hides_no_other(world, caplog):
    first, second = (record for record, _ in world.acknowledged.values())
    flip(world.place / "store" / record_key("sbx_w", second.checkpoint_id))
    store = world.open()
    assert await store.list("sbx_w") == (first,)
    assert second.checkpoint_id in caplog.text
    assert set(await store.forget("sbx_w")) == {first.checkpoint_id, second.checkpoint_id}


#: Where a person, or a program of theirs, may leave a file in a store's folder.
PLACES = (
    ".", "records", "records/sbx_w", "tags", "tags/sbx_w", "fossils", "fossils/x",
    "fossils/x/objects", "notes", "notes/x", "objects", "objects/ab", "chunked", "leases", "clock",
    "states", "tmp",
)  # fmt: skip


async def test_files_that_somebody_left_in_the_folder_are_left_alone(world):
    """A store is a folder of its owner's: what else is in it is no checkpoint, and no reason."""
    root = world.place / "store"
    names = (".DS_Store", "notes.txt~", "cp_x")
    strays = [root / place / name for place in PLACES for name in names]
    for stray in strays:
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"not ours")
    (first, _), (second, tree) = world.acknowledged.values()
    store = world.open()
    assert await store.list("sbx_w") == (first, second)
    assert await store.record(second.checkpoint_id) == second
    await store.tag(first, "one")
    assert await store.tags("sbx_w") == {"one": first.checkpoint_id}
    assert (await store.verify()).problems == ()
    assert await store.retain("sbx_w", 1) == []
    await store.untag("sbx_w", "one")
    assert await store.retain("sbx_w", 1) == [first.checkpoint_id]
    for _ in range(2):
        await store.collect()
    target = FolderTree(world.place / "target")
    await store.restore(target, second)
    assert contents(target.root) == tree
    ours = ("leases", "clock", "notes", "states", "tmp")  # whatever is there is of no use for long
    kept = [path for path in strays if path.relative_to(root).parts[0] not in ours]
    assert all(path.read_bytes() == b"not ours" for path in kept)


async def test_a_later_version_is_refused_by_name_and_nothing_is_collected(world):
    """SP-3."""
    first, _ = (record for record, _ in world.acknowledged.values())
    path = world.place / "store" / record_key("sbx_w", first.checkpoint_id)
    path.write_bytes(json.dumps({"version": 2, "new": "words"}).encode())
    store = world.open()
    with pytest.raises(InvalidArgument, match="later pinfold"):
        await store.record(first.checkpoint_id, sandbox="sbx_w")
    with pytest.raises(InvalidArgument, match="later pinfold"):
        await store.collect()


async def test_fetching_what_is_no_file_of_the_checkpoint_is_an_error(world):
    class Curious(FolderTree):
        async def restore(self, plan: RestorePlan):
            async for _ in plan.fetch("0" * 64):
                pass

    _, second = (record for record, _ in world.acknowledged.values())
    with pytest.raises(Internal):
        await world.open().restore(Curious(world.place / "x"), second)
