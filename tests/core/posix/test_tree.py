"""The workspace as one value, on any target that has a shell (CP)."""

import hashlib
import os
import secrets

import anyio
import attrs
import pytest

from pinfold.errors import CheckpointCorrupt, Conflict, InvalidArgument, PinfoldError
from pinfold.provider import Entry, FileType, RestorePlan
from tests.core.posix.conftest import Heartbeat

pytestmark = pytest.mark.anyio


def digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


class Memory:
    """A checkpoint: entries, and contents by digest."""

    def __init__(self) -> None:
        self.entries: tuple[Entry, ...] = ()
        self.blobs: dict[str, bytes] = {}
        self.fetched: list[str] = []

    async def take(self, box) -> "Memory":
        scan = await box.tree.scan()
        self.entries = scan.entries
        held = bytearray()
        async for blob in box.tree.read([e for e in scan.entries if e.type is FileType.FILE]):
            held += blob.data
            if blob.last:
                assert blob.digest == digest(held)
                self.blobs[blob.digest] = bytes(held)
                held.clear()
        return self

    async def fetch(self, wanted: str):
        self.fetched.append(wanted)
        data = self.blobs[wanted]
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    @property
    def plan(self) -> RestorePlan:
        return RestorePlan(entries=self.entries, fetch=self.fetch)


def build(root) -> None:
    """A tree with all that is awkward in it."""
    (root / "d" / "e" / "deep").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o700)
    (root / "d" / "file").write_bytes(b"content")
    (root / "d" / "same").write_bytes(b"content")
    (root / "d" / "run").write_bytes(b"#!/bin/sh\n")
    (root / "d" / "run").chmod(0o755)
    (root / "d" / "none").write_bytes(b"")
    (root / "d" / "e" / "big").write_bytes(secrets.token_bytes(300_000))
    for name in (
        "a b",
        "-x",
        "new\nline",
        "back\\slash",
        "q'\"",
        "*",
        "\udcff",
        "y" * 255,
        "a\\nb",
    ):
        (root / "d" / name).write_bytes(os.fsencode(name))
    (root / "d" / "e" / "in").symlink_to("../file")
    (root / "d" / "e" / "out").symlink_to("/etc/passwd")
    (root / "d" / "e" / "up").symlink_to("../../../x")
    (root / "d" / "dangling").symlink_to("nothing\n")
    (root / "-").write_bytes(b"dash")
    (root / "d" / "set").write_bytes(b"")
    (root / "d" / "set").chmod(0o2755)


