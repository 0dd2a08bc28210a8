"""Durable sandboxes: checkpoints beside restic, git and tar; an exec with and without them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

import pinfold
from bench.harness import Way, compare, figure
from pinfold.checkpoint import CheckpointStore
from pinfold.plugins import installed
from pinfold.provider import Context, Instance, Owner
from pinfold.resolve import pin, resolve
from pinfold.sandbox import Store

FILES, TOTAL = 5_000, 200 << 20
HOST = {"target": {"kind": "host", "provider": "host"}, "durability": "checkpointed"}


def main() -> list[dict[str, Any]]:
    """Run them all, on tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pinfold-bench-") as name:
        folder = Path(name)
        return [
            *anyio.run(checkpoints, folder),
            *anyio.run(execs, folder),
            swaps(folder),
        ]


def plant(root: Path, seed: int = 0) -> list[Path]:
    """Make 5,000 files of 200 MiB in all, half of it text that compresses."""
    generator = random.Random(seed)  # noqa: S311 - data, no secret
    files = []
    for number in range(FILES):
        path = root / f"d{number % 50:02}" / f"e{number % 7}" / f"f{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = TOTAL // FILES
        if number % 2:
            path.write_bytes(generator.randbytes(size))
        else:
            line = f"{number} {generator.random()} the quick brown fox\n".encode()
            path.write_bytes((line * (size // len(line) + 1))[:size])
        files.append(path)
    return files


def change(files: list[Path], round_number: int, count: int = 10) -> None:
    """Change ten files, a little each."""
    for path in files[round_number * 10 : round_number * 10 + count]:
        with path.open("ab") as file:
            file.write(os.urandom(64))


def size_of(root: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


async def host_instance(folder: Path) -> Instance:
    """Make a host sandbox's instance whose folder lies on tmpfs."""
    os.environ["XDG_DATA_HOME"] = str(folder / "xdg")
    pinned = await pin(resolve(HOST))
    loaded = installed().find("host")
    instance: Instance = await loaded.value.create(  # type: ignore[union-attr]
        pinned, Context(owner=Owner(store="bench", sandbox="bench"))
    )
    return instance


def run(*argv: str, **env: str) -> None:
    """Run a peer quietly."""
    subprocess.run(
        argv,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **env},
    )


class Restic:
    """The peer that keeps deduplicated backups, of one tree.

    Args:
        folder: for its repositories.
        root: the tree.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._root = root
        self._empty = folder / "restic-empty"  # that one is made is not what is measured
        self._repository = folder / "restic"
        self._env = {"RESTIC_PASSWORD": "bench", "XDG_CACHE_HOME": str(folder / "cache")}
        run("restic", "init", "-q", "-r", str(self._empty), **self._env)

    def _backup(self) -> None:
        run("restic", "backup", "-q", "-r", str(self._repository), str(self._root), **self._env)

    def _first(self) -> None:
        shutil.rmtree(self._repository, ignore_errors=True)
        shutil.copytree(self._empty, self._repository)
        self._backup()

    def firsts(self, ours: Callable[[], object]) -> list[dict[str, Any]]:
        """Measure a first backup and our first checkpoint."""
        ways = [
            Way(name="restic's first backup", run=self._first),
            Way(name="pinfold", run=ours, limit=1.0),
        ]
        return [compare("first checkpoint of 5,000 files, 200 MiB", ways)]

    def increments(
        self,
        changed: Callable[[Callable[[], object]], Callable[[], object]],
        ours: Callable[[], object],
    ) -> list[dict[str, Any]]:
        """Measure another backup and another checkpoint, each after a few changes."""
        self._first()
        ways = [
            Way(name="restic backup", run=changed(self._backup)),
            Way(name="pinfold", run=ours, limit=0.33),
        ]
        return [compare("checkpoint after 10 files changed, beside restic", ways)]


def root_of(instance: Instance) -> Path:
    """Return the physical workspace of a host instance."""
    return next(
        path
        for path in Path(str(instance.ref.data["folder"])).rglob("*")
        if path.is_dir() and (path / "marker").exists()
    )


async def checkpoints(folder: Path) -> list[dict[str, Any]]:
    """First, incremental and no-change checkpoints, and restores, beside their peers."""
    instance = await host_instance(folder)
    await instance.files.write("/workspace/marker", b"")
    root = root_of(instance)
    (root / "marker").unlink()
    files = plant(root)
    counter = iter(range(10**6))

    def ours(work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], object]:
        return lambda: anyio.from_thread.run(work)

    def fresh(name: str) -> Path:
        return folder / f"{name}-{next(counter)}"

    async def first() -> None:
        place = fresh("ours")
        store = CheckpointStore(place, fsync=False)
        await store.commit(instance.tree, sandbox="bench", generation=1)
        shutil.rmtree(place)

    restic = Restic(folder, root) if shutil.which("restic") else None
    if restic is None:
        print("\nrestic: not measured: it is not installed (root on Debian: make bench does it)")

    def measured() -> list[dict[str, Any]]:
        results = restic.firsts(ours(first)) if restic is not None else []
        return results + incremental()

    def incremental() -> list[dict[str, Any]]:
        place = folder / "ours"
        store = CheckpointStore(place, fsync=False)
        last: dict[str, Any] = {}

        async def commit() -> None:
            done = await store.commit(
                instance.tree,
                sandbox="bench",
                generation=1,
                base=last.get("record"),
                state=last.get("state"),
            )
            last.update(record=done.record, state=done.state)

        anyio.from_thread.run(commit)
        full = size_of(place)
        for number in range(10):
            change(files, FILES // 20 + number, count=1)
            anyio.from_thread.run(commit)
        grown = figure(
            "stored after ten small changes, in full checkpoints",
            size_of(place) / full,
            "x",
            at_most=1.05,
        )
        git = folder / "git"
        run("git", "init", "-q", str(git))
        index = ("git", f"--git-dir={git}/.git", f"--work-tree={root}")
        who = ("-c", "user.name=bench", "-c", "user.email=bench", "-c", "gc.auto=0")
        run(*index, "add", "-A")
        run(*index, *who, "commit", "-qm", "x")
        rounds = iter(range(10**6))

        def changed(work: Callable[[], object]) -> Callable[[], object]:
            def call() -> None:
                change(files, next(rounds) % (FILES // 10))
                work()

            return call

        def git_commit() -> None:
            run(*index, "add", "-A")
            run(*index, *who, "commit", "-qm", "x", "--allow-empty")

        # A change is racy for two seconds (CP-7): what is measured is a settled workspace.
        mine = changed(ours(commit))
        results = [
            grown,
            *(restic.increments(changed, mine) if restic is not None else ()),
            compare(
                "checkpoint after 10 files changed, beside git",
                [
                    Way(name="git add -A && git commit", run=changed(git_commit)),
                    Way(name="pinfold", run=mine, limit=1.5),
                ],
            ),
        ]
        listing = ("find", str(root), "-printf", "%P %s %T@ %C@ %i %m\\n")
        results.append(
            compare(
                "checkpoint with no change",
                [
                    Way(name="find -printf", run=lambda: run(*listing)),
                    Way(name="pinfold", run=ours(commit), limit=3.0),
                ],
            )
        )
        archive = folder / "tree.tar"
        run("tar", "-cf", str(archive), "-C", str(root), ".")

        def untar() -> None:
            place = fresh("untar")
            place.mkdir()
            run("tar", "-xf", str(archive), "-C", str(place))
            shutil.rmtree(place)

        async def restore() -> None:
            for path in list(root.iterdir()):
                await to_thread.run_sync(shutil.rmtree, path)
            await store.restore(instance.tree, last["record"])

        results.append(
            compare(
                "restore of all of it, verified (ours also removes the old tree first)",
                [
                    Way(name="tar -x, and removed again", run=untar),
                    Way(name="pinfold", run=ours(restore), limit=2.5),
                ],
            )
        )
        return results

    try:
        return await to_thread.run_sync(measured)
    finally:
        await instance.destroy()


async def execs(folder: Path) -> list[dict[str, Any]]:
    """`true` in a workspace of 100 files: under none and under checkpointed."""
    results = []
    for provider, kind, number in (("bashkit", "vfs", 200), ("host", "host", 30)):
        boxes = {}
        for durability in ("none", "checkpointed"):
            store = Store(folder / f"{provider}-{durability}")
            spec = {"target": {"kind": kind, "provider": provider}, "durability": durability}
            box = await pinfold.open(spec, store=store)
            await box.files.write_many({f"/workspace/f{n}": b"x" * 1000 for n in range(100)})
            await box.exec(shell="true")
            boxes[durability] = box
        await anyio.sleep(2.2)  # until no file is racy any more (CP-7)

        def way(durability: str, boxes: Any = boxes, number: int = number) -> Callable[[], object]:
            async def loop() -> None:
                for _ in range(number):
                    await boxes[durability].exec(shell="true")

            return lambda: anyio.from_thread.run(loop)

        def measured(
            way: Any = way, number: int = number, provider: str = provider
        ) -> dict[str, Any]:
            return compare(
                f"an exec that changes nothing, {provider}, 100 files",
                [
                    Way(name="durability none", run=way("none"), number=number),
                    Way(
                        name="durability checkpointed",
                        run=way("checkpointed"),
                        number=number,
                        limit=1.5,
                    ),
                ],
            )

        results.append(await to_thread.run_sync(measured))
        for box in boxes.values():
            await box.delete()
    return results


SWAPPER = """
import anyio, sys
from pinfold.errors import Conflict
from pinfold.state import SqliteStateStore
async def main():
    store = SqliteStateStore(sys.argv[1])
    await store.get("n", "x")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        while True:
            record = await store.get("n", "x")
            value = {"n": record.value["n"] + 1 if record else 1}
            try:
                await store.put("n", "x", value, expect=record.version if record else 0)
                break
            except Conflict:
                pass
anyio.run(main)
"""


def swaps(folder: Path) -> dict[str, Any]:
    """Compare-and-swaps of one record from four processes at once; none may be lost."""
    import time

    from pinfold.state import SqliteStateStore

    path, each = folder / "state.sqlite", 1_000
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SWAPPER, str(path), str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for worker in workers:  # that Python starts is not what is measured
        worker.stdout.readline()  # type: ignore[union-attr]
    start = time.perf_counter()
    for worker in workers:
        worker.stdin.close()  # type: ignore[union-attr]
    for worker in workers:
        worker.stdout.close()  # type: ignore[union-attr]
        if worker.wait():
            raise RuntimeError("a worker failed")
    took = time.perf_counter() - start

    async def count() -> int:
        record = await SqliteStateStore(path).get("n", "x")
        return int(record.value["n"]) if record else 0

    if anyio.run(count) != 4 * each:
        raise AssertionError("a swap was lost")
    return figure(
        "compare-and-swaps, four processes, none lost", 4 * each / took, "a second", at_least=1_000
    )
