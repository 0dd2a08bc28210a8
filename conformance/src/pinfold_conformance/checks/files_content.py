"""Contents, names, atomic writes, and one truth for commands and files (FS-3, FS-4, FS-6)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, NoReturn

import anyio
import anyio.lowlevel

from pinfold.errors import (
    Conflict,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    PinfoldError,
    TooLarge,
    Unimplemented,
)
from pinfold.provider import FileType
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, expect_raises, require
from pinfold_conformance._guard import Sabotage
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.checks.files_paths import operations

KIB = 1024

CONTENTS = (
    b"",
    b"\n",
    b"\0",
    b"a\r\nb\r\n",
    b"no newline",
    b"\xff\xfe\x00\x80",
    bytes(range(256)),
    "naïve ☃\n".encode(),
    b"\x1b]0;title\x07",
)

NAMES = (
    "plain",
    "with space",
    " leading and trailing ",
    "-rf",
    "--help",
    "-",
    "quote'single",
    'quote"double',
    "$(touch pwned)",
    "`touch pwned`",
    "a;b",
    "a&b",
    "a|b",
    "a>b",
    "star*",
    "q?",
    "[brackets]",
    "back\\slash",
    "tab\tname",
    "new\nline",
    ".hidden",
    "...",
    "~",
    "#hash",
    "%41",
    "é-nfc",
    "e\u0301-nfd",
    "漢字",
    "\U0001f9ea",
    "a" * 255,
    "CON",
    "A",
    "a",
)


@check("FS-3.contents")
async def contents(case: Case) -> None:
    """What is written is what is read, byte for byte, also past the adapter."""
    scratch = await case.scratch()
    sizes = [4095, 4096, 4097, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 1024 * KIB]
    limit = case.limits.file_bytes or max(sizes)
    witness = case.site.lane.witness(case.inner)
    for data in (*CONTENTS, *(case.bytes(size) for size in sizes if size <= limit)):
        path = scratch / "file"
        await case.files.write(path, data)
        equal(await case.files.read(path), data, f"{len(data)} bytes, read back")
        equal((await case.files.stat(path)).size, len(data), "size")
        if witness is not None:
            equal(await witness.read(path), data, f"{len(data)} bytes, seen by the witness")


@check("FS-3.witness", needs={"hook:witness"})
async def by_witness(case: Case) -> None:
    """What the witness writes is what is read: a wrong write and a wrong read can't cancel."""
    scratch = await case.scratch()
    for data in CONTENTS:
        await case.witness.write(scratch / "file", data)
        equal(await case.files.read(scratch / "file"), data, "written by the witness")
        await case.files.write(scratch / "back", data)
        equal(await case.witness.read(scratch / "back"), data, "read by the witness")
    names = sorted(await case.witness.list(scratch))
    equal(names, ["back", "file"], "names by the witness")


class _Tripwire:
    """What stands for the adapter's files and exec while the witness looks."""

    def __init__(self, what: str) -> None:
        self._what = what

    def _trip(self) -> NoReturn:
        raise CheckFailed(
            f"the witness goes through the adapter's own {self._what}: it proves nothing"
        )

    def __getattr__(self, name: str) -> Any:
        self._trip()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self._trip()


@check("FS-3.witness-apart", needs={"hook:witness"}, place=Place.OWN)
async def witness_apart(case: Case) -> None:
    """The witness is a way of its own: it reads and writes without the adapter's files and exec."""
    scratch, inner = await case.scratch(), case.inner
    await case.files.write(scratch / "file", b"by the adapter")
    kept = {name: getattr(inner, name) for name in ("files", "exec")}
    try:
        for name in kept:
            try:
                setattr(inner, name, _Tripwire(name))
            except AttributeError:  # nothing can be put in its place
                case.evidence[name] = "could not be taken away"
        witness = case.witness
        equal(await witness.read(scratch / "file"), b"by the adapter", "read by the witness alone")
        equal(sorted(await witness.list(scratch)), ["file"], "names by the witness alone")
        await witness.write(scratch / "other", b"by the witness")
    finally:
        for name, value in kept.items():
            with suppress(AttributeError):
                setattr(inner, name, value)
    equal(await case.files.read(scratch / "other"), b"by the witness", "read by the adapter")


