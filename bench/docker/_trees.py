"""A tree of many small files, up and down."""

from __future__ import annotations

import io
import itertools
import secrets
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from bench.docker._bench import Bench
from bench.harness import Way, compare
from pinfold.provider import FileType, TreeItem
from pinfold_docker._instance import DockerInstance

__all__ = ["trees"]

FILES = 5000
NUMBERS = itertools.count()
#: One of the two ways of a transfer.
Move = Callable[[DockerInstance], Coroutine[Any, Any, None]]


class TarPipe:
    """What anybody does without us: an archive to a `tar` in the container, and back."""

    def __init__(self, host: str, container: str, tree: Path) -> None:
        self._tree = tree
        tar = "exec", "-i", container, "tar", "-C", "/workspace"
        self._prefix = ["docker", "--host", host, *tar]

    def up(self, name: str = "piped") -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            tar.add(self._tree, name)
        subprocess.run([*self._prefix, "-xf", "-"], input=stream.getvalue(), check=True)

    def up_anew(self) -> None:
        self.up(f"piped{next(NUMBERS)}")

    def down(self) -> None:
        done = subprocess.run([*self._prefix, "-cf", "-", "piped"], check=True, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(fresh(self._tree.parent), filter="data")


def trees(bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    tree = folder / "tree"
    for number in range(FILES):
        place = tree / f"d{number % 50}" / f"f{number}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(secrets.token_bytes(4096))

    async def one(data: bytes) -> AsyncIterator[bytes]:
        yield data

    async def items() -> AsyncIterator[TreeItem]:
        for path in [tree, *sorted(tree.rglob("*"))]:
            inner = PurePosixPath(path.relative_to(tree))
            if path.is_dir():
                yield TreeItem(path=inner, type=FileType.DIRECTORY, mode=0o755)
            else:
                data = path.read_bytes()
                yield TreeItem(
                    path=inner, type=FileType.FILE, mode=0o644, size=len(data), chunks=one(data)
                )

    async def up(box: DockerInstance) -> None:
        await box.files.upload_tree("/workspace/tree", items())

    async def up_anew(box: DockerInstance) -> None:
        await box.files.upload_tree(f"/workspace/new{next(NUMBERS)}", items())

    async def down(box: DockerInstance) -> None:
        target = fresh(folder)
        async for item in box.files.download_tree("/workspace/tree"):
            place = target / item.path
            if item.type is FileType.DIRECTORY:
                place.mkdir(parents=True, exist_ok=True)
            elif item.chunks is not None:
                place.write_bytes(b"".join([piece async for piece in item.chunks]))

    with bench.box(helper=False) as shell, bench.box(helper=True) as helped:
        pipe = TarPipe(bench.host, shell.ref.id, tree)

        def ours(what: Move, limit: float | None = 1.3) -> list[Way]:
            return [
                Way(name=row, run=lambda box=box: bench.portal.call(what, box), limit=limit)  # type: ignore[misc]
                for row, box in (
                    ("pinfold, shell path", shell),
                    ("pinfold, resident helper", helped),
                )
            ]

        title = f"{FILES} files of 4 KiB"
        anew = [Way(name="tar pipe", run=pipe.up_anew), *ours(up_anew)]
        yield compare(f"{title}, up to a new place", anew, rounds=5)
        # tar removes each old file first, and we replace it as a whole: see `beside_cp`.
        over = [Way(name="tar pipe, not atomic", run=pipe.up), *ours(up, None)]
        yield compare(f"{title}, up over an older copy", over, rounds=3)
        yield compare(
            f"{title}, down", [Way(name="tar pipe", run=pipe.down), *ours(down)], rounds=3
        )
        yield from beside_cp(bench, folder, shell.ref.id, helped, (up, up_anew, down))


def fresh(folder: Path) -> Path:
    """A place that is new each time: to remove an old copy takes as long as to make one."""
    return Path(tempfile.mkdtemp(prefix="copy-", dir=folder))


def beside_cp(
    bench: Bench, folder: Path, container: str, helped: DockerInstance, moves: tuple[Move, ...]
) -> Iterator[dict[str, Any]]:
    """Up over an older copy, as the baselines did it, and to a new place; down.

    Over an older copy the disk says more than the way there: whoever replaces a file as a whole (FS-4)
    has ext4 write it out at once, whoever removes it first has not.
    """
    up, up_anew, down = moves

    def copied_up() -> None:
        bench.cli("cp", f"{folder / 'tree'}/.", f"{container}:/workspace/tree")

    def copied_up_anew() -> None:
        bench.cli("cp", str(folder / "tree"), f"{container}:/workspace/copy{next(NUMBERS)}")

    def copied_down() -> None:
        bench.cli("cp", f"{container}:/workspace/tree", str(fresh(folder)))

    def helper(what: Move, limit: float) -> Way:
        return Way(
            name="pinfold, resident helper",
            run=lambda: bench.portal.call(what, helped),
            limit=limit,
        )

    title = f"{FILES} files of 4 KiB"
    for name, run, what, limit in (
        ("up over an older copy", copied_up, up, 0.8),
        ("up to a new place", copied_up_anew, up_anew, 0.8),
        ("down", copied_down, down, 1.0),
    ):
        ways = [Way(name="docker cp", run=run), helper(what, limit)]
        yield compare(f"{title}, {name}, beside docker cp", ways, rounds=3)
