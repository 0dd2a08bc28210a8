"""Files keep the contract on any target that has a shell (FS)."""

import os
import secrets
import tracemalloc
from contextlib import aclosing
from pathlib import PurePosixPath

import anyio
import pytest

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    NotRegular,
    OutsideWorkspace,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import ExecRequest, FileType, InstanceRef, TreeItem
from tests.core.posix.conftest import LocalInstance, until
from tests.names import HOSTILE, use_all

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [0, 1, 4095, 65_536, 65_537, 3_000_001])
async def test_fs3_contents_are_byte_exact(box, size) -> None:
    """FS-3, table row 22."""
    data = secrets.token_bytes(size)
    await box.files.write("/workspace/f", data)
    assert (box.workspace / "f").read_bytes() == data
    assert await box.files.read("/workspace/f") == data


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_fs3_any_name_is_a_name(box) -> None:
    """FS-3, table row 25: every operation, and nothing is made of it by a shell."""
    await use_all(box.instance, box.workspace)


async def test_fs3_the_text_of_a_link_is_verbatim(box) -> None:
    for number, text in enumerate((*HOSTILE, "//\n' -> 'x", "' -> '", "a/../b", "x" * 1000)):
        await box.files.symlink(f"/workspace/{number}", text)
        assert str((box.workspace / str(number)).readlink()) == text
        assert (await box.files.stat(f"/workspace/{number}")).link == text
    listed = {entry.path.name: entry.link for entry in await box.files.list("/workspace")}
    assert listed["1"] == HOSTILE[1]
    assert sorted(listed.values()) == sorted(
        (*HOSTILE, "//\n' -> 'x", "' -> '", "a/../b", "x" * 1000)
    )


async def chunks(*pieces: bytes):
    for piece in pieces:
        yield piece


FOLLOWING = (
    lambda files, path: files.read(path),
    lambda files, path: files.list(path),
    lambda files, path: files.chmod(path, 0o777),
    lambda files, path: files.write(path, b"x"),
    lambda files, path: files.upload(path, chunks(b"x")),
    lambda files, path: files.write_many({path: b"x"}),
    lambda files, path: files.write(f"{path}/w", b"x"),
    lambda files, path: files.make_directory(f"{path}/d"),
)
NOT_FOLLOWING = (
    lambda files, path: files.stat(path),
    lambda files, path: files.remove(path),
    lambda files, path: files.symlink(path, "x"),
    lambda files, path: files.rename(path, "/workspace/x"),
    lambda files, path: files.rename("/workspace/chain", path),
)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("relative", InvalidArgument),
        ("/workspace/../etc/passwd", InvalidArgument),
        ("/workspace/a\0b", InvalidArgument),
        ("/workspacefoo", OutsideWorkspace),
        ("/etc/passwd", OutsideWorkspace),
        ("/", OutsideWorkspace),
    ],
)
async def test_fs1_a_path_elsewhere_is_refused(box, path, error) -> None:
    for operation in (*FOLLOWING, *NOT_FOLLOWING):
        with pytest.raises(error) as caught:
            await operation(box.files, path)
        assert type(caught.value) is error
    for results in (await box.files.read_many([path]), await box.files.stat_many([path])):
        assert [type(result) for result in results] == [error]


LINKS = {
    "leaf": "out/canary",
    "directory": "out",
    "dangling": "out/nothing",
    "absolute": "{out}/canary",
    "by parents": "../outside/canary",
}


@pytest.mark.parametrize("kind_of_link", LINKS)
async def test_fs2_a_link_that_leads_out_is_refused(box, kind_of_link) -> None:
    """FS-2, table row 26: nothing is read, nothing is changed."""
    files, out = box.files, box.out
    await box.sh(f'printf canary >"{out}/canary"; ln -s "{out}" out')
    text = LINKS[kind_of_link].format(out=out)
    link = "/workspace/l"
    await box.files.symlink(link, text)
    await box.files.symlink("/workspace/chain", "l")
    for path in (link, "/workspace/chain", f"{link}/deeper", "/workspace/out/canary"):
        for operation in FOLLOWING:
            with pytest.raises(OutsideWorkspace):
                await operation(files, path)
        results = await box.files.read_many([path])
        assert isinstance(results[0], OutsideWorkspace)
    for name in ("canary", "nothing"):
        inner = f"/workspace/out/{name}"
        for operation in NOT_FOLLOWING:
            with pytest.raises(OutsideWorkspace):
                await operation(files, inner)
    seen = await box.sh(f'cat "{out}/canary"; ls "{out}" | wc -l; stat -c %a "{out}/canary"')
    assert seen.stdout[:6] == b"canary"
    assert seen.stdout.split()[-1] == b"644"
    # the link itself can be looked at, renamed and removed
    assert (await box.files.stat(link)).link == text
    await box.files.rename(link, "/workspace/l2")
    await box.files.remove("/workspace/l2")
    assert (await box.sh(f'cat "{out}/canary"')).stdout == b"canary"


