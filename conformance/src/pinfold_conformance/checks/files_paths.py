"""Which paths, and where links lead (FS-1, FS-2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

from pinfold.errors import InvalidArgument, NotFound, OutsideWorkspace, PinfoldError, Unimplemented
from pinfold.provider import FileType
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

    found: dict[str, Operation] = {
        "read": files.read,
        "write": lambda path: files.write(path, b"new"),
        "stat": files.stat,
        "list": files.list,
        "make_directory": files.make_directory,
        "remove": lambda path: files.remove(path, recursive=True),
        "download": download,
        "upload": lambda path: files.upload(path, one_chunk()),
    }
    if case.features.symlinks:
        found["symlink"] = lambda path: files.symlink(path, "a")
    if case.features.modes:
        found["chmod"] = lambda path: files.chmod(path, 0o600)
    return found


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
    for name, operation in operations(case).items():
        for path, kind in bad:
            with expect_raises(kind, what=f"{name} of {path!r}"):
                await operation(path)
    for path, kind in bad:
        with expect_raises(kind, what=f"rename of {path!r}"):
            await case.files.rename(path, scratch / "other")
        with expect_raises(kind, what=f"rename to {path!r}"):
            await case.files.rename(scratch / "file", path)
    equal(await case.files.read(scratch / "file"), b"here", "the file beside")
    equal(await case.files.read(str(scratch / "file")), b"here", "the same by a string")


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
    for number, text in enumerate(("file", "missing", "/etc/passwd", "../../..", ".", "self")):
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
    depth = "../" * 12
    links = {
        "absolute": "/etc/passwd",
        "relative": f"{depth}etc/passwd",
        "chained": "absolute",
        "dangling": f"/etc/{case.name()}",
        "above": "../..",
        "root": "/",
    }
    for name, text in links.items():
        await files.symlink(scratch / name, text)
    await files.symlink(scratch / "folder", "/etc")
    await files.symlink(scratch / "folders", "folder")
    leaves = [scratch / name for name in ("absolute", "relative", "chained", "dangling")]
    leaves += [scratch / "folder" / "passwd", scratch / "folders" / "passwd"]
    leaves += [scratch / "root" / "etc" / "passwd", scratch / "folder" / case.name()]
    known = operations(case)
    for path in leaves:
        for name in ("read", "write", "download", "upload"):
            await followed(known[name], path, f"{name} through {path.relative_to(scratch)}")
    for link in ("folder", "folders", "above", "root"):
        await followed(known["list"], scratch / link, f"list through {link}")
        await followed(
            known["make_directory"], scratch / link / "new", f"make_directory through {link}"
        )
    for path in (scratch / "folder" / "passwd", scratch / "root" / "etc"):
        for name in ("stat", "remove"):
            await followed(known[name], path, f"{name} below {path.relative_to(scratch)}")
        with expect_raises(OutsideWorkspace, what="rename out of an outside folder"):
            await files.rename(path, scratch / "stolen")
        with expect_raises(OutsideWorkspace, what="rename into an outside folder"):
            await files.rename(scratch / "plain", path)
    if case.pinned.spec.target is not None:
        for link in ("folder", "folders", "above", "root"):
            with expect_raises(OutsideWorkspace, what=f"a cwd through {link}"):
                await case.sh(case.dialect.exit(0), cwd=scratch / link)
    if case.features.modes:
        await followed(known["chmod"], scratch / "folder" / "passwd", "chmod through a folder link")
    equal(await files.read(scratch / "plain"), b"mine", "a plain file beside")


@check("FS-2.planted", needs={"exec", "symlinks"}, kind=Kind.ATTACK)
async def planted(case: Case) -> None:
    """Links that a command plants are refused the same, and what is outside stays untouched."""
    d, files, scratch = case.dialect, case.files, await case.scratch()
    secret = case.name("secret-")
    place = f"/tmp/{secret}"  # noqa: S108 - in the guest
    made = await case.sh(d.save(place, b"outside"), d.load(place), cwd=scratch)
    if made.stdout != b"outside":
        case.evidence["outside"] = "the guest can't write outside its workspace"
    try:
        await case.sh(d.link("leak", place), d.link("dir", "/tmp"), cwd=scratch)  # noqa: S108
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
        await case.sh(d.remove(place), cwd=scratch)


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
