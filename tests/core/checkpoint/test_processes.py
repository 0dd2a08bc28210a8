"""Many processes on one store, cancellation, memory and imports (CP-5, CP-10)."""

import errno
import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from pinfold.checkpoint import CheckpointStore
from pinfold.errors import PinfoldError, Unavailable
from pinfold.provider import Blob, Entry, FileType, RestorePlan, RestoreReport, Scan, Tree
from tests.core.checkpoint.folder import FolderTree, contents
from tests.core.checkpoint.stores import Crash

MIB = 2**20


# --- processes ---


def write(place: Path, number: int, rounds: int) -> None:
    """A writer: commits, keeps the last two, and leaves its last record's id behind."""

    async def run() -> None:
        store = CheckpointStore(place / "store")
        tree = FolderTree(place / f"w{number}")
        base, state = None, None
        for turn in range(rounds):
            for name in range(3):
                # Contents that others have too, have had, and will have again.
                (tree.root / f"f{name}").write_bytes(b"%d" % ((turn + name) % 4) * 100)
            (tree.root / "own").write_bytes(b"%d %d" % (number, turn))
            done = await store.commit(
                tree, sandbox=f"sbx_{number}", generation=1, base=base, state=state
            )
            base, state = done.record, done.state
            await store.retain(f"sbx_{number}", 2, protect=[base.checkpoint_id])
        (place / f"last{number}").write_text(base.checkpoint_id if base else "")

    anyio.run(run)


def gather(place: Path, rounds: int) -> None:
    async def run() -> None:
        store = CheckpointStore(place / "store")
        for _ in range(rounds):
            await store.collect()

    anyio.run(run)


def test_writers_and_collectors_of_many_processes_lose_nothing(tmp_path):
    """CP-10: with real processes, at whatever speed each of them gets on."""
    spawn = multiprocessing.get_context("spawn")
    work = [functools.partial(write, tmp_path, number, 15) for number in range(3)]
    work += [functools.partial(gather, tmp_path, 25) for _ in range(2)]
    processes = [spawn.Process(target=act) for act in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0] * 5

    async def check() -> None:
        store = CheckpointStore(tmp_path / "store")
        await store.collect()
        report = await store.verify()
        assert report.problems == ()
        for number in range(3):
            record = await store.record((tmp_path / f"last{number}").read_text())
            target = FolderTree(tmp_path / f"t{number}")
            await store.restore(target, record)
            assert contents(target.root) == contents(tmp_path / f"w{number}")
            assert len(await store.list(f"sbx_{number}")) == 2
        final = await store.collect()
        assert final.pending == final.deleted == 0

    anyio.run(check)


# --- cancellation ---


@pytest.mark.anyio
async def test_what_another_left_unsynced_is_on_the_disk_before_it_is_relied_on(
    tmp_path, monkeypatch
):
    """A power cut: the writer that put the contents was killed before they were safe."""
    synced: set[str] = set()
    monkeypatch.setattr("pinfold.checkpoint._local._fsync", synced.add)
    monkeypatch.setattr("pinfold.checkpoint._local._sync_file_system", lambda _: False)
    tree = FolderTree(tmp_path / "w")
    (tree.root / "small").write_bytes(b"small")
    (tree.root / "large").write_bytes(os.urandom(9 << 20))

    def dies(step: str, key: str) -> None:
        if step == "sync":
            raise Crash

    with pytest.raises(Crash):
        await CheckpointStore(tmp_path / "store", on_step=dies).commit(
            tree, sandbox="s", generation=1
        )
    assert synced == set()
    done = await CheckpointStore(tmp_path / "store").commit(tree, sandbox="s", generation=1)
    assert done.files_sent == 0
    kept = {str(path) for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert len(kept) >= 7  # small, three chunks, their list, the manifest, the record
    assert synced >= kept


@pytest.mark.anyio
async def test_what_could_not_be_synced_is_tried_again(tmp_path, monkeypatch):
    synced: set[str] = set()
    broken = [OSError(errno.EIO, "the disk")]

    def fsync(place: str) -> None:
        if broken:
            raise broken.pop()
        synced.add(place)

    monkeypatch.setattr("pinfold.checkpoint._local._fsync", fsync)
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"f")
    store = CheckpointStore(tmp_path / "store")
    with pytest.raises(Unavailable):
        await store.commit(tree, sandbox="s", generation=1)
    await store.commit(tree, sandbox="s", generation=1)
    assert synced >= {str(path) for path in (tmp_path / "store").rglob("*") if path.is_file()}


class CancelAt:
    """A step hook that cancels a scope at the nth step that the event loop's thread announces."""

    def __init__(self, scope: anyio.CancelScope, at: int) -> None:
        self.scope, self.at, self.steps = scope, at, 0
        self.home = threading.get_ident()

    def __call__(self, step: str, key: str) -> None:
        if threading.get_ident() == self.home:
            self.steps += 1
            if self.steps > self.at:
                self.scope.cancel()


