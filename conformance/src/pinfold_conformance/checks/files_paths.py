"""Which paths, and where links lead (FS-1, FS-2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

from pinfold.errors import InvalidArgument, NotFound, OutsideWorkspace, PinfoldError, Unimplemented
from pinfold.provider import FileType, TreeItem
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, expect_raises, require
from pinfold_conformance._registry import Kind, check

Operation = Callable[[Any], Awaitable[Any]]


async def one_chunk(data: bytes = b"new") -> AsyncIterator[bytes]:
    """Yield one chunk."""
    yield data


def operations(case: Case) -> dict[str, Operation]:
    """Return every file operation that takes one path."""
    files = case.files

    async def download(path: Any) -> bytes:
        return b"".join([chunk async for chunk in files.download(path)])

    async def many(results: Awaitable[Any]) -> Any:
        (found,) = await results
        if isinstance(found, PinfoldError):
            raise found
        return found

    found: dict[str, Operation] = {
        "read": files.read,
        "write": lambda path: files.write(path, b"new"),
        "stat": files.stat,
        "list": files.list,
        "make_directory": files.make_directory,
        "remove": lambda path: files.remove(path, recursive=True),
        "download": download,
        "upload": lambda path: files.upload(path, one_chunk()),
        "read_many": lambda path: many(files.read_many([path])),
        "stat_many": lambda path: many(files.stat_many([path])),
        "write_many": lambda path: files.write_many({path: b"new"}),
    }
    if case.features.symlinks:
        found["symlink"] = lambda path: files.symlink(path, "a")
    if case.features.modes:
        found["chmod"] = lambda path: files.chmod(path, 0o600)
    return found


#: Operations that change nothing.
READING = frozenset({"read", "stat", "list", "download", "read_many", "stat_many"})


def harmless(name: str, path: str, stray: str) -> str:
    """Return what an operation aims at: whoever fails a check may do as it is told.

    So whatever changes something aims at a name below the path that is nobody's.

    Args:
        name: of the operation.
        path: outside of the workspace, or of a wrong form.
        stray: a name that nothing has.
    """
    return path if name in READING else str(PurePosixPath(path) / stray)


@check("FS-1.paths")
async def paths(case: Case) -> None:
    """Relative, any `..`, NUL, look-alikes and places outside are refused by every operation."""
    scratch = await case.scratch()
    await case.files.write(scratch / "file", b"here")
    bad: list[tuple[str, type[PinfoldError]]] = [
        ("file", InvalidArgument),
        ("", InvalidArgument),
        (".", InvalidArgument),
        ("workspace/file", InvalidArgument),
        (f"{scratch}/../{scratch.name}/file", InvalidArgument),
        ("/workspace/..", InvalidArgument),
        ("/workspace/../etc/passwd", InvalidArgument),
        (f"{scratch}/a/../../../etc/passwd", InvalidArgument),
        (f"{scratch}/fi\0le", InvalidArgument),
        ("/", OutsideWorkspace),
        ("/etc/passwd", OutsideWorkspace),
        ("/workspacefoo", OutsideWorkspace),
        ("/workspace.txt", OutsideWorkspace),
        ("/Workspace/file", OutsideWorkspace),
        ("/proc/self/environ", OutsideWorkspace),
    ]
    stray = case.name("none-")
    for name, operation in operations(case).items():
        for path, kind in bad:
            with expect_raises(kind, what=f"{name} of {harmless(name, path, stray)!r}"):
                await operation(harmless(name, path, stray))
    for path, kind in bad:
        place = harmless("rename", path, stray)
        with expect_raises(kind, what=f"rename of {place!r}"):
            await case.files.rename(place, scratch / "other")
        with expect_raises(kind, what=f"rename to {place!r}"):
            await case.files.rename(scratch / "file", place)
    equal(await case.files.read(scratch / "file"), b"here", "the file beside")
    equal(await case.files.read(str(scratch / "file")), b"here", "the same by a string")


@check("FS-1.trees", "FS-2", kind=Kind.ATTACK)
async def tree_names(case: Case) -> None:
    """A tree that goes up with names that lead out is refused; nothing of it is put elsewhere."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "beside", b"mine")
    stray = case.name("evil-")
    outside = f"/tmp/{stray}"  # noqa: S108 - in the guest
    names = ("..", "../beside", "a/../../beside", f"{scratch}/beside", outside, "fi\0le")
    for name in names:
        items = [
            TreeItem(path=PurePosixPath(name), type=FileType.DIRECTORY),
            TreeItem(path=PurePosixPath(name), type=FileType.FILE, size=3, chunks=one_chunk()),
        ]
        if case.features.symlinks:
            items.append(TreeItem(path=PurePosixPath(name), type=FileType.SYMLINK, link="x"))
        for item in items:
            with expect_raises(InvalidArgument, what=f"a tree with a {item.type} {name!r}"):
                await files.upload_tree(scratch / "up", [item])
    if case.features.symlinks:
        link = TreeItem(path=PurePosixPath("link"), type=FileType.SYMLINK, link=outside)
        below = TreeItem(
            path=PurePosixPath("link/file"), type=FileType.FILE, size=3, chunks=one_chunk()
        )
        with expect_raises(OutsideWorkspace, what="a tree with a file below its own link out"):
            await files.upload_tree(scratch / "up", [link, below])
    equal(await files.read(scratch / "beside"), b"mine", "the file beside the tree")
    left = {entry.path.name for entry in await files.list(scratch)}
    require(left <= {"beside", "up"}, f"refused trees left {sorted(left)}")
    if case.pinned.spec.target is not None:
        made = await case.sh(case.dialect.exists(outside))
        require(made.exit_code == 1, "a file of a tree was put outside")


