"""The workspace of bashkit as a whole: the clauses of CP that are a tree's."""

import hashlib
from pathlib import PurePosixPath

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.errors import (
    CheckpointCorrupt,
    Conflict,
    InvalidArgument,
    Lost,
    NoSpace,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import Entry, ExecRequest, FileType, RestorePlan
from pinfold.spec import WORKSPACE
from pinfold_bashkit._script import _READERS
from pinfold_bashkit._vfs import walk
from pinfold_bashkit.lane import lane
from tests.providers.bashkit.support import make, sh

pytestmark = pytest.mark.anyio


def sha(data):
    return hashlib.sha256(data).hexdigest()


def file(path, data=b"", mode=0o644):
    entry = Entry(path=path, type=FileType.FILE, mode=mode, size=len(data), digest=sha(data))
    return entry, data


def directory(path, mode=0o755):
    return Entry(path=path, type=FileType.DIRECTORY, mode=mode), b""


def link(path, text):
    return Entry(path=path, type=FileType.SYMLINK, mode=0o777, link=text), b""


def plan_of(*items):
    contents = {entry.digest: data for entry, data in items if entry.type is FileType.FILE}

    async def fetch(digest):
        data = contents[digest]
        for start in range(0, len(data), 700_000):
            yield data[start : start + 700_000]

    return RestorePlan(entries=tuple(entry for entry, _ in items), fetch=fetch)


async def contents(box, entries):
    """Read entries through the tree; return path to bytes, pieces put together and checked."""
    found = {}
    pieces = []
    async for blob in box.tree.read(entries):
        assert len(blob.data) <= 1024 * 1024
        pieces.append(blob.data)
        if blob.last:
            found[blob.path] = b"".join(pieces)
            assert blob.digest == sha(found[blob.path])
            pieces = []
    assert not pieces
    return found


def bare(entries):
    """Return entries without their times."""
    return [(e.path, e.type, e.mode, e.size, e.digest, e.link) for e in entries]


# --- scan and read ---


async def test_a_scan_tells_every_name(box):
    """CP-1, CP-6: empty directories, modes, links by their text; FIFOs are skipped and listed."""
    await sh(
        box,
        "mkdir -p d/empty; chmod 700 d/empty; printf abc > d/f; chmod 751 d/f; : > 'a b'; : > a-b;"
        "ln -s /etc/passwd out; ln -s d link; ln -s loop loop; mkfifo d/pipe; echo x > d.txt",
    )
    scan = await box.tree.scan()
    assert bare(scan.entries) == [
        ("a b", FileType.FILE, 0o644, 0, sha(b""), None),
        ("a-b", FileType.FILE, 0o644, 0, sha(b""), None),
        ("d", FileType.DIRECTORY, 0o755, 0, "", None),
        ("d.txt", FileType.FILE, 0o644, 2, sha(b"x\n"), None),
        ("d/empty", FileType.DIRECTORY, 0o700, 0, "", None),
        ("d/f", FileType.FILE, 0o751, 3, sha(b"abc"), None),
        ("link", FileType.SYMLINK, 0o777, 0, "", "d"),
        ("loop", FileType.SYMLINK, 0o777, 0, "", "loop"),
        ("out", FileType.SYMLINK, 0o777, 0, "", "/etc/passwd"),
    ]
    assert (scan.skipped, scan.unsettled, scan.unchanged) == (("d/pipe",), (), False)
    files = [entry for entry in scan.entries if entry.type is FileType.FILE]
    assert await contents(box, files[::-1]) == {
        "a b": b"",
        "a-b": b"",
        "d.txt": b"x\n",
        "d/f": b"abc",
    }


async def test_large_files_come_in_pieces(box):
    """CP-5: in bounded memory."""
    data = bytes(range(256)) * 10_000
    await box.files.write("/workspace/big", data)
    scan = await box.tree.scan()
    assert await contents(box, scan.entries) == {"big": data}


async def test_a_file_that_is_gone_or_another_is_told(box):
    """CP-6: one empty last piece; a link in its place is not followed."""
    await sh(box, "echo a > a; echo b > b; echo c > c")
    scan = await box.tree.scan()
    await sh(box, "rm a; ln -sf /etc/passwd b; echo changed > c")
    blobs = [blob async for blob in box.tree.read(scan.entries)]
    assert [(b.path, b.data, b.last, b.digest) for b in blobs] == [
        ("a", b"", True, ""),
        ("b", b"", True, ""),
        ("c", b"changed\n", True, sha(b"changed\n")),
    ]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda b: sh(b, "echo y > f; touch -r d f"), id="same size, same time"),
        pytest.param(lambda b: sh(b, "awk 1 f"), id="a command that might have written"),
        pytest.param(lambda b: b.files.write("/workspace/f", b"y\n"), id="write"),
        pytest.param(lambda b: b.files.chmod("/workspace/f", 0o600), id="chmod"),
        pytest.param(lambda b: b.files.remove("/workspace/f"), id="remove"),
        pytest.param(lambda b: b.files.rename("/workspace/f", "/workspace/g"), id="rename"),
        pytest.param(lambda b: b.files.symlink("/workspace/l", "f"), id="symlink"),
        pytest.param(lambda b: b.files.make_directory("/workspace/n"), id="make_directory"),
        pytest.param(
            lambda b: lane.witness(b).write(WORKSPACE / "f", b"y\n"), id="behind our back"
        ),
    ],
)
async def test_after_anything_that_may_have_written_all_is_read_again(box, change):
    """CP-7: bashkit has neither ctime nor inode, and guests can set mtimes."""
    await sh(box, "echo x > f; mkdir d; touch -r d f")
    before = await box.tree.scan()
    assert (await box.tree.scan(before.state)).unchanged
    assert not (await box.tree.scan()).unchanged
    await change(box)
    after = await box.tree.scan(before.state)
    assert not after.unchanged
    assert after == await box.tree.scan()