@check("FS-3.ranges")
async def ranges(case: Case) -> None:
    """Ranges give exactly their bytes: inside, past the end, empty; negative ones are refused."""
    path, data = await case.scratch() / "file", case.bytes(10_000)
    await case.files.write(path, data)
    for offset, length in (
        (0, None), (0, 0), (0, 1), (1, 1), (9_999, 1), (9_999, 100), (10_000, 1), (10_001, 5),
        (5_000, None), (4_096, 4_096), (123, 7_777), (10_000, None), (2**40, 1),
    ):  # fmt: skip
        end = None if length is None else offset + length
        found = await case.files.read(path, offset=offset, length=length)
        equal(found, data[offset:end], f"range {offset}+{length}")
    try:  # far more than there is, and than any read may give
        equal(await case.files.read(path, length=2**40), data, "a range of 1 TiB")
    except TooLarge as exc:
        case.evidence["1 TiB"] = exc.message
    for offset, length in ((-1, None), (0, -1), (-5, 2)):
        with expect_raises(InvalidArgument, what=f"range {offset}+{length}"):
            await case.files.read(path, offset=offset, length=length)


@check("FS-3.names")
async def names(case: Case) -> None:
    """Hostile names: each is kept exactly, or refused by name; none is changed or run."""
    files, scratch = case.files, await case.scratch()
    kept, refused = [], []
    for name in NAMES:
        data = name.encode()
        try:
            await files.write(scratch / name, data)
        except InvalidArgument as exc:
            require(exc.message, "a refusal without a message")
            refused.append(name)
            continue
        kept.append(name)
        equal(await files.read(scratch / name), data, f"the content of {name!r}")
        equal((await files.stat(scratch / name)).size, len(data), f"the size of {name!r}")
    listed = [entry.path.name for entry in await files.list(scratch)]
    equal(sorted(listed), sorted(kept), "the names listed")
    equal(listed, sorted(listed), "the order of the names")
    plain = {"plain", "with space", "-rf", "quote'single", "$(touch pwned)", "é-nfc", "漢字", "a"}
    require(plain <= set(kept), f"everyday names are refused: {plain & set(refused)}")
    for name in kept:
        moved = scratch / f"moved {name[:200]}"
        await files.rename(scratch / name, moved)
        equal(await files.read(moved), name.encode(), f"{name!r} after a rename")
        await files.remove(moved)
    equal(list(await files.list(scratch)), [], "what is left")
    case.evidence["refused"] = refused


@check("FS-3.names-in-commands", needs={"exec"})
async def names_in_commands(case: Case) -> None:
    """A command sees each name exactly as it was given, and the reverse."""
    d, scratch = case.dialect, await case.scratch()
    for name in NAMES:
        if "\n" in name:
            continue
        try:
            await case.files.write(scratch / name, b"by the api")
        except InvalidArgument:
            continue
        result = await case.sh(d.load(name), cwd=scratch)
        equal(result.stdout, b"by the api", f"a command reads {name!r}")
        await case.sh(d.save(name, b"by a command"), cwd=scratch)
        equal(await case.files.read(scratch / name), b"by a command", f"the api reads {name!r}")
        await case.files.remove(scratch / name)


@check("FS-3.non-utf8", needs={"non_utf8_names"}, kind=Kind.CLAIM)
async def non_utf8(case: Case) -> None:
    """Names of any bytes are kept, as surrogateescape text."""
    files, scratch = case.files, await case.scratch()
    name = os.fsdecode(b"odd-\xff\xfe\x80-\xc3")
    await files.write(scratch / name, b"odd")
    equal(await files.read(scratch / name), b"odd", "the content of a non-UTF-8 name")
    listed = [entry.path.name for entry in await files.list(scratch)]
    equal([os.fsencode(n) for n in listed], [os.fsencode(name)], "the names listed")
    if case.pinned.spec.target is not None and case.features.argv_bytes:
        result = await case.sh(case.dialect.load(name), cwd=scratch)
        equal(result.stdout, b"odd", "a command reads a non-UTF-8 name")
    await files.rename(scratch / name, scratch / "plain")
    await files.remove(scratch / "plain")