@check("FS-2.absent", needs={"!symlinks"}, kind=Kind.CLAIM)
async def symlinks_absent(case: Case) -> None:
    """Without symlinks making one is unimplemented, and nothing appears."""
    scratch = await case.scratch()
    await case.files.write(scratch / "file", b"here")
    with expect_raises(Unimplemented, what="symlink without the feature"):
        await case.files.symlink(scratch / "link", "file")
    names = [entry.path.name for entry in await case.files.list(scratch)]
    equal(names, ["file"], "what is in the directory")


@check("FS-2.itself", needs={"symlinks"}, kind=Kind.CLAIM)
async def link_itself(case: Case) -> None:
    """stat, remove and rename act on a link itself, whatever it leads to."""
    scratch = await case.scratch()
    await case.files.write(scratch / "file", b"content")
    stray = case.name("none-")
    texts = ("file", "missing", f"/etc/{stray}", f"../../../{stray}", ".", "self")
    for number, text in enumerate(texts):
        link, other = scratch / f"link{number}", scratch / f"moved{number}"
        await case.files.symlink(link, text)
        stat = await case.files.stat(link)
        equal((stat.type, stat.link), (FileType.SYMLINK, text), f"stat of a link to {text}")
        await case.files.rename(link, other)
        equal((await case.files.stat(other)).link, text, f"a renamed link to {text}")
        listed = {e.path.name: e for e in await case.files.list(scratch)}
        equal(listed[other.name].link, text, f"a listed link to {text}")
        await case.files.remove(other)
        require(not await case.exists(other), f"a removed link to {text} is still there")
    equal(await case.files.read(scratch / "file"), b"content", "the file that was led to")


