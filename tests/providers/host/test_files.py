"""Files on the host, at both levels, by the fast path and by the slow one (contract section 5)."""

import contextlib
import os
import stat
import threading
from pathlib import PurePosixPath
from typing import Any

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
    NotRegular,
    OutsideWorkspace,
    PermissionDenied,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import FileType, TreeItem
from tests.names import use_all
from tests.providers.host.support import create, names, out, own, plant, run, sh, workspace

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("way")]


@pytest.fixture
def anyio_backend(kind):
    return kind[0]


@pytest.fixture
async def files(instance, way):
    assert instance.files.roots.is_direct == (way == "openat2")
    return instance.files


def link(instance, name: str, target: str) -> None:
    path = workspace(instance) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    own(instance, path)


def root_of(instance) -> str:
    """The workspace as commands see it."""
    return "/workspace" if instance.features.tree_kill == "namespace" else str(workspace(instance))


BAD_PATHS = {
    "relative": InvalidArgument,
    "": InvalidArgument,
    "/workspace/../etc/passwd": InvalidArgument,
    "/workspace/a/../b": InvalidArgument,
    "/workspace/a\0b": InvalidArgument,
    "/workspacefoo": OutsideWorkspace,
    "/workspace2/x": OutsideWorkspace,
    "/etc/passwd": OutsideWorkspace,
    "/": OutsideWorkspace,
}


async def test_a_path_is_judged_by_its_text_first(files):
    """FS-1: in every operation, and nothing is touched."""
    calls = {
        "read": files.read,
        "write": lambda p: files.write(p, b"x"),
        "stat": files.stat,
        "list": files.list,
        "make_directory": files.make_directory,
        "remove": files.remove,
        "rename from": lambda p: files.rename(p, "/workspace/x"),
        "rename to": lambda p: files.rename("/workspace/x", p),
        "symlink": lambda p: files.symlink(p, "x"),
        "chmod": lambda p: files.chmod(p, 0o600),
        "download": lambda p: anext(files.download(p)),
        "upload": lambda p: files.upload(p, _chunks(b"x")),
    }
    for path, error in BAD_PATHS.items():
        for what, call in calls.items():
            with pytest.raises(error) as caught:
                await call(path)
            assert type(caught.value) is error, (what, path)


async def _chunks(*chunks: bytes):
    for chunk in chunks:
        yield chunk


@pytest.fixture
def outside(tmp_path):
    """A folder outside, with canaries in it."""
    place = tmp_path / "outside"
    (place / "folder").mkdir(parents=True)
    (place / "canary").write_bytes(b"canary")
    (place / "folder" / "inner").write_bytes(b"inner")
    tmp_path.chmod(0o755)
    for path in (place, place / "folder"):
        path.chmod(0o777)
    for path in (place / "canary", place / "folder" / "inner"):
        path.chmod(0o666)
    return place


def _relative(place, start) -> str:
    return str(os.path.relpath(place, start))