@check("FS-3.non-utf8-absent", needs={"!non_utf8_names"}, kind=Kind.CLAIM)
async def non_utf8_absent(case: Case) -> None:
    """Without non_utf8_names such a name is refused by name, and nothing appears."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "plain", b"1")
    with expect_raises(InvalidArgument, what="a non-UTF-8 name"):
        await files.write(scratch / os.fsdecode(b"odd\xff"), b"odd")
    with expect_raises(InvalidArgument, what="a non-UTF-8 directory"):
        await files.make_directory(scratch / os.fsdecode(b"odd\xfe"))
    equal([entry.path.name for entry in await files.list(scratch)], ["plain"], "the names listed")


@check("FS-4.parents")
async def parents(case: Case) -> None:
    """A write creates parents; a refused write or directory leaves none."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "a" / "b" / "c", b"deep")
    equal(await files.read(scratch / "a/b/c"), b"deep", "a file with new parents")
    equal((await files.stat(scratch / "a/b")).type, FileType.DIRECTORY, "its parent")
    limit = case.limits.file_bytes
    if limit is not None and limit <= 64 * KIB * KIB:
        with expect_raises(PinfoldError, what="a file beyond the limit"):
            await files.write(scratch / "x" / "y", bytes(limit + 1))
        require(not await case.exists(scratch / "x"), "a refused write made a parent (FS-4)")
    await files.write(scratch / "file", b"1")
    for name in ("write", "upload", "make_directory"):
        act = operations(case)[name]
        for path in ("x/y/LONG", "x/LONG/y"):
            try:
                await act(scratch / path.replace("LONG", "n" * 300))
            except PinfoldError:
                require(not await case.exists(scratch / "x"), f"{name} made a parent of {path}")
            else:  # names may be that long here
                await files.remove(scratch / "x", recursive=True)
        with expect_raises(NotADirectory, what=f"{name} through a file"):
            await act(scratch / "file" / "x" / "y")
    equal(await files.read(scratch / "file"), b"1", "a file that is no parent")
    names = sorted(entry.path.name for entry in await files.list(scratch))
    equal(names, ["a", "file"], "what is there after refusals")


@check("FS-4.modes", needs={"modes"}, kind=Kind.CLAIM)
async def modes(case: Case) -> None:
    """A mode is set by chmod and by write, kept by later writes, seen by commands."""
    files, scratch = case.files, await case.scratch()
    path = scratch / "file"
    await files.write(path, b"1")
    equal((await files.stat(path)).mode, 0o644, "the mode of a new file")
    await files.chmod(path, 0o755)
    equal((await files.stat(path)).mode, 0o755, "after chmod")
    await files.write(path, b"2")
    equal((await files.stat(path)).mode, 0o755, "after a write")
    await files.write(path, b"3", mode=0o600)
    equal((await files.stat(path)).mode, 0o600, "after a write with a mode")
    await files.write(scratch / "new", b"4", mode=0o640)
    equal((await files.stat(scratch / "new")).mode, 0o640, "a new file with a mode")
    await files.make_directory(scratch / "dir")
    equal((await files.stat(scratch / "dir")).mode, 0o755, "a new directory")
    await files.chmod(scratch / "dir", 0o700)
    equal((await files.stat(scratch / "dir")).mode, 0o700, "a directory after chmod")
    for bad in (-1, 0o10000):
        with expect_raises(InvalidArgument, what=f"mode {bad:#o}"):
            await files.chmod(path, bad)
    if case.pinned.spec.target is not None:
        d = case.dialect
        await files.write(scratch / "tool", (d.exit(5) + "\n").encode(), mode=0o755)
        await case.sh(d.chmod("file", 0o711), cwd=scratch)
        equal((await files.stat(path)).mode, 0o711, "after a command's chmod")


@check("FS-4.modes-absent", needs={"!modes"}, kind=Kind.CLAIM)
async def modes_absent(case: Case) -> None:
    """Without modes chmod is unimplemented, and the file is as before."""
    path = await case.scratch() / "file"
    await case.files.write(path, b"1")
    before = await case.files.stat(path)
    with expect_raises(Unimplemented, what="chmod without the feature"):
        await case.files.chmod(path, 0o600)
    equal((await case.files.stat(path)).mode, before.mode, "the mode")
    equal(await case.files.read(path), b"1", "the content")


