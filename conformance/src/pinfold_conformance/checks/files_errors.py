"""Typed errors of file operations, listings, batches (FS-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    NotRegular,
    PermissionDenied,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import FileStat, FileType, TreeItem
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, expect_raises, require
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.checks.files_paths import harmless, one_chunk, operations


@check("FS-5.not-found")
async def not_found(case: Case) -> None:
    """What is not there is not_found, by every operation, also below a missing folder."""
    scratch = await case.scratch()
    known = operations(case)
    for path in (scratch / "none", scratch / "none" / "deeper"):
        for name in ("read", "stat", "list", "remove", "download"):
            with expect_raises(NotFound, what=f"{name} of {path.name}"):
                await known[name](path)
        if case.features.modes:
            with expect_raises(NotFound, what=f"chmod of {path.name}"):
                await known["chmod"](path)
    if case.features.symlinks:
        with expect_raises(NotFound, what="symlink in a missing folder"):
            await case.files.symlink(scratch / "none" / "link", "x")
    with expect_raises(NotFound, what="make_directory without parents"):
        await case.files.make_directory(scratch / "none" / "deeper", parents=False)
    await case.files.write(scratch / "there", b"1")
    equal(await case.files.read(scratch / "there"), b"1", "what is there")


@check("FS-5.directory")
async def directory(case: Case) -> None:
    """A directory where a file is needed is is_a_directory; the reverse not_a_directory."""
    files, scratch = case.files, await case.scratch()
    await files.make_directory(scratch / "dir")
    await files.write(scratch / "file", b"1")
    known = operations(case)
    for name in ("read", "write", "download", "upload"):
        with expect_raises(IsADirectory, what=f"{name} of a directory"):
            await known[name](scratch / "dir")
    with expect_raises(NotADirectory, what="list of a file"):
        await files.list(scratch / "file")
    for name in ("read", "write", "stat", "list", "upload", "make_directory"):
        with expect_raises(NotADirectory, what=f"{name} below a file"):
            await known[name](scratch / "file" / "below")
    equal(await files.read(scratch / "file"), b"1", "the file")
    equal(list(await files.list(scratch / "dir")), [], "the directory")


@check("FS-5.exists")
async def exists(case: Case) -> None:
    """make_directory and symlink over what is there: already_exists, unless it may."""
    files, scratch = case.files, await case.scratch()
    await files.make_directory(scratch / "dir" / "sub")
    await files.write(scratch / "dir" / "file", b"1")
    await files.make_directory(scratch / "dir")
    with expect_raises(AlreadyExists, what="make_directory, exist_ok=False"):
        await files.make_directory(scratch / "dir", exist_ok=False)
    with expect_raises(AlreadyExists, what="make_directory over a file"):
        await files.make_directory(scratch / "dir" / "file")
    if case.features.symlinks:
        for name in ("dir", "dir/file"):
            with expect_raises(AlreadyExists, what=f"symlink over {name}"):
                await files.symlink(scratch / name, "x")
        for number, text in enumerate((".", "./", "dir", "dir/sub/..", "dir/.//sub")):
            link = scratch / f"link{number}"
            await files.symlink(link, text)
            await files.make_directory(link)  # it leads to one
            with expect_raises(IsADirectory, what=f"read of a link to {text}"):
                await files.read(link)
    equal(await files.read(scratch / "dir" / "file"), b"1", "the file")


@check("FS-5.remove")
async def remove(case: Case) -> None:
    """remove takes files and empty folders; full ones only when told; the workspace never."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "tree" / "a" / "file", b"1")
    await files.make_directory(scratch / "empty")
    with expect_raises(Conflict, what="remove of a full directory"):
        await files.remove(scratch / "tree")
    equal(await files.read(scratch / "tree/a/file"), b"1", "the file in it")
    await files.remove(scratch / "empty")
    await files.remove(scratch / "tree" / "a" / "file")
    await files.write(scratch / "tree" / "b", b"2")
    await files.remove(scratch / "tree", recursive=True)
    equal(list(await files.list(scratch)), [], "what is left")
    for path in ("/workspace", "/workspace/"):
        with expect_raises(InvalidArgument, what="remove of the workspace itself"):
            await files.remove(path, recursive=True)
    require(await case.exists(scratch), "the workspace's content is gone")


