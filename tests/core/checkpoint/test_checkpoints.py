"""Checkpoints in every kind of place (CP-1, CP-2, CP-5 to CP-7)."""

import os
import random
from hashlib import sha256
from typing import ClassVar

import pytest

from pinfold.errors import InvalidArgument, NotFound
from pinfold.provider import RestoreReport
from tests.core.checkpoint.folder import FolderTree, contents, nothing

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "place", ["folder", "memory", "fsspec-local", "s3"], indirect=True, ids=str
    ),
]

MIB = 2**20


def fill(root, seed=0):
    """Files of every size class, odd names, links that lead out, an empty directory, modes."""
    chance = random.Random(seed)  # noqa: S311
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a" / "text.txt").write_text("hello\n" * 100)
    (root / "a" / "b" / "none").write_bytes(b"")
    (root / "a" / "b" / "same").write_text("hello\n" * 100)
    (root / "a b\nc").write_bytes(chance.randbytes(3000))
    (root / "-é😀").write_bytes(b"names")
    (root / os.fsdecode(b"raw-\xff\xfe")).write_bytes(b"not UTF-8")
    (root / "tool").write_bytes(b"#!/bin/sh\n")
    (root / "tool").chmod(0o755)
    (root / "secret").write_bytes(b"x")
    (root / "secret").chmod(0o600)
    (root / "empty").chmod(0o700)
    (root / "out").symlink_to("../../../etc/passwd")
    (root / "dangling").symlink_to("a/nothing")
    (root / "medium").write_bytes(chance.randbytes(8 * MIB))
    (root / "large").write_bytes(chance.randbytes(8 * MIB + 1))
    os.mkfifo(root / "pipe")


async def test_a_checkpoint_gives_back_exactly_that_tree(store, tree, other):
    """CP-2: what was added is gone, what was deleted is back; modes, names, links verbatim."""
    fill(tree.root)
    done = await store.commit(tree, sandbox="sbx_a", generation=3)
    assert done.created
    record = done.record
    assert (record.sandbox_id, record.generation, record.parent) == ("sbx_a", 3, None)
    assert record.skipped == ("pipe",)
    assert record.unsettled == ()
    await store.restore(other, record)
    (tree.root / "pipe").unlink()
    assert contents(other.root) == contents(tree.root)
    assert other.root.joinpath("tool").stat().st_mtime_ns == (
        tree.root.joinpath("tool").stat().st_mtime_ns
    )
    assert await store.record(record.checkpoint_id) == record
    assert await store.record(record.checkpoint_id, sandbox="sbx_a") == record
    assert await store.list("sbx_a") == (record,)
    assert await store.list("sbx_b") == ()


async def test_equal_trees_have_equal_digests(store, tree, other):
    """CP-1: whatever their times and however they came about."""
    fill(tree.root)
    first = await store.commit(tree, sandbox="sbx_a", generation=1)
    await store.restore(other, first.record)
    os.utime(other.root / "tool", (1, 1))
    second = await store.commit(other, sandbox="sbx_b", generation=1)
    assert second.record.tree_digest == first.record.tree_digest
    assert second.bytes_sent == 0
    (other.root / "tool").chmod(0o700)
    third = await store.commit(other, sandbox="sbx_b", generation=1)
    assert third.record.tree_digest != first.record.tree_digest


async def test_what_did_not_change_is_neither_read_nor_sent(store, tree):
    """CP-5, CP-7: cost and bytes in proportion to what changed."""
    for folder in range(5):
        (tree.root / str(folder)).mkdir()
        for file in range(5):
            place = tree.root / str(folder) / str(file)
            place.write_bytes(os.urandom(1000))
    first = await store.commit(tree, sandbox="sbx_a", generation=1)
    assert first.files_sent == 25
    # As after more than 2 s: see the racy-clean rule, which the tree tests of each provider prove.
    state = first.state
    object.__setattr__(state, "started_ns", state.started_ns + 10 * 10**9)
    tree.hashed.clear()
    tree.sent.clear()
    same = await store.commit(tree, sandbox="sbx_a", generation=1, base=first.record, state=state)
    assert same.record == first.record
    assert not same.created
    assert tree.hashed == tree.sent == []
    (tree.root / "3" / "4").write_bytes(b"changed")
    (tree.root / "2" / "new").write_bytes(b"new")
    (tree.root / "1" / "0").unlink()
    (tree.root / "4").rename(tree.root / "0" / "moved")
    object.__setattr__(same.state, "started_ns", state.started_ns)
    third = await store.commit(
        tree, sandbox="sbx_a", generation=2, base=first.record, state=same.state
    )
    assert sorted(tree.sent) == ["2/new", "3/4"]
    assert third.bytes_sent == 10
    assert third.record.parent == first.record.checkpoint_id
    assert third.record.created_ns > first.record.created_ns