async def test_fs2_a_link_that_stays_inside_is_followed(box) -> None:
    root = box.instance.equipment.layout.root
    (box.workspace / "d" / "e").mkdir(parents=True)
    (box.workspace / "d" / "f").write_text("content")
    for name, text in {
        "file": "d/f", "dir": "d", "chain": "file", "up": "d/e/../f", "absolute": f"{root}/d/f",
        "self": f"{root}/dir/../d/./f", "slash": "d/", "dots": "d/e/..",
    }.items():  # fmt: skip
        (box.workspace / name).symlink_to(text)
    for name in ("file", "chain", "up", "absolute", "self", "dir/f", "slash/f", "dots/f"):
        assert await box.files.read(f"/workspace/{name}") == b"content", name
        assert (await box.files.read_many([f"/workspace/{name}"])) == [b"content"]
    for name in ("dir", "slash", "dots"):
        assert len(await box.files.list(f"/workspace/{name}")) == 2


@pytest.mark.parametrize("how", ["write", "upload", "write_many"])
async def test_fs4_a_write_through_a_link_replaces_what_it_leads_to(box, how) -> None:
    """FS-4: and keeps the link."""
    (box.workspace / "d").mkdir()
    (box.workspace / "d" / "f").write_text("old")
    (box.workspace / "d" / "f").chmod(0o750)
    (box.workspace / "l").symlink_to("d/f")
    (box.workspace / "new").symlink_to("d/made")
    for path in ("/workspace/l", "/workspace/new"):
        if how == "upload":
            await box.files.upload(path, chunks(b"n", b"ew"))
        elif how == "write":
            await box.files.write(path, b"new")
        else:
            await box.files.write_many({path: b"new", "/workspace/other": b"plain"})
    assert (box.workspace / "l").is_symlink()
    assert (box.workspace / "d" / "f").read_text() == "new"
    assert (box.workspace / "d" / "f").stat().st_mode & 0o7777 == 0o750
    assert (box.workspace / "new").is_symlink()
    assert (box.workspace / "d" / "made").read_text() == "new"


async def test_fs4_modes(box) -> None:
    """FS-4: a new file is 0644, an existing mode is kept, a given one is set."""
    files = box.files

    def mode(name: str) -> int:
        bits: int = (box.workspace / name).stat().st_mode
        return bits & 0o7777

    await files.write("/workspace/a", b"1")
    assert mode("a") == 0o644
    await files.chmod("/workspace/a", 0o4711)
    assert mode("a") == 0o4711
    await files.chmod("/workspace/a", 0o711)
    await files.write("/workspace/a", b"2")
    assert mode("a") == 0o711
    await files.write("/workspace/a", b"3", mode=0o640)
    assert mode("a") == 0o640
    await files.upload("/workspace/a", chunks(b"4"))
    assert mode("a") == 0o640
    await files.write("/workspace/b", b"1", mode=0o755)
    assert mode("b") == 0o755
    await files.write_many({"/workspace/a": b"5", "/workspace/c": b"", "/workspace/b": b""})
    assert (mode("a"), mode("b"), mode("c")) == (0o640, 0o755, 0o644)
    await files.make_directory("/workspace/d/e")
    assert (mode("d"), mode("d/e")) == (0o755, 0o755)
    await files.chmod("/workspace/d", 0o700)
    assert mode("d") == 0o700
    (box.workspace / "l").symlink_to("a")
    await files.chmod("/workspace/l", 0o600)
    assert mode("a") == 0o600


async def test_fs4_readers_see_the_old_or_the_new_file(box) -> None:
    """FS-4, table row 7."""
    path = box.workspace / "f"
    versions = [bytes([65 + n]) * 200_000 for n in range(8)]
    path.write_bytes(versions[0])
    seen: set[bytes] = set()
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            while True:
                data = path.read_bytes()
                assert data in versions
                seen.add(data)
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(look)
        async with anyio.create_task_group() as writers:
            for data in versions:
                writers.start_soon(box.files.write, "/workspace/f", data)
        tasks.cancel_scope.cancel()
    assert await box.files.read("/workspace/f") in versions
    assert [entry.name for entry in box.workspace.iterdir()] == ["f"]