@check("FS-5.permission", "FS-6", needs={"exec", "modes", "unprivileged"})
async def permission(case: Case) -> None:
    """What its permissions refuse to a command they refuse to us, as permission_denied."""
    d, files, scratch = case.dialect, case.files, await case.scratch()
    await files.write(scratch / "secret", b"1", mode=0o000)
    await files.write(scratch / "dir" / "file", b"2")
    await files.write(scratch / "shut" / "file", b"3")
    await files.chmod(scratch / "dir", 0o500)
    await files.chmod(scratch / "shut", 0o000)
    scripts = {
        "read of a file without permission": d.load("secret"),
        "write in a directory without permission": d.save("dir/new", b"3"),
        "rename in a directory without permission": d.rename("dir/file", "dir/moved"),
        "remove in a directory without permission": d.remove("dir/file"),
        "read below a directory without permission": d.load("shut/file"),
        "write below a directory without permission": d.save("shut/new", b"3"),
    }
    calls = {
        "read of a file without permission": lambda: files.read(scratch / "secret"),
        "write in a directory without permission": lambda: files.write(scratch / "dir/new", b"3"),
        "rename in a directory without permission": lambda: files.rename(
            scratch / "dir/file", scratch / "dir/moved"
        ),
        "remove in a directory without permission": lambda: files.remove(scratch / "dir/file"),
        "read below a directory without permission": lambda: files.read(scratch / "shut/file"),
        "write below a directory without permission": lambda: files.write(
            scratch / "shut/new", b"3"
        ),
    }
    refused = []
    try:
        for what, script in scripts.items():
            if (await case.sh(script, cwd=scratch)).exit_code == 0:
                continue  # the bits bind nobody here, so they bind us neither
            refused.append(what)
            with expect_raises(PermissionDenied, what=what):
                await calls[what]()
        if "read below a directory without permission" in refused:
            with expect_raises(PermissionDenied, what="list of a directory without permission"):
                await files.list(scratch / "shut")
        if len(refused) == len(scripts):
            equal(await files.read(scratch / "dir" / "file"), b"2", "the file")
    finally:
        await files.chmod(scratch / "dir", 0o755)
        await files.chmod(scratch / "shut", 0o755)
    if len(refused) == len(scripts):
        found = [entry.path.name for entry in await files.list(scratch / "shut")]
        equal(found, ["file"], "what a directory holds that could not be written")
    case.evidence["refused to commands"] = refused
    await files.chmod(scratch / "secret", 0o600)
    equal(await files.read(scratch / "secret"), b"1", "the file once it may be read")


@check("FS-5.too-large", needs={"limit:file_bytes"}, deadline_s=120)
async def too_large(case: Case) -> None:
    """A file of the limit is written; one byte more is too_large, and the old one stays."""
    files, scratch = case.files, await case.scratch()
    limit = case.limits.file_bytes or 0
    with expect_raises(TooLarge, what=f"a write of {limit + 1} bytes"):
        await files.write(scratch / "file", bytes(limit + 1))
    require(not await case.exists(scratch / "file"), "a refused write left a file")
    await files.write(scratch / "file", bytes(limit))
    equal((await files.stat(scratch / "file")).size, limit, "a file of the limit")
    await files.write(scratch / "file", b"old")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(limit // 65_536 + 2):
            yield bytes(65_536)

    with expect_raises(TooLarge, what="an upload beyond the limit"):
        await files.upload(scratch / "file", pieces())
    equal(await files.read(scratch / "file"), b"old", "the file after a refused upload")


@check("FS-5.read-limit", deadline_s=120, needs={"limit:read_bytes"}, profile="ci")
async def read_limit(case: Case) -> None:
    """A read beyond its limit is too_large; a range of the same file, and a download, work."""
    files, path = case.files, await case.scratch() / "file"
    size = case.limits.read_bytes + 1
    if case.limits.file_bytes is not None and case.limits.file_bytes < size:
        case.evidence["unreachable"] = "no file can be that large"
        size = case.limits.file_bytes

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, 1 << 20):
            yield bytes(min(1 << 20, size - start))

    equal(await files.upload(path, pieces()), size, "bytes uploaded")
    if size > case.limits.read_bytes:
        with expect_raises(TooLarge, what=f"a read of {size} bytes"):
            await files.read(path)
        equal(len(await files.read(path, offset=1)), size - 1, "the largest read")
    equal(await files.read(path, offset=size - 3, length=10), bytes(3), "a range of it")
    total = 0
    async for chunk in files.download(path):
        total += len(chunk)
    equal(total, size, "bytes downloaded")


