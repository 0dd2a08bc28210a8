"""Files on bashkit: the clauses of FS, by id."""

import threading
from pathlib import PurePosixPath

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    NotRegular,
    OutsideWorkspace,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import FileType
from pinfold_bashkit._vfs import Vfs, walk
from pinfold_bashkit.lane import lane
from tests.providers.bashkit.support import make, sh

pytestmark = pytest.mark.anyio

W = PurePosixPath("/workspace")
SETUP = """
mkdir -p dir/sub full empty
echo file > file; echo inner > dir/inner; echo x > full/x
ln -s file to-file; ln -s dir to-dir; ln -s /workspace/dir absolute; ln -s ../workspace/dir round
ln -s to-to-file chain; ln -s to-file to-to-file
ln -s nowhere dangling; ln -s loop loop; ln -s ping pong; ln -s pong ping
ln -s /etc/passwd out; ln -s /etc out-dir; ln -s /tmp/new out-dangling; ln -s out out-chain
ln -s ../../etc/passwd out-relative; ln -s / root; ln -s .. above; ln -s dir/../../tmp out-by-dots
mkfifo fifo
"""


@pytest.fixture
async def tree(box):
    """A sandbox with one of everything."""
    assert (await sh(box, SETUP)).exit_code == 0
    return box


async def chunks(*parts):
    for part in parts:
        yield part


async def drain(iterator):
    return b"".join([chunk async for chunk in iterator])


#: Every operation that takes one path, as a call that changes as little as it can.
OPERATIONS = {
    "read": lambda f, p: f.read(p),
    "write": lambda f, p: f.write(p, b"new"),
    "stat": lambda f, p: f.stat(p),
    "list": lambda f, p: f.list(p),
    "make_directory": lambda f, p: f.make_directory(p),
    "remove": lambda f, p: f.remove(p, recursive=True),
    "rename from": lambda f, p: f.rename(p, W / "renamed"),
    "rename to": lambda f, p: f.rename(W / "file", p),
    "symlink": lambda f, p: f.symlink(p, "text"),
    "chmod": lambda f, p: f.chmod(p, 0o600),
    "download": lambda f, p: drain(f.download(p)),
    "upload": lambda f, p: f.upload(p, chunks(b"new")),
}
every_operation = pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in OPERATIONS.items()]
)


async def picture(box):
    """Return all that there is in the whole file system, past our own files."""
    root = box.vfs.root
    return [
        (
            path,
            meta["file_type"],
            oct(meta["mode"]),
            root.read_file(path) if meta["file_type"] == "file" else None,
            root.read_link(path) if meta["file_type"] == "symlink" else None,
        )
        for path, meta in walk(root, "")
        if path not in ("/dev/random", "/dev/urandom")
    ]


# --- FS-1 ---


@every_operation
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("file", InvalidArgument),
        ("", InvalidArgument),
        ("/workspace/../etc/passwd", InvalidArgument),
        ("/workspace/dir/../file", InvalidArgument),
        ("/workspace/a\0b", InvalidArgument),
        ("/workspace/\ud800", InvalidArgument),
        ("/workspacefoo", OutsideWorkspace),
        ("/workspacefoo/x", OutsideWorkspace),
        ("/etc/passwd", OutsideWorkspace),
        ("/", OutsideWorkspace),
        ("/tmp/x", OutsideWorkspace),
    ],
)
async def test_a_path_is_absolute_normal_and_inside(tree, call, path, error):
    """FS-1: judged before anything happens."""
    before = await picture(tree)
    with pytest.raises(InvalidArgument) as caught:
        await call(tree.files, path)
    assert type(caught.value) is error
    assert await picture(tree) == before


# --- FS-2 ---

FOLLOWING = ["read", "write", "list", "make_directory", "chmod", "download", "upload"]


@pytest.mark.parametrize("name", FOLLOWING)
@pytest.mark.parametrize(
    "path",
    ["out", "out-dir", "out-dangling", "out-chain", "out-relative", "root", "above", "out-by-dots"],
)
async def test_links_that_lead_out_are_refused(tree, name, path):
    """FS-2: chains, dangling, through the last name."""
    before = await picture(tree)
    with pytest.raises(OutsideWorkspace):
        await OPERATIONS[name](tree.files, W / path)
    assert await picture(tree) == before


