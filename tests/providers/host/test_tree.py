"""The workspace as one value (CP-2, CP-3, CP-6, CP-7), on the host."""

import hashlib
import os
import random

import attrs
import pytest

from pinfold.errors import CheckpointCorrupt, Conflict, InvalidArgument, NoSpace
from pinfold.provider import Entry, FileType, RestorePlan
from pinfold_host import _restore
from tests.providers.host.support import (
    create,
    grows,
    heartbeat,
    out,
    plant,
    sh,
    until,
    workspace,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("way")]


@pytest.fixture
def anyio_backend(kind):
    return kind[0]


class Checkpoint:
    """A tree with its contents, held in memory."""

    def __init__(self, entries, contents):
        self.entries, self.contents = entries, contents

    @classmethod
    async def of(cls, instance) -> "Checkpoint":
        scan = await instance.tree.scan()
        contents: dict[str, bytes] = {}
        parts: dict[str, bytes] = {}
        files = [entry for entry in scan.entries if entry.type is FileType.FILE]
        async for blob in instance.tree.read(files):
            parts[blob.path] = parts.get(blob.path, b"") + blob.data
            if blob.last:
                assert blob.digest == hashlib.sha256(parts[blob.path]).hexdigest()
                contents[blob.digest] = parts.pop(blob.path)
        assert {e.digest for e in files} == set(contents)
        assert not parts
        return cls(scan.entries, contents)

    async def fetch(self, digest: str):
        data = self.contents[digest]
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    @property
    def plan(self) -> RestorePlan:
        return RestorePlan(entries=self.entries, fetch=self.fetch)

    @property
    def facts(self):
        return {e.path: attrs.evolve(e, mtime_ns=0) for e in self.entries}


async def facts(instance):
    scan = await instance.tree.scan()
    return {e.path: attrs.evolve(e, mtime_ns=0) for e in scan.entries}


MAKE = r"""
mkdir -p empty deep/er/est 'odd name' closed
printf one > deep/er/one; printf two > deep/two; printf two > deep/same; : > none
chmod 755 deep/two; chmod 400 deep/er/one; chmod 711 empty; chmod 2750 deep/er
ln -s two deep/link; ln -s /etc/passwd abs; ln -s ../../up deep/up; ln -s nowhere dangling
printf x > 'odd name/ -rf *'; printf x > "$(printf 'new\nline')"
head -c 3000000 /dev/urandom > big
"""
BREAK = r"""
rm -rf deep/er 'odd name'; printf changed > deep/two; chmod 600 deep/same; rm -r empty
printf x > empty; rm none; mkdir none; touch none/x; ln -sfn /usr abs; rm dangling; mkdir dangling
mkdir -p added/sub; printf a > added/sub/a; printf b >> big; mkfifo pipe; ln deep/same hard
"""


async def test_a_scan_tells_all_there_is(instance):
    """CP-1: type, name, mode, size, content digest, link text; sorted, parents first."""
    await out(instance, MAKE)
    found = await facts(instance)
    assert list(found) == sorted(found)
    digest = hashlib.sha256(b"one").hexdigest()
    assert found["deep/er/one"] == Entry(
        path="deep/er/one", type=FileType.FILE, mode=0o400, size=3, digest=digest
    )
    assert found["empty"] == Entry(path="empty", type=FileType.DIRECTORY, mode=0o711)
    assert found["deep/er"].mode & 0o777 == 0o750
    assert (found["abs"].type, found["abs"].link) == (FileType.SYMLINK, "/etc/passwd")
    assert found["deep/up"].link == "../../up"
    assert {"odd name/ -rf *", "new\nline", "none", "closed"} <= set(found)


