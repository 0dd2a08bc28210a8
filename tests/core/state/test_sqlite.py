"""What only a file can suffer: other versions, damage, full and read-only disks, kills, forks."""

import functools
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from pinfold.errors import InvalidArgument, Locked, PermissionDenied, Unavailable
from pinfold.state import MemoryStateStore, NewEntry, Put, SqliteStateStore

pytestmark = pytest.mark.anyio


async def test_the_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "new" / "state.db"
    async with SqliteStateStore(path) as store:
        await store.put("k", "a", {}, expect=0)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for beside in path.parent.iterdir():
            assert beside.stat().st_mode & 0o077 == 0


async def test_what_was_written_outlives_the_store(tmp_path):
    async with SqliteStateStore(tmp_path / "s") as store:
        made = await store.put("k", "a", {"n": 1}, expect=0)
        entries = await store.append(NewEntry(topic="t", data={}, time_ns=1))
        identity = await store.identity()
    async with SqliteStateStore(tmp_path / "s") as store:
        assert await store.get("k", "a") == made
        assert await store.journal() == entries
        assert await store.identity() == identity


async def test_a_later_layout_is_refused_by_name(tmp_path):
    """SP-3."""
    async with SqliteStateStore(tmp_path / "s") as store:
        await store.put("k", "a", {}, expect=0)
    connection = sqlite3.connect(tmp_path / "s")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    async with SqliteStateStore(tmp_path / "s") as store:
        for call in (store.get("k", "a"), store.put("k", "b", {}, expect=0)):
            with pytest.raises(InvalidArgument, match="version 2") as caught:
                await call
            assert caught.value.details == {"version": 2, "supported": 1}


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"no database" * 200, Unavailable), (b"\0" * 4096, Unavailable)],
    ids=[1, 2],
)
async def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path, content, kind):
    path = tmp_path / "s"
    path.write_bytes(content)
    async with SqliteStateStore(path) as store:
        with pytest.raises(kind) as caught:
            await store.get("k", "a")
        assert not caught.value.retryable
    assert path.read_bytes() == content


async def test_a_place_that_can_be_none_is_said_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "state.db", tmp_path):
        async with SqliteStateStore(path) as store:
            with pytest.raises(PermissionDenied):
                await store.get("k", "a")