@every_operation
@pytest.mark.parametrize("path", ["out-dir/passwd", "root/etc/passwd", "above/tmp/x", "root/new"])
async def test_links_on_the_way_must_not_lead_out(tree, call, path):
    """FS-2."""
    before = await picture(tree)
    with pytest.raises(OutsideWorkspace):
        await call(tree.files, W / path)
    assert await picture(tree) == before


@pytest.mark.parametrize("path", ["to-file", "chain", "round/../to-file"])
async def test_links_inside_are_followed(tree, path):
    """FS-2; the text of a link may have `..`, a caller's path may not."""
    await tree.files.symlink(W / "via", path)
    assert await tree.files.read(W / "via") == b"file\n"
    await tree.files.write(W / "via", b"changed")
    assert await tree.files.read(W / "file") == b"changed"
    assert (await tree.files.stat(W / "via")).link == path


@pytest.mark.parametrize("path", ["to-dir", "absolute", "round", "root/workspace/dir"])
async def test_directories_are_reached_through_links_inside(tree, path):
    """FS-2: also by a way that leads through `/` and back in."""
    names = [entry.path.name for entry in await tree.files.list(W / path)]
    assert names == ["inner", "sub"]
    await tree.files.write(W / path / "new", b"n")
    assert (await sh(tree, "cat dir/new")).stdout == b"n"


@pytest.mark.parametrize("path", ["loop", "ping", "loop/x"])
async def test_loops_of_links_end(tree, path):
    """FS-2."""
    with pytest.raises(InvalidArgument, match="too many links"):
        await tree.files.read(W / path)


async def test_stat_remove_and_rename_act_on_a_link_itself(tree):
    """FS-2, whatever it leads to."""
    for name, text in (("out", "/etc/passwd"), ("dangling", "nowhere"), ("loop", "loop")):
        facts = await tree.files.stat(W / name)
        assert (facts.type, facts.link, facts.size) == (FileType.SYMLINK, text, len(text))
        await tree.files.rename(W / name, W / "moved")
        assert (await tree.files.stat(W / "moved")).link == text
        await tree.files.remove(W / "moved", recursive=True)
        with pytest.raises(NotFound):
            await tree.files.stat(W / name)
    assert b"sandbox" in (await sh(tree, "cat /etc/passwd")).stdout


_NAMES = st.sampled_from(["a", "b", "c"])
_TARGETS = st.builds(
    lambda start, parts: start + "/".join(parts),
    st.sampled_from(["", "/", "/workspace/", "../", "./"]),
    st.lists(st.sampled_from(["a", "b", "c", "..", ".", "workspace", "tmp"]), max_size=4),
).filter(bool)


@given(
    st.dictionaries(st.tuples(_NAMES) | st.tuples(_NAMES, _NAMES), _TARGETS | st.none()),
    st.lists(_NAMES, min_size=1, max_size=3),
)
@pytest.mark.parametrize("anyio_backend", ["none"])
def test_locate_agrees_with_a_model(anyio_backend, tree, path):
    """FS-2: against os.path.realpath's rules, written out over a dictionary."""
    vfs = Vfs()
    made: dict[tuple[str, ...], str | None] = {(): "dir", ("workspace",): "dir", ("tmp",): "dir"}
    for parts, link in tree.items():
        at = ("workspace", *parts)
        if len(parts) == 2 and made.get(at[:-1]) != "dir":
            continue
        name = "/" + "/".join(at)
        if link is None:
            vfs.root.mkdir(name)
            made[at] = "dir"
        else:
            vfs.root.symlink(link, name)
            made[at] = link

    def model() -> tuple[str, ...] | str:
        done: tuple[str, ...] = ()
        todo = ["workspace", *path]
        steps = 0
        while todo:
            name, todo = todo[0], todo[1:]
            if name in ("", "."):
                continue
            if name == "..":
                done = done[:-1]
                continue
            done = (*done, name)
            if len(done) == 1 and name != "workspace":
                return "outside"
            kind = made.get(done)
            if kind is None:
                return "not found" if ".." in todo else (*done, *(t for t in todo if t != "."))
            if kind != "dir":
                steps += 1
                if steps > 40:
                    return "loop"
                done = () if kind.startswith("/") else done[:-1]
                todo = [*kind.split("/"), *todo]
        return done or "outside"

    try:
        found: tuple[str, ...] | str = tuple(
            vfs.locate(W.joinpath(*path), follow=True).path.strip("/").split("/")
        )
    except OutsideWorkspace:
        found = "outside"
    except NotFound:
        found = "not found"
    except InvalidArgument:
        found = "loop"
    assert found == model()
    assert isinstance(found, str) or found[0] == "workspace"