@pytest.mark.parametrize("how", ["write", "upload", "make_directory"])
async def test_fs4_what_is_refused_leaves_no_parents(box, how) -> None:
    """FS-4: its effect is none; what was there, or came meanwhile, stays."""
    calls = {
        "write": lambda path: box.files.write(path, b"1"),
        "upload": lambda path: box.files.upload(path, chunks(b"1")),
        "make_directory": box.files.make_directory,
    }
    long = "x" * 300
    (box.workspace / "file").write_bytes(b"1")
    (box.workspace / "empty").mkdir()
    (box.workspace / "link").symlink_to("empty")
    for path in (
        f"a/b/{long}", f"a/{long}/b", f"empty/a/{long}", f"link/a/b/{long}", f"link/{long}", "file/a/b"
    ):  # fmt: skip
        with pytest.raises((InvalidArgument, NotADirectory)) as caught:
            await calls[how](f"/workspace/{path}")
        assert caught.value.effect == "none"
        found = {str(entry.relative_to(box.workspace)) for entry in box.workspace.rglob("*")}
        assert found == {"file", "empty", "link"}, path
    await calls[how]("/workspace/a/b/c")
    assert (box.workspace / "a" / "b" / "c").exists()


async def test_fs4_an_upload_that_breaks_leaves_no_parents(box) -> None:
    async def broken():
        yield b"x" * 100_000
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke"):
        await box.files.upload("/workspace/a/b/f", broken())
    await until(lambda: list(box.workspace.iterdir()) == [])


async def test_fs4_an_upload_that_breaks_leaves_the_old(box) -> None:
    await box.files.write("/workspace/f", b"old")

    async def broken():
        yield b"x" * 100_000
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke"):
        await box.files.upload("/workspace/f", broken())
    assert await box.files.read("/workspace/f") == b"old"
    await until(lambda: [entry.name for entry in box.workspace.iterdir()] == ["f"])


async def test_fs4_a_cancelled_write_leaves_the_old(box) -> None:
    await box.files.write("/workspace/f", b"old")

    async def slow():
        yield b"x" * 100_000
        await anyio.sleep_forever()

    with anyio.move_on_after(0.2):
        await box.files.upload("/workspace/f", slow())
    assert await box.files.read("/workspace/f") == b"old"
    await until(lambda: [entry.name for entry in box.workspace.iterdir()] == ["f"])


async def test_fs4_removal_never_descends_through_a_link(box) -> None:
    (box.outside / "canary").write_text("canary")
    deep = box.workspace / "d" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "f").write_text("")
    (deep / "l").symlink_to(box.outside)
    (box.workspace / "d" / ".hidden").mkdir()
    (box.workspace / "d" / "..x").write_text("")
    (box.workspace / "keep").mkdir()
    (deep / "inner").symlink_to("../../../keep")
    await box.files.remove("/workspace/d", recursive=True)
    assert [entry.name for entry in box.workspace.iterdir()] == ["keep"]
    assert (box.outside / "canary").read_text() == "canary"


