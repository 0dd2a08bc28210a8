"""A store and a workspace with a history, for tests that break things on the way."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import fsspec

from pinfold.checkpoint import (
    CheckpointRecord,
    CheckpointStore,
    FsspecObjects,
    LocalObjects,
    Objects,
)
from pinfold.provider import ScanState
from tests.core.checkpoint.folder import FolderTree, contents
from tests.core.checkpoint.stores import OneByOne

MIB = 2**20


def no_step(step: str, key: str) -> None:
    pass


class World:
    """One sandbox's workspace, and what its acknowledged checkpoints must give back.

    Attributes:
        acknowledged: each commit that returned, and the tree that it covered.
        dropped: those of them that retention was told to drop.
    """

    def __init__(self, place: Path, *, moves: str = "rename") -> None:
        self.place = place
        self.moves = moves
        self.tree = FolderTree(place / "workspace")
        self.acknowledged: dict[str, tuple[CheckpointRecord, dict[str, object]]] = {}
        self.base: CheckpointRecord | None = None
        self.state: ScanState | None = None
        self.dropped: set[str] = set()
        self.number = 0

    def copied(self, place: Path) -> World:
        """A world of its own that has come as far as this one."""
        shutil.copytree(self.place, place, symlinks=True, dirs_exist_ok=True)
        other = World(place, moves=self.moves)
        other.acknowledged, other.dropped = dict(self.acknowledged), set(self.dropped)
        other.base, other.state, other.number = self.base, self.state, self.number
        return other

    def open(self, on_step: Callable[[str, str], None] = no_step, **options: Any):
        """Open the store as a new process would."""
        where = self.place / "store"
        objects: Objects = LocalObjects(where, on_step=on_step)
        if self.moves != "rename":  # a store without renames
            objects = OneByOne(FsspecObjects(fsspec.filesystem("file"), str(where)), on_step)
        return CheckpointStore(objects, on_step=on_step, **options)

    def change(self) -> None:
        """Give the workspace something new, something moved, something gone."""
        self.number += 1
        number, root = self.number, self.tree.root
        (root / f"d{number % 3}").mkdir(exist_ok=True)
        (root / f"d{number % 3}" / "file").write_bytes(b"content %d" % number)
        (root / f"own{number}").write_bytes(b"own %d" % number)
        (root / "back-and-forth").write_bytes(b"%d" % (number % 2))
        if number % 3 == 1:
            # Chunks that differ: so that it takes the same steps each time.
            chunks = [bytes([number % 7, chunk]) * (2 * MIB) for chunk in range(3)]
            (root / "large").write_bytes(b"".join(chunks)[: 9 * MIB])
        elif number % 3 == 2:
            (root / "large").unlink(missing_ok=True)
        old = root / f"own{number - 2}"
        if old.exists():
            old.unlink()

    def change_small(self) -> None:
        """Give the workspace something new, and nothing large."""
        (self.tree.root / "a").mkdir()
        (self.tree.root / "a" / "first").write_bytes(b"of the first")

    def commit(self, store: CheckpointStore) -> CheckpointRecord:
        """Commit, and remember what must be there from now on."""
        return anyio.run(self.commit_async, store)

    async def commit_async(self, store: CheckpointStore) -> CheckpointRecord:
        done = await store.commit(
            self.tree, sandbox="sbx_w", generation=1, base=self.base, state=self.state
        )
        self.base, self.state = done.record, done.state
        self.acknowledged[done.record.checkpoint_id] = (done.record, contents(self.tree.root))
        return done.record

    def retain(self, store: CheckpointStore, keep: int) -> None:
        """Drop old checkpoints, but for the present one."""
        protect = [self.base.checkpoint_id] if self.base else []
        self.dropped.update(anyio.run(lambda: store.retain("sbx_w", keep, protect=protect)))

    def forget_dropped(self) -> None:
        """After a retention that was killed: what it did drop need not be there."""
        there = {r.checkpoint_id for r in anyio.run(self.open().list, "sbx_w")}
        self.dropped.update(self.acknowledged.keys() - there)

    def drop_unreported(self) -> None:
        """Drop what a writer never reported, because it was taken for dead before it was done."""

        async def drop() -> None:
            store = self.open()
            for sandbox in ("sbx_w", "sbx_other", "sbx_fork"):
                for record in await store.list(sandbox):
                    if record.checkpoint_id not in self.acknowledged:
                        await store.drop(sandbox, record.checkpoint_id)

        anyio.run(drop)

    def check(self, *, restore: bool = True) -> None:
        """Every acknowledged checkpoint is whole, every listed one too, and they give it back."""
        anyio.run(self._check, restore)

    async def _check(self, restore: bool) -> None:  # noqa: FBT001
        store = self.open()
        listed = {r.checkpoint_id: r for r in await store.list("sbx_w")}
        for checkpoint_id in self.dropped:
            self.acknowledged.pop(checkpoint_id, None)
        assert listed.keys() >= self.acknowledged.keys()
        report = await store.verify()
        assert report.problems == ()
        assert report.checkpoints >= len(listed)
        if restore:
            for record, tree in self.acknowledged.values():
                assert listed[record.checkpoint_id] == record
                target = FolderTree(self.place / "target")
                await store.restore(target, record)
                assert contents(target.root) == tree
                shutil.rmtree(target.root)

    def check_clean(self) -> None:
        """When every writer is known to be dead, a collection leaves what is needed, no more."""
        store = self.open(lease_seconds=0.0)

        async def collect() -> None:
            await store.collect()
            await store.collect()  # what was on its way when a collector died
            report = await store.collect()
            assert report.deleted == report.restored == 0

        anyio.run(collect)
        self.check(restore=False)
        keys = self.keys()
        assert not [k for k in keys if k.startswith(("leases/", "notes/", "clock/"))]
        # Where a move is no single step, half of one is left alone as long as its original is
        # needed: nobody can tell that whoever was at it is dead, and not only slow.
        halves = [k.split("/", 2)[2] for k in keys if k.startswith("fossils/")]
        assert set(halves) <= set(keys)
        assert not halves or self.moves == "copy"
        for sandbox in ("sbx_w", "sbx_fork", "sbx_other"):
            anyio.run(store.forget, sandbox)
        anyio.run(collect)
        left = [k for k in self.keys() if not k.startswith("tmp/")]
        assert left == []

    def keys(self) -> list[str]:
        where = self.place / "store"
        return sorted(
            os.path.relpath(Path(folder) / name, where)
            for folder, _, names in os.walk(where)
            for name in names
        )


def in_other_process(act: Callable[[], object]) -> None:
    """Run what another process does meanwhile, from wherever a step hook is called."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as exc:  # noqa: BLE001 - handed over
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error
