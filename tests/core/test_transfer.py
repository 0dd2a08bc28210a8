"""Copying between the operator's disk and a sandbox: cp's rules, and a sandbox that lies."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path, PurePosixPath

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.errors import (
    AlreadyExists,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    NotRegular,
    PermissionDenied,
    PinfoldError,
    Unavailable,
)
from pinfold.memory import MemoryFiles, Store
from pinfold.provider import FileStat, FileType, TreeItem
from pinfold.spec import Limits
from pinfold.transfer import get, get_to, put, put_from

pytestmark = pytest.mark.anyio


@pytest.fixture
def files():
    return MemoryFiles(Store(), Limits())


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """The operator's working folder, with a neighbour that nothing may reach."""
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "canary").write_bytes(b"untouched")
    monkeypatch.chdir(folder)
    before = os.umask(0o022)
    yield folder
    os.umask(before)
    assert [p.name for p in (tmp_path / "neighbour").iterdir()] == ["canary"]
    assert (tmp_path / "neighbour" / "canary").read_bytes() == b"untouched"


def shown(root: Path) -> dict[str, object]:
    """A tree of this machine: name to content, link text or mode."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "/"
        else:
            found[name] = path.read_bytes()
    return found


async def inside(files, root="/workspace") -> dict[str, object]:
    """The same of a sandbox."""
    found: dict[str, object] = {}
    async for item in files.download_tree(root):
        if item.type is FileType.SYMLINK:
            found[str(item.path)] = f"-> {item.link}"
        elif item.type is FileType.DIRECTORY:
            found[str(item.path)] = "/"
        else:
            found[str(item.path)] = b"".join([chunk async for chunk in item.chunks])
    del found["."]
    return dict(sorted(found.items()))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- cp's rules -----------------------------------------------------------------------------------

#: Source, target, and where the copy is; `dir` is a folder with a file `inner`, `to` one that is
#: there on the other side, with a folder `to/dir`; None: refused.
RULES = {
    "file to a new name": ("file", "new", "new"),
    "file over a file": ("file", "old", "old"),
    "file into a folder": ("file", "to", "to/file"),
    "file into a folder, slash": ("file", "to/", "to/file"),
    "file into no folder": ("file", "new/", NotFound),
    "file over a folder": ("file", "to/taken", "to/taken/file"),
    "file over a folder of its name": ("taken", "to", IsADirectory),
    "file below a file": ("file", "old/x", NotADirectory),
    "file with a slash": ("file/", "new", NotADirectory),
    "folder to a new name": ("dir", "new", "new/inner"),
    "folder to a new name, slash": ("dir", "new/", "new/inner"),
    "folder with a slash to a new name": ("dir/", "new", "new/inner"),
    "folder into a folder": ("dir", "to", "to/dir/inner"),
    "folder with a slash into a folder": ("dir/", "to/", "to/dir/inner"),
    "folder over a file": ("dir", "old", AlreadyExists),
    "folder over a file, slash": ("dir", "old/", AlreadyExists),
    "file over a file, slash": ("file", "old/", NotFound),
    "file with a slash into a folder": ("file/", "to/", NotADirectory),
    "slashes without end": ("dir//", "to//", "to/dir/inner"),
    "content with a slash into a folder": ("dir/./", "to/", "to/inner"),
    "content into a folder": ("dir/.", "to", "to/inner"),
    "content to a new name": ("dir/.", "new", "new/inner"),
    "nothing": ("none", "new", NotFound),
    "nothing, slash": ("none/", "to/", NotFound),
}

#: The same of a stream, which has no name.
INTO = {
    "a new name": ("new", "new"),
    "over a file": ("old", "old"),
    "a new name with parents": ("a/b", "a/b"),
    "a folder": ("to", IsADirectory),
    "a folder, slash": ("to/", InvalidArgument),
    "a new name, slash": ("new/", InvalidArgument),
    "over a file, slash": ("old/", InvalidArgument),
    "below a file": ("old/x", NotADirectory),
}
OUT_OF = {
    "a file": ("file", b"new"),
    "a link to a file": ("link", b"new"),
    "a file, slash": ("file/", NotADirectory),
    "a link to a file, slash": ("link/", NotADirectory),
    "a folder": ("dir", IsADirectory),
    "a folder, slash": ("dir/", IsADirectory),
    "nothing": ("none", NotFound),
    "nothing, slash": ("none/", NotFound),
}


@pytest.mark.parametrize(("source", "target", "place"), RULES.values(), ids=RULES)
async def test_put_follows_cps_rules(files, disk, source, target, place):
    (disk / "file").write_bytes(b"new")
    (disk / "dir").mkdir()
    (disk / "dir" / "inner").write_bytes(b"new")
    (disk / "taken").write_bytes(b"new")
    await files.write("/workspace/old", b"old")
    for folder in ("to/dir", "to/taken"):
        await files.make_directory(f"/workspace/{folder}")

    if not isinstance(place, str):
        before = await inside(files)
        with pytest.raises(place):
            await put(files, source, f"/workspace/{target}")
        assert await inside(files) == before
        return
    where = await put(files, source, f"/workspace/{target}")

    assert await files.read(f"/workspace/{place}") == b"new"
    assert f"/workspace/{place}".startswith(str(where))


@pytest.mark.parametrize(("source", "target", "place"), RULES.values(), ids=RULES)
async def test_get_follows_cps_rules(files, disk, source, target, place):
    for name in ("file", "dir/inner", "taken"):
        await files.write(f"/workspace/{name}", b"new")
    (disk / "old").write_bytes(b"old")
    for folder in ("to", "to/dir", "to/taken"):
        (disk / folder).mkdir()

    if not isinstance(place, str):
        before = shown(disk)
        with pytest.raises(place):
            await get(files, f"/workspace/{source}", target)
        assert shown(disk) == before
        return
    where = await get(files, f"/workspace/{source}", target)

    assert (disk / place).read_bytes() == b"new"
    assert place.startswith(str(where))


@pytest.mark.parametrize(("source", "target", "place"), RULES.values(), ids=RULES)
def test_these_are_the_rules_of_cp(disk, source, target, place):
    """The table is this machine's own `cp -r`, asked."""
    for name in ("file", "dir/inner", "taken"):
        (disk / name).parent.mkdir(exist_ok=True)
        (disk / name).write_bytes(b"new")
    (disk / "old").write_bytes(b"old")
    for folder in ("to", "to/dir", "to/taken"):
        (disk / folder).mkdir()
    before = shown(disk)
    done = subprocess.run(["cp", "-r", source, target], capture_output=True, check=False)
    assert (done.returncode == 0) is isinstance(place, str), done.stderr
    if isinstance(place, str):
        assert (disk / place).read_bytes() == b"new"
    else:
        assert shown(disk) == before


