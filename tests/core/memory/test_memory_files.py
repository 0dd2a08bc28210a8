"""FS and CP on core's own instance without compute."""

from __future__ import annotations

import anyio
import pytest

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    Lost,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    TooLarge,
    Unimplemented,
)
from pinfold.memory import NoCompute
from pinfold.provider import (
    Entry,
    ExecRequest,
    FileType,
    InstanceStatus,
    RestorePlan,
    guest_path,
    leads_out,
)
from pinfold.spec import Limits

pytestmark = pytest.mark.anyio

W = "/workspace"


@pytest.fixture
def box():
    return NoCompute("sbx_1")


@pytest.fixture
def files(box):
    return box.files


async def test_fs3_contents_and_names_are_byte_exact(files):
    data = bytes(range(256)) * 3
    for name in (
        "a",
        "a b",
        "a\nb",
        "-rf",
        "'\"$(x)",
        "\udcff\udcfe",
        "\u00e9",
        "e\u0301",
        "x" * 255,
        "...",
    ):
        await files.write(f"{W}/{name}", data)
        assert await files.read(f"{W}/{name}") == data
    assert "\udcff\udcfe" in [entry.path.name for entry in await files.list(W)]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("", InvalidArgument),
        ("x", InvalidArgument),
        ("workspace/x", InvalidArgument),
        ("/workspace/../x", InvalidArgument),
        ("/workspace/a/../b", InvalidArgument),
        ("/workspace/a\0b", InvalidArgument),
        ("/workspace/\ud800", InvalidArgument),
        (3, InvalidArgument),
        ("/", OutsideWorkspace),
        ("/etc/passwd", OutsideWorkspace),
        ("/workspacefoo", OutsideWorkspace),
        ("/Workspace/x", OutsideWorkspace),
    ],
    ids=repr,
)
async def test_fs1_paths_are_absolute_and_inside(files, path, error):
    for call in (
        files.read(path),
        files.write(path, b""),
        files.stat(path),
        files.list(path),
        files.remove(path),
        files.make_directory(path),
        files.chmod(path, 0o600),
        files.symlink(path, "x"),
        files.rename(path, f"{W}/y"),
    ):
        with pytest.raises(error):
            await call
    with pytest.raises(error):
        async for _ in files.download(path):
            pass


def test_fs1_a_path_is_taken_as_posix_has_it():
    assert str(guest_path("/workspace/./a//b/")) == "/workspace/a/b"
    assert str(guest_path("//workspace/a")) == "/workspace/a"


async def plant(files):
    await files.write(f"{W}/d/real", b"real")
    for name, text in {
        "in": "d/real",
        "in_abs": "/workspace/d/real",
        "in_dir": "d",
        "up_and_in": "d/../d/real",
        "out": "../etc/passwd",
        "out_abs": "/etc/passwd",
        "out_look": "/workspacefoo/x",
        "out_chain": "out",
        "dangling": "nowhere",
        "loop": "loop",
        "root": "/",
    }.items():
        await files.symlink(f"{W}/{name}", text)


async def test_fs2_links_that_stay_inside_are_followed(files):
    await plant(files)

    for name in ("in", "in_abs", "in_dir/real", "up_and_in"):
        assert await files.read(f"{W}/{name}") == b"real"
    assert [entry.path.name for entry in await files.list(f"{W}/in_dir")] == ["real"]


@pytest.mark.parametrize("name", ["out", "out_abs", "out_look", "out_chain", "root"])
async def test_fs2_links_that_lead_out_are_refused(files, name):
    await plant(files)

    for call in (
        files.read(f"{W}/{name}"),
        files.write(f"{W}/{name}", b"x"),
        files.list(f"{W}/{name}"),
        files.read(f"{W}/{name}/below"),
        files.write(f"{W}/{name}/below", b"x"),
        files.remove(f"{W}/{name}/below"),
        files.chmod(f"{W}/{name}", 0o600),
    ):
        with pytest.raises(OutsideWorkspace):
            await call


