"""Stores that are damaged, hostile, full, read-only, flaky or wrong about the time (CP-8)."""

import errno
import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import anyio
import attrs
import fsspec
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from pinfold.checkpoint import CheckpointRecord, CheckpointStore, FsspecObjects, LocalObjects
from pinfold.checkpoint._codec import pack
from pinfold.checkpoint._keys import chunked_key, object_key, record_key
from pinfold.checkpoint._record import encode_record
from pinfold.errors import (
    CheckpointCorrupt,
    Internal,
    InvalidArgument,
    NoSpace,
    NotFound,
    PermissionDenied,
    PinfoldError,
    Unavailable,
    Unreachable,
)
from pinfold.memory import MemoryTree, Store
from pinfold.provider import Blob, RestorePlan
from tests.core.checkpoint.conftest import options_for, s3_server
from tests.core.checkpoint.folder import FolderTree, contents
from tests.core.checkpoint.stores import AnyError, Failing, os_error
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


# --- hostile trees ---


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


# --- places that fail ---


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (os_error(errno.ENOSPC), NoSpace),
        (os_error(errno.EDQUOT), NoSpace),
        (os_error(errno.EACCES), PermissionDenied),
        (os_error(errno.EROFS), PermissionDenied),
        (os_error(errno.EIO), Unavailable),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Unreachable),
        (TimeoutError("slow"), Unreachable),
        (FileNotFoundError(errno.ENOENT, "no such bucket"), NotFound),
        (EndpointConnectionError(endpoint_url="http://user:hunter2@x"), Unavailable),
        (ClientError({"Error": {"Code": "500", "Message": "hunter2"}}, "PutObject"), Unavailable),
        (RuntimeError("hunter2"), Unavailable),
    ],
    ids=range(11),
)
async def test_each_failure_of_a_place_has_its_type_and_no_secret(error, kind, tmp_path):
    """ER-1, PR-5."""
    store = CheckpointStore(FsspecObjects(AnyError(error), "bucket"))
    tree = FolderTree(tmp_path / "w")
    (tree.root / "a").write_bytes(b"x")
    with pytest.raises(PinfoldError) as caught:
        await store.commit(tree, sandbox="s", generation=1)
    assert type(caught.value) is kind
    assert "hunter2" not in str(caught.value) + json.dumps(caught.value.to_dict())
    assert caught.value.retryable is issubclass(kind, Unavailable)


@pytest.mark.parametrize("every", [2, 3, 4, 5, 7])
async def test_a_store_that_fails_now_and_then_loses_nothing(tmp_path, every):
    """A typed, retryable error, or a checkpoint that is whole."""
    inner = LocalObjects(tmp_path / "store")
    tree = FolderTree(tmp_path / "w")
    flaky = CheckpointStore(Failing(inner, every))
    base, failed = None, 0
    for number in range(6):
        (tree.root / f"f{number % 3}").write_bytes(b"%d" % number)
        try:
            base = (await flaky.commit(tree, sandbox="s", generation=1, base=base)).record
            await flaky.collect()
        except Unavailable:
            failed += 1
    assert failed
    good = CheckpointStore(inner, lease_seconds=0.0)
    assert (await good.verify()).problems == ()
    if base is not None:
        assert base in await good.list("s")
    last = (await good.commit(tree, sandbox="s", generation=1, base=base)).record
    await good.collect()
    await good.collect()
    target = FolderTree(tmp_path / "t")
    await good.restore(target, last)
    assert contents(target.root) == contents(tree.root)


async def test_a_clock_that_jumps_back_changes_no_order(tmp_path):
    """Retention keeps the newest, whatever the clock says of them."""
    times = iter([10**18, 5 * 10**17, 1, 0, -5])
    store = CheckpointStore(tmp_path / "store", now_ns=lambda: next(times))
    tree = FolderTree(tmp_path / "w")
    base, records = None, []
    for number in range(5):
        (tree.root / "f").write_bytes(b"%d" % number)
        base = (await store.commit(tree, sandbox="s", generation=1, base=base)).record
        records.append(base)
    assert await store.list("s") == tuple(records)
    await store.retain("s", 2)
    assert await store.list("s") == tuple(records[3:])


async def test_a_lease_from_the_future_does_not_hold_up_collections_for_ever(tmp_path):
    store = CheckpointStore(tmp_path / "store")
    (tmp_path / "store" / "leases").mkdir(parents=True)
    lease = tmp_path / "store" / "leases" / "dead"
    lease.write_bytes(b"{}")
    os.utime(lease, (2**33, 2**33))
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"x")
    record = (await store.commit(tree, sandbox="s", generation=1)).record
    await store.drop("s", record.checkpoint_id)
    report = await store.collect()
    assert report.deleted == 2
    assert not lease.exists()