async def test_nothing_is_no_target(files, disk):
    """Nor is it the working folder."""
    await files.write("/workspace/dir/inner", b"new")
    for source in ("/workspace/dir", "/workspace/dir/.", "/workspace/dir/inner"):
        with pytest.raises(NotFound):
            await get(files, source, "")
    assert shown(disk) == {}


@pytest.mark.parametrize(("target", "place"), INTO.values(), ids=INTO)
async def test_a_stream_goes_into_a_file_that_is_named(files, target, place):
    await files.write("/workspace/old", b"old")
    await files.make_directory("/workspace/to")
    if not isinstance(place, str):
        before = await inside(files)
        with pytest.raises(place):
            await put_from(files, io.BytesIO(b"new"), f"/workspace/{target}")
        assert await inside(files) == before
        return
    await put_from(files, io.BytesIO(b"new"), f"/workspace/{target}")
    assert await files.read(f"/workspace/{place}") == b"new"


@pytest.mark.parametrize(("source", "outcome"), OUT_OF.values(), ids=OUT_OF)
async def test_a_stream_comes_out_of_a_file(files, source, outcome):
    await files.write("/workspace/file", b"new")
    await files.write("/workspace/dir/inner", b"new")
    await files.symlink("/workspace/link", "file")
    stream = io.BytesIO()
    if isinstance(outcome, bytes):
        await get_to(files, f"/workspace/{source}", stream)
        assert stream.getvalue() == outcome
        return
    with pytest.raises(outcome):
        await get_to(files, f"/workspace/{source}", stream)
    assert stream.getvalue() == b""