async def test_a_guest_that_swaps_links_gets_nothing_out(box):
    """FS-2: no gap between check and use; a secret outside is neither read nor written."""
    witness = lane.witness(box)
    await sh(box, "mkdir real; echo inside > real/f; mkdir /tmp/out; echo secret > /tmp/out/f")
    stop = threading.Event()

    def swap():
        root = box.vfs.root
        while not stop.is_set():
            for make_it in (
                lambda: root.symlink("/tmp/out", "/workspace/d"),
                lambda: (root.remove("/workspace/d"), root.mkdir("/workspace/d")),
                lambda: root.write_file("/workspace/d/f", b"inside\n"),
                lambda: root.remove("/workspace/d", recursive=True),
            ):
                try:
                    make_it()
                except RuntimeError:
                    continue

    guest = threading.Thread(target=swap)
    guest.start()
    seen, wrote = set(), 0
    try:
        for _ in range(3_000):
            try:
                seen.add(await box.files.read("/workspace/d/f"))
            except PinfoldError as exc:
                seen.add(exc.code)
            try:
                await box.files.write("/workspace/d/g", b"mine")
                wrote += 1
            except PinfoldError:
                pass
    finally:
        stop.set()
        guest.join()
    assert b"secret\n" not in seen
    assert b"inside\n" in seen
    assert wrote
    assert await witness.list(PurePosixPath("/tmp/out")) == ["f"]
    assert await witness.read(PurePosixPath("/tmp/out/f")) == b"secret\n"


@pytest.mark.parametrize(
    "script",
    [
        "cd /; rm -r /workspace",
        "cd /; rm -r /workspace; ln -s /etc /workspace",
        "cd /; mv /workspace /tmp/w; echo x > /workspace",
    ],
)
async def test_a_workspace_that_a_guest_replaced_is_made_anew(tree, script):
    """FS-2: it is never a way out."""
    await sh(tree, script)
    assert await tree.files.list("/workspace") == []
    await tree.files.write("/workspace/passwd", b"mine")
    assert (await sh(tree, "pwd; cat passwd")).stdout == b"/workspace\nmine"


# --- FS-3 ---


@given(st.binary(max_size=5000), st.binary(max_size=100))
@pytest.mark.parametrize("anyio_backend", ["none"])
def test_contents_are_byte_exact(anyio_backend, data, more):
    """FS-3."""

    async def check():
        box = await make()
        await box.files.write("/workspace/f", data)
        assert await box.files.read("/workspace/f") == data
        assert await box.files.upload("/workspace/f", chunks(data, b"", more)) == len(data + more)
        assert await drain(box.files.download("/workspace/f")) == data + more

    anyio.run(check)


@pytest.mark.parametrize(
    "name", ["a b", "-rf", "'", '"', "$x", "*", "\\", "é", "e\u0301", "😀", "...", ".h", "x" * 255]
)
async def test_odd_names(box, name):
    """FS-3: seen under the same name by both sides."""
    await box.files.write(W / name, b"1")
    result = await sh(box, 'for f in * .[!.]* ...; do [ -f "$f" ] && cat -- "$f"; done; true')
    assert result.stdout == b"1"
    assert [entry.path for entry in await box.files.list(W)] == [W / name]


@pytest.mark.parametrize(
    "name",
    ["a\nb", "a\tb", "\x01", "\x7f", "\u202e", "\u200b", "\x85", "\udcff", "x" * 256, "é" * 128],
    ids=ascii,
)
async def test_names_that_bashkit_cannot_hold_are_refused_by_name(tree, name):
    """FS-3, PR-7: `non_utf8_names` is absent, and bashkit refuses what could deceive."""
    assert not tree.features.non_utf8_names
    before = await picture(tree)
    for operation in ("write", "make_directory", "symlink", "rename to", "upload"):
        with pytest.raises(InvalidArgument) as caught:
            await OPERATIONS[operation](tree.files, W / name)
        assert name[:1].encode("unicode_escape").decode()[:2] in ascii(str(caught.value))
    assert await picture(tree) == before


# --- FS-4 ---


