"""Places that are full, read-only, flaky, away, or wrong about the time."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from pinfold.checkpoint import CheckpointStore, FsspecObjects, LocalObjects
from pinfold.errors import (
    InvalidArgument,
    NoSpace,
    NotFound,
    PermissionDenied,
    PinfoldError,
    Unavailable,
    Unreachable,
)
from tests.core.checkpoint.conftest import options_for, s3_server
from tests.core.checkpoint.folder import FolderTree, contents
from tests.core.checkpoint.stores import AnyError, Failing, os_error

pytestmark = pytest.mark.anyio


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
