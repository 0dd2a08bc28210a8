"""What a scan tells of a workspace (CP-1, CP-6, CP-7)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from hashlib import sha256

import anyio

from pinfold.provider import Entry, FileType
from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, require
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance._verdicts import Level
from pinfold_conformance.checks._trees import capture

NEEDS = {"cap:portable_checkpoint"}


@check("CP-1.entries", needs=NEEDS, place=Place.CLEAN)
async def entries(case: Case) -> None:
    """A scan tells every name: type, mode, size, SHA-256, link text; sorted, and nothing else."""
    files = case.files
    equal((await capture(case.instance)).shape, {}, "an empty workspace")
    modes, links = case.features.modes, case.features.symlinks
    await files.write(WORKSPACE / "a" / "file", b"abc")
    await files.write(WORKSPACE / "empty", b"")
    await files.make_directory(WORKSPACE / "a" / "dir")
    await files.write(WORKSPACE / "a.b", b"between a and a/")
    await files.write(WORKSPACE / "B", b"\0\xff")
    expected: dict[str, tuple[object, ...]] = {
        "a": ("directory", 0o755, 0, "", None),
        "a/file": ("file", 0o644, 3, sha256(b"abc").hexdigest(), None),
        "a/dir": ("directory", 0o755, 0, "", None),
        "a.b": ("file", 0o644, 16, sha256(b"between a and a/").hexdigest(), None),
        "empty": ("file", 0o644, 0, sha256(b"").hexdigest(), None),
        "B": ("file", 0o644, 2, sha256(b"\0\xff").hexdigest(), None),
    }
    if modes:
        await files.chmod(WORKSPACE / "a" / "dir", 0o700)
        await files.chmod(WORKSPACE / "a" / "file", 0o751)
        expected["a/dir"] = ("directory", 0o700, 0, "", None)
        expected["a/file"] = ("file", 0o751, 3, sha256(b"abc").hexdigest(), None)
    if links:
        await files.symlink(WORKSPACE / "a" / "link", "../B")
        await files.symlink(WORKSPACE / "out", "/etc/pinfold-nobodys")
        expected["a/link"] = ("symlink", None, 0, "", "../B")
        expected["out"] = ("symlink", None, 0, "", "/etc/pinfold-nobodys")
    if case.features.non_utf8_names:
        name = os.fsdecode(b"odd\xff")
        await files.write(WORKSPACE / name, b"odd")
        expected[name] = ("file", 0o644, 3, sha256(b"odd").hexdigest(), None)
    equal((await capture(case.instance)).shape, expected, "the workspace")


@check("CP-1.stable", needs=NEEDS, place=Place.CLEAN)
async def stable(case: Case) -> None:
    """Equal trees have equal entries, whatever their times and their history."""
    files = case.files
    for name in ("x", "y", "dir/z"):
        await files.write(WORKSPACE / name, name.encode())
    first = await capture(case.instance)
    require(len(first.entries) == 4, f"the scan tells of {len(first.entries)} names, not 4")
    for name in ("dir/z", "y", "x"):
        await files.remove(WORKSPACE / name)
    await files.remove(WORKSPACE / "dir")
    for name in ("y", "dir/z", "x"):
        await files.write(WORKSPACE / name, b"other first")
        await files.write(WORKSPACE / name, name.encode())
    second = await capture(case.instance)
    equal(second.shape, first.shape, "the same tree made again")
    equal((await capture(case.instance)).shape, second.shape, "scanned again")


@check("CP-1.times", "FS-5", needs=NEEDS, place=Place.CLEAN)
async def times(case: Case) -> None:
    """Times are stored: a scan tells each file's mtime, as stat does, and it stands still."""
    files = case.files
    for name in ("a", "dir/b"):
        await files.write(WORKSPACE / name, name.encode())
    first = {name: (await files.stat(WORKSPACE / name)).mtime_ns for name in ("a", "dir/b")}
    await anyio.sleep(0.02)
    scan = await case.instance.tree.scan()
    found = {entry.path: entry.mtime_ns for entry in scan.entries if entry.digest}
    equal(found, first, "mtimes of a scan, against stat")
    again = {name: (await files.stat(WORKSPACE / name)).mtime_ns for name in first}
    equal(again, first, "mtimes of files that nobody wrote")


