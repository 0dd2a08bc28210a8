"""Links swapped in while an operation runs lead nothing out (FS-2).

An attacker exchanges two names as fast as it can: one is what it seems, the other a link that leads
out. Whatever an operation does, it does inside, or it refuses.
"""

import ctypes
import mmap
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import PurePosixPath

import anyio
import pytest

from pinfold.errors import Internal, PinfoldError
from pinfold.provider import FileType, TreeItem

pytestmark = pytest.mark.anyio

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchange(one: bytes, other: bytes, counter: mmap.mmap) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    swaps = 0
    while True:
        swaps += not libc.renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
        counter[:8] = swaps.to_bytes(8, "little")


@contextmanager
def attack(one, other) -> Iterator[mmap.mmap]:
    """Exchange two names until the end; the buffer holds the number of swaps."""
    counter = mmap.mmap(-1, 8)
    arguments = (os.fsencode(one), os.fsencode(other), counter)
    attacker = multiprocessing.get_context("fork").Process(target=_exchange, args=arguments)
    attacker.start()
    try:
        yield counter
    finally:
        attacker.kill()
        attacker.join()


async def chunks(*pieces: bytes):
    for piece in pieces:
        yield piece


FAMILIES = {
    "read": lambda box, path: box.files.read(path),
    "read a part": lambda box, path: box.files.read(path, offset=1, length=3),
    "read many": lambda box, path: box.files.read_many([path]),
    "write": lambda box, path: box.files.write(path, b"inside"),
    "upload": lambda box, path: box.files.upload(path, chunks(b"inside")),
    "write many": lambda box, path: box.files.write_many({path: b"inside"}),
    "stat": lambda box, path: box.files.stat(path),
    "chmod": lambda box, path: box.files.chmod(path, 0o600),
    "list": lambda box, path: box.files.list(PurePosixPath(path).parent),
    "make": lambda box, path: box.files.make_directory(f"{path}.d/e"),
    "link": lambda box, path: box.files.symlink(f"{path}.{os.urandom(4).hex()}", "x"),
    "rename": lambda box, path: box.files.rename(path, f"{path}.r"),
    "rename to": lambda box, path: box.files.rename("/workspace/spare", path),
    "remove": lambda box, path: box.files.remove(path),
    "remove all": lambda box, path: box.files.remove(PurePosixPath(path).parent, recursive=True),
    "download a tree": lambda box, _: collect(box.files.download_tree("/workspace")),
    "upload a tree": lambda box, path: box.files.upload_tree("/workspace", [tree_item(path)]),
    "cwd": lambda box, path: box.sh("ls", cwd=PurePosixPath(path).parent),
}


def tree_item(path: str) -> TreeItem:
    inner = PurePosixPath(path).relative_to("/workspace")
    return TreeItem(path=inner, type=FileType.FILE, mode=0o640, size=6, chunks=chunks(b"inside"))


async def collect(tree) -> list[object]:
    found: list[object] = []
    async with aclosing(tree) as items:
        async for item in items:
            if item.chunks is not None:
                async with aclosing(item.chunks) as pieces:
                    found += [piece async for piece in pieces]
            found.append(str(item.path))
    return found


def said(result: object) -> str:
    return ascii(result) + ascii(getattr(result, "stdout", b""))


async def race(box, family: str, where: str, tries: int, seconds: float) -> tuple[int, int, int]:
    """Return the numbers of swaps, of successes and of refusals."""
    inside = box.workspace / "d"
    (box.outside / "f").write_text("OUTSIDE")
    (box.outside / "secret-name").mkdir()
    (box.outside / "f").chmod(0o644)
    before = look(box.outside)
    inside.mkdir()
    if where == "parent":
        (box.workspace / "l").symlink_to(box.out)
        names = (inside, box.workspace / "l")
    else:
        (inside / "l").symlink_to(f"{box.out}/f")
        (inside / "f").write_text("inside")
        names = (inside / "f", inside / "l")
    successes = refusals = 0
    with attack(*names) as counter, anyio.move_on_after(seconds):
        for _ in range(tries):
            plant(box, names[0] if where == "parent" else inside, where)
            try:
                result = await FAMILIES[family](box, "/workspace/d/f")
            except Internal:
                raise
            except PinfoldError:
                refusals += 1
            else:
                assert "OUTSIDE" not in said(result), family
                assert "secret-name" not in said(result), family
                successes += 1
            assert look(box.outside) == before, family
    assert look(box.outside) == before, family
    return int.from_bytes(counter[:8], "little"), successes, refusals


def plant(box, directory, where: str) -> None:
    """Put back what an operation may have taken away, by whichever name it has now."""
    (box.workspace / "spare").write_text("inside")
    if where == "parent":
        for name in ("d", "l"):
            path = box.workspace / name
            try:
                fd = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                os.close(os.open("f", os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=fd))
                os.truncate(f"/proc/self/fd/{fd}/f", 6)
                return
            finally:
                os.close(fd)
        with suppress(FileExistsError):  # the link, for a moment
            (box.workspace / "d").mkdir()
    elif not os.path.lexists(directory / "f"):
        directory.mkdir(exist_ok=True)
        (directory / "f").write_text("inside")
        if not os.path.lexists(directory / "l"):
            (directory / "l").symlink_to(f"{box.out}/f")


def look(folder) -> dict[object, object]:
    found: dict[object, object] = {}
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else None
        found[path] = (path.lstat().st_mode, path.lstat().st_ino, content)
    return found


@pytest.mark.parametrize("kind", ["shell", "busybox"])
@pytest.mark.parametrize("where", ["parent", "leaf"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_fs2_no_swap_leads_out(box, family, where) -> None:
    swaps, successes, refusals = await race(box, family, where, tries=1000, seconds=0.7)
    assert swaps > 100
    assert successes + refusals > 2


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["shell", "busybox"])
@pytest.mark.parametrize("where", ["parent", "leaf"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_fs2_no_swap_leads_out_in_100_000_tries(box, family, where) -> None:
    swaps, _, _ = await race(box, family, where, tries=100_000, seconds=600)
    assert swaps > 100_000