@check("FS-4.through-link", needs={"symlinks"})
async def through_link(case: Case) -> None:
    """A write through a link replaces the file that it leads to, and keeps the link."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "dir" / "file", b"old", mode=0o644)
    await files.symlink(scratch / "link", "dir/file")
    await files.write(scratch / "link", b"new")
    equal((await files.stat(scratch / "link")).link, "dir/file", "the link")
    equal(await files.read(scratch / "dir" / "file"), b"new", "the file")
    names = [entry.path.name for entry in await files.list(scratch / "dir")]
    equal(names, ["file"], "no temporary file is left")


@check("FS-4.remove-link", needs={"symlinks"}, kind=Kind.ATTACK)
async def remove_link(case: Case) -> None:
    """Removal never descends through a link."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "kept" / "file", b"kept")
    await files.write(scratch / "tree" / "sub" / "file", b"gone")
    await files.symlink(scratch / "tree" / "link", "../kept")
    await files.symlink(scratch / "tree" / "sub" / "up", "../..")
    await files.remove(scratch / "tree", recursive=True)
    require(not await case.exists(scratch / "tree"), "the tree is still there")
    equal(await files.read(scratch / "kept" / "file"), b"kept", "what a link led to")
    await files.symlink(scratch / "again", "kept")
    await files.remove(scratch / "again", recursive=True)
    equal(await files.read(scratch / "kept" / "file"), b"kept", "after removing the link alone")


@check("FS-4.atomic", needs={"hook:witness"}, kind=Kind.STOCHASTIC)
async def atomic(case: Case) -> None:
    """Readers see the old or the new file, whole: by the adapter and past it."""
    files, path = case.files, await case.scratch() / "file"
    size = min(300_000, case.limits.file_bytes or 300_000)
    versions = [bytes([number]) * size for number in (1, 2, 3)]
    await files.write(path, versions[0])
    done, seen = anyio.Event(), 0

    async def look() -> None:
        nonlocal seen
        while not done.is_set():
            for data in (await files.read(path), await case.witness.read(path)):
                require(data in versions, f"a torn file of {len(data)} bytes was seen (FS-4)")
                seen += 1
            await anyio.lowlevel.checkpoint()  # an adapter in memory may never wait by itself

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        for turn in range(30):
            await files.write(path, versions[turn % 3])
            await anyio.sleep(0.001)
        done.set()
    case.evidence["reads"] = seen
    equal(await files.read(path), versions[29 % 3], "the last version")


@check("FS-4.broken-upload")
async def broken_upload(case: Case) -> None:
    """An upload whose source breaks, or that is cancelled, leaves the old file and no litter."""
    files, scratch = case.files, await case.scratch()
    path = scratch / "file"
    await files.write(path, b"old")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"new" * 1000
        raise Sabotage("by the source")

    async def hangs() -> AsyncIterator[bytes]:
        yield b"new" * 1000
        await anyio.sleep_forever()

    with expect_raises(Sabotage, what="an upload whose source breaks"):
        await files.upload(path, breaks())
    equal(await files.read(path), b"old", "the file after a broken upload")
    with anyio.move_on_after(0.3) as scope:
        await files.upload(path, hangs())
    require(scope.cancelled_caught, "an upload that never ends has ended")
    equal(await files.read(path), b"old", "the file after a cancelled upload")
    with expect_raises(Sabotage, what="an upload of a new file whose source breaks"):
        await files.upload(scratch / "new" / "fresh", breaks())
    names = [entry.path.name for entry in await files.list(scratch)]
    equal(names, ["file"], "what is in the directory afterwards")