@check("CP-1.commands", needs={*NEEDS, "exec"}, place=Place.CLEAN)
async def commands(case: Case) -> None:
    """What commands write is in the scan at once, as file operations see it."""
    d = case.dialect
    await case.sh(d.mkdir("by/command"), d.save("by/command/file", b"data"), d.save("top", b"\0"))
    found = (await capture(case.instance)).shape
    equal(sorted(found), ["by", "by/command", "by/command/file", "top"], "the names")
    equal(found["by/command/file"][3], sha256(b"data").hexdigest(), "the digest")
    for path, facts in found.items():
        equal(facts[1], (await case.files.stat(WORKSPACE / path)).mode, f"the mode of {path}")


@check("CP-1.large", needs=NEEDS, place=Place.CLEAN, deadline_s=120)
async def large(case: Case) -> None:
    """A file of several pieces is read in order, each of at most 1 MiB, with one digest."""
    size = min(9 * 1024 * 1024 + 17, case.limits.file_bytes or 2**40)
    data = case.bytes(size)
    await case.files.write(WORKSPACE / "large", data)
    await case.files.write(WORKSPACE / "small", b"s")
    found = await capture(case.instance)
    digest = sha256(data).hexdigest()
    equal(sorted(found.shape), ["large", "small"], "names")
    equal(found.shape["large"][2:4], (size, digest), "size and digest")
    require(found.contents[digest] == data, "the content differs")


@check("CP-1.read-some", needs=NEEDS, place=Place.CLEAN)
async def read_some(case: Case) -> None:
    """Only the files asked for are read; one that is gone meanwhile is an empty last piece."""
    for name in ("a", "b", "c"):
        await case.files.write(WORKSPACE / name, name.encode() * 10)
    scan = await case.instance.tree.scan()
    wanted = [entry for entry in scan.entries if entry.path in ("a", "c")]
    await case.files.remove(WORKSPACE / "c")
    found: dict[str, tuple[bytes, bool, str]] = {}
    async for blob in case.instance.tree.read(wanted):
        before = found.get(blob.path, (b"",))[0]
        found[blob.path] = (before + blob.data, blob.last, blob.digest)
    expected = {
        "a": (b"a" * 10, True, sha256(b"a" * 10).hexdigest()),
        "c": (b"", True, ""),
    }
    equal(found, expected, "the pieces")


@check("CP-6.special", needs={*NEEDS, "exec", "special_files"}, place=Place.CLEAN)
async def special(case: Case) -> None:
    """FIFOs are skipped and listed; the scan does not hang on them."""
    made = await case.sh(case.dialect.mkdir("d"), case.dialect.fifo("d/fifo"))
    equal((made.exit_code, made.stderr), (0, b""), "making a FIFO")
    await case.files.write(WORKSPACE / "file", b"1")
    scan = await case.instance.tree.scan()
    equal([entry.path for entry in scan.entries], ["d", "file"], "entries")
    equal(list(scan.skipped), ["d/fifo"], "skipped")


@check("CP-6.changing", needs={*NEEDS, "exec", "background"}, place=Place.OWN)
async def changing(case: Case) -> None:
    """A file that keeps changing is stored as read: its digest is that of the bytes given."""
    from pinfold_conformance.dialects import How

    d = case.dialect
    await case.sh(d.start(d.beat("grows", 0.02), How.QUIET))

    async def there() -> bool:
        return await case.exists(WORKSPACE / "grows")

    await case.until(there, "the file that grows")
    for _ in range(5):
        scan = await case.instance.tree.scan()
        equal([entry.path for entry in scan.entries], ["grows"], "entries")
        (entry,) = scan.entries
        data, told = bytearray(), ""
        async for blob in case.instance.tree.read([entry]):
            data += blob.data
            told = blob.digest if blob.last else told
        equal(told, sha256(data).hexdigest(), "the digest told with the bytes that were read")
        require(len(data) > 0, "the bytes of a file that grows")


