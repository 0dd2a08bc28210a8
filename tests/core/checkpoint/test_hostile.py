"""CP-8: trees and targets that lie."""

import json
import os
from hashlib import sha256

import attrs
import pytest

from pinfold.checkpoint import CheckpointRecord, CheckpointStore, LocalObjects
from pinfold.checkpoint._codec import pack
from pinfold.checkpoint._keys import chunked_key, object_key, record_key
from pinfold.checkpoint._record import encode_record
from pinfold.errors import (
    CheckpointCorrupt,
    Internal,
)
from pinfold.memory import MemoryTree, Store
from pinfold.provider import Blob
from tests.core.checkpoint.folder import FolderTree, contents

pytestmark = pytest.mark.anyio

MIB = 2**20


async def forged(objects: LocalObjects, *, manifest: bytes, digest: str, entries: int):
    """A record of somebody who can write to the store, and seals what they like."""
    stored = sha256(manifest).hexdigest()
    record = CheckpointRecord(
        checkpoint_id="cp_" + "f" * 32,
        sandbox_id="sbx_f",
        generation=1,
        created_ns=1,
        tree_digest=f"sha256:{digest}",
        manifest=f"sha256:{stored}",
        entries=entries,
    )
    objects.put(
        {
            object_key(stored): pack(manifest),
            record_key("sbx_f", record.checkpoint_id): encode_record(record),
        }
    )
    return record


def raw_manifest(body: bytes, extra: bytes) -> tuple[bytes, str]:
    canonical = b"pinfold tree 1\n" + body
    stored = b"pinfold manifest 1 %d\n%b%b" % (len(canonical), canonical, extra)
    return stored, sha256(canonical).hexdigest()


async def test_a_hostile_tree_is_refused_before_the_workspace_is_touched(tmp_path):
    """CP-8: a way out, a manifest that is another's, a tree without end."""
    objects = LocalObjects(tmp_path / "store")
    store = CheckpointStore(objects)
    live = FolderTree(tmp_path / "live")
    (live.root / "precious").write_bytes(b"x")
    content = sha256(b"hello").hexdigest().encode()
    objects.put({object_key(content.decode()): pack(b"hello")})
    bodies = [
        (b"f 644 5 " + content + b" ../../escaped\0", b"0\n"),
        (b"f 644 5 " + content + b" /escaped\0", b"0\n"),
        (b"f 644 5 " + content + b" ..\0", b"0\n"),
        (b"f 644 5 " + content + b" a\0f 644 5 " + content + b" a\0", b"0\n0\n"),
        (b"f 644 999999999999999999 " + content + b" a\0", b"0\n"),
        (b"f 644 6 " + content + b" a\0", b"0\n"),
        (b"f 644 6 " + content + b" a\0f 644 5 " + content + b" b\0", b"0\n0\n"),
    ]
    for body, extra in bodies:
        stored, digest = raw_manifest(body, extra)
        record = await forged(objects, manifest=stored, digest=digest, entries=extra.count(b"\n"))
        with pytest.raises(CheckpointCorrupt):
            await store.restore(live, record)
        assert contents(live.root).keys() == {"precious"}
    good, digest = raw_manifest(b"f 644 5 " + content + b" a\0", b"0\n")
    for named, entries in ((content.decode(), 1), (digest, 2)):
        record = await forged(objects, manifest=good, digest=named, entries=entries)
        with pytest.raises(CheckpointCorrupt):
            await store.restore(live, record)
    record = await forged(objects, manifest=good, digest=digest, entries=1)
    await store.restore(live, record)
    assert contents(live.root).keys() == {"a"}


async def test_a_tree_that_multiplies_is_not_unrolled(tmp_path):
    """CP-8: thirty levels of ten directories each, in thirty small manifests."""
    objects = LocalObjects(tmp_path / "store")
    stored, digest = raw_manifest(b"", b"")
    for _ in range(30):
        name = sha256(stored).hexdigest()
        objects.put({object_key(name): pack(stored)})
        body = b"".join(b"d 755 %b %d\0" % (digest.encode(), n) for n in range(10))
        stored, digest = raw_manifest(body, b"0 %b\n" % name.encode() * 10)
    record = await forged(objects, manifest=stored, digest=digest, entries=5000)
    with pytest.raises(CheckpointCorrupt, match="no end"):
        await CheckpointStore(objects).restore(FolderTree(tmp_path / "live"), record)


async def test_a_list_of_chunks_is_not_believed(tmp_path):
    """CP-8: chunks that are whole, but not this file's."""
    objects = LocalObjects(tmp_path / "store")
    tree = FolderTree(tmp_path / "w")
    data = os.urandom(9 * MIB)
    (tree.root / "large").write_bytes(data)
    store = CheckpointStore(objects)
    record = (await store.commit(tree, sandbox="s", generation=1)).record
    other = os.urandom(4 * MIB)
    name = sha256(other).hexdigest()
    body = {"version": 1, "size": 9 * MIB, "chunk_size": 4 * MIB}
    last = sha256(data[8 * MIB :]).hexdigest()
    key = chunked_key(sha256(data).hexdigest())
    objects.put(
        {
            object_key(name): pack(other),
            key: pack(json.dumps({**body, "chunks": [name, name, last]}).encode()),
        }
    )
    with pytest.raises(CheckpointCorrupt, match=key):
        await store.restore(tree, record)
    assert (tree.root / "large").read_bytes() == data


class LyingTree(MemoryTree):
    """A provider that sends something else than it was asked for."""

    def __init__(self, blobs, place):
        super().__init__(Store())
        self.blobs = blobs
        self.place = place

    async def scan(self, since=None):
        return await FolderTree(self.place).scan(None)

    async def read(self, entries):
        for blob in self.blobs:
            yield blob


@pytest.mark.parametrize(
    "blobs",
    [
        [],
        [Blob(path="other", data=b"x", last=True, digest="x")],
        [Blob(path="a", data=b"x")],
        [Blob(path="a", data=b"x"), Blob(path="b", data=b"x", last=True)],
        [Blob(path="a", data=b"x", last=True), Blob(path="a", data=b"x", last=True)],
    ],
    ids=range(5),
)
async def test_a_target_that_answers_something_else_is_an_error(tmp_path, blobs):
    tree = LyingTree(blobs, tmp_path / "w")
    tree.place.mkdir()
    (tree.place / "a").write_bytes(b"aaa")
    (tree.place / "b").write_bytes(b"bbb")
    store = CheckpointStore(LocalObjects(tmp_path / "store"))
    with pytest.raises(Internal):
        await store.commit(tree, sandbox="s", generation=1)
    assert await store.list("s") == ()


async def test_a_digest_that_a_target_claims_is_not_believed(tmp_path):
    """What is stored under a digest has that digest, whatever a guest's tools say."""
    tree = FolderTree(tmp_path / "w")
    (tree.root / "a").write_bytes(b"the truth")
    claimed = sha256(b"a lie").hexdigest()

    def lie(entries):
        return tuple(attrs.evolve(e, digest=claimed) for e in entries)

    tree.entries_hook = lie
    store = CheckpointStore(LocalObjects(tmp_path / "store"))
    done = await store.commit(tree, sandbox="s", generation=1)
    assert done.record.unsettled == ("a",)
    (entry,) = await store.entries(done.record)
    assert entry.digest == sha256(b"the truth").hexdigest()
    assert not (tmp_path / "store" / object_key(claimed)).exists()
