"""What core gives to those who write providers and their lanes."""

from pathlib import PurePosixPath

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import InvalidArgument
from pinfold.provider import Entry, FileType, check_entries
from pinfold.testing import FolderWitness

FOLDER, FILE, LINK = FileType.DIRECTORY, FileType.FILE, FileType.SYMLINK


def entry(path, kind=FILE, **facts):
    return Entry(path=path, type=kind, **{"mode": 0o644, **facts})


HOSTILE = {
    "an absolute name": [entry("/etc/passwd")],
    "nothing": [entry("")],
    "dot-dot": [entry("../evil")],
    "dot-dot inside": [entry("a", FOLDER), entry("a/../../evil")],
    "dot": [entry("./evil")],
    "an empty part": [entry("a", FOLDER), entry("a//evil")],
    "a trailing slash": [entry("evil/")],
    "NUL": [entry("ev\0il")],
    "NUL in a link": [entry("l", LINK, link="ev\0il")],
    "a missing parent": [entry("none/evil")],
    "a file as parent": [entry("f"), entry("f/evil")],
    "a link as parent": [entry("l", LINK, link="/etc"), entry("l/evil")],
    "a child before its parent": [entry("a/evil"), entry("a", FOLDER)],
    "one name twice": [entry("evil"), entry("evil")],
    "a folder and a file": [entry("evil", FOLDER), entry("evil")],
    "a mode beyond all bits": [entry("evil", mode=0o10000)],
    "a mode below zero": [entry("evil", mode=-1)],
    "a size below zero": [entry("evil", size=-1)],
    "a special file": [entry("evil", FileType.OTHER)],
    "a link without a text": [entry("evil", LINK)],
    "a file with a link's text": [entry("evil", link="x")],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_a_tree_that_no_scan_gives_is_refused_by_the_name_of_its_entry(entries):
    """CP-8"""
    with pytest.raises(InvalidArgument, match="can't be restored") as caught:
        check_entries(entries)
    assert caught.value.details["path"] in [one.path for one in entries]


@given(st.data())
def test_every_honest_tree_passes_and_any_of_its_parents_is_needed(data):
    """CP-8"""
    names = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=5)
    names = names.filter(lambda name: name not in (".", ".."))
    paths = data.draw(st.lists(st.lists(names, min_size=1, max_size=4), max_size=8))
    folders = {"/".join(parts[:size]) for parts in paths for size in range(1, len(parts))}
    files = {"/".join(parts) for parts in paths} - folders
    tree = [entry(path, FOLDER) for path in folders] + [entry(path) for path in files]
    tree.sort(key=lambda one: one.path.split("/"))
    check_entries(tree)
    parents = {path for path in folders if any(p.startswith(f"{path}/") for p in folders | files)}
    for parent in sorted(parents):
        with pytest.raises(InvalidArgument):
            check_entries([one for one in tree if one.path != parent])


@pytest.mark.anyio
async def test_the_witness_of_a_folder_sees_and_does_what_the_system_does(tmp_path):
    witness, root = FolderWitness(tmp_path), PurePosixPath("/workspace")
    await witness.write(root / "deep" / "file", b"\0\xff")
    assert (tmp_path / "deep" / "file").read_bytes() == b"\0\xff"
    (tmp_path / "deep" / "file").write_bytes(b"changed")
    assert await witness.read(root / "deep" / "file") == b"changed"
    await witness.link(root / "a", "nowhere")
    assert str((tmp_path / "a").readlink()) == "nowhere"
    assert await witness.list(root) == ["a", "deep"]
    with pytest.raises(FileNotFoundError):
        await witness.read(root / "none")


@pytest.mark.anyio
async def test_the_witness_of_a_folder_tells_a_file_that_grows_from_one_that_stands(tmp_path):
    witness, beat = FolderWitness(tmp_path), PurePosixPath("/workspace/beat")
    (tmp_path / "beat").write_bytes(b"")

    async def grow():
        while True:
            with (tmp_path / "beat").open("ab") as file:
                file.write(b"x")
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(grow)
        assert await witness.is_alive(beat)
        group.cancel_scope.cancel()
    assert not await witness.is_alive(beat)