@pytest.mark.parametrize(
    "script",
    ["true", "cat f", "ls -la; wc -l f", "[ -f f ] && cat f | tr a b", "cd d; pwd"],
)
async def test_lc3_what_provably_only_reads_needs_no_scan(box, script):
    await sh(box, "echo x > f; mkdir d")
    before = await box.tree.scan()
    await sh(box, script)
    assert (await box.tree.scan(before.state)).unchanged


SNEAKY = [
    "echo y > f",
    "cat f >> g",
    "eval 'echo y > f'",
    ". ./s",
    "source s",
    "sh s",
    "bash -c 'rm f'",
    "cat() { rm f; }; cat",
    "alias cat=rm; cat f",
    "shopt -s expand_aliases; alias ls='rm f'\nls",
    "a=$(rm f)",
    "echo `rm f`",
    "cat <(rm f)",
    "trap 'rm f' EXIT",
    "X=rm; $X f",
    '"$(echo rm)" f',
    "r''m f",
    "\\rm f",
    "command rm f",
    "builtin eval 'rm f'",
    "! rm f",
    "time rm f",
    "if true; then rm f; fi",
    "while true; do rm f; break; done",
    "case x in x) rm f;; esac",
    "{ rm f; }",
    "(rm f)",
    "rm f &",
    "cat f | tee g",
    "find . -delete",
    "sed -i s/x/y/ f",
    "sort -o g f",
    "awk 'BEGIN{print > \"g\"}'",
    "cp f g",
    "xargs rm <<< f",
    "exec rm f",
    "echo ${x:-$(rm f)}",
    "echo $(( $(rm f) + 1 ))",
    "cat <<< $(rm f)",
    "cat <<E\n$(rm f)\nE",
    "[[ $(rm f) ]]",
    "x=([$(rm f)]=1)",
    "printf '%s' \"$(rm f)\"",
    "for i in $(rm f); do :; done",
    "echo {a,$(rm f)}",
    "echo ${x:=$(rm f)}",
    "x='$(rm f)'; echo ${x@P}",
    "x='a[$(rm f)]'; (( x ))",
    "test -v 'a[$(rm f)]'",
    "printf -v 'a[$(rm f)]' x",
]


@pytest.mark.parametrize("script", SNEAKY)
async def test_lc3_whatever_may_write_is_scanned_however_it_hides(box, script):
    """A wrong "it only reads" would lose a change: here none of them may pass for a reader."""
    await sh(box, "echo x > f; echo 'rm f' > s; chmod +x s")
    before = await box.tree.scan()
    await sh(box, script)
    cheap, full = await box.tree.scan(before.state), await box.tree.scan()
    assert not cheap.unchanged or full.entries == before.entries


@given(
    name=st.sampled_from(sorted(_READERS)),
    args=st.lists(
        st.sampled_from(
            [
                "f",
                "g",
                "-o",
                "-w",
                "--output=g",
                "-i",
                "-s",
                "-n",
                "x",
                "",
                "d",
                "%s",
                "1",
                "-r",
                "=",
                "+",
            ]
        ),
        max_size=4,
    ),
)
@settings(max_examples=150, deadline=None)
def test_lc3_no_reader_writes_whatever_its_arguments_are(name, args):
    async def check():
        box = await make()
        try:
            await sh(box, "echo x > f; mkdir d; echo y > d/h")
            before = await box.tree.scan()
            await box.exec(ExecRequest(argv=[name, *args], stdin=b"in", timeout_seconds=2))
            assert (await box.tree.scan()).entries == before.entries
        finally:
            await box.destroy()

    anyio.run(check)