ERRORS = [
    # what, on what, the error
    ("read", "missing", NotFound), ("read", "dir", IsADirectory), ("read", "file/x", NotADirectory),
    ("read", "fifo", NotRegular), ("read", "missing/x", NotFound), ("read", "loop", NotFound),
    ("read", "", IsADirectory), ("download", "missing", NotFound), ("download", "dir", IsADirectory),
    ("write", "dir", IsADirectory), ("write", "file/x", NotADirectory), ("write", "fifo", NotRegular),
    ("write", "", IsADirectory), ("write", "y" * 256, InvalidArgument), ("upload", "dir", IsADirectory),
    ("upload", "fifo", NotRegular), ("write_many", "dir", IsADirectory), ("write_many", "fifo", NotRegular),
    ("write_many", "file/x", NotADirectory), ("write_many", "y" * 256, InvalidArgument),
    ("stat", "missing", NotFound), ("stat", "file/x", NotADirectory), ("stat", "missing/x", NotFound),
    ("list", "missing", NotFound), ("list", "file", NotADirectory), ("list", "fifo", NotADirectory),
    ("remove", "missing", NotFound), ("remove", "full", Conflict), ("remove", "", InvalidArgument),
    ("remove_all", "missing", NotFound), ("remove_all", "", InvalidArgument),
    ("mkdir_new", "dir", AlreadyExists), ("mkdir", "file", AlreadyExists), ("mkdir", "file/x", NotADirectory),
    ("mkdir_one", "missing/x", NotFound), ("mkdir_new", "", AlreadyExists),
    ("symlink", "file", AlreadyExists), ("symlink", "missing/x", NotFound), ("symlink", "dangling", AlreadyExists),
    ("symlink", "file/x", NotADirectory), ("symlink", "dir", AlreadyExists), ("symlink", "", AlreadyExists),
    ("chmod", "missing", NotFound), ("chmod", "file/x", NotADirectory),
    ("rename", "missing:x", NotFound), ("rename", "file:missing/x", NotFound), ("rename", "file:dir", IsADirectory),
    ("rename", "dir:file", NotADirectory), ("rename", "dir:full", Conflict), ("rename", "dir:dir/x", Conflict),
    ("rename", "file:file/x", NotADirectory), ("rename", ":x", InvalidArgument), ("rename", "file:", InvalidArgument),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "on", "error"), ERRORS, ids=[f"{what} {on[:10]}" for what, on, _ in ERRORS]
)
async def test_fs5_errors_are_typed(box, what, on, error) -> None:
    """FS-5, FS-7: none of it is a lost target, nothing hangs, nothing is changed."""
    (box.workspace / "dir").mkdir()
    (box.workspace / "full").mkdir()
    (box.workspace / "full" / "f").write_text("")
    (box.workspace / "file").write_text("content")
    (box.workspace / "dangling").symlink_to("nothing")
    (box.workspace / "loop").symlink_to("loop")
    os.mkfifo(box.workspace / "fifo")
    before = sorted(str(path) for path in box.workspace.rglob("*"))
    first, _, second = (f"/workspace/{part}" for part in on.partition(":"))
    files = box.files

    async def drain() -> None:
        async for _ in files.download(first):
            pass

    call = {
        "read": lambda: files.read(first),
        "download": drain,
        "write": lambda: files.write(first, b"x"),
        "upload": lambda: files.upload(first, chunks(b"x")),
        "write_many": lambda: files.write_many({first: b"x"}),
        "stat": lambda: files.stat(first),
        "list": lambda: files.list(first),
        "remove": lambda: files.remove(first),
        "remove_all": lambda: files.remove(first, recursive=True),
        "mkdir": lambda: files.make_directory(first),
        "mkdir_new": lambda: files.make_directory(first, exist_ok=False),
        "mkdir_one": lambda: files.make_directory(first, parents=False),
        "symlink": lambda: files.symlink(first, "x"),
        "chmod": lambda: files.chmod(first, 0o600),
        "rename": lambda: files.rename(first, second),
    }[what]
    with anyio.fail_after(5), pytest.raises(PinfoldError) as caught:
        await call()
    assert type(caught.value) is error, str(caught.value)
    assert sorted(str(path) for path in box.workspace.rglob("*")) == before
    assert (box.workspace / "file").read_text() == "content"


async def test_fs5_a_full_file_system_is_no_space(tmp_path, request, kind) -> None:
    """And what could not be written leaves the old file."""
    from pinfold.errors import NoSpace
    from pinfold.posix import equip
    from tests.core.posix.guests import BusyboxGuest

    if kind != "busybox":
        return  # the small file system is made by bubblewrap
    root = request.getfixturevalue("busybox")
    (tmp_path / "w").mkdir()
    options = ("--size", str(256 * 1024), "--tmpfs", "/workspace")
    guest = BusyboxGuest(root, tmp_path / "w", *options)
    try:
        kit = await equip(guest, root=PurePosixPath("/workspace"))
        await kit.files.write("/workspace/f", b"old")
        for operation in (
            lambda: kit.files.write("/workspace/f", bytes(1_000_000)),
            lambda: kit.files.upload("/workspace/f", chunks(bytes(1_000_000))),
            lambda: kit.files.write_many({"/workspace/f": bytes(1_000_000)}),
        ):
            with pytest.raises(NoSpace):
                await operation()
            assert await kit.files.read("/workspace/f") == b"old"
        assert [entry.path.name for entry in await kit.files.list("/workspace")] == ["f"]
        await kit.files.write("/workspace/g", bytes(100_000))  # nothing was left behind
    finally:
        guest.close()