async def test_a_store_that_is_held_too_long_is_locked(tmp_path):
    """Retryable; and nothing was written."""
    async with SqliteStateStore(tmp_path / "s", busy_seconds=0.05) as store:
        made = await store.put("k", "a", {"n": 1}, expect=0)
        other = sqlite3.connect(tmp_path / "s", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            assert await store.get("k", "a") == made  # WAL: readers don't wait
            with pytest.raises(Locked) as caught:
                await store.put("k", "a", {"n": 2}, expect=made.version)
            assert caught.value.retryable
        finally:
            other.execute("ROLLBACK")
            other.close()
        await store.put("k", "a", {"n": 2}, expect=made.version)


async def test_a_writer_waits_for_another(tmp_path):
    async with SqliteStateStore(tmp_path / "s") as store:
        made = await store.put("k", "a", {"n": 1}, expect=0)
        other = sqlite3.connect(tmp_path / "s", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.05, other.execute, ["COMMIT"])
        release.start()
        await store.put("k", "a", {"n": 2}, expect=made.version)
        release.join()
        other.close()


async def test_cancelling_leaves_a_whole_write_or_none(tmp_path):
    """A write that was under way is either done or not there; the store goes on."""
    async with SqliteStateStore(tmp_path / "s") as store:
        version = (await store.put("k", "a", {"n": 0}, expect=0)).version
        for delay in (0, 0.0001, 0.0005, 0.002):
            with anyio.move_on_after(delay):
                await store.write(
                    [Put(kind="k", key="a", value={"n": 1}, expect=version)],
                    [NewEntry(topic="a", data={}, time_ns=0)],
                )
            found = await store.get("k", "a")
            assert found is not None
            assert len(await store.journal()) == (found.version - version)
            if found.version != version:
                break
        else:
            await store.put("k", "a", {"n": 1}, expect=version)


@pytest.mark.parametrize("make", [MemoryStateStore, None], ids=["memory", "sqlite"])
def test_one_store_serves_many_event_loops(tmp_path, make):
    """As it does behind the blocking facade, with a loop in each thread."""
    store = make() if make else SqliteStateStore(tmp_path / "s")
    errors = []

    def work(number, backend):
        async def run():
            for turn in range(10):
                await store.put("k", f"{number}-{turn}", {}, expect=0)

        try:
            anyio.run(run, backend=backend)
        except Exception as exc:  # noqa: BLE001 - handed over
            errors.append(exc)

    threads = [
        threading.Thread(target=work, args=(n, ("asyncio", "trio")[n % 2])) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(anyio.run(store.list, "k")) == 40
    anyio.run(store.close)


def in_fork(store, path):
    anyio.run(functools.partial(store.put, "k", "child", {}, expect=0))
    Path(path).write_text("done")


def test_a_fork_has_a_connection_of_its_own(tmp_path):
    store = SqliteStateStore(tmp_path / "s")
    anyio.run(functools.partial(store.put, "k", "parent", {}, expect=0))
    context = multiprocessing.get_context("fork")
    child = context.Process(target=in_fork, args=(store, tmp_path / "sign"))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert (tmp_path / "sign").read_text() == "done"
    assert [r.key for r in anyio.run(store.list, "k")] == ["child", "parent"]
    anyio.run(store.close)


KILLED = """
import sys, anyio
from pinfold.state import SqliteStateStore, Put, NewEntry

async def main():
    store = SqliteStateStore(sys.argv[1])
    found = await store.get("k", "a")
    n, version = (found.value["n"], found.version) if found else (0, 0)
    while True:
        n += 1
        put = Put(kind="k", key="a", value={"n": n}, expect=version)
        version = (await store.write([put], [NewEntry(topic="a", data={"n": n}, time_ns=0)])).versions[0]
        print(n, flush=True)

anyio.run(main)
"""


def test_a_killed_writer_loses_nothing_that_it_was_told_is_done(tmp_path):
    """Each time it is killed in the middle of its work; the record and the journal agree."""
    said = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, tmp_path / "s"], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(5):
                said = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            said = max([said, *map(int, writer.stdout.read().split())])

        async def check(least):
            async with SqliteStateStore(tmp_path / "s") as store:
                found = await store.get("k", "a")
                assert found is not None
                entries = await store.journal(limit=10**6)
                assert [e.data["n"] for e in entries] == list(range(1, found.value["n"] + 1))
                assert found.value["n"] >= least

        anyio.run(check, said)


MOUNTED = """
import os, sys, anyio
from pinfold.state import SqliteStateStore
from pinfold.errors import NoSpace, PermissionDenied

mode, mount = sys.argv[1:]

async def main():
    store = SqliteStateStore(f"{mount}/s")
    first = await store.put("k", "a", {"n": 1}, expect=0)
    if mode.startswith("full"):
        expected = NoSpace
        if mode == "full before it is opened":
            await store.close()
        with open(f"{mount}/ballast", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
    else:
        expected = PermissionDenied
        await store.close()
        assert os.system(f"mount -o remount,ro {mount}") == 0
    version = first.version
    try:
        for number in range(100):
            version = (await store.put("k", "a", {"x": "y" * 10**5, "n": number}, expect=version)).version
    except expected as exc:
        print("refused:", exc)
    else:
        raise AssertionError("not refused")
    if mode.startswith("full"):
        os.unlink(f"{mount}/ballast")
        found = await store.get("k", "a")
        assert found.version == version
        await store.put("k", "a", {}, expect=version)
    await store.close()

anyio.run(main)
print("fine")
"""


@pytest.mark.parametrize("mode", ["full", "full before it is opened", "read-only"])
def test_a_full_disk_and_a_read_only_one_are_typed_errors(mode, tmp_path):
    mount = tmp_path / "mount"
    mount.mkdir()
    options = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$4" "$1"'
    done = subprocess.run(
        ["unshare", *options, "sh", "-c", script, "sh", mount, sys.executable, MOUNTED, mode],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr
    assert "refused:" in done.stdout