async def test_a_restore_gives_exactly_that_tree(instance):
    """CP-2: what was added is gone, what was deleted is back, links verbatim and listed."""
    await out(instance, MAKE)
    before = await Checkpoint.of(instance)
    await out(instance, BREAK)
    assert await facts(instance) != before.facts, "control"
    report = await instance.tree.restore(before.plan)
    assert await facts(instance) == before.facts
    assert set(report.escaping_links) == {"abs", "deep/up"}
    scan = await instance.tree.scan(report.state)
    assert scan.unchanged
    assert await out(instance, "cat deep/er/one deep/link 'odd name/ -rf *'") == "onetwox"
    owners = set((await out(instance, "find . -exec stat -c %u:%g '{}' ';'")).split())
    assert (
        owners == {"1000:1000"} if instance.features.tree_kill == "namespace" else len(owners) == 1
    )


async def test_a_restore_into_an_empty_workspace(instance, level):
    """CP-2, CP-4: another instance comes to the same tree."""
    await out(instance, MAKE)
    before = await Checkpoint.of(instance)
    other = await create(level, sandbox="sbx_other")
    try:
        await other.tree.restore(before.plan)
        assert await facts(other) == before.facts
    finally:
        await other.destroy()


async def test_every_name_gets_a_file_of_its_own(instance):
    """CP-2: hard links are no part of a tree: to write one of two equal files leaves the other."""
    await out(instance, "printf x > a; ln a b")
    before = await Checkpoint.of(instance)
    await instance.tree.restore(before.plan)
    assert await out(instance, "printf y > a; cat b") == "x"


async def test_random_trees_come_back(instance):
    """CP-2: any tree from any other."""
    rng = random.Random(4)  # noqa: S311
    checkpoints = []
    for _ in range(8):
        _scribble(workspace(instance), rng)
        await out(instance, "true")
        checkpoints.append(await Checkpoint.of(instance))
    for _ in range(12):
        wanted = rng.choice(checkpoints)
        await instance.tree.restore(wanted.plan)
        assert await facts(instance) == wanted.facts


def _scribble(root, rng) -> None:
    """Change a tree at random, as its owner."""
    uid = root.stat().st_uid
    for _ in range(25):
        places = [root, *(p for p in root.rglob("*") if p.is_dir() and not p.is_symlink())]
        place = rng.choice(places) / rng.choice("abcde")
        kind = rng.randrange(5)
        if place.is_dir() and not place.is_symlink():
            if kind == 0:
                import shutil

                shutil.rmtree(place)
            elif kind == 1:
                place.chmod(rng.choice([0o755, 0o700, 0o711]))
            continue
        if place.is_symlink() or place.exists():
            place.unlink()
        if kind == 1:
            place.mkdir()
        elif kind == 2:
            place.symlink_to(rng.choice(["a", "../b", "/etc/passwd"]))
        elif kind > 2:
            place.write_bytes(rng.choice([b"", b"x", b"y" * 5000, rng.randbytes(10)]))
            place.chmod(rng.choice([0o644, 0o755, 0o600]))
        if place.is_symlink() or place.exists():
            os.chown(place, uid, uid, follow_symlinks=False)


async def test_an_interruption_anywhere_is_finished_or_undone(instance, monkeypatch):
    """CP-3: whichever step fails, the next call of any kind sees the old tree or the new one."""
    await out(instance, MAKE)
    before = await Checkpoint.of(instance)
    await out(instance, BREAK)
    with monkeypatch.context() as patch:
        count = _fail_at(patch, 1_000_000)
        await instance.tree.restore(before.plan)
    steps, seen = count[0], {"undone": 0, "finished": 0}
    for number in range(0, steps, 3):
        await out(instance, BREAK)
        broken = await facts(instance)
        with monkeypatch.context() as patch:
            _fail_at(patch, number)
            with pytest.raises(_Interrupted):
                await instance.tree.restore(before.plan)
        left = is_restoring(instance)
        look = [
            lambda: out(instance, "ls"),
            lambda: instance.files.list("/workspace"),
            instance.tree.recover,
        ][number % 3]
        said = await look()
        assert number % 3 != 2 or said is left
        assert not is_restoring(instance)
        now = await facts(instance)
        assert now in (before.facts, broken)
        seen["finished" if now == before.facts else "undone"] += 1
        await instance.tree.restore(before.plan)
    assert min(seen.values()) > 3, seen


