"""A sandbox that lies writes nothing outside of the copy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.errors import (
    AlreadyExists,
    InvalidArgument,
    IsADirectory,
    NotFound,
    PinfoldError,
)
from pinfold.provider import FileType, TreeItem
from pinfold.transfer import get
from tests.core.transfer.support import Content, Liar, a_file, a_folder, a_link, shown

pytestmark = pytest.mark.anyio


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