async def test_a_write_makes_parents_and_keeps_a_mode(box):
    """FS-4: a new file is 0o644; `mode` wins."""
    await box.files.write("/workspace/a/b/c", b"1")
    assert (await box.files.stat("/workspace/a/b/c")).mode == 0o644
    assert (await box.files.stat("/workspace/a/b")).mode == 0o755
    await box.files.chmod("/workspace/a/b/c", 0o750)
    await box.files.write("/workspace/a/b/c", b"2")
    assert (await box.files.stat("/workspace/a/b/c")).mode == 0o750
    await box.files.write("/workspace/a/b/c", b"3", mode=0o600)
    assert (await box.files.stat("/workspace/a/b/c")).mode == 0o600
    assert (await sh(box, "stat -c %a a/b/c; cat a/b/c")).stdout == b"600\n3"


async def test_readers_see_the_old_or_the_new_file(box):
    """FS-4: whole, while a guest reads on and on."""
    size = 200_000
    await box.files.write("/workspace/f", b"a" * size)
    script = (
        "until [ -e stop ]; do tr -d '\\n' < f | fold -w 1000 | sort -u | wc -l >> seen;"
        " wc -c < f >> sizes; done"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, box, script)
        for letter in b"bcdefgh" * 10:
            await box.files.write("/workspace/f", bytes([letter]) * size)
            await anyio.sleep(0.005)
        await box.files.write("/workspace/stop", b"")
    assert set((await box.files.read("/workspace/seen")).split()) == {b"1"}
    assert set((await box.files.read("/workspace/sizes")).split()) == {str(size).encode()}


async def test_a_refused_write_leaves_the_old_file(box):
    """FS-4, FS-5, PR-3: and nothing of itself."""
    await box.files.write("/workspace/f", b"old")
    before = await picture(box)
    with pytest.raises(TooLarge):
        await box.files.write("/workspace/f", b"x" * 10_000_001)
    with pytest.raises(TooLarge):
        await box.files.upload("/workspace/f", chunks(*[b"x" * 1_000_000] * 11))
    assert await picture(box) == before


REFUSED = {
    "a name too long": f"a/b/{'x' * 300}",
    "a name too long on the way": f"a/{'x' * 300}/b",
    "a path too deep": "a/" * 150 + "b",
    "a character that is refused": "a/b/\u202e",
    "through a file": "file/a/b",
    "a directory": "dir",
}


