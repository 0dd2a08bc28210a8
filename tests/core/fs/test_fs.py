"""`pinfold://`: what fsspec's own suite leaves open, and what is peculiar to a sandbox."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from datetime import UTC, datetime

import anyio
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from pinfold import blocking
from pinfold.errors import Conflict
from pinfold.fs import SandboxFileSystem, _facts
from tests.core.fs.conftest import make_sandbox


@pytest.fixture
def root(fs, request):
    """A folder of its own for each test."""
    folder = f"/workspace/{abs(hash(request.node.name)):x}"
    fs.mkdir(folder)
    return folder


@pytest.fixture
def box(options):
    with blocking.reopen(options["sandbox"], store=options["store"]) as box:
        yield box


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "path"),
    [
        ("pinfold://box/workspace/a", "/workspace/a"),
        ("pinfold://box/workspace/a/", "/workspace/a"),
        ("pinfold://box", "/"),
        ("pinfold://box/", "/"),
        ("/workspace/a", "/workspace/a"),
        ("workspace/a", "/workspace/a"),
        ("", "/"),
    ],
)
def test_a_url_names_the_sandbox_and_its_own_path(given_, path):
    assert SandboxFileSystem._strip_protocol(given_) == path
    assert SandboxFileSystem._strip_protocol([given_]) == [path]
    urls = SandboxFileSystem._get_kwargs_from_urls(given_)
    assert urls == ({"sandbox": "box"} if "://" in given_ else {})


def test_the_entry_point_is_registered_and_fsspec_finds_it():
    assert fsspec.get_filesystem_class("pinfold") is SandboxFileSystem
    with pytest.raises(ValueError, match="pinfold://SANDBOX"):
        SandboxFileSystem()


def test_urls_mean_the_projects_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PINFOLD_CONFIG", raising=False)
    (tmp_path / "pinfold.toml").write_text('[store]\nurl = "kept"\n')
    from pinfold.sandbox import Store

    with blocking.open({"target": None}, name="box", store=Store("kept")):
        pass
    with fsspec.open("pinfold://box/workspace/d/f.txt", "w") as file:
        file.write("héllo\n")
    with fsspec.open("pinfold://box/workspace/d/f.txt") as file:
        assert file.read() == "héllo\n".encode()
    system, path = fsspec.url_to_fs("pinfold://box/workspace/d/*")
    assert system.glob(path) == ["/workspace/d/f.txt"]
    assert system.unstrip_protocol("/workspace/d") == "pinfold://box/workspace/d"
    with pytest.raises(FileNotFoundError, match="no sandbox 'none'"):
        fsspec.open("pinfold://none/workspace/f").open()
    system.close()


def test_it_goes_to_json_and_back(tmp_path):
    system = SandboxFileSystem("box", store="s3://bucket/x", state=str(tmp_path / "s"))
    again = fsspec.AbstractFileSystem.from_json(json.dumps(json.loads(system.to_json())))
    assert again is system


# --- facts and errors -------------------------------------------------------------------------------


def test_what_is_known_of_a_name(fs, root, box):
    before = datetime.now(UTC).timestamp() - 5
    box.files.write(f"{root}/a b\n*", b"123")
    box.files.chmod(f"{root}/a b\n*", 0o640)
    info = fs.info(f"{root}/a b\n*")
    assert info.pop("mtime") >= before
    assert info == {
        "name": f"{root}/a b\n*", "size": 3, "type": "file", "mode": 0o640,
        "islink": False, "destination": None,
    }  # fmt: skip
    assert fs.ls(f"{root}/a b\n*", detail=False) == [f"{root}/a b\n*"]
    assert fs.modified(f"{root}/a b\n*").timestamp() >= before
    assert fs.ls("/", detail=False) == ["/workspace"]
    assert fs.isdir("/")
    assert not fs.exists(f"{root}/none")
    assert not fs.exists("/etc")
    assert fs.exists("/workspace")


def test_links_are_followed_where_they_are_named_and_no_walk_goes_round(fs, root, box):
    files = box.files
    files.write(f"{root}/d/f", b"12345")
    for name, text in {
        "to_file": "d/f",
        "to_link": "to_file",
        "by_dots": "../" + root.rpartition("/")[2] + "/d/../d/f",
        "absolute": f"{root}/d/f",
        "to_dir": "d",
        "loop": ".",
        "circle": "circle",
        "dangling": "none",
        "outside": "/etc/passwd",
        "above": "../../../etc",
    }.items():
        files.symlink(f"{root}/{name}", text)
    listed = {info["name"].rpartition("/")[2]: info["type"] for info in fs.ls(root)}
    assert listed == {
        "d": "directory",
        **dict.fromkeys(("to_file", "to_link", "by_dots", "absolute"), "file"),
        **dict.fromkeys(("to_dir", "loop", "circle", "dangling", "outside", "above"), "link"),
    }
    for name in ("to_file", "to_link", "by_dots", "absolute"):
        info = fs.info(f"{root}/{name}")
        assert (info["size"], info["islink"]) == (5, True)
        with fs.open(f"{root}/{name}") as file:
            assert file.read() == b"12345"
    assert fs.info(f"{root}/to_dir")["type"] == fs.info(f"{root}/loop")["type"] == "directory"
    assert fs.ls(f"{root}/to_dir", detail=False) == [f"{root}/to_dir/f"]
    for name in ("circle", "dangling", "outside", "above"):
        assert fs.info(f"{root}/{name}")["type"] == "link"
        with pytest.raises((FileNotFoundError, OSError), match="workspace"):
            fs.cat_file(f"{root}/{name}")
    found = fs.find(root)
    assert len(found) == 5 + 6
    assert sum(1 for _ in fs.walk(root)) == 2
    fs.rm(f"{root}/to_dir", recursive=True)
    assert fs.cat_file(f"{root}/d/f") == b"12345"


ERRORS = {
    "no file": (lambda fs, r: fs.cat_file(f"{r}/none"), FileNotFoundError),
    "open no file": (lambda fs, r: fs.open(f"{r}/none"), FileNotFoundError),
    "list nothing": (lambda fs, r: fs.ls(f"{r}/none"), FileNotFoundError),
    "read a folder": (lambda fs, r: fs.cat_file(f"{r}/d"), IsADirectoryError),
    "open a folder": (lambda fs, r: fs.open(f"{r}/d"), IsADirectoryError),
    "write a folder": (lambda fs, r: fs.open(f"{r}/d", "wb"), IsADirectoryError),
    "pipe to a folder": (lambda fs, r: fs.pipe_file(f"{r}/d", b""), IsADirectoryError),
    "below a file": (lambda fs, r: fs.pipe_file(f"{r}/f/x", b""), NotADirectoryError),
    "mkdir again": (lambda fs, r: fs.mkdir(f"{r}/d"), FileExistsError),
    "mkdir without parents": (
        lambda fs, r: fs.mkdir(f"{r}/n/n", create_parents=False), FileNotFoundError,
    ),
    "makedirs again": (lambda fs, r: fs.makedirs(f"{r}/d"), FileExistsError),
    "rmdir a file": (lambda fs, r: fs.rmdir(f"{r}/f"), NotADirectoryError),
    "rm a folder": (lambda fs, r: fs.rm(f"{r}/d"), IsADirectoryError),
    "rm_file a folder": (lambda fs, r: fs.rm_file(f"{r}/d"), IsADirectoryError),
    "rm nothing": (lambda fs, r: fs.rm(f"{r}/none"), FileNotFoundError),
    "mv nothing": (lambda fs, r: fs.mv(f"{r}/none", f"{r}/x"), FileNotFoundError),
    "mv a folder": (lambda fs, r: fs.mv(f"{r}/d", f"{r}/x"), IsADirectoryError),
    "outside": (lambda fs, _: fs.cat_file("/etc/passwd"), PermissionError),
    "above": (lambda fs, r: fs.cat_file(f"{r}/../../etc/passwd"), OSError),
    "exclusive": (lambda fs, r: fs.open(f"{r}/f", "xb"), FileExistsError),
    "get nothing": (lambda fs, r: fs.get_file(f"{r}/none", "nowhere"), FileNotFoundError),
}  # fmt: skip


@pytest.mark.parametrize(("do", "error"), ERRORS.values(), ids=ERRORS)
def test_errors_are_those_that_python_raises_for_files(fs, root, do, error):
    fs.pipe_file(f"{root}/f", b"1")
    fs.pipe_file(f"{root}/d/g", b"2")
    with pytest.raises(error) as caught:
        do(fs, root)
    assert caught.value.errno
    assert (fs.cat_file(f"{root}/f"), fs.cat_file(f"{root}/d/g")) == (b"1", b"2")


def test_a_folder_that_is_not_empty_stays(fs, root):
    fs.pipe_file(f"{root}/d/f", b"")
    with pytest.raises(OSError, match="not empty") as caught:
        fs.rmdir(f"{root}/d")
    assert caught.value.errno == errno.ENOTEMPTY
    fs.rm_file(f"{root}/d/f")
    fs.rmdir(f"{root}/d")
    assert fs.ls(root) == []


def test_what_files_have_no_word_for_is_raised_as_it_is(options):
    system = SandboxFileSystem(**options, skip_instance_cache=True)
    system.pipe_file("/workspace/last", b"1")
    with blocking.open({"target": None}, name="gone", store=options["store"]) as gone:
        other = SandboxFileSystem("gone", store=options["store"], skip_instance_cache=True)
        other.pipe_file("/workspace/f", b"1")
        with blocking.reopen("gone", store=options["store"]) as again:
            again.delete()
        assert gone.id
    with pytest.raises((Conflict, FileNotFoundError)):
        other.cat_file("/workspace/f")
    system.close()


# --- contents ---------------------------------------------------------------------------------------


@given(start=st.none() | st.integers(-15, 15), end=st.none() | st.integers(-15, 15))
def test_ranges_are_pythons_slices(fs, start, end):
    data = bytes(range(10))
    if not fs.exists("/workspace/slices"):
        fs.pipe_file("/workspace/slices", data)
    assert fs.cat_file("/workspace/slices", start, end) == data[start:end]


def test_a_large_file_is_read_by_pieces(fs, root, monkeypatch):
    monkeypatch.setattr(_facts, "_PIECE", 1000)
    data = bytes(range(256)) * 40
    fs.pipe_file(f"{root}/f", data)
    assert fs.cat_file(f"{root}/f", 1) == data[1:]
    assert fs.cat_file(f"{root}/f", 17, 9000) == data[17:9000]
    with fs.open(f"{root}/f", block_size=700) as file:
        file.seek(5000)
        assert file.read(100) == data[5000:5100]
        file.seek(-3, 2)
        assert file.read() == data[-3:]


def test_a_file_is_written_in_one_step_when_it_is_closed(fs, root):
    fs.pipe_file(f"{root}/f", b"old")
    with fs.open(f"{root}/f", "wb", block_size=10) as file:
        for _ in range(10):
            file.write(b"0123456789")
            assert fs.cat_file(f"{root}/f") == b"old"
    assert fs.cat_file(f"{root}/f") == b"0123456789" * 10
    with fs.open(f"{root}/f", "ab") as file:
        assert file.tell() == 100
        file.write(b"more")
    with fs.open(f"{root}/new", "ab") as file:
        file.write(b"new")
    assert fs.cat_file(f"{root}/f")[-6:] == b"89more"
    assert fs.cat_file(f"{root}/new") == b"new"
    fs.touch(f"{root}/f")
    assert fs.size(f"{root}/f") == 0


def test_a_transaction_writes_all_or_nothing(fs, root):
    with fs.transaction:
        with fs.open(f"{root}/a", "wb") as file:
            file.write(b"1")
        assert not fs.exists(f"{root}/a")
    assert fs.cat_file(f"{root}/a") == b"1"
    with pytest.raises(ZeroDivisionError), fs.transaction, fs.open(f"{root}/a", "wb") as file:
        file.write(bytes([1 // 0]))
    assert fs.cat_file(f"{root}/a") == b"1"


def test_a_copy_keeps_the_mode_and_progress_is_told(fs, root, tmp_path):
    class Count(fsspec.Callback):
        moved = 0

        def relative_update(self, inc=1):
            self.moved += inc

        def branched(self, *_, **__):
            return self

    (tmp_path / "f").write_bytes(b"12345")
    count = Count()
    fs.put_file(str(tmp_path / "f"), f"{root}/f", callback=count)
    fs.get_file(f"{root}/f", str(tmp_path / "deep" / "g"), callback=count)
    assert ((tmp_path / "deep" / "g").read_bytes(), count.moved) == (b"12345", 10)
    with (tmp_path / "h").open("wb") as file:
        fs.get_file(f"{root}/f", file)
    assert (tmp_path / "h").read_bytes() == b"12345"


# --- moving: as the local file system does it -------------------------------------------------------

MOVES = {
    "file to new": ("a", "new", {}),
    "file over file": ("a", "b", {}),
    "file to new folders": ("a", "x/y/new", {}),
    "file into folder": ("a", "e", {}),
    "file into folder, slash": ("a", "e/", {}),
    "folder to new": ("d", "new", {"recursive": True}),
    "folder into folder": ("d", "e", {"recursive": True}),
    "folder into folder, slash": ("d", "e/", {"recursive": True}),
    "folder's content into folder": ("d/", "e", {"recursive": True}),
    "a list": (["a", "b"], ["e/a", "e/c"], {}),
    "onto itself": ("a", "a", {}),
}


def tree(fs, root) -> dict[str, bytes]:
    return {
        name.removeprefix(root): fs.cat_file(name) if fs.isfile(name) else b"/"
        for name in fs.find(root, withdirs=True)
        if name != root
    }


@pytest.mark.parametrize(("source", "target", "how"), MOVES.values(), ids=MOVES)
def test_moves_are_as_those_of_the_local_file_system(fs, root, tmp_path, source, target, how):
    # The generic `mv`, by copying and removing, which the local one does not use.
    class Local(LocalFileSystem):
        mv = fsspec.AbstractFileSystem.mv

    def below(root, name):
        return [f"{root}/{each}" for each in name] if isinstance(name, list) else f"{root}/{name}"

    results = []
    for system, place in ((Local(auto_mkdir=True), str(tmp_path)), (fs, root)):
        for name in ("a", "b", "d/f", "d/g/h", "e/z"):
            system.makedirs(f"{place}/{name}".rpartition("/")[0], exist_ok=True)
            system.pipe_file(f"{place}/{name}", name.encode())
        system.mv(below(place, source), below(place, target), **how)
        results.append(tree(system, place))
    assert results[1] == results[0]


def test_a_move_by_pattern_leaves_the_folders_that_it_does_not_copy(fs, root):
    for name in ("a", "b", "d/f", "e/z"):
        fs.pipe_file(f"{root}/{name}", name.encode())
    fs.mv(f"{root}/*", f"{root}/e")
    assert tree(fs, root) == {
        "/d": b"/", "/d/f": b"d/f", "/e": b"/", "/e/a": b"a", "/e/b": b"b", "/e/z": b"e/z",
    }  # fmt: skip


def test_a_move_of_one_name_is_one_step(fs, root, box, monkeypatch):
    monkeypatch.setattr(SandboxFileSystem, "_cp_file", None)
    fs.pipe_file(f"{root}/d/f", b"1")
    box.files.chmod(f"{root}/d/f", 0o751)
    fs.mv(f"{root}/d", f"{root}/e", recursive=True)
    fs.mv(f"{root}/e/f", f"{root}/g")
    assert fs.info(f"{root}/g")["mode"] == 0o751


# --- the sandbox behind it --------------------------------------------------------------------------


def test_lc3_many_files_of_one_call_share_a_checkpoint(fs, root, box, tmp_path):
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(b"x")
    before = len(box.checkpoints())
    fs.put(str(tmp_path), root, recursive=True)
    fs.pipe({f"{root}/p{n}": b"1" for n in range(20)})
    fs.copy(f"{root}/p*", f"{root}/copies/")
    fs.rm([f"{root}/p{n}" for n in range(20)])
    assert len(box.checkpoints()) - before == 4


BASHKIT = {"target": {"kind": "vfs", "provider": "bashkit"}}
HOST = {"target": {"kind": "host", "provider": "host"}, "durability": "checkpointed"}


@pytest.fixture(params=[BASHKIT, HOST], ids=["bashkit", "host"])
def real(request, tmp_path):
    return make_sandbox(tmp_path, request.param)


def test_another_controller_comes_between_and_both_go_on(real):
    system = SandboxFileSystem(**real, skip_instance_cache=True)
    for number in range(3):
        system.pipe_file("/workspace/f", str(number).encode())
        with blocking.reopen(real["sandbox"], store=real["store"]) as box:
            assert box.exec(["cat", "f"]).stdout == str(number).encode()
            box.exec(shell=f"echo {number} > g")
        assert system.cat_file("/workspace/g") == f"{number}\n".encode()
    system.close()


def test_pandas_reads_and_writes_inside_a_sandbox(real):
    import pandas as pd  # type: ignore[import-untyped]

    frame = pd.DataFrame({"name": ["fig", "pear", "é"], "count": [3, 1, 2]})
    more = {"storage_options": {"store": real["store"]}}
    frame.to_csv("pinfold://box/workspace/data/in.csv", index=False, **more)
    frame.to_json("pinfold://box/workspace/data/in.json", **more)
    with blocking.reopen(real["sandbox"], store=real["store"]) as box:
        script = (
            "head -n 1 data/in.csv > out.csv; tail -n +2 data/in.csv | sort -t, -k2 -n >> out.csv"
        )
        assert box.exec(shell=script).exit_code == 0

    result = pd.read_csv("pinfold://box/workspace/out.csv", **more)
    assert list(result["name"]) == ["pear", "é", "fig"]
    assert pd.read_json("pinfold://box/workspace/data/in.json", **more).equals(frame)
    with pytest.raises(FileNotFoundError):
        pd.read_csv("pinfold://box/workspace/none.csv", **more)
    fsspec.filesystem("pinfold", sandbox="box", **more["storage_options"]).close()


def test_a_process_that_ends_lets_go_of_the_sandbox(tmp_path):
    from pinfold.sandbox import Store

    store = Store(tmp_path / "kept")
    with blocking.open(BASHKIT, name="box", store=store):
        pass
    script = """
