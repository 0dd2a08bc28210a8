"""Other ways to the same: batches, streams, trees and listings do as single calls do (FS).

A provider writes these anew to save round trips, and so outside of what its single calls judge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import anyio
import anyio.lowlevel

from pinfold.errors import Effect, PinfoldError
from pinfold.provider import FileType, TreeItem
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, expect_raises, require
from pinfold_conformance._registry import check
from pinfold_conformance.checks.files_paths import one_chunk


@check("FS-4.upload", "FS-7")
async def upload(case: Case) -> None:
    """An upload is a write: parents are made, modes set and kept, a link inside stays a link."""
    files, scratch = case.files, await case.scratch()
    equal(await files.upload(scratch / "a" / "b", one_chunk(b"deep")), 4, "bytes uploaded")
    equal(await files.read(scratch / "a" / "b"), b"deep", "an upload with new parents")
    if case.features.modes:
        await files.upload(scratch / "tool", one_chunk(b"1"), mode=0o750)
        equal((await files.stat(scratch / "tool")).mode, 0o750, "an upload with a mode")
        await files.upload(scratch / "tool", one_chunk(b"2"))
        equal((await files.stat(scratch / "tool")).mode, 0o750, "the mode after another")
        equal((await files.stat(scratch / "a" / "b")).mode, 0o644, "the mode of a new file")
    if case.features.symlinks:
        await files.symlink(scratch / "link", "a/b")
        await files.upload(scratch / "link", one_chunk(b"by link"))
        equal((await files.stat(scratch / "link")).link, "a/b", "the link")
        equal(await files.read(scratch / "a" / "b"), b"by link", "the file that it leads to")


@check("FS-5.batches-alike", "FS-2", "FS-4")
async def batches_alike(case: Case) -> None:
    """Batches do as single calls do: parents, modes, links; what stands after an error is told."""
    files, scratch = case.files, await case.scratch()
    await files.write_many({scratch / "new" / "deep": b"1", scratch / "plain": b"2"})
    equal(await files.read(scratch / "new" / "deep"), b"1", "a file of a batch, with new parents")
    if case.features.modes:
        await files.chmod(scratch / "plain", 0o750)
        await files.write_many({scratch / "plain": b"3", scratch / "other": b"4"})
        equal((await files.stat(scratch / "plain")).mode, 0o750, "a mode after a batch")
    if case.features.symlinks:
        await files.symlink(scratch / "link", "plain")
        await files.write_many({scratch / "link": b"by link", scratch / "other": b"5"})
        equal((await files.stat(scratch / "link")).link, "plain", "a link after a batch")
        equal(await files.read(scratch / "plain"), b"by link", "the file that it leads to")
        names = [scratch / "link", scratch / "plain"]
        equal(list(await files.read_many(names)), [b"by link"] * 2, "both by read_many")
    names = [entry.path for entry in await files.list(scratch)]
    single = [await files.stat(name) for name in names]
    equal(list(await files.stat_many(names)), single, "stat_many, against stat")
    bad = {scratch / "first": b"6", scratch / "plain" / "below": b"7"}
    with expect_raises(PinfoldError, what="a batch whose second write fails") as caught:
        await files.write_many(bad)
    if await case.exists(scratch / "first"):
        equal(caught.error.effect, Effect.DONE, "the effect of a batch whose first write stands")


@check("FS-5.listed", "FS-2")
async def listed(case: Case) -> None:
    """A listing tells of each entry what stat tells of it; asked again, the same."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "file", b"12345")
    await files.make_directory(scratch / "dir" / "sub")
    if case.features.symlinks:
        for name, text in (
            ("link", "file"),
            ("to-dir", "dir"),
            ("gone", "missing"),
            ("é", "/etc/pinfold-nobodys"),
        ):
            await files.symlink(scratch / name, text)
    if case.features.modes:
        await files.chmod(scratch / "file", 0o640)
        await files.chmod(scratch / "dir", 0o1770)
    found = {entry.path.name: entry for entry in await files.list(scratch)}
    require({"file", "dir"} <= set(found), f"the listing tells of {sorted(found)}")
    single = {name: await files.stat(scratch / name) for name in found}
    equal(found, single, "a listing, against stat")
    equal({e.path.name: e for e in await files.list(scratch)}, found, "the same listing again")
    for name, entry in found.items():
        size = len((entry.link or "").encode()) if entry.type is FileType.SYMLINK else 0
        equal(entry.size, 5 if name == "file" else size, f"the size of {name}")
    if case.features.modes:
        equal((found["file"].mode, found["dir"].mode), (0o640, 0o1770), "modes")


@check("FS-4.concurrent", "FS-6")
async def concurrent(case: Case) -> None:
    """Writes and uploads at once keep apart; of one file the last stands whole; no litter."""
    files, scratch = case.files, await case.scratch()
    size = min(40_000, case.limits.file_bytes or 40_000)
    wanted = {f"f{number}": bytes([65 + number]) * (size - number) for number in range(8)}
    versions = [bytes([97 + number]) * size for number in range(4)]

    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 4096):
            yield data[start : start + 4096]
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for number, (name, data) in enumerate(wanted.items()):
            if number % 2:
                group.start_soon(files.upload, scratch / name, pieces(data))
            else:
                group.start_soon(files.write, scratch / name, data)
        for data in versions:
            group.start_soon(files.upload, scratch / "same", pieces(data))
    for name, data in wanted.items():
        equal(await files.read(scratch / name), data, f"{name}, written beside others")
    require(await files.read(scratch / "same") in versions, "a file of two uploads is torn (FS-4)")
    names = [entry.path.name for entry in await files.list(scratch)]
    equal(names, [*wanted, "same"], "what is in the directory")


@check("FS-5.trees-modes", needs={"modes"})
async def trees_modes(case: Case) -> None:
    """A tree's modes and sizes come along, up and down."""
    files, scratch = case.files, await case.scratch()
    items = [
        TreeItem(path=PurePosixPath("dir"), type=FileType.DIRECTORY, mode=0o750),
        TreeItem(
            path=PurePosixPath("dir/tool"), type=FileType.FILE, mode=0o755, size=3,
            chunks=one_chunk(b"abc"),
        ),
        TreeItem(
            path=PurePosixPath("plain"), type=FileType.FILE, mode=0o600, size=1,
            chunks=one_chunk(b"x"),
        ),
    ]  # fmt: skip
    await files.upload_tree(scratch / "up", items)
    modes = {i.path: (await files.stat(scratch / "up" / i.path)).mode for i in items}
    equal(modes, {item.path: item.mode for item in items}, "modes of an uploaded tree")
    found = {}
    async for item in files.download_tree(scratch / "up"):
        data = b"".join([c async for c in item.chunks]) if item.chunks is not None else b""
        found[str(item.path)] = (item.mode, item.size, data)
    del found["."]
    expected = {"dir": (0o750, 0, b""), "dir/tool": (0o755, 3, b"abc"), "plain": (0o600, 1, b"x")}
    equal(found, expected, "modes, sizes and contents of a downloaded tree")