@check("FS-5.no-space", needs={"limit:workspace_bytes"}, place=Place.OWN, deadline_s=180)
async def no_space(case: Case) -> None:
    """A full workspace is no_space or too_large by type; the old file stays; room comes back."""
    files, scratch = case.files, await case.scratch()
    room = case.limits.workspace_bytes or 0
    piece = min(room // 3, case.limits.file_bytes or room, 16 * 1024 * 1024)
    await files.write(scratch / "old", b"old")
    size, number = piece, 0
    while size > 65_536:
        with expect_raises(NoSpace, TooLarge, what=f"filling a workspace of {room} bytes"):
            for _ in range(room // size + 2):
                await files.write(scratch / f"fill{number}", bytes(size))
                number += 1
        size //= 2
    with expect_raises(NoSpace, TooLarge, what="a write in a full workspace"):
        await files.write(scratch / "old", bytes(min(piece, 1024 * 1024)))
    equal(await files.read(scratch / "old"), b"old", "the old file")
    await files.remove(scratch / "fill0")
    await files.write(scratch / "old", b"new")
    equal(await files.read(scratch / "old"), b"new", "a write once there is room")


@check("FS-5.not-regular", "FS-7", needs={"exec", "special_files"}, kind=Kind.CLAIM)
async def not_regular(case: Case) -> None:
    """A FIFO is told as what it is; reading and writing it is not_regular, and never hangs."""
    files, scratch = case.files, await case.scratch()
    made = await case.sh(case.dialect.fifo("fifo"), cwd=scratch)
    equal((made.exit_code, made.stderr), (0, b""), "making a FIFO")
    equal((await files.stat(scratch / "fifo")).type, FileType.OTHER, "stat of a FIFO")
    for name in ("read", "write", "download", "upload"):
        with expect_raises(NotRegular, what=f"{name} of a FIFO"):
            await operations(case)[name](scratch / "fifo")
    listed = {entry.path.name: entry.type for entry in await files.list(scratch)}
    equal(listed, {"fifo": FileType.OTHER}, "a listing with a FIFO")
    await files.remove(scratch / "fifo")
    require(not await case.exists(scratch / "fifo"), "a FIFO can't be removed")


@check("FS-5.special-absent", needs={"exec", "!special_files"}, kind=Kind.CLAIM)
async def special_absent(case: Case) -> None:
    """Without special_files a command's FIFO never appears as a special file."""
    files, scratch = case.files, await case.scratch()
    await case.sh(case.dialect.save("plain", b"1"), cwd=scratch)
    await case.sh(case.dialect.fifo("fifo"), cwd=scratch, timeout=5)
    listed = {entry.path.name: entry.type for entry in await files.list(scratch)}
    equal(listed.get("plain"), FileType.FILE, "a plain file")
    if listed.get("fifo") is FileType.OTHER:
        case.underclaimed("FIFOs can exist though special_files is denied")


@check("FS-5.never-lost")
async def never_lost(case: Case) -> None:
    """No file error is ever taken for lost compute: the target works on after each."""
    files, scratch, stray = case.files, await case.scratch(), case.name("none-")
    for name in ("read", "list", "remove"):
        for path in (str(scratch / "none"), "/etc", "x"):
            place = harmless(name, path, stray)
            with expect_raises(PinfoldError, what=f"{name} of {place}") as caught:
                await operations(case)[name](place)
            code = caught.error.code
            require(code not in ("lost", "unreachable", "unavailable"), f"{name}: {code}")
            require(not caught.error.retryable, f"{name}: {code} is said to be retryable")
    await files.write(scratch / "on", b"1")
    equal(await files.read(scratch / "on"), b"1", "the target afterwards")


@check("FS-5.list")
async def listing(case: Case) -> None:
    """A listing is whole, sorted, of this directory alone, and tells type and size."""
    files, scratch = case.files, await case.scratch()
    equal(list(await files.list(scratch)), [], "an empty directory")
    await files.make_directory(scratch / "dir" / "inner")
    for name in ("b", "a", "ab", "B", "10", "9", ".dot"):
        await files.write(scratch / name, name.encode())
    found: list[FileStat] = list(await files.list(scratch))
    names = [entry.path.name for entry in found]
    equal(names, sorted(["b", "a", "ab", "B", "10", "9", ".dot", "dir"]), "names, sorted")
    kinds = {entry.path.name: entry.type for entry in found}
    equal(kinds["dir"], FileType.DIRECTORY, "type of a directory")
    equal({e.path.name: e.size for e in found if e.type is FileType.FILE}["ab"], 2, "size")
    count = {2: 3000, 3: 20_000}.get(case.profile.rank, 200)
    folder = scratch / case.name("d")
    while not await _filled(case, folder, count):
        require(count > 200, "there is no room for 200 empty files")
        count //= 2
    names = [entry.path.name for entry in await files.list(folder)]
    equal(names, [f"{n:06}" for n in range(count)], f"a listing of {count}")
    case.evidence["entries"] = count


async def _filled(case: Case, folder: PurePosixPath, count: int) -> bool:
    """Make so many empty files; False where there is no room for them, and none is left."""
    try:
        await case.files.write_many({folder / f"{n:06}": b"" for n in range(count)})
    except NoSpace:
        if await case.exists(folder):  # a batch may be refused as a whole, or midway
            await case.files.remove(folder, recursive=True)
        return False
    return True


@check("FS-5.times")
async def times(case: Case) -> None:
    """mtime is in nanoseconds since the epoch and grows with later writes."""
    import time

    path = await case.scratch() / "file"
    await case.files.write(path, b"1")
    first = (await case.files.stat(path)).mtime_ns
    now = time.time_ns()
    require(abs(now - first) < 600 * 10**9, f"mtime_ns is {(first - now) / 1e9:.0f} s off")
    await case.files.write(path, b"22")
    require((await case.files.stat(path)).mtime_ns >= first, "mtime went back")


@check("FS-5.batches")
async def batches(case: Case) -> None:
    """Batches give each path its own result, in order; an error stands in its place."""
    files, scratch = case.files, await case.scratch()
    content = {scratch / f"f{n}": b"%d" % n * n for n in range(20)}
    await files.write_many(content)
    wanted = [*content, scratch / "none", scratch]
    found = await files.read_many(wanted)
    equal(list(found[:20]), list(content.values()), "contents by read_many")
    require(isinstance(found[20], NotFound), f"a missing file in read_many gave {found[20]!r}")
    require(isinstance(found[21], IsADirectory), f"a directory in read_many gave {found[21]!r}")
    stats = await files.stat_many(wanted)
    sizes = [stat.size for stat in stats[:20] if isinstance(stat, FileStat)]
    equal(sizes, [len(data) for data in content.values()], "sizes by stat_many")
    require(isinstance(stats[20], NotFound), f"a missing file in stat_many gave {stats[20]!r}")
    with expect_raises(PinfoldError, what="write_many with a path outside"):
        await files.write_many({PurePosixPath("/etc") / case.name("none-"): b""})


@check("FS-5.trees")
async def trees(case: Case) -> None:
    """A tree that is uploaded comes back the same: files, folders, links, modes."""
    files, scratch = case.files, await case.scratch()
    items = [
        TreeItem(path=PurePosixPath("dir"), type=FileType.DIRECTORY),
        TreeItem(path=PurePosixPath("dir/empty"), type=FileType.DIRECTORY),
        TreeItem(
            path=PurePosixPath("dir/file"), type=FileType.FILE, size=3, chunks=one_chunk(b"abc")
        ),
        TreeItem(path=PurePosixPath("nothing"), type=FileType.FILE, chunks=one_chunk(b"")),
    ]
    if case.features.symlinks:
        items.append(
            TreeItem(path=PurePosixPath("dir/link"), type=FileType.SYMLINK, link="../nothing")
        )
    equal(await files.upload_tree(scratch / "up", items), len(items), "entries written")
    equal(await files.read(scratch / "up/dir/file"), b"abc", "a file of the tree")
    found = {}
    async for item in files.download_tree(scratch / "up"):
        data = b"".join([c async for c in item.chunks]) if item.chunks is not None else None
        found[str(item.path)] = (item.type, data, item.link)
    expected: dict[str, object] = {
        ".": (FileType.DIRECTORY, None, None),
        "dir": (FileType.DIRECTORY, None, None),
        "dir/empty": (FileType.DIRECTORY, None, None),
        "dir/file": (FileType.FILE, b"abc", None),
        "nothing": (FileType.FILE, b"", None),
    }
    if case.features.symlinks:
        expected["dir/link"] = (FileType.SYMLINK, None, "../nothing")
    equal(found, expected, "the tree that comes back")
    equal(await files.upload_tree(scratch / "deep" / "none", []), 0, "entries of an empty tree")
    equal(list(await files.list(scratch / "deep" / "none")), [], "an empty tree")