async def test_fs2_stat_remove_and_rename_act_on_the_link_itself(files):
    await plant(files)

    stat = await files.stat(f"{W}/out_abs")
    assert (stat.type, stat.link, stat.size) == (FileType.SYMLINK, "/etc/passwd", 11)
    await files.rename(f"{W}/in", f"{W}/moved")
    assert (await files.stat(f"{W}/moved")).link == "d/real"
    await files.remove(f"{W}/in_dir", recursive=True)
    assert await files.read(f"{W}/d/real") == b"real"
    await files.remove(f"{W}/out")
    with pytest.raises(NotFound):
        await files.stat(f"{W}/out")


async def test_fs2_a_loop_ends(files):
    await plant(files)

    with pytest.raises(InvalidArgument):
        await files.read(f"{W}/loop")


async def test_fs4_a_write_makes_parents_keeps_the_mode_and_follows_inside_links(files):
    await plant(files)
    await files.chmod(f"{W}/d/real", 0o640)

    await files.write(f"{W}/in", b"new")
    await files.write(f"{W}/p/q/r", b"deep")
    await files.write(f"{W}/dangling", b"made")

    assert await files.read(f"{W}/d/real") == b"new"
    assert (await files.stat(f"{W}/d/real")).mode == 0o640
    assert (await files.stat(f"{W}/in")).type is FileType.SYMLINK
    assert await files.read(f"{W}/nowhere") == b"made"
    assert (await files.stat(f"{W}/p/q/r")).mode == 0o644
    await files.write(f"{W}/p/q/r", b"x", mode=0o600)
    assert (await files.stat(f"{W}/p/q/r")).mode == 0o600


async def test_fs4_a_refused_write_leaves_everything_as_it_was(files):
    await files.write(f"{W}/f", b"old")

    async def breaks():
        yield b"new"
        raise RuntimeError("source")

    with pytest.raises(RuntimeError, match="source"):
        await files.upload(f"{W}/f", breaks())
    with pytest.raises(NotADirectory):
        await files.write(f"{W}/f/x/y", b"")
    with pytest.raises(IsADirectory):
        await files.write(W, b"")

    assert await files.read(f"{W}/f") == b"old"
    assert [entry.path.name for entry in await files.list(W)] == ["f"]


async def test_fs4_a_cancelled_upload_leaves_the_old_file(files):
    await files.write(f"{W}/f", b"old")

    async def endless():
        yield b"new"
        await anyio.sleep_forever()

    with anyio.move_on_after(0.05):
        await files.upload(f"{W}/f", endless())

    assert await files.read(f"{W}/f") == b"old"


async def test_fs5_each_error_has_its_type(files):
    await files.write(f"{W}/f", b"x")
    await files.write(f"{W}/d/x", b"x")

    for error, call in (
        (NotFound, files.read(f"{W}/nope")),
        (NotFound, files.read(f"{W}/nope/x")),
        (NotFound, files.remove(f"{W}/nope")),
        (NotFound, files.rename(f"{W}/nope", f"{W}/y")),
        (NotFound, files.make_directory(f"{W}/q/r", parents=False)),
        (NotFound, files.symlink(f"{W}/nope/l", "x")),
        (IsADirectory, files.read(f"{W}/d")),
        (IsADirectory, files.rename(f"{W}/f", f"{W}/d")),
        (NotADirectory, files.list(f"{W}/f")),
        (NotADirectory, files.stat(f"{W}/f/x")),
        (NotADirectory, files.rename(f"{W}/d", f"{W}/f")),
        (AlreadyExists, files.symlink(f"{W}/f", "x")),
        (AlreadyExists, files.make_directory(f"{W}/d", exist_ok=False)),
        (AlreadyExists, files.make_directory(f"{W}/f")),
        (Conflict, files.remove(f"{W}/d")),
        (Conflict, files.rename(f"{W}/d", f"{W}/d/inner")),
        (InvalidArgument, files.remove(W, recursive=True)),
        (InvalidArgument, files.rename(W, f"{W}/x")),
        (InvalidArgument, files.read(f"{W}/f", offset=-1)),
        (InvalidArgument, files.read(f"{W}/f", length=-1)),
        (InvalidArgument, files.write(f"{W}/f", "text")),
        (InvalidArgument, files.write(f"{W}/f", b"", mode=0o10000)),
        (InvalidArgument, files.chmod(f"{W}/f", -1)),
        (InvalidArgument, files.symlink(f"{W}/l", "")),
        (InvalidArgument, files.write(f"{W}/{'x' * 256}", b"")),
    ):
        with pytest.raises(error):
            await call