@pytest.mark.parametrize("kind", ["busybox"])
async def test_fs5_a_read_only_workspace_refuses_every_change_and_can_be_read(
    tmp_path, request, kind
) -> None:
    from pinfold.errors import PermissionDenied
    from pinfold.posix import equip
    from tests.core.posix.guests import BusyboxGuest

    workspace = tmp_path / "w"
    (workspace / "d").mkdir(parents=True)
    (workspace / "f").write_text("old")
    guest = BusyboxGuest(
        request.getfixturevalue("busybox"),
        workspace,
        *("--ro-bind", str(workspace), "/workspace"),
    )
    try:
        kit = await equip(guest, root=PurePosixPath("/workspace"), helper="never")
        files = kit.files
        item = TreeItem(path=PurePosixPath("g"), type=FileType.FILE, chunks=chunks(b""))
        for operation in (
            lambda: files.write("/workspace/f", b"new"),
            lambda: files.write("/workspace/n/g", b"new"),
            lambda: files.upload("/workspace/g", chunks(b"new")),
            lambda: files.write_many({"/workspace/f": b"new", "/workspace/d/g": b"new"}),
            lambda: files.upload_tree("/workspace/d", [item]),
            lambda: files.make_directory("/workspace/n"),
            lambda: files.remove("/workspace/f"),
            lambda: files.remove("/workspace/d", recursive=True),
            lambda: files.rename("/workspace/f", "/workspace/g"),
            lambda: files.symlink("/workspace/l", "f"),
            lambda: files.chmod("/workspace/f", 0o600),
        ):
            with pytest.raises(PermissionDenied):
                await operation()
        assert await files.read_many(["/workspace/f"]) == [b"old"]
        assert [entry.path.name for entry in await files.list("/workspace")] == ["d", "f"]
        instance = LocalInstance(InstanceRef(provider="test", id="read-only"), kit)
        ran = await instance.exec(ExecRequest(shell="cat f; echo new >f"))
        assert (ran.exit_code != 0, ran.stdout) == (True, b"old")
    finally:
        guest.close()


async def test_fs5_links_may_be_renamed_over_and_over_themselves(box) -> None:
    await box.files.write("/workspace/f", b"f")
    await box.files.symlink("/workspace/l", "f")
    await box.files.rename("/workspace/f", "/workspace/f")
    await box.files.rename("/workspace/l", "/workspace/l")
    await box.files.write("/workspace/g", b"g")
    await box.files.rename("/workspace/g", "/workspace/l")
    assert await box.files.read("/workspace/l") == b"g"
    assert await box.files.read("/workspace/f") == b"f"
    await box.files.make_directory("/workspace/d")
    await box.files.make_directory("/workspace/e")
    await box.files.rename("/workspace/d", "/workspace/e")
    assert sorted(entry.name for entry in box.workspace.iterdir()) == ["e", "f", "l"]


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, None), (0, 0), (0, 5), (3, 4), (3, None), (9, 100), (10, 1), (100, None), (100, 5)],
)
async def test_ranges(box, offset, length) -> None:
    await box.files.write("/workspace/f", b"0123456789")
    end = None if length is None else offset + length
    expected = b"0123456789"[offset:end]
    assert await box.files.read("/workspace/f", offset=offset, length=length) == expected


@pytest.mark.parametrize("bad", [{"offset": -1}, {"length": -1}, {"offset": True}, {"length": 1.0}])
async def test_a_range_that_makes_no_sense_is_refused(box, bad) -> None:
    with pytest.raises(InvalidArgument):
        await box.files.read("/workspace/f", **bad)


async def test_1b_more_than_a_read_may_hold_is_too_large(box) -> None:
    await box.sh("truncate -s 40M big || dd if=/dev/zero of=big bs=1M count=0 seek=40")
    with pytest.raises(TooLarge):
        await box.files.read("/workspace/big")
    with pytest.raises(TooLarge):
        await box.files.read("/workspace/big", length=33 * 1024 * 1024)
    assert isinstance((await box.files.read_many(["/workspace/big"]))[0], TooLarge)
    assert await box.files.read("/workspace/big", offset=1_000_000, length=1000) == bytes(1000)


