"""cp's rules: where a copy goes, held to the real cp."""

from __future__ import annotations

import io
import subprocess
from pathlib import PurePosixPath

import pytest

from pinfold.errors import (
    AlreadyExists,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
)
from pinfold.transfer import get, get_to, put, put_from
from tests.core.transfer.support import inside, shown

pytestmark = pytest.mark.anyio


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