@pytest.mark.parametrize(("at", "prefix"), [("sync", ""), ("put", "records/")], ids=["sync", "put"])
async def test_a_writer_that_outlives_its_lease_does_not_commit(tmp_path, at, prefix):
    """CP-10: its record is taken back, as its objects may be gone."""
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"x")

    def expire(step, key):
        if step == at and key.startswith(prefix):
            shutil.rmtree(tmp_path / "store" / "leases", ignore_errors=True)

    store = CheckpointStore(tmp_path / "store", on_step=expire)
    with pytest.raises(Unavailable, match="lease") as caught:
        await store.commit(tree, sandbox="s", generation=1)
    assert caught.value.retryable
    assert await store.list("s") == ()


MOUNTED = """
import sys, anyio, os
from pathlib import Path
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import NoSpace, PermissionDenied
from tests.core.checkpoint.folder import FolderTree, contents

mode, mount, place = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

async def main():
    tree = FolderTree(place / "w")
    (tree.root / "small").write_bytes(os.urandom(1000))
    store = CheckpointStore(mount / "store", lease_seconds=0.0)
    first = (await store.commit(tree, sandbox="s", generation=1)).record
    before = contents(tree.root)
    (tree.root / "more").write_bytes(os.urandom(5 * 2**20))
    if mode == "full":
        expected = NoSpace
    else:
        assert os.system(f"mount -o remount,ro {mount}") == 0
        expected = PermissionDenied
    try:
        await store.commit(tree, sandbox="s", generation=1, base=first)
    except expected as exc:
        print("refused:", exc)
    else:
        raise AssertionError("not refused")
    assert await store.list("s") == (first,)
    target = FolderTree(place / "t")
    await store.restore(target, first)
    assert contents(target.root) == before
    if mode == "full":  # room again: what the failed one left is collected
        await store.collect()
        (tree.root / "more").write_bytes(b"less")
        await store.commit(tree, sandbox="s", generation=1, base=first)
        assert (await store.verify()).problems == ()

anyio.run(main)
print("fine")
"""


@pytest.mark.parametrize("mode", ["full", "read-only"])
def test_a_full_disk_and_a_read_only_one_are_typed_errors(mode, tmp_path):
    """On a small tmpfs in a mount namespace of its own: NoSpace, PermissionDenied; nothing lost."""
    mount = tmp_path / "mount"
    mount.mkdir()
    options = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    script = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" -c "$3" "$4" "$1" "$5"'
    argv = ["sh", "-c", script, "sh", mount, sys.executable, MOUNTED, mode, tmp_path]
    done = subprocess.run(
        ["unshare", *options, *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr
    assert "refused:" in done.stdout


# --- S3 ---


async def test_a_bucket_that_is_not_there_is_said_so(s3_options, tmp_path):
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"x")
    store = CheckpointStore("s3://no-such-bucket-here/x", options=s3_options)
    with pytest.raises(NotFound, match="write"):
        await store.commit(tree, sandbox="s", generation=1)


async def test_a_server_that_is_not_there_is_said_so(tmp_path):
    options = {
        "key": "k",
        "secret": "hunter2",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"},
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
    }
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"x")
    store = CheckpointStore("s3://bucket/x", options=options)
    with pytest.raises(Unavailable) as caught:
        await store.commit(tree, sandbox="s", generation=1)
    assert "hunter2" not in str(caught.value)


async def test_a_store_that_dies_in_the_middle_is_a_typed_error(tmp_path):
    """The server is killed when half of it is sent; what is no commit is not said to be one."""
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"x")
    with s3_server() as (server, url):
        fsspec.filesystem("s3", **options_for(url)).mkdir("bucket")

        def kill(step, key):
            if step == "put.done" and not key.startswith("leases/"):
                server.kill()
                server.wait()

        store = CheckpointStore("s3://bucket/x", options=options_for(url), on_step=kill)
        with pytest.raises(Unavailable) as caught:
            await store.commit(tree, sandbox="s", generation=1)
        assert caught.value.retryable


@pytest.mark.parametrize(
    "place",
    ["nothing-like-this://x", "s3://key:hunter2@bucket/x", 3, None],
    ids=str,
)
def test_a_place_that_can_be_none_is_refused(place):
    with pytest.raises(InvalidArgument) as caught:
        CheckpointStore(place)
    assert "hunter2" not in str(caught.value)


def test_a_known_place_is_opened(tmp_path):
    assert "LocalObjects" in repr(CheckpointStore(tmp_path))
    assert "LocalObjects" in repr(CheckpointStore(f"file://{tmp_path}"))
    assert "'memory'" in repr(CheckpointStore("memory://x"))
    assert "'s3'" in repr(CheckpointStore("s3://bucket/prefix"))
    assert fsspec.filesystem("memory") is not None


async def test_fetching_what_is_no_file_of_the_checkpoint_is_an_error(world):
    class Curious(FolderTree):
        async def restore(self, plan: RestorePlan):
            async for _ in plan.fetch("0" * 64):
                pass

    _, second = (record for record, _ in world.acknowledged.values())
    with pytest.raises(Internal):
        await world.open().restore(Curious(world.place / "x"), second)