async def test_fs6_commands_and_file_operations_see_the_same(box) -> None:
    """FS-6, table row 35: at once, as the same user."""
    await box.files.write("/workspace/f", b"by files\n")
    result = await box.sh("cat f; echo by exec >>f; chmod 600 f; echo new >g")
    assert result.stdout == b"by files\n"
    assert await box.files.read("/workspace/f") == b"by files\nby exec\n"
    assert await box.files.read("/workspace/g") == b"new\n"
    await box.files.remove("/workspace/g")
    assert (await box.sh("ls")).stdout == b"f\n"


async def test_fs7_any_size_in_bounded_memory(box) -> None:
    """FS-7, table row 23."""
    size = 64 * 1024 * 1024
    piece = secrets.token_bytes(1024 * 1024)

    async def source():
        for _ in range(64):
            yield piece

    tracemalloc.start()
    try:
        assert await box.files.upload("/workspace/big", source()) == size
        total = 0
        async for chunk in box.files.download("/workspace/big"):
            total += len(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == size
    assert peak < 8 * 1024 * 1024
    assert (box.workspace / "big").stat().st_size == size


async def test_a_download_may_be_left_early(box) -> None:
    await box.files.write("/workspace/f", bytes(10_000_000))
    async with aclosing(box.files.download("/workspace/f")) as pieces:
        async for chunk in pieces:
            assert chunk
            break
    assert (await box.files.stat("/workspace/f")).size == 10_000_000


async def test_listing_tells_what_is_there(box) -> None:
    await box.files.write("/workspace/d/file", b"12345", mode=0o640)
    await box.files.make_directory("/workspace/d/sub")
    await box.files.symlink("/workspace/d/link", "file")
    os.mkfifo(box.workspace / "d" / "fifo")
    os.utime(box.workspace / "d" / "file", ns=(1, 1_700_000_000_123_456_789))
    entries = {entry.path.name: entry for entry in await box.files.list("/workspace/d")}
    assert list(entries) == ["fifo", "file", "link", "sub"]
    assert [entry.type for entry in entries.values()] == [
        FileType.OTHER, FileType.FILE, FileType.SYMLINK, FileType.DIRECTORY,
    ]  # fmt: skip
    file = entries["file"]
    assert (file.size, file.mode, file.mtime_ns) == (5, 0o640, 1_700_000_000_123_456_789)
    assert (entries["link"].link, entries["link"].size) == ("file", 4)
    assert file == await box.files.stat("/workspace/d/file")
    assert list(entries.values()) == list(
        await box.files.stat_many([e.path for e in entries.values()])
    )


async def test_listing_50_000_entries(box) -> None:
    folder = box.workspace / "many"
    folder.mkdir()
    for number in range(50_000):
        os.close(os.open(folder / f"{number:05} x", os.O_CREAT | os.O_WRONLY))
    entries = await box.files.list("/workspace/many")
    assert [entry.path.name for entry in entries] == [f"{number:05} x" for number in range(50_000)]


async def test_many_files_at_once(box) -> None:
    """In few round trips, and each result in its place."""
    files = {f"/workspace/{n % 7}/{n % 3}/f {n}": secrets.token_bytes(n % 300) for n in range(400)}
    before = getattr(box.guest, "spawned", 0)
    await box.files.write_many(files)
    assert await box.files.read_many(list(files)) == list(files.values())
    stats = await box.files.stat_many(list(files))
    assert [stat.size for stat in stats] == [len(data) for data in files.values()]
    # a directory that has just been written to is read once more, with certainty, file by file
    assert getattr(box.guest, "spawned", 0) - before <= 3 + 400
    await anyio.sleep(0.05)
    before = getattr(box.guest, "spawned", 0)
    assert await box.files.read_many(list(files)) == list(files.values())
    assert getattr(box.guest, "spawned", 0) - before <= 1
    for path, data in files.items():
        assert (box.workspace / path.removeprefix("/workspace/")).read_bytes() == data


async def test_many_at_once_keep_each_error_in_its_place(box) -> None:
    await box.files.write("/workspace/a", b"a")
    await box.files.make_directory("/workspace/d")
    await box.files.symlink("/workspace/out", "/etc/hostname")
    await box.files.symlink("/workspace/in", "a")
    os.mkfifo(box.workspace / "fifo")
    paths = ["/workspace/a", "/workspace/no", "/workspace/d", "/workspace/out", "/workspace/in",
             "/workspace/a", "/workspace/fifo", "/workspace/a/b", "/etc", "relative"]  # fmt: skip
    read = await box.files.read_many(paths)
    assert read[0] == read[4] == read[5] == b"a"
    assert [type(result) for result in read if result != b"a"] == [
        NotFound, IsADirectory, OutsideWorkspace, NotRegular, NotADirectory, OutsideWorkspace, InvalidArgument,
    ]  # fmt: skip
    stat = await box.files.stat_many(paths)
    assert [getattr(result, "type", type(result)) for result in stat] == [
        FileType.FILE, NotFound, FileType.DIRECTORY, FileType.SYMLINK, FileType.SYMLINK, FileType.FILE,
        FileType.OTHER, NotADirectory, OutsideWorkspace, InvalidArgument,
    ]  # fmt: skip
    assert await box.files.read_many([]) == await box.files.stat_many([]) == []


async def test_many_writes_of_which_one_fails_say_what_was_done(box) -> None:
    await box.files.make_directory("/workspace/b/f")
    with pytest.raises(IsADirectory) as caught:
        await box.files.write_many({"/workspace/a/f": b"a", "/workspace/b/f": b"b"})
    assert caught.value.effect == "done"
    assert await box.files.read("/workspace/a/f") == b"a"


async def test_trees_go_out_and_come_in_again(box) -> None:
    files = box.files
    await files.write("/workspace/t/a b/f\n1", b"one", mode=0o755)
    await files.write("/workspace/t/big", bytes(600_000))
    await files.make_directory("/workspace/t/empty")
    await files.symlink("/workspace/t/a b/link", "../../../outside")
    os.mkfifo(box.workspace / "t" / "fifo")
    (box.workspace / "t" / "empty").chmod(0o700)
    items = []
    async for item in files.download_tree("/workspace/t"):
        data = b"".join([chunk async for chunk in item.chunks]) if item.chunks is not None else b""
        assert len(data) == item.size
        items.append((item.path, item.type, item.mode, item.link, data))
    assert {str(path) for path, *_ in items} == {".", "a b", "a b/f\n1", "a b/link", "big", "empty"}
    for position, (path, *_) in enumerate(items):
        if str(path) != ".":
            assert path.parent in [earlier for earlier, *_ in items[:position]]
    copies = [
        TreeItem(path=path, type=kind, mode=mode, size=len(data), link=link, chunks=chunks(data))
        for path, kind, mode, link, data in items
    ]
    assert await files.upload_tree("/workspace/copy", copies) == len(items)
    copy = box.workspace / "copy"
    assert (copy / "a b" / "f\n1").read_bytes() == b"one"
    assert (copy / "a b" / "f\n1").stat().st_mode & 0o777 == 0o755
    assert (copy / "big").read_bytes() == bytes(600_000)
    assert str((copy / "a b" / "link").readlink()) == "../../../outside"
    assert (copy / "empty").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["../x", "/workspace/x", "a/../../x"])