def is_restoring(instance) -> bool:
    return (workspace(instance).parent / "restore").exists()


class _Interrupted(BaseException):
    pass


_CALLS = ("rename", "unlink", "mkdir", "symlink", "chmod", "fchmod", "utime", "rmdir")


def _fail_at(patch, number: int) -> list[int]:
    """Let the apply phase's system calls fail from the given one on."""
    count = [0]
    for name in _CALLS:
        real = getattr(os, name)

        def step(*args, _real=real, **kwargs):
            count[0] += 1
            if count[0] > number:
                raise _Interrupted
            return _real(*args, **kwargs)

        patch.setattr(os, name, step)

    return count


async def test_an_interruption_before_the_journal_touches_nothing(instance):
    """CP-3: a blob that can't be had, or not all of it, leaves the live tree as it was."""
    await out(instance, MAKE)
    before = await Checkpoint.of(instance)
    await out(instance, BREAK)
    now = await facts(instance)
    digest = hashlib.sha256(b"one").hexdigest()

    async def missing(wanted):
        if wanted == digest:
            raise CheckpointCorrupt(wanted)
        async for chunk in before.fetch(wanted):
            yield chunk

    async def short(wanted):
        yield b"on" if wanted == digest else before.contents[wanted]

    for fetch in (missing, short):
        with pytest.raises(CheckpointCorrupt):
            await instance.tree.restore(RestorePlan(entries=before.entries, fetch=fetch))
        assert await facts(instance) == now
        assert await instance.tree.recover() is False


async def test_every_blob_is_verified_also_of_what_is_in_place(instance):
    """CP-3: a tree that could not be made again is not said to be restored."""
    await out(instance, "printf one > a; printf two > b")
    before = await Checkpoint.of(instance)
    del before.contents[hashlib.sha256(b"one").hexdigest()]

    async def fetch(digest):
        if digest not in before.contents:
            raise CheckpointCorrupt(digest)
        yield before.contents[digest]

    with pytest.raises(CheckpointCorrupt):
        await instance.tree.restore(RestorePlan(entries=before.entries, fetch=fetch))
    assert await facts(instance) == before.facts


async def test_no_room_to_stage_touches_nothing(instance, monkeypatch):
    """CP-3: no space is found out before the live tree is touched."""
    await out(instance, MAKE)
    before = await Checkpoint.of(instance)
    await out(instance, BREAK)
    now = await facts(instance)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_restore.Restore, "_dress", full)
        with pytest.raises(NoSpace):
            await instance.tree.restore(before.plan)
    assert await facts(instance) == now


async def test_a_restore_refuses_while_a_command_runs(instance):
    """CP-3."""
    import anyio

    before = await Checkpoint.of(instance)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, instance, heartbeat("hb"))
        await grows(workspace(instance) / "hb")
        with pytest.raises(Conflict):
            await instance.tree.restore(before.plan)
        await grows(workspace(instance) / "hb")
        tasks.cancel_scope.cancel()
    await instance.tree.restore(before.plan)
    assert await facts(instance) == {}


async def test_a_restore_ends_background_jobs_and_says_so(instance):
    """CP-3, CP-9."""
    before = await Checkpoint.of(instance)
    assert (await instance.tree.restore(before.plan)).processes_ended is False
    await sh(instance, f"({heartbeat('hb')}) & :")
    await grows(workspace(instance) / "hb")
    report = await instance.tree.restore(before.plan)
    assert report.processes_ended is True
    assert await facts(instance) == {}
    await out(instance, "sleep 0.1")
    assert await facts(instance) == {}