async def test_ranges_are_as_slices(files):
    await files.write(f"{W}/f", b"0123456789")

    assert await files.read(f"{W}/f", offset=3, length=4) == b"3456"
    assert await files.read(f"{W}/f", offset=8, length=99) == b"89"
    assert await files.read(f"{W}/f", offset=99) == b""
    assert await files.read(f"{W}/f", length=0) == b""


async def test_section_1b_limits_are_refused_one_past_and_not_at_them():
    files = NoCompute("sbx_1", Limits(read_bytes=10, file_bytes=20)).files

    await files.write(f"{W}/f", b"x" * 20)
    assert len(await files.read(f"{W}/f", length=10)) == 10
    with pytest.raises(TooLarge):
        await files.read(f"{W}/f", length=11)
    with pytest.raises(TooLarge):
        await files.write(f"{W}/g", b"x" * 21)
    assert b"".join([chunk async for chunk in files.download(f"{W}/f")]) == b"x" * 20


async def test_batches_keep_errors_in_their_places(files):
    await files.write_many({f"{W}/a": b"1", f"{W}/b/c": b"2"})

    one, missing, two = await files.read_many([f"{W}/a", f"{W}/x", f"{W}/b/c"])
    stat, error = await files.stat_many([f"{W}/a", f"{W}/x"])

    assert (one, two) == (b"1", b"2")
    assert isinstance(missing, NotFound)
    assert stat.size == 1
    assert isinstance(error, NotFound)


async def test_a_tree_goes_out_and_in_again(files):
    await files.write(f"{W}/t/a/b", b"x" * 3, mode=0o700)
    await files.make_directory(f"{W}/t/empty")
    await files.symlink(f"{W}/t/l", "/etc/passwd")

    count = await files.upload_tree(f"{W}/copy", files.download_tree(f"{W}/t"))
    await files.upload_tree(f"{W}/copy", files.download_tree(f"{W}/t"))

    assert count == 5
    assert await files.read(f"{W}/copy/a/b") == b"xxx"
    assert (await files.stat(f"{W}/copy/a/b")).mode == 0o700
    assert (await files.stat(f"{W}/copy/l")).link == "/etc/passwd"
    assert (await files.stat(f"{W}/copy/empty")).type is FileType.DIRECTORY


# --- the tree -------------------------------------------------------------------------------


async def contents(box):
    scan = await box.tree.scan()
    blobs: dict[str, bytes] = {}
    async for blob in box.tree.read(
        [entry for entry in scan.entries if entry.type is FileType.FILE]
    ):
        blobs[blob.path] = blobs.get(blob.path, b"") + blob.data
    return scan, blobs


async def test_cp2_restore_gives_exactly_that_tree(box):
    await plant(box.files)
    await box.files.make_directory(f"{W}/empty/deeper")
    await box.files.write(f"{W}/big", b"z" * (3 << 20), mode=0o4755)
    scan, blobs = await contents(box)
    by_digest = {e.digest: blobs[e.path] for e in scan.entries if e.type is FileType.FILE}

    await box.files.remove(f"{W}/d", recursive=True)
    await box.files.write(f"{W}/added", b"")
    await box.files.write(f"{W}/big", b"changed")

    async def fetch(digest):
        yield by_digest[digest]

    report = await box.tree.restore(RestorePlan(entries=scan.entries, fetch=fetch))

    again, blobs_again = await contents(box)
    assert [(e.path, e.type, e.mode, e.size, e.digest, e.link) for e in again.entries] == [
        (e.path, e.type, e.mode, e.size, e.digest, e.link) for e in scan.entries
    ]
    assert blobs_again == blobs
    assert set(report.escaping_links) == {"out", "out_abs", "out_look", "root"}
    assert (await box.tree.scan(report.state)).unchanged