async def test_a_large_file_is_stored_in_chunks(store, tree, other):
    """CP-5: above 8 MiB one changed chunk costs one chunk."""
    data = bytearray(os.urandom(21 * MIB))
    (tree.root / "large").write_bytes(data)
    first = await store.commit(tree, sandbox="sbx_a", generation=1)
    before = stored_bytes(store)
    data[5 * MIB] ^= 1
    (tree.root / "large").write_bytes(data)
    second = await store.commit(tree, sandbox="sbx_a", generation=1, base=first.record)
    assert 4 * MIB <= stored_bytes(store) - before < 4.1 * MIB
    await store.restore(other, second.record)
    assert contents(other.root) == contents(tree.root)
    await store.restore(other, first.record)
    data[5 * MIB] ^= 1
    assert (other.root / "large").read_bytes() == data
    assert (await store.verify()).problems == ()


def stored_bytes(store):
    objects = store._io.objects
    return sum(o.size for prefix in ("objects", "chunked") for o in objects.list(prefix))


async def test_tags_retention_and_collection(store, tree, other):
    """CP-10: what is kept stays whole; what nothing needs goes, and no more than that."""
    records, base, state = [], None, None
    for number in range(5):
        (tree.root / "file").write_bytes(b"%d" % number * 1000)
        (tree.root / f"own{number}").write_bytes(b"own %d" % number)
        done = await store.commit(tree, sandbox="sbx_a", generation=1, base=base, state=state)
        base, state = done.record, done.state
        records.append(done.record)
    await store.tag(records[1], "good")
    assert await store.tags("sbx_a") == {"good": records[1].checkpoint_id}
    dropped = await store.retain("sbx_a", 1, protect=[records[0].checkpoint_id])
    assert set(dropped) == {records[2].checkpoint_id, records[3].checkpoint_id}
    assert await store.list("sbx_a") == (records[0], records[1], records[4])
    report = await store.collect()
    assert report.pending == 0
    assert report.deleted == 4  # two contents of `file`, and two roots; each own file is needed
    assert report.deleted_bytes > 0
    for record in (records[0], records[1], records[4]):
        await store.restore(other, record)
    assert contents(other.root) == contents(tree.root)
    with pytest.raises(NotFound):
        await store.record(records[2].checkpoint_id)
    with pytest.raises(NotFound):
        await store.tag(records[2], "late")
    assert not await store.drop("sbx_a", records[1].checkpoint_id)
    await store.untag("sbx_a", "good")
    assert await store.drop("sbx_a", records[1].checkpoint_id)
    assert len(await store.forget("sbx_a")) == 2
    await store.collect()
    assert stored_bytes(store) == 0


async def test_a_fork_has_checkpoints_of_its_own(store, tree, other):
    """LC-8: nothing is copied, and the source may go."""
    fill(tree.root)
    source = (await store.commit(tree, sandbox="sbx_a", generation=4)).record
    before = stored_bytes(store)
    fork = await store.adopt(source, sandbox="sbx_b", generation=0)
    assert stored_bytes(store) == before
    assert (fork.sandbox_id, fork.generation, fork.parent) == ("sbx_b", 0, source.checkpoint_id)
    assert fork.tree_digest == source.tree_digest
    await store.forget("sbx_a")
    await store.collect()
    await store.restore(other, fork)
    (tree.root / "pipe").unlink()
    assert contents(other.root) == contents(tree.root)