async def test_commands_wait_for_a_restore_that_is_under_way(instance):
    """CP-3: no caller sees a half tree."""
    import anyio

    await out(instance, "mkdir d; for i in 1 2 3 4 5 6 7 8 9; do echo $i > d/$i; done")
    before = await Checkpoint.of(instance)
    await out(instance, "rm -r d")
    seen = []
    started = anyio.Event()

    async def slow(digest):
        started.set()
        await anyio.sleep(0.02)
        async for chunk in before.fetch(digest):
            yield chunk

    async def look(call):
        await started.wait()
        seen.append(await call())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, lambda: out(instance, "ls d | wc -l"))
        tasks.start_soon(look, lambda: instance.files.list("/workspace/d"))
        tasks.start_soon(look, instance.tree.scan)
        await instance.tree.restore(RestorePlan(entries=before.entries, fetch=slow))
    assert sorted(
        len(x.entries) if hasattr(x, "entries") else int(x) if isinstance(x, str) else len(x)
        for x in seen
    ) == [9, 9, 10]


async def test_special_files_are_skipped_and_listed(instance):
    """CP-6: nothing hangs, nothing is lost in silence."""
    await out(instance, "mkfifo a; mkdir d; mkfifo d/b; : > file")
    scan = await instance.tree.scan()
    assert scan.skipped == ("a", "d/b")
    assert [e.path for e in scan.entries] == ["d", "file"]


async def test_a_file_that_keeps_changing_is_listed_as_unsettled(instance):
    """CP-6: it is stored as read."""
    await out(instance, "head -c 30000000 /dev/zero > busy")
    script = "(while :; do printf x >> busy; done) & :"
    await sh(instance, script)
    path = workspace(instance) / "busy"
    await grows(path)
    await until(lambda: _is_unsettled(instance))
    await sh(instance, "true")


async def _is_unsettled(instance) -> bool:
    scan = await instance.tree.scan()
    return scan.unsettled == ("busy",) and [e.path for e in scan.entries] == ["busy"]


