"""A copy that fails, is cancelled or is refused by this machine leaves the old file."""

from __future__ import annotations

import errno
import io
import os
from pathlib import PurePosixPath

import anyio
import pytest

from pinfold.errors import (
    InvalidArgument,
    NoSpace,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from pinfold.provider import FileType, TreeItem
from pinfold.transfer import get, put, put_from
from tests.core.transfer.support import Liar, a_folder, shown

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "end", [Unavailable("it went away"), NotFound("it was removed")], ids=["away", "gone"]
)
@pytest.mark.parametrize("tree", [False, True], ids=["file", "tree"])
async def test_a_copy_that_fails_leaves_the_old_file(disk, end, tree):
    async def chunks():
        yield b"half"
        raise end

    (disk / "t").mkdir()
    (disk / "t" / "f").write_bytes(b"old")
    item = TreeItem(path=PurePosixPath("f"), type=FileType.FILE, chunks=chunks())
    files = Liar([a_folder("."), item] if tree else (), [b"half", end])

    with pytest.raises(type(end)):
        await get(files, "/workspace/t/." if tree else "/workspace/f", "t")

    assert shown(disk) == {"t": "/", "t/f": b"old"}


@pytest.mark.parametrize("tree", [False, True], ids=["file", "tree"])
async def test_a_copy_that_is_cancelled_leaves_the_old_file_and_ends_the_download(disk, tree):
    reached, ended = anyio.Event(), []

    async def chunks():
        try:
            yield b"half"
            reached.set()
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    class Slow(Liar):
        def download(self, path):
            return chunks()

    (disk / "t").mkdir()
    (disk / "t" / "f").write_bytes(b"old")
    item = TreeItem(path=PurePosixPath("f"), type=FileType.FILE, chunks=chunks())
    files = Slow([a_folder("."), item] if tree else ())
    async with anyio.create_task_group() as group:
        group.start_soon(get, files, "/workspace/t/." if tree else "/workspace/f", "t")
        with anyio.fail_after(10):
            await reached.wait()
        group.cancel_scope.cancel()

    assert shown(disk) == {"t": "/", "t/f": b"old"}
    assert ended == [True]


async def test_a_put_that_is_cancelled_leaves_the_old_file(files, disk):
    await files.write("/workspace/f", b"old")
    (disk / "f").write_bytes(b"x" * (3 << 20))
    with anyio.CancelScope() as scope:
        await put(files, "f", "/workspace/f", told=lambda _: scope.cancel())
    assert scope.cancelled_caught
    assert await files.read("/workspace/f") == b"old"


async def test_a_stream_that_never_ends_can_be_left(files):
    reading, writing = os.pipe()
    source, typed = io.FileIO(reading), io.FileIO(writing, "w")
    seen: list[int] = []
    with source, typed:
        with anyio.move_on_after(10) as deadline, anyio.CancelScope() as scope:
            typed.write(b"half")
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: put_from(files, source, "/workspace/f", told=seen.append))
                while not seen:
                    await anyio.sleep(0.01)
                scope.cancel()
        assert not deadline.cancelled_caught
    with pytest.raises(NotFound):
        await files.stat("/workspace/f")


#: What the system says, and the typed error.
REFUSALS = {
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EACCES: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.EIO: Unavailable,
}


@pytest.mark.parametrize("step", ["open", "write", "replace"])
@pytest.mark.parametrize(("number", "error"), REFUSALS.items(), ids=errno.errorcode.get)
async def test_what_this_machine_refuses_is_a_typed_error_and_leaves_the_old_file(
    files, disk, monkeypatch, step, number, error
):
    await files.write("/workspace/f", b"new")
    (disk / "f").write_bytes(b"old")
    real = getattr(os, step)

    def refuse(*args, **kwargs):
        if step == "open" and not kwargs:
            return real(*args)  # of the folder
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(error, match="'f'"):
        await get(files, "/workspace/f", "f")
    monkeypatch.undo()

    assert {p.name: p.read_bytes() for p in disk.iterdir()} == {"f": b"old"}


async def test_a_full_disk_in_the_middle_of_a_tree_leaves_whole_files_only(
    files, disk, monkeypatch
):
    await files.write("/workspace/t/a", b"a" * 10)
    await files.write("/workspace/t/b", b"b" * 10)
    real, space = os.write, [15]

    def write(fd, data):
        space[0] -= len(data)
        if space[0] < 0:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(NoSpace, match="'b'"):
        await get(files, "/workspace/t", "t")
    monkeypatch.undo()

    assert shown(disk / "t") == {"a": b"a" * 10}


@pytest.mark.parametrize("name", ["a\0b", "x" * 300], ids=["NUL", "long"])
async def test_a_name_that_no_file_can_have_is_refused(files, disk, name):
    await files.write("/workspace/f", b"1")
    for copy in (
        lambda: get(files, "/workspace/f", name),
        lambda: put(files, name, "/workspace/g"),
    ):
        with pytest.raises(InvalidArgument):
            await copy()
    assert list(disk.iterdir()) == []