def _facts(entry: Entry) -> tuple[object, ...]:
    return entry.type, entry.mode, entry.size, entry.digest, entry.link


@check("CP-7.incremental", needs=NEEDS, place=Place.CLEAN, kind=Kind.LAW)
async def incremental(case: Case) -> None:
    """An incremental scan tells what a full one tells, after every kind of change."""
    files = case.files
    await files.write(WORKSPACE / "a", b"1111")
    await files.write(WORKSPACE / "dir" / "b", b"2222")
    await files.write(WORKSPACE / "c", b"3333")
    state = (await case.instance.tree.scan()).state
    last = (await case.instance.tree.scan()).entries

    async def rename() -> None:
        await files.rename(WORKSPACE / "c", WORKSPACE / "dir" / "c")

    async def swap() -> None:
        await files.rename(WORKSPACE / "a", WORKSPACE / "t")
        await files.rename(WORKSPACE / "dir/b", WORKSPACE / "a")
        await files.rename(WORKSPACE / "t", WORKSPACE / "dir/b")

    changes: dict[str, Callable[[], Awaitable[None]]] = {
        "a write of the same size": lambda: files.write(WORKSPACE / "a", b"1112"),
        "another of the same size": lambda: files.write(WORKSPACE / "a", b"1113"),
        "a new file": lambda: files.write(WORKSPACE / "new", b""),
        "a removal": lambda: files.remove(WORKSPACE / "new"),
        "a rename": rename,
        "two files swapped": swap,
        "a new directory": lambda: files.make_directory(WORKSPACE / "dir" / "empty"),
    }
    if case.features.modes:
        changes["a chmod"] = lambda: files.chmod(WORKSPACE / "a", 0o755)
    if case.features.symlinks:
        changes["a link"] = lambda: files.symlink(WORKSPACE / "link", "a")
    for what, change in changes.items():
        await change()
        fast = await case.instance.tree.scan(state)
        full = await case.instance.tree.scan()
        require(not fast.unchanged, f"after {what} a scan says that nothing changed (CP-7)")
        equal(
            [(entry.path, *_facts(entry)) for entry in fast.entries],
            [(entry.path, *_facts(entry)) for entry in full.entries],
            f"an incremental scan after {what}, against a full one (CP-7)",
        )
        require(full.entries != last, f"{what} is not in a full scan")
        state, last = fast.state, full.entries
    again = await case.instance.tree.scan(state)
    if not again.unchanged:
        equal(
            [(entry.path, *_facts(entry)) for entry in again.entries],
            [(entry.path, *_facts(entry)) for entry in last],
            "a scan without a change",
        )


@check("CP-7.same-times", needs={*NEEDS, "exec"}, place=Place.CLEAN)
async def same_times(case: Case) -> None:
    """A file changed at equal size with its mtime put back is read again (racy or by ctime)."""
    d = case.dialect
    await case.sh(d.save("file", b"old!"), d.save("ref", b""), d.copy_times("file", "ref"))
    scan = await case.instance.tree.scan()
    done = await case.sh(d.save("file", b"new!"), d.copy_times("file", "ref"))
    equal(done.exit_code, 0, "putting the time back")
    fast = await case.instance.tree.scan(scan.state)
    found = {entry.path: entry.digest for entry in fast.entries}
    equal(found.get("file"), sha256(b"new!").hexdigest(), "the digest of the changed file (CP-7)")


@check("CP-7.skips", needs=NEEDS, place=Place.CLEAN, level=Level.SHOULD)
async def skips(case: Case) -> None:
    """What did not change is known without reading: the same state gives the same answer."""
    await case.files.write(WORKSPACE / "file", b"1")
    scan = await case.instance.tree.scan()
    require(scan.state.files or scan.state.token, "a scan leaves nothing to compare by")
    equal([e.path for e in scan.entries], ["file"], "entries")
    again = await case.instance.tree.scan(scan.state)
    require(
        again.unchanged or [_facts(e) for e in again.entries] == [_facts(e) for e in scan.entries],
        "a scan without a change differs",
    )
    case.evidence["unchanged"] = again.unchanged
    equal(scan.entries[0].type, FileType.FILE, "type")