@pytest.mark.parametrize("source", [".", "./", "..", "sub/.."], ids=str)
async def test_what_has_no_name_gives_its_content(files, disk, source, monkeypatch):
    (disk / "sub").mkdir()
    (disk / "a").write_bytes(b"1")
    if source == "..":
        monkeypatch.chdir(disk / "sub")

    assert await put(files, source, "/workspace") == PurePosixPath("/workspace")

    assert await inside(files) == {"a": b"1", "sub": "/"}


async def test_the_missing_parents_of_a_target_are_made_inside_and_not_on_this_machine(files, disk):
    (disk / "a").write_bytes(b"1")
    await put(files, "a", "/workspace/x/y/z")
    assert await files.read("/workspace/x/y/z") == b"1"
    for source in ("/workspace/x/y/z", "/workspace/x"):
        with pytest.raises(NotFound):
            await get(files, source, "none/z")
    assert shown(disk) == {"a": b"1"}


# --- trees ----------------------------------------------------------------------------------------


async def test_a_tree_goes_in_and_comes_out_as_it_was(files, disk):
    odd = disk / "tree" / "a b\n-" / "-x"
    odd.mkdir(parents=True)
    (odd / "é").write_bytes(os.urandom(3 << 20))
    (odd / "empty").touch()
    (disk / "tree" / "void").mkdir()
    (disk / "tree" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (disk / "tree" / "run.sh").chmod(0o755)
    (disk / "tree" / "closed").mkdir()
    (disk / "tree" / "closed" / "f").write_bytes(b"")
    (disk / "tree" / "closed").chmod(0o500)
    (disk / "tree" / "in").symlink_to("run.sh")
    (disk / "tree" / "out").symlink_to("../../neighbour")
    (disk / "tree" / "broken").symlink_to("nowhere")
    (disk / "tree" / "round").symlink_to("..")
    moved: list[int] = []

    await put(files, "tree", "/workspace/t", told=moved.append)
    assert sum(moved) == 3 * 1024 * 1024 + 10
    assert await inside(files, "/workspace/t") == shown(disk / "tree")
    moved.clear()
    assert await get(files, "/workspace/t", "back", told=moved.append) == Path("back")

    assert sum(moved) == 3 * 1024 * 1024 + 10
    assert shown(disk / "back") == shown(disk / "tree")
    for name in ("run.sh", "closed", "void", "closed/f"):
        assert mode_of(disk / "back" / name) == mode_of(disk / "tree" / name), name


async def test_a_tree_fills_the_folder_that_is_there(files, disk):
    (disk / "t").mkdir(mode=0o700)
    (disk / "t" / "kept").write_bytes(b"kept")
    (disk / "t" / "sub").mkdir(mode=0o700)
    (disk / "t" / "changed").write_bytes(b"old")
    (disk / "t" / "linked").write_bytes(b"old")
    await files.write("/workspace/t/changed", b"new")
    await files.write("/workspace/t/sub/added", b"new")
    await files.symlink("/workspace/t/linked", "changed")

    await get(files, "/workspace/t/.", "t")

    assert shown(disk / "t") == {
        "changed": b"new",
        "kept": b"kept",
        "linked": "-> changed",
        "sub": "/",
        "sub/added": b"new",
    }
    assert mode_of(disk / "t") == mode_of(disk / "t" / "sub") == 0o700


async def test_what_is_no_file_is_told_and_left_out(files, disk):
    (disk / "t").mkdir()
    os.mkfifo(disk / "t" / "fifo")
    (disk / "t" / "f").write_bytes(b"1")
    skipped: list[Path] = []

    await put(files, "t", "/workspace/t", skipped=skipped.append)

    assert await inside(files, "/workspace/t") == {"f": b"1"}
    assert skipped == [Path("t/fifo")]
    with pytest.raises(NotRegular, match="standard input"):
        await put(files, "t/fifo", "/workspace/x")


async def test_names_that_are_no_utf8_come_and_go(files, disk):
    name = os.fsdecode(b"a\xff")
    (disk / "t").mkdir()
    (disk / "t" / name).write_bytes(b"1")
    await put(files, "t", "/workspace/t")
    await get(files, "/workspace/t", "u")
    assert [os.fsencode(p.name) for p in (disk / "u").iterdir()] == [b"a\xff"]


async def test_links_that_are_named_themselves_are_followed(files, disk):
    (disk / "real").mkdir()
    (disk / "real" / "f").write_bytes(b"1")
    (disk / "link").symlink_to("real")
    (disk / "file").symlink_to("real/f")
    await put(files, "link", "/workspace/t")
    await put(files, "file", "/workspace/f")
    await files.symlink("/workspace/link", "t")
    await files.symlink("/workspace/file", "f")
    assert await inside(files) == {
        "f": b"1", "file": "-> f", "link": "-> t", "t": "/", "t/f": b"1"
    }  # fmt: skip

    await get(files, "/workspace/link", "out")
    await get(files, "/workspace/file", "f")
    await put(files, "file", "/workspace/link")

    assert shown(disk / "out") == {"f": b"1"}
    assert (disk / "f").read_bytes() == b"1"
    assert await files.read("/workspace/t/file") == b"1"


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "umask", "result"),
    [
        (0o777, 0o022, 0o755),
        (0o666, 0o077, 0o600),
        (0o4755, 0o022, 0o755),
        (0o1777, 0o022, 0o755),
        (0o400, 0o022, 0o400),
        (0o000, 0o022, 0o000),
    ],
    ids=oct,
)
async def test_no_mode_of_the_sandbox_outdoes_the_operators_umask(files, disk, mode, umask, result):
    await files.write("/workspace/t/d/f", b"1")
    for name in ("d/f", "d", "."):
        await files.chmod(f"/workspace/t/{name}", mode)
    os.umask(umask)

    await get(files, "/workspace/t", "t")
    await get(files, "/workspace/t/d/f", "f")

    assert mode_of(disk / "t") == result
    (disk / "t").chmod(0o700)
    assert mode_of(disk / "t" / "d") == result
    (disk / "t" / "d").chmod(0o700)
    assert mode_of(disk / "t" / "d" / "f") == result
    assert mode_of(disk / "f") == result