async def test_a_file_that_keeps_changing_is_stored_as_read(store, tree, other):
    """CP-6: and listed; one that vanished is not in the tree; all others are."""
    for name in ("grows", "same1", "same2", "vanishes", "still"):
        (tree.root / name).write_bytes(b"at first")
    (tree.root / "still").write_bytes(b"still")
    (tree.root / "grows").write_bytes(b"grows")
    (tree.root / "vanishes").write_bytes(b"vanishes")

    def change(path):
        if path == "grows":
            (tree.root / path).write_bytes(os.urandom(9 * MIB))
        if path == "same1":  # the one that was to be sent for both
            (tree.root / path).write_bytes(b"not the same any more")
        if path == "vanishes":
            (tree.root / path).unlink()

    tree.before_read = change
    done = await store.commit(tree, sandbox="sbx_a", generation=1)
    tree.before_read = nothing
    assert done.record.unsettled == ("grows", "same1", "vanishes")
    assert "grows" not in done.state.files
    await store.restore(other, done.record)
    assert contents(other.root) == contents(tree.root)
    tree.sent.clear()
    again = await store.commit(
        tree, sandbox="sbx_a", generation=1, base=done.record, state=done.state
    )
    assert not again.created
    assert tree.sent == []


async def test_a_scan_state_can_be_kept(store, tree):
    done = await store.commit(tree, sandbox="sbx_a", generation=1)
    (tree.root / "é").write_bytes(b"x")
    done = await store.commit(tree, sandbox="sbx_a", generation=1, base=done.record)
    assert await store.load_state(done.record, "instance") is None
    await store.save_state(done.record, "instance", done.state)
    assert await store.load_state(done.record, "instance") == done.state
    assert await store.load_state(done.record, "another") is None


async def test_names_that_can_be_no_part_of_a_key_are_refused(store, tree):
    for bad in ("", "../x", "a/b", "é", "x" * 200, "-x", None):
        with pytest.raises(InvalidArgument):
            await store.commit(tree, sandbox=bad, generation=1)
        with pytest.raises(InvalidArgument):
            await store.list(bad)
    record = (await store.commit(tree, sandbox="sbx_a", generation=1)).record
    for bad in ("", "a/b", "..", "cp_x", "é", "x" * 65):
        with pytest.raises(InvalidArgument):
            await store.tag(record, bad)
    for bad in ("", "cp_1", "../" * 12, record.checkpoint_id.upper()):
        with pytest.raises(InvalidArgument):
            await store.record(bad)
    with pytest.raises(InvalidArgument):
        await store.retain("sbx_a", -1)


async def test_progress_is_told(store, tree, other):
    fill(tree.root)
    told = []
    record = (
        await store.commit(
            tree, sandbox="s", generation=1, progress=lambda done, total: told.append((done, total))
        )
    ).record
    assert told[-1][0] == told[-1][1] > 16 * MIB
    assert told == sorted(told)
    told.clear()
    await store.restore(other, record, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] >= 16 * MIB


async def test_files_may_be_asked_for_in_any_order_and_as_often_as_wanted(store, tree, other):
    """CP-4: whatever a target skips, or wants twice, it gets the right bytes."""

    class Picky(FolderTree):
        asked: ClassVar[list[str]]

        async def restore(self, plan):
            whole = {e.digest: e.size for e in plan.entries if e.digest}
            for digest in self.asked:
                got = [piece async for piece in plan.fetch(digest)]
                assert sha256(b"".join(got)).hexdigest() == digest
                assert sum(map(len, got)) == whole[digest]
            return RestoreReport()

    count = 150 if "Local" in repr(store) else 30  # each of them is a request to a server
    for number in range(count):
        (tree.root / f"{number:03}").write_bytes(b"%d" % (number % (count - 10)) * number)
    record = (await store.commit(tree, sandbox="s", generation=1)).record
    digests = [entry.digest for entry in await store.entries(record)]
    chance = random.Random(0)  # noqa: S311
    for asked in (
        digests,
        digests[::-1],
        digests[::3],
        [*digests[:20], *digests[:20], *digests[20:]],
        chance.choices(digests, k=30),
    ):
        Picky.asked = asked
        await store.restore(Picky(other.root), record)
