"""Trees, links and modes, both ways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinfold.errors import (
    NotRegular,
)
from pinfold.transfer import get, put
from tests.core.transfer.support import inside, mode_of, shown

pytestmark = pytest.mark.anyio


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