async def test_unchanged_files_are_not_read_again(instance, monkeypatch):
    """CP-7: same size, mtime, ctime and inode, and a ctime older than 2 s; all else is read."""
    read: list[int] = []
    real = os.pread

    def counting(fd, size, offset):
        read.append(offset)
        return real(fd, size, offset)

    await out(instance, "for i in 1 2 3; do echo $i > $i; done")
    first = await instance.tree.scan()
    monkeypatch.setattr(os, "pread", counting)

    again = await instance.tree.scan(first.state)
    assert again.unchanged
    assert again.entries == ()
    assert len(read) == 6, "fresh: within 2 s of a scan they could have changed unseen"

    later = attrs.evolve(first.state, started_ns=first.state.started_ns + 3_000_000_000)
    read.clear()
    assert (await instance.tree.scan(later)).unchanged
    assert read == []

    path = workspace(instance) / "1"
    stat = path.stat()
    path.write_text("9\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    scan = await instance.tree.scan(later)
    assert not scan.unchanged
    assert scan.entries[0].digest == hashlib.sha256(b"9\n").hexdigest()
    assert len(read) == 2, "same size and mtime: the ctime tells"

    read.clear()
    aside = path.with_name("aside")
    plant(instance, "aside", b"8\n")
    aside.rename(path)
    await instance.tree.scan(later)
    assert len(read) == 2, "another inode"


@pytest.mark.parametrize(
    "entries",
    [
        [Entry(path="../x", type=FileType.FILE, mode=0o644)],
        [Entry(path="/x", type=FileType.FILE, mode=0o644)],
        [Entry(path="", type=FileType.FILE, mode=0o644)],
        [Entry(path="a//b", type=FileType.FILE, mode=0o644)],
        [Entry(path="a/b", type=FileType.FILE, mode=0o644)],
        [Entry(path="x", type=FileType.FILE, mode=0o644)] * 2,
        [
            Entry(path="l", type=FileType.SYMLINK, mode=0o777, link="/etc"),
            Entry(path="l/x", type=FileType.FILE, mode=0o644),
        ],
        [Entry(path="n" * 256, type=FileType.FILE, mode=0o644)],
        [Entry(path="x", type=FileType.FILE, mode=0o10000)],
        [Entry(path="x", type=FileType.SYMLINK, mode=0o777, link="")],
        [Entry(path="x", type=FileType.OTHER, mode=0o644)],
    ],
)
async def test_what_cannot_be_is_refused_by_name(instance, entries):
    """CP-4, CP-8: before anything is touched."""
    await out(instance, "echo x > kept")

    async def fetch(_):
        yield b""

    with pytest.raises(InvalidArgument) as caught:
        await instance.tree.restore(RestorePlan(entries=tuple(entries), fetch=fetch))
    assert repr(entries[-1].path) in str(caught.value)
    assert list(await facts(instance)) == ["kept"]


async def test_a_file_that_is_closed_to_its_owner_is_still_checkpointed(instance):
    """CP-1, CP-2: mode 0 is a mode."""
    await out(instance, "printf secret > f; chmod 0 f; printf x > g; chmod 200 g")
    before = await Checkpoint.of(instance)
    assert before.facts["f"].mode == 0
    await out(instance, "rm -f f; chmod 644 g")
    await instance.tree.restore(before.plan)
    assert await facts(instance) == before.facts


async def test_a_guest_that_is_not_roots_checkpoints_what_is_closed_to_it(instance, monkeypatch):
    """CP-1: an ordinary user's controller reads its own closed file, and puts its mode back."""
    path = plant(instance, "f", b"secret", mode=0)
    real = os.open
    asked = []

    def as_a_user(name, flags, *args, **kwargs):
        if name == "f" and not flags & getattr(os, "O_PATH", 0):
            asked.append(name)
            raise PermissionError(13, "Permission denied")
        return real(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", as_a_user)
    scan = await instance.tree.scan()
    assert asked == ["f"]
    assert scan.entries[0].digest == hashlib.sha256(b"secret").hexdigest()
    assert path.stat().st_mode & 0o777 == 0


async def test_temporary_files_are_no_part_of_it(instance):
    """FS-4, CP-1: what a killed controller left half written is in no listing and no checkpoint."""
    plant(instance, ".pinfold-0123456789abcdef.tmp", b"half")
    plant(instance, ".pinfold-mine.tmp", b"the guest's own")
    assert [e.path.name for e in await instance.files.list("/workspace")] == [".pinfold-mine.tmp"]
    assert list(await facts(instance)) == [".pinfold-mine.tmp"]


async def test_the_reader_survives_a_file_that_is_gone(instance):
    """CP-6: one empty last piece, with no digest."""
    await out(instance, "echo x > f; echo y > g")
    scan = await instance.tree.scan()
    await out(instance, "rm f; rm g; mkdir g")
    blobs = [blob async for blob in instance.tree.read(scan.entries)]
    assert [(b.path, b.data, b.last, b.digest) for b in blobs] == [
        ("f", b"", True, ""),
        ("g", b"", True, ""),
    ]


async def test_a_heartbeat_dies_with_its_instance(instance):
    """LC-9: destroy leaves no process."""
    await sh(instance, f"({heartbeat('hb')}) & setsid sh -c '{heartbeat('hb2')}' & :")
    beats = [workspace(instance) / name for name in ("hb", "hb2")]
    fds = []
    for beat in beats:
        await grows(beat)
        fds.append(os.open(beat, os.O_RDONLY))
    await instance.destroy()
    sizes = [os.fstat(fd).st_size for fd in fds]
    import anyio

    await anyio.sleep(0.2)
    assert [os.fstat(fd).st_size for fd in fds] == sizes
    for fd in fds:
        os.close(fd)