import fsspec, sys
fsspec.filesystem("pinfold", sandbox="box", store=sys.argv[1]).pipe_file("/workspace/f", b"1")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path / "kept")],
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    (view,) = blocking.list(store=store)
    assert (view.observed_state, view.generation) == ("paused", 1)
    with blocking.reopen("box", store=store) as box:
        assert box.files.read("/workspace/f") == b"1"


# --- on the caller's own loop -----------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_is_used_on_the_callers_loop(options, anyio_backend):
    system = SandboxFileSystem(**options, asynchronous=True, skip_instance_cache=True)
    await system._makedirs("/workspace/async/d")

    async def put(number):
        await system._pipe_file(f"/workspace/async/{number}", str(number).encode())

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(put, number)
    assert len(await system._ls("/workspace/async")) == 11
    assert await system._cat("/workspace/async/*[0-2]") == {
        f"/workspace/async/{n}": str(n).encode() for n in range(3)
    }
    async with await system.open_async("/workspace/async/s", "wb", block_size=10) as file:
        for _ in range(10):
            await file.write(b"0123456789")
    async with await system.open_async("/workspace/async/s") as file:
        assert await file.read(15) == b"012345678901234"
        assert await file.read() == b"56789" + b"0123456789" * 8
    with pytest.raises(ValueError, match="rb or wb"):
        await system.open_async("/workspace/async/s", "ab")
    with pytest.raises(FileNotFoundError):
        await system.open_async("/workspace/async/none")
    with pytest.raises(IsADirectoryError):
        await system.open_async("/workspace/async/d", "wb")
    await system._mv("/workspace/async/s", "/workspace/async/d")
    await system._rm("/workspace/async", recursive=True)
    assert not await system._exists("/workspace/async")
    await system._close()