@check("FS-2.inside", needs={"symlinks"})
async def inside(case: Case) -> None:
    """read, write, list and cwd follow links that stay inside, through folders and chains."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "dir" / "deep" / "file", b"content")
    await files.symlink(scratch / "file", "dir/deep/file")
    await files.symlink(scratch / "folder", "dir/deep")
    await files.symlink(scratch / "chain1", "chain2")
    await files.symlink(scratch / "chain2", "folder/../deep/file")
    await files.symlink(scratch / "dir" / "up", "../dir/deep")
    for path in ("file", "folder/file", "chain1", "dir/up/file"):
        equal(await files.read(scratch / path), b"content", f"read through {path}")
        data = b"".join([chunk async for chunk in files.download(scratch / path)])
        equal(data, b"content", f"download through {path}")
    names = [entry.path.name for entry in await files.list(scratch / "folder")]
    equal(names, ["file"], "list through a link")
    items = [str(item.path) async for item in files.download_tree(scratch / "folder")]
    equal(sorted(items), [".", "file"], "a tree downloaded through a link")
    await files.write(scratch / "folder" / "new", b"1")
    equal(await files.read(scratch / "dir/deep/new"), b"1", "a file written through a folder link")
    await files.write(scratch / "chain1", b"replaced")
    equal(await files.read(scratch / "dir/deep/file"), b"replaced", "written through a chain")
    equal((await files.stat(scratch / "chain1")).type, FileType.SYMLINK, "the link that was kept")
    if case.pinned.spec.target is not None:
        result = await case.sh(case.dialect.load("file"), cwd=scratch / "folder")
        equal(result.stdout, b"replaced", "a command in a cwd through a link")


@check("FS-2.loops", needs={"symlinks"})
async def loops(case: Case) -> None:
    """A loop of links is an error by type, and ends."""
    files, scratch = case.files, await case.scratch()
    await files.symlink(scratch / "a", "b")
    await files.symlink(scratch / "b", "a")
    await files.symlink(scratch / "self", "self")
    for path in (scratch / "a", scratch / "self", scratch / "a" / "deeper"):
        for name in ("read", "list", "write"):
            with expect_raises(PinfoldError, what=f"{name} of a loop"):
                await operations(case)[name](path)
    equal((await files.stat(scratch / "a")).link, "b", "stat of a loop's link")
    await files.remove(scratch / "a")
    await files.remove(scratch / "self")


@check("FS-2.dangling", needs={"symlinks"})
async def dangling(case: Case) -> None:
    """A link to nothing inside: reading is not_found; a write makes the file it leads to."""
    files, scratch = case.files, await case.scratch()
    await files.symlink(scratch / "link", "target")
    with expect_raises(NotFound, what="read of a dangling link"):
        await files.read(scratch / "link")
    with expect_raises(NotFound, what="list of a dangling link"):
        await files.list(scratch / "link")
    await files.write(scratch / "link", b"made")
    equal(await files.read(scratch / "target"), b"made", "the file that the link leads to")
    equal((await files.stat(scratch / "link")).type, FileType.SYMLINK, "the link")


async def followed(operation: Operation, path: PurePosixPath, what: str) -> None:
    """Fail unless an operation refuses to follow a link out."""
    with expect_raises(OutsideWorkspace, what=what):
        await operation(path)


@check("FS-2.outside", needs={"symlinks"}, kind=Kind.ATTACK)
async def outside(case: Case) -> None:
    """Links that lead out are refused: absolute, relative, chained, to folders, dangling."""
    files, scratch = case.files, await case.scratch()
    await files.write(scratch / "plain", b"mine")
    depth, stray = "../" * 12, case.name("none-")
    # Folders that are nobody's: who fails this check may well empty what a link leads to.
    links = {
        "there": "/etc/passwd",
        "up there": f"{depth}etc/passwd",
        "absolute": f"/etc/{stray}",
        "relative": f"{depth}etc/{stray}",
        "chained": "absolute",
        "folder": f"/{stray}",
        "folders": "folder",
        "above": f"../../{stray}",
    }
    for name, text in links.items():
        await files.symlink(scratch / name, text)
    known = operations(case)
    for link in ("there", "up there"):
        for name in ("read", "download"):
            await followed(known[name], scratch / link, f"{name} through {link}")
    leaves = [scratch / name for name in ("absolute", "relative", "chained")]
    folders = ("folder", "folders", "above")
    leaves += [scratch / name / "file" for name in folders]
    for path in leaves:
        for name in ("read", "write", "download", "upload"):
            await followed(known[name], path, f"{name} through {path.relative_to(scratch)}")
    for link in folders:
        await followed(known["list"], scratch / link, f"list through {link}")
        await followed(
            known["make_directory"], scratch / link / "new", f"make_directory through {link}"
        )
    for path in (scratch / "folder" / "file", scratch / "above" / "folder"):
        for name in ("stat", "remove"):
            await followed(known[name], path, f"{name} below {path.relative_to(scratch)}")
        with expect_raises(OutsideWorkspace, what="rename out of an outside folder"):
            await files.rename(path, scratch / "stolen")
        with expect_raises(OutsideWorkspace, what="rename into an outside folder"):
            await files.rename(scratch / "plain", path)
    if case.pinned.spec.target is not None:
        for link in folders:
            with expect_raises(OutsideWorkspace, what=f"a cwd through {link}"):
                await case.sh(case.dialect.exit(0), cwd=scratch / link)
    if case.features.modes:
        await followed(known["chmod"], scratch / "folder" / "file", "chmod through a folder link")
    equal(await files.read(scratch / "plain"), b"mine", "a plain file beside")


@check("FS-2.planted", needs={"exec", "symlinks"}, kind=Kind.ATTACK)
async def planted(case: Case) -> None:
    """Links that a command plants are refused the same, and what is outside stays untouched."""
    d, files, scratch = case.dialect, case.files, await case.scratch()
    secret, folder = case.name("secret-"), f"/tmp/{case.name('out-')}"  # noqa: S108 - in the guest
    place = f"{folder}/{secret}"
    made = await case.sh(d.mkdir(folder), d.save(place, b"outside"), d.load(place), cwd=scratch)
    if made.stdout != b"outside":
        case.evidence["outside"] = "the guest can't write outside its workspace"
    try:
        await case.sh(d.link("leak", place), d.link("dir", folder), cwd=scratch)
        for name in ("read", "write", "download", "upload"):
            await followed(
                operations(case)[name], scratch / "leak", f"{name} through a planted link"
            )
            await followed(
                operations(case)[name], scratch / "dir" / secret, f"{name} below a planted link"
            )
        with expect_raises(OutsideWorkspace, what="list through a planted link"):
            await files.list(scratch / "dir")
        after = await case.sh(d.load(place), cwd=scratch)
        equal(after.stdout, made.stdout, "the file outside")
    finally:
        await case.sh(d.remove(folder), cwd=scratch)


@check("FS-2.exists-not", needs={"symlinks"})
async def no_oracle(case: Case) -> None:
    """A link out is refused alike whether its target exists or not: no oracle."""
    files, scratch = case.files, await case.scratch()
    await files.symlink(scratch / "there", "/etc/passwd")
    await files.symlink(scratch / "not", f"/etc/{case.name()}")
    messages = []
    for name in ("there", "not"):
        with expect_raises(OutsideWorkspace, what=f"read of {name}") as caught:
            await files.read(scratch / name)
        messages.append((type(caught.error), caught.error.code))
    if messages[0] != messages[1]:
        raise CheckFailed(f"existing and missing targets differ: {messages}")