@pytest.mark.anyio
async def test_a_cancelled_commit_leaves_the_earlier_ones_and_no_lease(tmp_path):
    """Wherever it is cancelled: at each of its steps."""
    tree = FolderTree(tmp_path / "w")
    (tree.root / "f").write_bytes(b"first")
    good = CheckpointStore(tmp_path / "store")
    first = (await good.commit(tree, sandbox="s", generation=1)).record
    (tree.root / "g").write_bytes(os.urandom(9 * MIB))
    at = 0
    while True:
        with anyio.CancelScope() as scope:
            hook = CancelAt(scope, at)
            store = CheckpointStore(tmp_path / "store", on_step=hook)
            await store.commit(tree, sandbox="s", generation=1, base=first)
        assert first in await good.list("s")
        assert (await good.verify()).problems == ()
        assert not list((tmp_path / "store" / "leases").iterdir())
        if hook.steps <= at:  # it came to its end
            break
        at += 1
    assert at > 10


@pytest.mark.parametrize("place", ["folder", "memory"], indirect=True)
def test_one_store_serves_many_event_loops(store, tmp_path):
    """As it does behind the blocking facade, with a loop in each thread."""
    errors: list[Exception] = []

    def work(number: int) -> None:
        async def run() -> None:
            tree = FolderTree(tmp_path / f"w{number}")
            for turn in range(5):
                (tree.root / "f").write_bytes(b"%d" % turn)
                await store.commit(tree, sandbox=f"s{number}", generation=1)
                await store.collect()

        try:
            anyio.run(run, backend=("asyncio", "trio")[number % 2])
        except Exception as exc:  # noqa: BLE001 - handed over
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    report = anyio.run(store.verify)
    assert report.problems == ()
    assert report.checkpoints == 20


# --- memory ---


class BigTree(Tree):
    """A file of any size that is nowhere: made and checked as it streams."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.got = 0

    def _piece(self, index: int) -> bytes:
        return sha256(b"%d" % index).digest() * (MIB // 32)

    async def scan(self, since=None) -> Scan:
        whole = sha256()
        for index in range(self.size // MIB):
            whole.update(self._piece(index))
        self.digest = whole.hexdigest()
        entry = Entry(
            path="big", type=FileType.FILE, mode=0o644, size=self.size, digest=self.digest
        )
        return Scan(entries=(entry,))

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        count = self.size // MIB
        for index in range(count):
            last = index == count - 1
            yield Blob(
                path="big",
                data=self._piece(index),
                last=last,
                digest=self.digest if last else "",
            )

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        whole = sha256()
        async for piece in plan.fetch(self.digest):
            assert len(piece) <= MIB
            whole.update(piece)
            self.got += len(piece)
        assert whole.hexdigest() == self.digest
        return RestoreReport()

    async def recover(self) -> bool:
        return False


@pytest.mark.anyio
async def test_memory_is_bounded_whatever_the_size(tmp_path):
    """CP-5: streamed both ways; a file six times as large needs no more memory."""
    peaks = []
    # How many pieces are in hand at once varies by one or two: three runs find the most of them.
    for number, size in enumerate((40 * MIB, 40 * MIB, 40 * MIB, 240 * MIB)):
        tree = BigTree(size)
        store = CheckpointStore(tmp_path / str(number))
        tracemalloc.start()
        try:
            record = (await store.commit(tree, sandbox="s", generation=1)).record
            await store.restore(tree, record)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert tree.got == size
    assert max(peaks) < 64 * MIB
    assert peaks[-1] < max(peaks[:-1]) + 8 * MIB


# --- imports ---


@pytest.mark.parametrize("module", ["pinfold", "pinfold.checkpoint", "pinfold.state"])
def test_importing_loads_nothing_that_is_seldom_used(module):
    heavy = ["fsspec", "zstandard", "sqlite3", "hypothesis", "s3fs"]
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.anyio
async def test_a_local_store_never_needs_fsspec(tmp_path):
    code = f"""
import sys, anyio
from pinfold.checkpoint import CheckpointStore
anyio.run(CheckpointStore({str(tmp_path)!r}).list, "s")
assert "fsspec" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.anyio
async def test_an_unusable_scan_is_typed(tmp_path):
    """Whatever a tree raises comes out as it is, and nothing is stored."""

    class Broken(FolderTree):
        async def scan(self, since=None):
            raise PinfoldError("the target went away")

    store = CheckpointStore(tmp_path / "store")
    with pytest.raises(PinfoldError, match="went away"):
        await store.commit(Broken(tmp_path / "w"), sandbox="s", generation=1)
    assert not (tmp_path / "store").exists()