async def test_no_special_bit_goes_into_the_sandbox(files, disk):
    (disk / "t").mkdir()
    (disk / "t" / "f").touch()
    (disk / "t" / "f").chmod(0o6755)
    (disk / "t").chmod(0o1777)
    await put(files, "t", "/workspace/t")
    await put(files, "t/f", "/workspace/f")
    for name, mode in (("t", 0o777), ("t/f", 0o755), ("f", 0o755)):
        assert (await files.stat(f"/workspace/{name}")).mode == mode


# --- a sandbox that lies --------------------------------------------------------------------------


class Liar(MemoryFiles):
    """Files whose trees and contents are what a test says."""

    def __init__(self, items=(), chunks=(b"x",), *, before=None):
        super().__init__(Store(), Limits())
        self.items, self.chunks, self.before = items, chunks, before

    async def stat(self, path):
        kind = FileType.DIRECTORY if self.items else FileType.FILE
        return FileStat(path=PurePosixPath(path), type=kind, mode=0o777)

    async def download(self, path):
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def download_tree(self, path):
        for number, item in enumerate(self.items):
            if self.before is not None:
                self.before(number)
            yield item


def a_file(path, data=b"evil", **more):
    return TreeItem(path=PurePosixPath(path), type=FileType.FILE, chunks=Content(data), **more)


def a_folder(path, **more):
    return TreeItem(path=PurePosixPath(path), type=FileType.DIRECTORY, **more)


def a_link(path, text):
    return TreeItem(path=PurePosixPath(path), type=FileType.SYMLINK, link=text)


class Content:
    """A file's bytes, as often as they are asked for."""

    def __init__(self, data):
        self.data = data

    async def __aiter__(self):
        yield self.data


OUT = "../../neighbour"