@pytest.mark.parametrize("how", ["write", "write with a mode", "upload", "make_directory"])
@pytest.mark.parametrize("path", REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_leaves_no_parents(box, path, how):
    """FS-4: nothing was done, as its effect says."""
    calls = {
        "write": lambda: box.files.write(W / path, b"1"),
        "write with a mode": lambda: box.files.write(W / path, b"1", mode=0o600),
        "upload": lambda: box.files.upload(W / path, chunks(b"1")),
        "make_directory": lambda: box.files.make_directory(W / path, exist_ok=False),
    }
    await box.files.write(W / "file", b"1")
    await box.files.make_directory(W / "dir")
    before = await picture(box)
    with pytest.raises((InvalidArgument, AlreadyExists)) as caught:
        await calls[how]()
    assert caught.value.effect == "none"
    assert await picture(box) == before


async def test_a_write_without_room_leaves_no_parents(box):
    """FS-4, FS-5: and what a guest put there meanwhile stays."""
    for number in range(10):
        await box.files.write(W / f"big{number}", b"x" * 9_900_000)
    before = await picture(box)
    with pytest.raises(NoSpace):
        await box.files.write(W / "a" / "b" / "c", b"x" * 5_000_000)
    assert await picture(box) == before

    def guest_and_no_room():
        with box.vfs.parents("/workspace/a/b/c"):
            box.vfs.root.write_file("/workspace/a/theirs", b"")
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        guest_and_no_room()
    assert [entry.path.name for entry in await box.files.list(W / "a")] == ["theirs"]


async def test_an_upload_that_breaks_off_leaves_the_old_file(box):
    """FS-4, FS-7."""
    await box.files.write("/workspace/f", b"old")

    async def broken():
        yield b"new"
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        await box.files.upload("/workspace/f", broken())
    assert await box.files.read("/workspace/f") == b"old"
    assert [entry.path.name for entry in await box.files.list(W)] == ["f"]


async def test_a_full_file_system_is_no_space(box):
    """FS-5: bytes, and files."""
    await box.files.write(W / "small", b"x")
    for number in range(9):
        await box.files.write(W / f"big{number}", b"x" * 10_000_000)
    with pytest.raises(NoSpace):
        await box.files.write(W / "last", b"x" * 10_000_000)
    assert not (await sh(box, "ls last")).stdout
    await box.files.remove(W / "big0")
    await box.files.write(W / "last", b"x" * 9_000_000)

    await box.files.make_directory(W / "many")
    for number in range(9_900):
        box.vfs.root.write_file(f"/workspace/many/{number}", b"")

    async def more():
        for number in range(101):
            await box.files.write(W / "more" / str(number), b"")

    with pytest.raises(NoSpace):
        await more()
    assert await box.files.read(W / "last", length=1) == b"x"


async def test_removal_never_descends_through_a_link(tree):
    """FS-4."""
    await sh(tree, "ln -s /tmp dir/t; ln -s ../full dir/full; echo t > /tmp/kept")
    await tree.files.remove(W / "dir", recursive=True)
    assert await tree.files.read(W / "full/x") == b"x\n"
    assert (await sh(tree, "cat /tmp/kept")).stdout == b"t\n"


# --- FS-5 ---

ERRORS = [
    ("read", "missing", NotFound),
    ("read", "missing/x", NotFound),
    ("read", "dangling", NotFound),
    ("read", "dir", IsADirectory),
    ("read", "to-dir", IsADirectory),
    ("read", "file/x", NotADirectory),
    ("read", "fifo", NotRegular),
    ("download", "missing", NotFound),
    ("download", "dir", IsADirectory),
    ("download", "fifo", NotRegular),
    ("write", "dir", IsADirectory),
    ("write", "to-dir", IsADirectory),
    ("write", "file/x", NotADirectory),
    ("write", "fifo", NotRegular),
    ("write", "", IsADirectory),
    ("upload", "dir", IsADirectory),
    ("upload", "file/x", NotADirectory),
    ("stat", "missing", NotFound),
    ("stat", "file/x", NotADirectory),
    ("list", "missing", NotFound),
    ("list", "file", NotADirectory),
    ("list", "fifo", NotADirectory),
    ("list", "to-file", NotADirectory),
    ("make_directory", "file", AlreadyExists),
    ("make_directory", "to-file", AlreadyExists),
    ("make_directory", "file/x", NotADirectory),
    ("remove", "missing", NotFound),
    ("remove", "file/x", NotADirectory),
    ("remove", "", InvalidArgument),
    ("rename from", "missing", NotFound),
    ("rename from", "", InvalidArgument),
    ("rename to", "missing/x", NotFound),
    ("rename to", "full", IsADirectory),
    ("rename to", "file/x", NotADirectory),
    ("symlink", "file", AlreadyExists),
    ("symlink", "dangling", AlreadyExists),
    ("symlink", "missing/x", NotFound),
    ("symlink", "file/x", NotADirectory),
    ("chmod", "missing", NotFound),
    ("chmod", "dangling", NotFound),
]


@pytest.mark.parametrize(
    ("operation", "path", "error"), [pytest.param(*row, id=f"{row[0]} {row[1]}") for row in ERRORS]
)
async def test_errors_are_typed_and_change_nothing(tree, operation, path, error):
    """FS-5: and none is taken for lost compute."""
    before = await picture(tree)
    with pytest.raises(PinfoldError) as caught:
        await OPERATIONS[operation](tree.files, W / path)
    assert type(caught.value) is error
    assert caught.value.effect == "none"
    assert await picture(tree) == before


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("dir", "full", Conflict),
        ("dir", "file", NotADirectory),
        ("dir", "to-file", NotADirectory),
        ("dir", "dir/sub/x", Conflict),
        ("file", "empty", IsADirectory),
        ("file", "missing/x", NotFound),
    ],
)
async def test_a_rename_that_cannot_be(tree, source, target, error):
    """FS-5."""
    before = await picture(tree)
    with pytest.raises(error):
        await tree.files.rename(W / source, W / target)
    assert await picture(tree) == before


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("file", "new"),
        ("file", "dir/inner"),
        ("file", "to-dir"),
        ("to-file", "file"),
        ("fifo", "file"),
        ("file", "fifo"),
        ("dir", "new"),
        ("dir", "empty"),
        ("dir", "full/d"),
        ("file", "file"),
        ("file", "to-dir/moved"),
    ],
)
async def test_a_rename_moves_and_replaces(tree, source, target):
    """FS-2: the names themselves, never what a link leads to."""
    before = await tree.files.stat(W / source)
    await tree.files.rename(W / source, W / target)
    after = await tree.files.stat(W / target)
    assert (after.type, after.size, after.link) == (before.type, before.size, before.link)
    if source != target:
        with pytest.raises(NotFound):
            await tree.files.stat(W / source)