def fingerprint(place) -> dict[str, Any]:
    return {
        str(path.relative_to(place)): (
            stat.S_IMODE(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(place.rglob("*"))
    }


@pytest.mark.parametrize("shape", ["direct", "relative", "chain", "parent", "dangling", "dotdot"])
async def test_links_that_lead_out_are_refused_by_whoever_follows(instance, files, outside, shape):
    """FS-2: whatever the link's shape, in every operation that follows one."""
    root = workspace(instance)
    up = _relative(outside, root)
    file, folder = {
        "direct": ("out", "outdir"),
        "relative": ("out", "outdir"),
        "chain": ("one", "onedir"),
        "parent": ("via/canary", "via/folder"),
        "dangling": ("nowhere", "nowheredir"),
        "dotdot": ("in/../../up/canary", "in"),
    }[shape]
    made = {
        "direct": {"out": f"{outside}/canary", "outdir": f"{outside}/folder"},
        "relative": {"out": f"{up}/canary", "outdir": f"{up}/folder"},
        "chain": {
            "one": "two",
            "two": f"{outside}/canary",
            "onedir": "twodir",
            "twodir": f"{up}/folder",
        },
        "parent": {"via": str(outside)},
        "dangling": {"nowhere": f"{outside}/new", "nowheredir": f"{up}/newdir"},
        "dotdot": {"in": f"a/../../../{up}/folder", "a/b": "c"},
    }[shape]
    for name, target in made.items():
        link(instance, name, target)
    if shape == "dotdot":
        file = "in"
    before = fingerprint(outside)
    path, directory = f"/workspace/{file}", f"/workspace/{folder}"
    for call in (
        files.read(path),
        files.write(path, b"gone"),
        files.chmod(path, 0),
        files.list(directory),
        anext(files.download(path)),
        files.upload(path, _chunks(b"gone")),
        files.read(f"{directory}/inner"),
        files.write(f"{directory}/inner", b"gone"),
        files.write(f"{directory}/new/file", b"gone"),
        files.make_directory(f"{directory}/made"),
        files.remove(f"{directory}/inner"),
        files.stat(f"{directory}/inner"),
        files.symlink(f"{directory}/made", "x"),
        files.rename(f"{directory}/inner", "/workspace/stolen"),
    ):
        with pytest.raises(OutsideWorkspace):
            await call
    await files.write("/workspace/plain", b"plain")
    with pytest.raises(OutsideWorkspace):
        await files.rename("/workspace/plain", f"{directory}/inner")
    assert await files.read("/workspace/plain") == b"plain", "control: it works without the link"
    assert fingerprint(outside) == before


async def test_a_link_itself_can_be_looked_at_moved_and_removed(instance, files, outside):
    """FS-2: stat, remove and rename act on the link, wherever it leads."""
    link(instance, "out", str(outside / "folder"))
    found = await files.stat("/workspace/out")
    assert (found.type, found.link) == (FileType.SYMLINK, str(outside / "folder"))
    await files.rename("/workspace/out", "/workspace/moved")
    await files.remove("/workspace/moved", recursive=True)
    assert (outside / "folder" / "inner").read_bytes() == b"inner"
    with pytest.raises(NotFound):
        await files.stat("/workspace/moved")


@pytest.mark.parametrize("target", ["real/file", "{root}/real/file", "./real/../real//file"])
async def test_links_that_stay_inside_are_followed(instance, files, target):
    """FS-2, FS-4: relative and absolute; a write replaces what they lead to and keeps them."""
    await files.write("/workspace/real/file", b"old", mode=0o640)
    text = target.format(root=root_of(instance))
    await files.symlink("/workspace/link", text)
    assert await files.read("/workspace/link") == b"old"
    await files.write("/workspace/link", b"new")
    assert await files.read("/workspace/real/file") == b"new"
    assert (await files.stat("/workspace/real/file")).mode == 0o640
    assert (await files.stat("/workspace/link")).link == text
    await files.chmod("/workspace/link", 0o600)
    assert (await files.stat("/workspace/real/file")).mode == 0o600
    await files.symlink("/workspace/dir", text.rpartition("/")[0])
    assert [e.path.name for e in await files.list("/workspace/dir")] == ["file"]
    await files.write("/workspace/dir/more/deep", b"x")
    assert await files.read("/workspace/real/more/deep") == b"x"


async def test_a_dangling_link_inside_is_where_a_new_file_goes(instance, files):
    """FS-2, FS-4."""
    link(instance, "link", "to/come")
    with pytest.raises(NotFound):
        await files.read("/workspace/link")
    await files.write("/workspace/link", b"new")
    assert await files.read("/workspace/to/come") == b"new"
    assert (await files.stat("/workspace/link")).type is FileType.SYMLINK


async def test_links_in_a_circle_are_an_error_not_a_hang(instance, files):
    """FS-5."""
    link(instance, "a", "b")
    link(instance, "b", "a")
    for call in (
        files.read("/workspace/a"),
        files.write("/workspace/a", b""),
        files.list("/workspace/a/x"),
    ):
        with pytest.raises(InvalidArgument):
            await call


@pytest.mark.parametrize("kind", [["asyncio", "openat2"], ["asyncio", "walk"]], ids="-".join)
async def test_names_that_are_hostile_to_shells(instance, files):
    """FS-3: every operation, on each of them; nothing else comes to be."""
    del files  # it says which way paths are resolved
    await use_all(instance, workspace(instance))


@pytest.mark.parametrize("size", [0, 1, 1023, 65_536, 262_144, 262_145, 3_000_001])
async def test_contents_are_exact(files, size):
    """FS-3: whole, by ranges, by streams."""
    data = os.urandom(size)
    await files.write("/workspace/f", data)
    assert await files.read("/workspace/f") == data
    assert b"".join([chunk async for chunk in files.download("/workspace/f")]) == data
    for offset, length in (
        (0, 0),
        (0, 10),
        (size // 2, None),
        (size, 5),
        (size + 9, None),
        (3, size),
    ):
        end = None if length is None else offset + length
        assert await files.read("/workspace/f", offset=offset, length=length) == data[offset:end]
    half = size // 2
    assert await files.upload("/workspace/g", _chunks(data[:half], b"", data[half:])) == size
    assert await files.read("/workspace/g") == data


async def test_a_range_is_a_number_of_bytes(files):
    """FS-5: nothing negative, nothing else."""
    await files.write("/workspace/f", b"x")
    for offset, length in ((-1, None), (0, -1), (True, None), (1.0, None)):
        with pytest.raises(InvalidArgument):
            await files.read("/workspace/f", offset=offset, length=length)


async def test_too_much_at_once_is_refused_not_cut(instance, files):
    """FS-3, section 1b: 32 MiB a read; a stream has no such limit."""
    path = plant(instance, "big")
    os.truncate(path, 32 * 1024 * 1024 + 1)
    with pytest.raises(TooLarge):
        await files.read("/workspace/big")
    assert len(await files.read("/workspace/big", offset=1)) == 32 * 1024 * 1024


async def test_modes(instance, files):
    """FS-4: a new file has 0644 or what was said; an existing mode is kept; chmod sets it."""
    await files.write("/workspace/new", b"")
    assert (await files.stat("/workspace/new")).mode == 0o644
    await files.write("/workspace/said", b"", mode=0o751)
    assert (await files.stat("/workspace/said")).mode == 0o751
    await files.write("/workspace/said", b"x")
    assert (await files.stat("/workspace/said")).mode == 0o751
    await files.write("/workspace/said", b"x", mode=0o600)
    assert (await files.stat("/workspace/said")).mode == 0o600
    await files.make_directory("/workspace/a/b")
    assert (await files.stat("/workspace/a/b")).mode == 0o755
    assert (await files.stat("/workspace/a")).mode == 0o755
    for mode in (-1, 0o10000, "600", None, True):
        with pytest.raises(InvalidArgument):
            await files.chmod("/workspace/new", mode)
    await files.chmod("/workspace/new", 0)
    assert (await files.stat("/workspace/new")).mode == 0


async def test_what_is_given_is_bytes(files):
    """FS-5: text is refused, and the old file stands."""
    await files.write("/workspace/f", b"old")
    with pytest.raises(InvalidArgument):
        await files.write("/workspace/f", "text")
    with pytest.raises(InvalidArgument):
        await files.upload("/workspace/f", _chunks("text"))  # type: ignore[arg-type]
    assert await files.read("/workspace/f") == b"old"


async def test_readers_see_the_old_or_the_new_file(instance, files):
    """FS-4: never a part of either, while it is replaced again and again."""
    one, two = b"1" * 200_000, b"2" * 150_000
    await files.write("/workspace/f", one)
    path, seen, stop = workspace(instance) / "f", set(), threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(100):
            await files.write("/workspace/f", two)
            await files.upload("/workspace/f", _chunks(one[:100_000], one[100_000:]))
    finally:
        stop.set()
        thread.join()
    assert seen <= {one, two}
    assert len(seen) == 2, "control: both were seen"


async def test_a_write_that_fails_or_is_cancelled_leaves_the_old_file(instance, files):
    """FS-4: and nothing beside it."""
    await files.write("/workspace/f", b"old")

    async def broken():
        yield b"new"
        raise ZeroDivisionError

    async def endless():
        while True:
            yield b"new"
            await anyio.sleep(0.001)

    with pytest.raises(ZeroDivisionError):
        await files.upload("/workspace/f", broken())
    with anyio.move_on_after(0.05):
        await files.upload("/workspace/f", endless())
    assert await files.read("/workspace/f") == b"old"
    assert names(instance) == ["f"]


ERRORS: dict[str, tuple[str, list[Any], type[PinfoldError]]] = {
    "read missing": ("read", ["missing"], NotFound),
    "read under a file": ("read", ["file/x"], NotADirectory),
    "read a directory": ("read", ["dir"], IsADirectory),
    "read the workspace": ("read", [""], IsADirectory),
    "read a fifo": ("read", ["fifo"], NotRegular),
    "read a socket": ("read", ["socket"], NotRegular),
    "write a directory": ("write", ["dir", b""], IsADirectory),
    "write the workspace": ("write", ["", b""], IsADirectory),
    "write under a file": ("write", ["file/x", b""], NotADirectory),
    "write a fifo": ("write", ["fifo", b""], NotRegular),
    "write a socket": ("write", ["socket", b""], NotRegular),
    "write a long name": ("write", ["n" * 256, b""], InvalidArgument),
    "stat missing": ("stat", ["missing"], NotFound),
    "stat under a file": ("stat", ["file/x"], NotADirectory),
    "list missing": ("list", ["missing"], NotFound),
    "list a file": ("list", ["file"], NotADirectory),
    "make over a file": ("make_directory", ["file"], AlreadyExists),
    "make over a link to nothing": ("make_directory", ["fifo"], AlreadyExists),
    "make under a file": ("make_directory", ["file/x"], NotADirectory),
    "remove missing": ("remove", ["missing"], NotFound),
    "remove a full directory": ("remove", ["dir"], Conflict),
    "remove the workspace": ("remove", [""], InvalidArgument),
    "rename missing": ("rename", ["missing", "/workspace/x"], NotFound),
    "rename into nowhere": ("rename", ["file", "/workspace/no/x"], NotFound),
    "rename a file over a directory": ("rename", ["file", "/workspace/dir"], IsADirectory),
    "rename a directory over a file": ("rename", ["dir", "/workspace/file"], NotADirectory),
    "rename over a full directory": ("rename", ["empty", "/workspace/dir"], Conflict),
    "rename into itself": ("rename", ["dir", "/workspace/dir/x"], Conflict),
    "rename the workspace": ("rename", ["", "/workspace/x"], InvalidArgument),
    "rename over the workspace": ("rename", ["dir", "/workspace"], InvalidArgument),
    "link over a file": ("symlink", ["file", "x"], AlreadyExists),
    "link into nowhere": ("symlink", ["no/x", "x"], NotFound),
    "link under a file": ("symlink", ["file/x", "x"], NotADirectory),
    "link without text": ("symlink", ["x", ""], InvalidArgument),
    "link with NUL": ("symlink", ["x", "a\0b"], InvalidArgument),
    "chmod missing": ("chmod", ["missing", 0o600], NotFound),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_errors_are_typed_and_change_nothing(instance, files, name):
    """FS-5, FS-4."""
    plant(instance, "file", b"content")
    plant(instance, "dir/inner", b"inner")
    (workspace(instance) / "empty").mkdir()
    await sh(instance, "mkfifo fifo")
    import socket

    with (
        socket.socket(socket.AF_UNIX) as listener,
        contextlib.chdir(workspace(instance)),  # the path is longer than a socket may have
    ):
        listener.bind("socket")
    for each in ("empty", "socket"):
        own(instance, workspace(instance) / each)
    before = fingerprint(workspace(instance))
    method, (first, *rest), error = ERRORS[name]
    with pytest.raises(error) as caught, anyio.fail_after(5):
        await getattr(files, method)(f"/workspace/{first}".rstrip("/"), *rest)
    assert type(caught.value) is error
    assert caught.value.effect == "none"
    assert fingerprint(workspace(instance)) == before


async def test_a_device_or_a_pipe_never_hangs_a_call(instance, files):
    """FS-7: neither to read nor to write, nor as a stream, nor in a tree."""
    await sh(instance, "mkfifo fifo")
    with anyio.fail_after(5):
        for call in (
            files.read("/workspace/fifo"),
            files.write("/workspace/fifo", b"x"),
            anext(files.download("/workspace/fifo")),
            files.upload("/workspace/fifo", _chunks(b"x")),
        ):
            with pytest.raises(NotRegular):
                await call
        assert (await files.stat("/workspace/fifo")).type is FileType.OTHER
        await files.chmod("/workspace/fifo", 0o600)
        await files.remove("/workspace/fifo")


async def test_permissions_of_the_guest_are_the_files_permissions(anyio_backend, native):
    """FS-6, FS-5: a controller that is root may no more than the guest itself."""
    instance = await create("native")
    try:
        files = instance.files
        await files.write("/workspace/d/f", b"x")
        await files.chmod("/workspace/d/f", 0)
        with pytest.raises(PermissionDenied):
            await files.read("/workspace/d/f")
        await files.chmod("/workspace/d", 0o500)
        for call in (
            files.write("/workspace/d/new", b""),
            files.remove("/workspace/d/f"),
            files.rename("/workspace/d/f", "/workspace/f"),
            files.make_directory("/workspace/d/sub"),
            files.symlink("/workspace/d/link", "x"),
        ):
            with pytest.raises(PermissionDenied):
                await call
        await files.chmod("/workspace/d", 0)
        for look in (files.list("/workspace/d"), files.stat("/workspace/d/f")):
            with pytest.raises(PermissionDenied):
                await look
        await files.chmod("/workspace/d", 0o755)
        assert (await files.stat("/workspace/d/f")).mode == 0
    finally:
        await instance.destroy()


async def test_exec_and_files_see_each_other_at_once(instance, files):
    """FS-6: as the same user, in both directions."""
    await files.write("/workspace/made/by/api", b"api\n", mode=0o640)
    said = await out(
        instance, "cat made/by/api; echo more >> made/by/api; chmod 600 made/by/api; id -u"
    )
    assert said.splitlines()[0] == "api"
    assert await files.read("/workspace/made/by/api") == b"api\nmore\n"
    assert (await files.stat("/workspace/made/by/api")).mode == 0o600
    await sh(instance, "mkdir -p by; echo sh > by/sh; ln -s sh by/link; chmod 700 by")
    assert await files.read("/workspace/by/link") == b"sh\n"
    await files.write("/workspace/by/sh", b"api")
    await files.remove("/workspace/by/link")
    owners = (await out(instance, "stat -c %u . made made/by made/by/api by by/sh")).split()
    assert len(set(owners)) == 1
    await sh(instance, "rm -r made by")
    assert await files.list("/workspace") == []


async def test_a_listing_has_every_entry_with_its_facts(instance, files):
    """FS: types, sizes, modes, links; sorted by name."""
    await sh(instance, "mkdir d; echo hi > f; ln -s f l; mkfifo p; chmod 711 d")
    found = {e.path.name: (e.type, e.size, e.mode, e.link) for e in await files.list("/workspace")}
    assert found["d"] == (FileType.DIRECTORY, 0, 0o711, None)
    assert found["f"] == (FileType.FILE, 3, 0o644, None)
    assert (found["l"][0], found["l"][3]) == (FileType.SYMLINK, "f")
    assert found["p"][0] is FileType.OTHER
    assert list(found) == ["d", "f", "l", "p"]


async def test_removal_never_descends_through_a_link(instance, files, outside):
    """FS-4: inside a tree that is removed, links are just removed."""
    before = fingerprint(outside)
    await files.make_directory("/workspace/tree/deep")
    await files.symlink("/workspace/tree/out", str(outside))
    await files.symlink("/workspace/tree/deep/out", str(outside / "folder"))
    await files.remove("/workspace/tree", recursive=True)
    assert fingerprint(outside) == before
    assert names(instance) == []


async def test_many_at_once(files):
    """FS: batches; an error stands in its file's place."""
    wanted = {f"/workspace/d{n % 7}/f{n}": str(n).encode() for n in range(300)}
    await files.write_many(wanted)
    paths = [*wanted, "/workspace/missing", "/workspace/d0", "/etc/passwd"]
    got = await files.read_many(paths)
    assert got[:300] == list(wanted.values())
    assert [type(error) for error in got[300:]] == [NotFound, IsADirectory, OutsideWorkspace]
    facts = await files.stat_many(paths)
    assert [fact.size for fact in facts[:300]] == [len(data) for data in wanted.values()]
    assert isinstance(facts[300], NotFound)
    with pytest.raises(PinfoldError) as caught:
        await files.write_many({"/workspace/ok": b"", "/workspace/d0": b""})
    assert caught.value.effect == "done"
    with pytest.raises(PinfoldError) as caught:
        await files.write_many({"/workspace/d0": b"", "/workspace/ok2": b""})
    assert caught.value.effect == "none"


async def test_trees_up_and_down(instance, files):
    """FS: what was sent up comes down again, links and modes and empty directories too."""
    items = [
        TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY, mode=0o755),
        TreeItem(path=PurePosixPath("empty"), type=FileType.DIRECTORY, mode=0o711),
        TreeItem(path=PurePosixPath("sub"), type=FileType.DIRECTORY, mode=0o755),
        TreeItem(
            path=PurePosixPath("sub/run"),
            type=FileType.FILE,
            mode=0o755,
            size=2,
            chunks=_chunks(b"hi"),
        ),
        TreeItem(path=PurePosixPath("sub/link"), type=FileType.SYMLINK, link="/etc/passwd"),
    ]
    await files.upload_tree("/workspace/tree", items)
    await sh(instance, "mkfifo tree/fifo")
    got = {}
    async for item in files.download_tree("/workspace/tree"):
        content = None if item.chunks is None else b"".join([c async for c in item.chunks])
        got[str(item.path)] = (item.type, content, item.link)
    assert got == {
        ".": (FileType.DIRECTORY, None, None),
        "empty": (FileType.DIRECTORY, None, None),
        "sub": (FileType.DIRECTORY, None, None),
        "sub/run": (FileType.FILE, b"hi", None),
        "sub/link": (FileType.SYMLINK, None, "/etc/passwd"),
    }
    assert (await files.stat("/workspace/tree/empty")).mode == 0o711


async def test_a_workspace_that_is_gone_is_lost(instance, files):
    """LC-5, FS-5: no file error is ever taken for it, and it for none."""
    import shutil

    await files.write("/workspace/f", b"x")
    with pytest.raises(NotFound):
        await files.read("/workspace/missing")
    shutil.rmtree(workspace(instance))
    for call in (
        files.read("/workspace/f"),
        files.write("/workspace/f", b""),
        files.list("/workspace/d"),
        run(instance, "true"),
    ):
        with pytest.raises(Lost):
            await call
    assert await instance.status() == "absent"


async def test_no_space_is_told_and_the_old_file_stands(instance, files, monkeypatch):
    """FS-5, FS-4: as the file system says it, here in the middle of a write."""
    from pinfold.errors import NoSpace

    await files.write("/workspace/f", b"old")
    real, written = os.write, []

    def full(fd: int, data: bytes) -> int:
        if len(data) == 70_000:
            written.append(real(fd, data[:10]))
            return 10
        if len(data) == 69_990:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for call in (
            files.write("/workspace/f", bytes(70_000)),
            files.upload("/workspace/f", _chunks(bytes(70_000))),
        ):
            with pytest.raises(NoSpace):
                await call
    assert written == [10, 10]
    assert (workspace(instance) / "f").read_bytes() == b"old"
    assert names(instance) == ["f"]


async def test_writable_roots(anyio_backend, native):
    """SP-4: named in the target's own paths, for commands and for files; empty at first."""
    roots = ["/scratch", "/var/cache/x", "/tmp"]
    instance = await create("native", roots=roots)
    try:
        files = instance.files
        for root in roots:
            assert await files.list(root) == []
            await files.write(f"{root}/sub/f", b"api")
            assert await out(instance, f"cat {root}/sub/f; echo sh > {root}/g") == "api"
            assert await files.read(f"{root}/g") == b"sh\n"
            assert await out(instance, "pwd", cwd=f"{root}/sub") == f"{root}/sub\n"
            with pytest.raises(InvalidArgument):
                await files.remove(root, recursive=True)
        await files.symlink("/workspace/link", "/scratch/g")
        assert await files.read("/workspace/link") == b"sh\n"
        with pytest.raises(InvalidArgument):
            await files.rename("/scratch/g", "/workspace/g")
        with pytest.raises(OutsideWorkspace):
            await files.list("/var/cache")
        assert (await sh(instance, "touch /var/cache/y")).exit_code != 0
        assert len((await instance.tree.scan()).entries) == 1, "no part of a checkpoint"
    finally:
        await instance.destroy()


async def test_a_look_alike_is_no_root(anyio_backend, native):
    """SP-4, FS-1: only the workspace where none is granted."""
    instance = await create("native")
    try:
        for path in ("/tmp/x", "/scratch/x", "/var/tmp/x"):
            with pytest.raises(OutsideWorkspace):
                await instance.files.write(path, b"")
            with pytest.raises(OutsideWorkspace):
                await run(instance, "true", cwd=path)
    finally:
        await instance.destroy()


async def test_what_is_refused_leaves_no_parents(files):
    """FS-4: nothing was done, as its effect says; what others put there meanwhile stays."""
    long = f"/workspace/a/b/{'x' * 300}"
    for call in (
        lambda: files.make_directory(long),
        lambda: files.make_directory(f"{long}/c"),
        lambda: files.write(long, b"1"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call()
        assert caught.value.effect == "none"
        assert await files.list("/workspace") == []
    await files.make_directory("/workspace/a")
    with pytest.raises(InvalidArgument):
        await files.make_directory(long)
    assert await files.list("/workspace/a") == []