def shape(root) -> dict[bytes, tuple[int, bytes | None]]:
    """The tree as this machine sees it."""
    found = {}
    for path in root.rglob("*"):
        content: bytes | None = None
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[os.fsencode(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


async def test_cp1_a_scan_tells_all_that_is_there(box) -> None:
    build(box.workspace)
    scan = await box.tree.scan()
    assert [entry.path for entry in scan.entries] == sorted(entry.path for entry in scan.entries)
    seen = {os.fsencode(entry.path): entry for entry in scan.entries}
    assert seen.keys() == shape(box.workspace).keys()
    for path, (mode, content) in shape(box.workspace).items():
        entry = seen[path]
        if entry.type is FileType.SYMLINK:
            assert os.fsencode(entry.link) == content
        else:
            assert entry.mode == mode & 0o7777
        if entry.type is FileType.FILE:
            assert content is not None
            assert (entry.digest, entry.size) == (digest(content), len(content))
        else:
            assert (entry.digest, entry.size) == ("", 0)
    assert (scan.skipped, scan.unsettled, scan.unchanged) == ((), (), False)


async def test_cp6_special_files_are_skipped_and_listed(box) -> None:
    os.mkfifo(box.workspace / "fifo")
    (box.workspace / "f").write_text("")
    with anyio.fail_after(10):
        scan = await box.tree.scan()
    assert scan.skipped == ("fifo",)
    assert [entry.path for entry in scan.entries] == ["f"]


async def test_cp6_a_file_that_keeps_changing_is_unsettled(box) -> None:
    await box.sh(
        "(while :; do echo x >>growing; done) & while [ ! -s growing ]; do :; done; echo x >still"
    )
    scan = await box.tree.scan()
    for _ in range(50):  # a busy machine may not run it for a while
        if not scan.unsettled:
            await anyio.sleep(0.01)
            scan = await box.tree.scan()
    assert scan.unsettled == ("growing",)
    assert {entry.path for entry in scan.entries} >= {"growing", "still"}
    assert "growing" not in scan.state.files


async def test_cp7_what_is_unchanged_is_not_read_again(box) -> None:
    """CP-7: same size, mtime, ctime and inode, and older than 2 s before the last scan."""
    for name in "abc":
        (box.workspace / name).write_text(name)
    first = await box.tree.scan()
    aged = attrs.evolve(first.state, started_ns=first.state.started_ns + 10_000_000_000)
    lies = {name: attrs.evolve(mark, digest="0" * 64) for name, mark in aged.files.items()}
    assert lies.keys() == {"a", "b", "c"}
    (box.workspace / "b").write_text("B")
    again = await box.tree.scan(attrs.evolve(aged, files=lies))
    told = {entry.path: entry.digest for entry in again.entries}
    assert told == {"a": "0" * 64, "b": digest(b"B"), "c": "0" * 64}


async def test_cp7_what_is_young_is_read_again(box) -> None:
    (box.workspace / "a").write_text("a")
    first = await box.tree.scan()
    lies = {name: attrs.evolve(mark, digest="0" * 64) for name, mark in first.state.files.items()}
    again = await box.tree.scan(attrs.evolve(first.state, files=lies))
    assert again.entries[0].digest == digest(b"a")


async def test_cp2_restore_gives_exactly_that_tree(box) -> None:
    """CP-2: what was added is gone, what was deleted is back, modes, odd names, links verbatim."""
    build(box.workspace)
    before = shape(box.workspace)
    memory = await Memory().take(box)
    work = box.workspace
    (work / "added" / "x").mkdir(parents=True)
    (work / "added" / "x" / "f").write_text("")
    (work / "d" / "added").write_text("")
    os.mkfifo(work / "d" / "fifo")
    (work / "d" / "file").write_text("changed")
    (work / "d" / "run").chmod(0o600)
    (work / "d" / "e" / "big").unlink()
    (work / "d" / "a b").unlink()
    (work / "d" / "a b").mkdir()
    (work / "d" / "a b" / "f").write_text("")
    (work / "d" / "e" / "in").unlink()
    (work / "d" / "e" / "in").symlink_to("elsewhere")
    (work / "d" / "e" / "deep").rmdir()
    (work / "d" / "e" / "deep").symlink_to(box.outside)
    (work / "empty").chmod(0o755)
    (work / "d" / "-x").unlink()
    (work / "d" / "-x").symlink_to(box.outside / "canary")
    (box.outside / "canary").write_text("canary")
    memory.fetched.clear()
    report = await box.tree.restore(memory.plan)
    assert shape(work) == before
    assert (box.outside / "canary").read_text() == "canary"
    assert list(box.outside.iterdir()) == [box.outside / "canary"]
    assert set(report.escaping_links) == {"d/e/out", "d/e/up"}
    assert report.processes_ended is False
    assert len(memory.fetched) <= 5  # only what differs
    scan = await box.tree.scan(report.state)
    assert scan.entries == attrs.evolve(scan, entries=tuple(
        attrs.evolve(entry, mtime_ns=new.mtime_ns) for entry, new in zip(memory.entries, scan.entries, strict=True)
    )).entries  # fmt: skip


async def test_cp2_restore_into_an_empty_workspace_and_to_an_empty_tree(box) -> None:
    build(box.workspace)
    before = shape(box.workspace)
    memory = await Memory().take(box)
    await box.tree.restore(RestorePlan(entries=(), fetch=memory.fetch))
    assert shape(box.workspace) == {}
    await box.tree.restore(memory.plan)
    assert shape(box.workspace) == before


async def test_cp3_a_damaged_blob_leaves_the_live_tree_untouched(box) -> None:
    """CP-3, CP-8: named, and nothing is touched."""
    build(box.workspace)
    memory = await Memory().take(box)
    (box.workspace / "d" / "file").write_text("newer")
    (box.workspace / "d" / "same").write_text("newer")
    before = shape(box.workspace)
    bad = digest(b"content")
    for damage in (b"contenT", b"", b"content and more"):
        memory.blobs[bad] = damage
        with pytest.raises(CheckpointCorrupt) as caught:
            await box.tree.restore(memory.plan)
        assert caught.value.details["digest"] == bad
        await box.tree.recover()
        assert shape(box.workspace) == before


async def test_cp3_restore_refuses_while_a_command_runs(box) -> None:
    memory = await Memory().take(box)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.sh, "touch on; sleep 60")
        while not (box.workspace / "on").exists():
            await anyio.sleep(0.02)
        with pytest.raises(Conflict):
            await box.tree.restore(memory.plan)
        tasks.cancel_scope.cancel()


async def test_cp3_restore_ends_background_processes_and_says_so(box) -> None:
    (box.workspace / "f").write_text("f")
    memory = await Memory().take(box)
    beat = Heartbeat(box)
    await box.sh(f"({beat.loop}) & setsid sh -c 'while :; do echo x >f; done' >/dev/null 2>&1 &")
    await beat.beats()
    report = await box.tree.restore(memory.plan)
    assert report.processes_ended is True
    assert shape(box.workspace).keys() == {b"f"}
    assert (box.workspace / "f").read_text() == "f"


class Cut(BaseException):
    """The controller dies here."""


@pytest.mark.parametrize("kind", ["shell", "busybox"])
async def test_cp3_after_an_interruption_at_any_point_one_tree_stands(box) -> None:
    """CP-3: the next operation finishes it or undoes it, before anything else."""
    build(box.workspace)
    after = shape(box.workspace)
    memory = await Memory().take(box)
    spawn = type(box.guest).spawn
    finished = undone = 0
    spawned = [0, 0]  # so many, of so many allowed

    async def failing(guest, argv, env, cwd):
        spawned[0] += 1
        if spawned[0] > spawned[1]:
            raise Cut
        return await spawn(guest, argv, env, cwd)

    for allowed in range(100):
        await box.files.remove("/workspace/d", recursive=True)
        await box.files.write("/workspace/d/file", b"changed")
        await box.files.write("/workspace/added/x", b"x")
        before = shape(box.workspace)
        spawned[:] = [0, allowed]
        type(box.guest).spawn = failing
        try:
            await box.tree.restore(memory.plan)
        except* Cut:
            pass
        else:
            break
        finally:
            type(box.guest).spawn = spawn
        seen = [entry.path.name for entry in await box.files.list("/workspace")]  # mends it first
        assert not list(box.workspace.glob(".pinfold*"))
        now = shape(box.workspace)
        assert now in (before, after), allowed
        assert seen == sorted(os.fsdecode(name) for name in now if b"/" not in name)
        finished += now == after
        undone += now == before
    assert finished >= 2
    assert undone >= 2


@pytest.mark.parametrize("kind", ["shell", "busybox"])
async def test_cp3_another_controller_mends_it(box) -> None:
    """What was interrupted for good is found by `recover`, by whoever comes next."""
    from pathlib import PurePosixPath

    from pinfold.posix import equip

    build(box.workspace)
    memory = await Memory().take(box)
    after = shape(box.workspace)
    await box.files.remove("/workspace/d", recursive=True)
    (box.workspace / ".pinfold-tmp-0123").write_text("left by a write that was killed")
    spawn = type(box.guest).spawn

    async def failing(guest, argv, env, cwd):
        if any("still()" in arg for arg in argv) and any(arg == "files" for arg in argv):
            raise Cut
        return await spawn(guest, argv, env, cwd)

    type(box.guest).spawn = failing
    try:
        with pytest.raises((Cut, BaseExceptionGroup)):
            await box.tree.restore(memory.plan)
    finally:
        type(box.guest).spawn = spawn
    # as if a move of many files had been cut off after the first
    staged = box.workspace / ".pinfold-tmp-restore.0" / "0" / "file"
    staged.rename(box.workspace / "d" / "file")
    root = PurePosixPath(box.instance.equipment.layout.root)
    other = await equip(box.guest, root=root)
    assert await other.tree.recover() is True
    assert shape(box.workspace) == after
    assert await other.tree.recover() is False


@pytest.mark.parametrize("kind", ["shell"])
@pytest.mark.parametrize(
    "steps",
    [
        "[",
        '{"version": 2, "steps": []}',
        '{"version": 1, "steps": [["", "unlink", "../outside", ["canary"], ""]]}',
        '{"version": 1, "steps": [["", "purge", "", ["../outside"], ""]]}',
        '{"version": 1, "steps": [["", "unlink", "/etc", ["passwd"], ""]]}',
        '{"version": 1, "steps": [["", "unlink", "out", ["canary"], ""]]}',
        '{"version": 1, "steps": [["../x", "files", "", ["a"], "0"]]}',
        '{"version": 1, "steps": [["", "rm -rf", "", ["a"], ""]]}',
    ],
)
async def test_cp8_a_journal_that_the_guest_wrote_reaches_nothing_outside(box, steps) -> None:
    (box.outside / "canary").write_text("canary")
    (box.workspace / "out").symlink_to(box.outside)
    (box.workspace / ".pinfold-tmp-restore").write_text(steps)
    with pytest.raises(PinfoldError):
        await box.tree.recover()
    assert (box.outside / "canary").read_text() == "canary"


def file(path: str, **more) -> Entry:
    return Entry(path=path, type=FileType.FILE, mode=0o644, digest=digest(b""), **more)


HOSTILE = {
    "absolute": (file("/etc/x"),),
    "parents": (file("../x"),),
    "parents inside": (file("a/../../x"),),
    "dot": (file("./x"),),
    "empty": (file(""),),
    "double slash": (file("a//b"),),
    "no parent": (file("a/b"),),
    "file as parent": (file("a"), file("a/b")),
    "link as parent": (
        Entry(path="a", type=FileType.SYMLINK, mode=0o777, link="/etc"),
        file("a/b"),
    ),
    "twice": (file("a"), file("a")),
    "twice, another kind": (
        file("a"),
        Entry(path="a", type=FileType.SYMLINK, mode=0o777, link="x"),
    ),
    "nul": (file("a\0b"),),
    "mode": (attrs.evolve(file("a"), mode=0o100000),),
    "size": (file("a", size=-1),),
    "special": (attrs.evolve(file("a"), type=FileType.OTHER),),
    "ours": (file(".pinfold-tmp-x"),),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_cp8_a_hostile_manifest_is_refused_before_anything_changes(box, what) -> None:
    (box.workspace / "keep").write_text("")
    with pytest.raises(InvalidArgument):
        await box.tree.restore(RestorePlan(entries=HOSTILE[what], fetch=Memory().fetch))
    assert shape(box.workspace).keys() == {b"keep"}


async def test_reading_what_is_gone_says_so(box) -> None:
    blobs = [blob async for blob in box.tree.read([file("gone"), file("no/parent")])]
    assert [(blob.path, blob.data, blob.last, blob.digest) for blob in blobs] == [
        ("gone", b"", True, ""),
        ("no/parent", b"", True, ""),
    ]


async def test_reading_in_bounded_pieces(box) -> None:
    data = secrets.token_bytes(3_500_000)
    (box.workspace / "big").write_bytes(data)
    (box.workspace / "none").write_bytes(b"")
    entries = (await box.tree.scan()).entries
    found: dict[str, bytearray] = {"big": bytearray(), "none": bytearray()}
    async for blob in box.tree.read(entries):
        assert len(blob.data) <= 1024 * 1024
        found[blob.path] += blob.data
        if blob.last:
            assert blob.digest == digest(found[blob.path])
    assert found == {"big": data, "none": b""}