async def test_make_directory_and_its_switches(box):
    """FS-5."""
    with pytest.raises(NotFound):
        await box.files.make_directory(W / "a/b", parents=False)
    await box.files.make_directory(W / "a/b")
    await box.files.make_directory(W / "a/b")
    with pytest.raises(AlreadyExists):
        await box.files.make_directory(W / "a/b", exist_ok=False)
    with pytest.raises(Conflict):
        await box.files.remove(W / "a")
    await box.files.remove(W / "a", recursive=True)
    assert await box.files.list(W) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda f: f.read(W / "file", offset=-1), "offset", id="negative offset"),
        pytest.param(lambda f: f.read(W / "file", length=-1), "length", id="negative length"),
        pytest.param(lambda f: f.read(W / "file", offset=True), "offset", id="bool offset"),
        pytest.param(lambda f: f.write(W / "file", "text"), "bytes", id="text for bytes"),
        pytest.param(lambda f: f.write(W / "file", b"", mode=0o10000), "mode", id="large mode"),
        pytest.param(lambda f: f.chmod(W / "file", -1), "mode", id="negative mode"),
        pytest.param(lambda f: f.symlink(W / "new", ""), "link", id="empty link"),
        pytest.param(lambda f: f.symlink(W / "new", "a\0b"), "link", id="NUL in a link"),
        pytest.param(lambda f: f.symlink(W / "new", "a\nb"), "new", id="newline in a link"),
        pytest.param(lambda f: f.read(7), "path", id="number for a path"),
    ],
)
async def test_wrong_arguments(tree, call, words):
    """ER-1: what is wrong, and nothing done."""
    before = await picture(tree)
    with pytest.raises(InvalidArgument, match=words):
        await call(tree.files)
    assert await picture(tree) == before


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [(0, None, b"0123456789"), (3, None, b"3456789"), (3, 4, b"3456"), (0, 0, b""), (99, 5, b"")],
)
async def test_ranges(box, offset, length, expected):
    """FS: read(ranges)."""
    await box.files.write(W / "f", b"0123456789")
    assert await box.files.read(W / "f", offset=offset, length=length) == expected


# --- FS-6, FS-7 ---


async def test_both_sides_see_the_same_at_once(box):
    """FS-6: also while a command runs."""

    async def guest():
        result = await sh(box, "echo ready > ready; until [ -e go ]; do sleep 0.01; done; cat go")
        assert result.stdout == b"went"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(guest)
        with anyio.fail_after(5):
            while True:
                try:
                    assert await box.files.read(W / "ready") == b"ready\n"
                    break
                except NotFound:
                    await anyio.sleep(0.01)
        await box.files.write(W / "go", b"went")


async def test_facts(tree):
    """FS: stat and list agree with the shell."""
    await sh(tree, "printf 12345 > sized; chmod 4751 sized; touch -d @1000000000 sized")
    facts = await tree.files.stat(W / "sized")
    assert (facts.type, facts.size, facts.mode) == (FileType.FILE, 5, 0o4751)
    assert facts.mtime_ns == 1_000_000_000 * 10**9
    assert (await tree.files.stat(W / "fifo")).type is FileType.OTHER
    assert (await tree.files.stat(W)).type is FileType.DIRECTORY
    listed = await tree.files.list(W)
    assert [entry.path.name for entry in listed] == sorted(entry.path.name for entry in listed)
    for entry in listed:
        assert await tree.files.stat(entry.path) == entry


async def test_a_download_is_of_one_moment(box):
    """FS-7: in pieces, whatever is written meanwhile."""
    await box.files.write(W / "f", b"a" * 1_000_000)
    pieces = []
    async for piece in box.files.download(W / "f"):
        pieces.append(piece)
        await box.files.write(W / "f", b"b" * 1_000_000)
    assert len(pieces) > 1
    assert set(b"".join(pieces)) == set(b"a")
    assert sum(map(len, pieces)) == 1_000_000


async def test_trees_go_in_and_out(tree):
    """FS: trees; links stay links, special files are left out."""
    items = []
    async for item in tree.files.download_tree(W):
        content = None if item.chunks is None else b"".join([c async for c in item.chunks])
        items.append((str(item.path), item.type, item.mode, item.link, content))
    other = await make()
    async for item in tree.files.download_tree(W):
        await other.files.upload_tree(W, [item])
    copied = []
    async for item in other.files.download_tree(W):
        content = None if item.chunks is None else b"".join([c async for c in item.chunks])
        copied.append((str(item.path), item.type, item.mode, item.link, content))
    assert copied == items
    assert "fifo" not in {path for path, *_ in items}