async def test_cp3_a_blob_that_cannot_be_had_leaves_the_live_tree(box):
    from pinfold.errors import CheckpointCorrupt

    await box.files.write(f"{W}/f", b"live")

    async def fetch(digest):
        raise CheckpointCorrupt(digest)
        yield b""

    entries = (Entry(path="g", type=FileType.FILE, mode=0o644, size=1, digest="00"),)
    with pytest.raises(CheckpointCorrupt):
        await box.tree.restore(RestorePlan(entries=entries, fetch=fetch))

    assert await box.files.read(f"{W}/f") == b"live"
    assert await box.tree.recover() is False


@pytest.mark.parametrize("path", ["a/b", "", "a//b", "/a", "a/../b", ".", "..", "./x", "a\0b"])
async def test_cp8_a_tree_without_a_sound_place_is_refused(box, path):
    await box.files.write(f"{W}/f", b"live")
    entries = (Entry(path=path, type=FileType.DIRECTORY, mode=0o755),)

    async def fetch(digest):
        yield b""

    with pytest.raises(InvalidArgument):
        await box.tree.restore(RestorePlan(entries=entries, fetch=fetch))
    assert await box.files.read(f"{W}/f") == b"live"


async def test_an_unchanged_store_is_not_scanned_again(box):
    await box.files.write(f"{W}/f", b"x")
    scan = await box.tree.scan()

    assert (await box.tree.scan(scan.state)).unchanged
    await box.files.chmod(f"{W}/f", 0o600)
    assert not (await box.tree.scan(scan.state)).unchanged


@pytest.mark.parametrize(
    ("path", "text", "out"),
    [
        ("l", "a", False),
        ("l", "..", True),
        ("d/l", "..", False),
        ("d/l", "../..", True),
        ("d/l", "../../x", True),
        ("l", "/workspace", False),
        ("l", "/workspace/a/..", False),
        ("l", "/workspace/../x", True),
        ("l", "/", True),
        ("l", "/workspacefoo", True),
        ("l", "a/../../x", True),
        ("l", "./a//b", False),
    ],
)
def test_cp2_links_that_lead_out_are_told_by_their_text(path, text, out):
    assert leads_out(path, text) is out


# --- no compute ----------------------------------------------------------------------------


async def test_sp0_without_a_target_exec_is_unimplemented(box):
    with pytest.raises(Unimplemented):
        await box.exec(ExecRequest(argv=["true"]))
    with pytest.raises(OutsideWorkspace):
        await box.exec(ExecRequest(argv=["true"], cwd="/etc"))


async def test_cp1_a_scan_is_sorted_with_parents_before_children(box):
    for path in ("b/x", "a/y/z", "a.c", "a/b", "B"):
        await box.files.write(f"{W}/{path}", b"")
    found = [entry.path for entry in (await box.tree.scan()).entries]
    assert found == ["B", "a", "a/b", "a/y", "a/y/z", "a.c", "b", "b/x"]


async def test_what_was_ended_is_lost(box):
    await box.destroy()
    for call in (box.files.read(f"{W}/x"), box.files.write(f"{W}/x", b""), box.files.list(W)):
        with pytest.raises(Lost):
            await call


async def test_destroy_is_idempotent(box):
    assert await box.status() is InstanceStatus.RUNNING
    await box.destroy()
    await box.destroy()
    assert await box.status() is InstanceStatus.ABSENT


async def test_fs4_what_is_refused_leaves_no_parents(files):
    """Nothing was done, as its effect says: not even on the way."""
    long = f"{W}/a/b/{'x' * 300}"
    for call in (
        lambda: files.make_directory(long),
        lambda: files.make_directory(f"{long}/c"),
        lambda: files.write(long, b"1"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call()
        assert caught.value.effect == "none"
        assert await files.list(W) == []
    await files.make_directory(f"{W}/a")
    with pytest.raises(InvalidArgument):
        await files.make_directory(long)
    assert await files.list(f"{W}/a") == []