async def test_a_scan_beside_a_running_command_proves_nothing_later(box):
    """CP-7: what is written after it is found by the next."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, box, "echo 1 > f; until [ -e go ]; do sleep 0.01; done; echo 2 > f")
        with anyio.fail_after(5):
            while not (scan := await box.tree.scan()).entries:
                await anyio.sleep(0.01)
        await lane.witness(box).write(WORKSPACE / "go", b"")
    later = await box.tree.scan(scan.state)
    assert not later.unchanged
    assert {entry.path: entry.digest for entry in later.entries}["f"] == sha(b"2\n")


async def test_a_token_of_one_sandbox_proves_nothing_for_another(box):
    """CP-7."""
    other = await make()
    assert not (await other.tree.scan((await box.tree.scan()).state)).unchanged


# --- restore ---

TREE = (
    file("a b", b"1"),
    directory("d", 0o700),
    directory("d/empty", 0o555),
    file("d/f", bytes(range(256)), 0o751),
    link("escape", "/etc/passwd"),
    link("inside", "d/../a b"),
    link("up", "../tmp"),
)


async def test_restore_gives_exactly_that_tree(box):
    """CP-2: added is gone, deleted is back; links verbatim, those that lead out are listed."""
    await sh(
        box, "echo old > 'a b'; mkdir gone; echo x > gone/x; ln -s q d; mkfifo p; echo t >/tmp/t"
    )
    report = await box.tree.restore(plan_of(*TREE))
    assert report.escaping_links == ("escape", "up")
    assert not report.processes_ended
    scan = await box.tree.scan()
    assert bare(scan.entries) == bare(entry for entry, _ in TREE)
    assert scan.skipped == ()
    assert report.state is not None
    assert (await box.tree.scan(report.state)).unchanged
    assert not await box.tree.recover()
    # What is not the workspace is scratch, and stays.
    assert (await sh(box, "cat /tmp/t 'a b' inside")).stdout == b"t\n11"


_PATHS = st.lists(st.sampled_from(["a", "b", "ü", "c d"]), min_size=1, max_size=3).map("/".join)
_LEAVES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=50), st.sampled_from([0o644, 0o755, 0o4711, 0])),
    st.tuples(st.just("directory"), st.just(b""), st.sampled_from([0o755, 0o1777, 0o500])),
    st.tuples(st.just("symlink"), st.sampled_from([b"a", b"../..", b"/x/y"]), st.just(0o777)),
)


@settings(max_examples=50)
@given(st.dictionaries(_PATHS, _LEAVES), st.dictionaries(_PATHS, _LEAVES))
@pytest.mark.parametrize("anyio_backend", ["none"])
def test_any_tree_comes_back_whatever_was_there(anyio_backend, wanted, present):
    """CP-2: what was scanned is restored over anything, in this or another sandbox."""

    def items(leaves):
        found: dict[str, tuple[Entry, bytes]] = {}
        for path, (kind, data, mode) in sorted(leaves.items()):
            parents = [str(p) for p in list(PurePosixPath(path).parents)[-2::-1]]
            if any(found[p][0].type is not FileType.DIRECTORY for p in parents if p in found):
                continue
            for parent in parents:
                found.setdefault(parent, directory(parent))
            if kind == "file":
                found[path] = file(path, data, mode)
            elif kind == "symlink":
                found[path] = link(path, data.decode())
            else:
                found[path] = directory(path, mode)
        return [found[path] for path in sorted(found)]

    async def check():
        box, other = await make(), await make()
        await box.tree.restore(plan_of(*items(present)))
        await box.tree.restore(plan_of(*items(wanted)))
        scan = await box.tree.scan()
        assert bare(scan.entries) == bare(entry for entry, _ in items(wanted))
        files = [entry for entry in scan.entries if entry.type is FileType.FILE]
        kept = {sha(data): data for data in (await contents(box, files)).values()}

        async def fetch(digest):
            yield kept[digest]

        await other.tree.restore(RestorePlan(entries=scan.entries, fetch=fetch))
        assert bare((await other.tree.scan()).entries) == bare(scan.entries)

    anyio.run(check)


async def nothing(digest):
    if digest:
        raise CheckpointCorrupt(f"blob {digest} is missing")
    yield b""


async def wrong(digest):
    yield b"something else"


async def endless(digest):
    while True:
        yield b"x" * 100_000


BAD = {
    "a missing blob": (
        RestorePlan(entries=(file("f", b"1")[0],), fetch=nothing),
        CheckpointCorrupt,
    ),
    "a wrong blob": (RestorePlan(entries=(file("f", b"1")[0],), fetch=wrong), CheckpointCorrupt),
    "an endless blob": (
        RestorePlan(entries=(file("f", b"1")[0],), fetch=endless),
        CheckpointCorrupt,
    ),
    "a name that can't be": (plan_of(file("a\nb")), InvalidArgument),
    "a link text that can't be": (plan_of(link("l", "a\nb")), InvalidArgument),
    "a name that is no UTF-8": (plan_of(file("\udcff")), InvalidArgument),
    "a file too large": (
        RestorePlan(
            entries=(Entry(path="f", type=FileType.FILE, mode=0o644, size=1 << 60, digest="0"),),
            fetch=nothing,
        ),
        TooLarge,
    ),
    "more than fits": (
        plan_of(*[file(f"f{i:02}", bytes([i]) * 9_999_999) for i in range(11)]),
        NoSpace,
    ),
    "a name that climbs": (plan_of(file("../tmp/x")), InvalidArgument),
    "an absolute name": (plan_of(file("/etc/x")), InvalidArgument),
    "a name with a dot": (plan_of(file("./x")), InvalidArgument),
    "an empty name": (plan_of(file("")), InvalidArgument),
    "a link as a parent": (plan_of(link("d", "/tmp"), file("d/x")), InvalidArgument),
    "a file as a parent": (plan_of(file("d"), file("d/x")), InvalidArgument),
    "no parent": (plan_of(file("d/x")), InvalidArgument),
    "a directory twice": (plan_of(directory("d"), directory("d")), InvalidArgument),
}


@pytest.mark.parametrize(
    ("plan", "error"), [pytest.param(*row, id=name) for name, row in BAD.items()]
)
async def test_a_restore_that_cannot_be_touches_nothing(box, plan, error):
    """CP-3, CP-4, CP-8: refused, by name, before anything changes."""
    await sh(box, "echo live > live; echo t > /tmp/t; echo x > /tmp/x")
    before = list(walk(box.vfs.root, ""))
    with pytest.raises(PinfoldError) as caught:
        await box.tree.restore(plan)
    assert type(caught.value) is error
    assert list(walk(box.vfs.root, "")) == before
    assert (await sh(box, "cat live")).stdout == b"live\n"


async def test_a_restore_that_is_cancelled_touches_nothing(box):
    """CP-3: there is no half tree, at any time."""
    await sh(box, "echo live > live")
    items = [file(f"f{i}", b"%d" % i) for i in range(20)]
    plan = plan_of(*items)
    whole = {entry.path for entry in plan.entries}
    names = set()
    for fetches in range(21):
        reached = 0

        async def fetch(digest, fetches=fetches):
            nonlocal reached
            reached += 1
            if reached > fetches:
                scope.cancel()
            async for chunk in plan.fetch(digest):
                yield chunk

        with anyio.CancelScope() as scope:
            await box.tree.restore(RestorePlan(entries=plan.entries, fetch=fetch))
        names = {entry.path for entry in (await box.tree.scan()).entries}
        assert names == ({"live"} if scope.cancelled_caught else whole)
        assert not await box.tree.recover()
    assert names == whole


async def test_no_restore_while_a_command_runs(box):
    """CP-3."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, box, "touch started; sleep 60")
        with anyio.fail_after(5):
            while not await box.files.list("/workspace"):
                await anyio.sleep(0.01)
        with pytest.raises(Conflict):
            await box.tree.restore(plan_of(*TREE))
        tasks.cancel_scope.cancel()
    assert [entry.path for entry in (await box.tree.scan()).entries] == ["started"]


async def test_commands_and_files_see_a_restored_tree_at_once(box):
    """CP-2, FS-6: no interpreter goes on with the old one."""
    await sh(box, "echo old > 'a b'")
    await box.tree.restore(plan_of(*TREE))
    assert (await sh(box, "cat 'a b'; echo new > new")).stdout == b"1"
    assert await box.files.read("/workspace/new") == b"new\n"


async def test_a_tree_that_is_gone_is_lost(box):
    """LC-5."""
    await box.destroy()
    with pytest.raises(Lost):
        await box.tree.scan()
    with pytest.raises(Lost):
        await box.tree.restore(plan_of(*TREE))