@check("FS-4.rename")
async def rename(case: Case) -> None:
    """A rename replaces a file, moves whole directories, and is refused where it makes no sense."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "a", b"a")
    await files.write(scratch / "b", b"b")
    await files.rename(scratch / "a", scratch / "b")
    equal(await files.read(scratch / "b"), b"a", "the file that was replaced")
    require(not await case.exists(scratch / "a"), "the old name is still there")
    await files.rename(scratch / "b", scratch / "b")
    equal(await files.read(scratch / "b"), b"a", "a file renamed to itself")
    await files.write(scratch / "dir" / "sub" / "file", b"deep")
    await files.rename(scratch / "dir", scratch / "moved")
    equal(await files.read(scratch / "moved/sub/file"), b"deep", "a directory that was moved")
    with expect_raises(NotFound, what="rename of what is not there"):
        await files.rename(scratch / "none", scratch / "x")
    with expect_raises(NotFound, what="rename into a missing directory"):
        await files.rename(scratch / "b", scratch / "none" / "b")
    with expect_raises(IsADirectory, what="rename of a file over a directory"):
        await files.rename(scratch / "b", scratch / "moved")
    with expect_raises(NotADirectory, what="rename of a directory over a file"):
        await files.rename(scratch / "moved", scratch / "b")
    with expect_raises(Conflict, what="rename of a directory into itself"):
        await files.rename(scratch / "moved", scratch / "moved" / "inside")
    await files.write(scratch / "full" / "file", b"1")
    with expect_raises(Conflict, what="rename of a directory over a full one"):
        await files.rename(scratch / "moved", scratch / "full")
    await files.make_directory(scratch / "empty")
    await files.rename(scratch / "moved", scratch / "empty")
    equal(await files.read(scratch / "empty/sub/file"), b"deep", "a directory over an empty one")


@check("FS-6.both-ways", needs={"exec"})
async def both_ways(case: Case) -> None:
    """What a command writes, file operations see, and the reverse, at once."""
    d, files, scratch = case.dialect, case.files, await case.scratch()
    for turn in range(5):
        data = case.bytes(200)
        await case.sh(d.save("by-command", data), d.mkdir("made/by"), cwd=scratch)
        equal(await files.read(scratch / "by-command"), data, f"a command's file, turn {turn}")
        equal((await files.stat(scratch / "made/by")).type, FileType.DIRECTORY, "its directory")
        await files.write(scratch / "by-api", data)
        result = await case.sh(d.load("by-api"), cwd=scratch)
        equal(result.stdout, data, f"our file, seen by a command, turn {turn}")
        await case.sh(d.remove("by-api"), cwd=scratch)
        require(not await case.exists(scratch / "by-api"), "a file that a command removed")
        await files.remove(scratch / "by-command")
        result = await case.sh(d.exists("by-command"), cwd=scratch)
        equal(result.exit_code, 1, "a removed file, looked for by a command")


@check("FS-6.same-user", needs={"exec"})
async def same_user(case: Case) -> None:
    """Commands may change what file operations made, and the reverse: one and the same user."""
    d, files, scratch = case.dialect, case.files, await case.scratch()
    await files.write(scratch / "api" / "file", b"1")
    result = await case.sh(
        d.append("api/file", b"2"),
        d.rename("api/file", "api/moved"),
        d.save("api/new", b"3"),
        cwd=scratch,
    )
    equal((result.exit_code, result.stderr), (0, b""), "a command changes what the api made")
    equal(await files.read(scratch / "api/moved"), b"12", "the file afterwards")
    await case.sh(d.mkdir("cmd/sub"), d.save("cmd/sub/file", b"4"), cwd=scratch)
    await files.write(scratch / "cmd/sub/file", b"5")
    await files.write(scratch / "cmd/sub/other", b"6")
    await files.rename(scratch / "cmd/sub/file", scratch / "cmd/file")
    await files.remove(scratch / "cmd", recursive=True)
    require(not await case.exists(scratch / "cmd"), "what a command made can't be removed")


@check("FS-6.while-running", needs={"exec"})
async def while_running(case: Case) -> None:
    """File operations work beside a running command, and each sees the other's files at once."""
    d, files, scratch = case.dialect, case.files, await case.scratch()
    codes: list[int] = []

    async def command() -> None:
        script = d.seq(d.save("ping", b"1"), d.wait_for("pong"), d.load("pong"), d.exit(6))
        codes.append((await case.sh(script, cwd=scratch, timeout=6)).exit_code)

    async def pinged() -> bool:
        return await case.exists(PurePosixPath(scratch / "ping"))

    async with anyio.create_task_group() as group:
        group.start_soon(command)
        await case.until(pinged, "the command's file is seen while it runs")
        await files.write(scratch / "pong", b"2")
    equal(codes, [6], "the command that waited for our file")