#: A tree that lies, the error, and what is in the copy in spite of it.
LIES = {
    "up": ([a_file("../neighbour/canary")], InvalidArgument, {}),
    "up and down": ([a_folder("a"), a_file("a/../../neighbour/x")], InvalidArgument, {"a": "/"}),
    "a folder up": ([a_folder("../neighbour/x")], InvalidArgument, {}),
    "a link up": ([a_link("../neighbour/x", "y")], InvalidArgument, {}),
    "only up": ([a_file("..")], InvalidArgument, {}),
    "absolute": ([a_file("/tmp/x")], InvalidArgument, {}),
    "the root": ([a_file("/")], InvalidArgument, {}),
    "two slashes": ([a_file("//neighbour/x")], InvalidArgument, {}),
    "NUL": ([a_file("a\0b")], InvalidArgument, {}),
    "no name at all": ([a_file("\ud800")], InvalidArgument, {}),
    "too long": ([a_file("x" * 256)], InvalidArgument, {}),
    "a link, then a file below it": (
        [a_link("l", OUT), a_file("l/canary")], NotFound, {},
    ),
    "a link, then a folder below it": ([a_link("l", OUT), a_folder("l/x")], NotFound, {}),
    "a link, then a folder in its place, then a file": (
        [a_link("l", OUT), a_folder("l"), a_file("l/canary")],
        IsADirectory,
        {"l": "/", "l/canary": b"evil"},
    ),
    "a folder, then a link in its place, then a file": (
        [a_folder("l"), a_link("l", OUT), a_file("l/canary"), a_file("l/y")],
        IsADirectory,
        {"l": "/", "l/canary": b"evil", "l/y": b"evil"},
    ),
    "a link below a link": ([a_link("l", OUT), a_link("l/x", "y")], AlreadyExists, {"l": f"-> {OUT}"}),
    "a link in place of a file": (
        [a_file("f"), a_link("f", f"{OUT}/canary"), a_file("f", b"2")],
        None,
        {"f": f"-> {OUT}/canary"},
    ),
    "the same link twice": ([a_link("l", "a"), a_link("l", "b")], None, {"l": "-> b"}),
    "the same file twice": ([a_file("f", b"1"), a_file("f", b"2")], None, {"f": b"2"}),
    "a file, then a folder": ([a_file("f"), a_folder("f")], AlreadyExists, {"f": b"evil"}),
    "a folder, then a file": ([a_folder("f"), a_file("f")], IsADirectory, {"f": "/"}),
    "a file below a file": ([a_file("f"), a_file("f/x")], AlreadyExists, {"f": b"evil"}),
    "a file below nothing": ([a_file("none/x")], NotFound, {}),
    "a link to nowhere": ([a_link("l", "")], InvalidArgument, {}),
    "a link with a NUL": ([a_link("l", "a\0b")], InvalidArgument, {}),
    "too long a link": ([a_link("l", "x" * 5000)], InvalidArgument, {}),
    "a root that is a file": ([a_file(".")], None, {}),
    "a root that is a link": ([a_link(".", OUT), a_file("x")], None, {"x": b"evil"}),
    "a mode of 0, then a file below": (
        [a_folder("d", mode=0), a_file("d/f")], None, {"d": "/", "d/f": b"evil"},
    ),
    "a mode out of all bounds": ([a_file("f", mode=-1)], None, {"f": b"evil"}),
    "a file of nothing": (
        [TreeItem(path=PurePosixPath("f"), type=FileType.FILE)], None, {"f": b""},
    ),
    "a device": ([TreeItem(path=PurePosixPath("f"), type=FileType.OTHER)], None, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
async def test_a_sandbox_that_lies_writes_nothing_outside_of_the_copy(disk, name):
    items, error, left = LIES[name]
    files = Liar([a_folder("."), *items])
    if error is None:
        await get(files, "/workspace/t", "t")
    else:
        with pytest.raises(error):
            await get(files, "/workspace/t", "t")

    for path in disk.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    assert shown(disk / "t") == left


NAMES = st.sampled_from(["a", "b", ".", "..", "", "a/b", "b/a", "../x", "/x", "a/../..", "\0"])
TEXTS = st.sampled_from(["..", "../..", "/", "a", "b", "", "../../neighbour", "a/b"])
ITEMS = st.lists(
    st.one_of(
        st.builds(lambda n: (FileType.FILE, n, None), NAMES),
        st.builds(lambda n: (FileType.DIRECTORY, n, None), NAMES),
        st.builds(lambda n, t: (FileType.SYMLINK, n, t), NAMES, TEXTS),
        st.builds(lambda n: (FileType.OTHER, n, None), NAMES),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=ITEMS)
def test_no_tree_at_all_leaves_the_copy(tmp_path_factory, items):
    top = tmp_path_factory.mktemp("hostile")
    (top / "neighbour").mkdir()
    (top / "here").mkdir()
    tree = [
        TreeItem(
            path=PurePosixPath(name),
            type=kind,
            link=text,
            chunks=Content(b"evil") if kind is FileType.FILE else None,
        )
        for kind, name, text in items
    ]

    async def work():
        with suppress(PinfoldError):
            await get(Liar([a_folder("."), *tree]), "/workspace/t", top / "here" / "t")

    anyio.run(work)
    outside = [p for p in top.rglob("*") if not p.is_relative_to(top / "here" / "t")]
    assert sorted(p.name for p in outside) == ["here", "neighbour"]
    assert list(top.rglob(".pinfold-*")) == []


@pytest.mark.parametrize("planted", ["folder", "below", "root"])
async def test_a_link_planted_on_this_machine_while_we_copy_is_not_followed(
    disk, tmp_path, planted
):
    """Somebody else, who can write to the copy, swaps a folder for a link in the middle."""

    def swap(number):
        if number != 3:
            return
        if planted == "root":
            (disk / "t").rename(disk / "moved")
            (disk / "t").symlink_to(tmp_path / "neighbour")
        else:
            victim = disk / "t" / "a" if planted == "folder" else disk / "t" / "a" / "b"
            victim.rename(disk / "moved")
            victim.symlink_to(tmp_path / "neighbour")

    items = [
        a_folder("."),
        a_folder("a"),
        a_folder("a/b"),
        a_file("a/b/canary"),
        a_link("a/b/l", "x"),
    ]
    files = Liar(items, before=swap)
    if planted == "root":  # it was opened before: the copy goes on where it is now
        await get(files, "/workspace/t", "t")
        assert (disk / "moved" / "a" / "b" / "canary").read_bytes() == b"evil"
    else:
        with pytest.raises(AlreadyExists, match="link"):
            await get(files, "/workspace/t", "t")


async def test_a_link_planted_where_a_file_goes_is_replaced_and_not_written_through(disk, tmp_path):
    def plant(number):
        if number == 1:
            (disk / "t" / "f").symlink_to(tmp_path / "neighbour" / "canary")

    await get(Liar([a_folder("."), a_file("f")], before=plant), "/workspace/t", "t")
    assert shown(disk / "t") == {"f": b"evil"}


# --- what is cut short ----------------------------------------------------------------------------


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


# --- streams --------------------------------------------------------------------------------------


async def test_streams_go_in_and_out_of_any_size(files):
    data = os.urandom((5 << 20) + 7)
    moved: list[int] = []
    await put_from(files, io.BytesIO(data), "/workspace/f", told=moved.append)
    assert sum(moved) == len(data)
    out = io.BytesIO()
    await get_to(files, "/workspace/f", out, told=moved.append)
    assert out.getvalue() == data
    assert sum(moved) == 2 * len(data)


async def test_a_stream_that_takes_less_gets_all(files):
    class Small(io.BytesIO):
        taken = b""

        def write(self, data):
            self.taken += bytes(data[:3])
            return len(data[:3])

    await files.write("/workspace/f", b"0123456789")
    small = Small()
    await get_to(files, "/workspace/f", small)
    assert small.taken == b"0123456789"


async def test_a_device_is_written_to_and_never_replaced(files, disk):
    """As root, a rename over /dev/null would take it away from everybody."""
    await files.write("/workspace/f", b"12")
    os.mkfifo(disk / "fifo")
    (disk / "link").symlink_to("fifo")
    for target in ("fifo", "link"):
        reader = os.open(disk / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        await get(files, "/workspace/f", target)
        assert os.read(reader, 10) == b"12"
        os.close(reader)
    assert stat.S_ISFIFO((disk / "fifo").lstat().st_mode)
    assert (disk / "link").is_symlink()


async def test_the_operators_own_link_is_copied_through(files, disk):
    await files.write("/workspace/f", b"new")
    (disk / "real").write_bytes(b"old")
    (disk / "link").symlink_to("real")
    await get(files, "/workspace/f", "link")
    assert shown(disk) == {"link": "-> real", "real": b"new"}


# --- what this machine refuses --------------------------------------------------------------------

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