async def test_a_tree_can_not_be_uploaded_out_of_its_root(box, path) -> None:
    item = TreeItem(path=PurePosixPath(path), type=FileType.FILE, size=1, chunks=None)
    with pytest.raises(InvalidArgument):
        await box.files.upload_tree("/workspace/t", [item])


async def test_writable_roots_are_reached_by_their_own_names(tmp_path, kind) -> None:
    """SP-4, FS-1."""
    from pinfold.posix import equip
    from tests.core.posix.guests import LocalGuest

    if kind != "shell":
        return
    for name in ("w", "real", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "scratch").symlink_to("real")
    scratch = PurePosixPath(tmp_path / "scratch")
    kit = await equip(LocalGuest(), root=PurePosixPath(tmp_path / "w"), writable_roots=[scratch])
    await kit.files.write(scratch / "f", b"x")
    assert (tmp_path / "real" / "f").read_bytes() == b"x"
    assert [entry.path for entry in await kit.files.list(scratch)] == [scratch / "f"]
    await kit.files.symlink("/workspace/l", str(scratch / "f"))
    assert await kit.files.read("/workspace/l") == b"x"
    await kit.files.write_many({scratch / "g": b"g", "/workspace/h": b"h"})
    assert await kit.files.read_many([scratch / "g", "/workspace/h"]) == [b"g", b"h"]
    with pytest.raises(OutsideWorkspace):
        await kit.files.read(tmp_path / "other" / "f")
    with pytest.raises(InvalidArgument):
        await kit.files.remove(scratch, recursive=True)
