"""Golden scripts: fixed stories over many operations, one target each. They are the smoke profile.

A hand-written script of about a hundred operations finds most one-bug mutants for the price of one
environment; randomness comes second.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator

import anyio

from pinfold.errors import (
    AlreadyExists,
    CheckpointCorrupt,
    Conflict,
    Effect,
    InvalidArgument,
    IsADirectory,
    Lost,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    TooLarge,
)
from pinfold.provider import Entry, ExecRequest, FileType, InstanceStatus, OutputStream, Owner
from pinfold.spec import RETURN_GRACE_SECONDS, TERM_GRACE_SECONDS, WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, expect_raises, require
from pinfold_conformance._guard import Sabotage, guarded
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.checks._trees import Tree, capture, plan, tree
from pinfold_conformance.checks.files_paths import harmless, operations
from pinfold_conformance.checks.tree_restore import furnish, wreck


@check(
    "script.exec",
    "EX-1", "EX-2", "EX-3", "EX-4", "EX-6", "EX-7", "EX-9", "EX-10", "EX-11", "EX-12", "EX-13",
    "EX-15",
    needs={"exec"}, kind=Kind.SCRIPT, place=Place.OWN, profile="smoke", deadline_s=60,
)  # fmt: skip
async def exec_script(case: Case) -> None:
    """A story of commands: codes, streams, input, environment, caps, time, concurrency."""
    d, scratch = case.dialect, await case.scratch()
    for code in (0, 1, 2, 42, 124, 126, 127, 137, 255):
        result = await case.sh(d.out(b"o"), d.err(b"e"), d.exit(code))
        found = (result.exit_code, result.stdout, result.stderr, result.timed_out, result.signal)
        equal(found, (code, b"o", b"e", False, None), f"exit {code}")
    died = await case.sh(d.out(b"o"), d.die(9))
    signal = 9 if case.features.signals else None
    equal((died.exit_code, died.signal, died.stdout), (137, signal, b"o"), "a death by signal 9")
    missing = case.name("no-such-")
    equal((await case.run(missing)).exit_code, 127, "a missing program")
    every = bytes(range(256))
    result = await case.sh(d.out(every), d.err(every[::-1]))
    equal((result.stdout, result.stderr), (every, every[::-1]), "every byte")

    args = ("a b", "", "$HOME", "'\"", "*", "-n", "a\nb", "naïve ☃")
    result = await case.run(*d.show_args(*args))
    equal(result.stdout, b"".join(arg.encode() + b"\0" for arg in args), "arguments")
    for data in (b"", every, case.bytes(70_000)):
        result = await case.sh(d.cat(), stdin=data, stdout_cap=100_000)
        equal(result.stdout, data, f"{len(data)} bytes of stdin, copied")
    equal((await case.sh(d.exit(5), stdin=bytes(200_000))).exit_code, 5, "unread stdin")
    env = {"A": "x y", "B": "", "PINFOLD_X": "z"}
    result = await case.sh(d.var("A"), d.var("B"), d.var("PINFOLD_X"), env=env)
    equal((result.stdout, result.env_dropped), (b"x y", ("PINFOLD_X",)), "variables")
    result = await case.sh(d.leak(), d.leaked(), cwd=scratch)
    require(b"export" in result.stdout, f"a shell keeps its state within a call: {result.stdout!r}")
    equal((await case.sh(d.leaked(), d.var("A"), cwd=scratch)).stdout, b"", "what leaked")

    await case.sh(d.save("here", b"1"), cwd=scratch)
    equal(await case.files.read(scratch / "here"), b"1", "a file in the cwd")
    for path, kind in (
        ("relative", InvalidArgument), ("/workspace/../etc", InvalidArgument),
        ("/etc", OutsideWorkspace), ("/workspacefoo", OutsideWorkspace),
        (scratch / "none", NotFound), (scratch / "here", NotADirectory),
    ):  # fmt: skip
        with expect_raises(kind, what=f"cwd {path}", effect=Effect.NONE):
            await case.sh(d.save("ran", b""), cwd=path)
    require(not await case.exists(scratch / "ran"), "a refused command has run")
    with expect_raises(TooLarge, what="too much stdin", effect=Effect.NONE):
        await case.sh(d.exit(0), stdin=bytes(case.limits.stdin_bytes + 1))

    for count in (99, 100, 101):
        result = await case.sh(d.fill(count), stdout_cap=100)
        kept = (len(result.stdout), result.stdout_total, result.stdout_truncated, result.exit_code)
        equal(kept, (min(count, 100), count, count > 100, 0), f"{count} bytes under a cap of 100")
    chunks = list[bytes]()

    async def sink(stream: OutputStream, data: bytes) -> None:
        chunks.append(data)

    result = await case.sh(d.out(b"a"), d.fill(300_000), d.out(b"z"), sink=sink, stdout_cap=10)
    equal(b"".join(chunks), b"a" + b"x" * 300_000 + b"z", "a stream, uncapped")
    equal((result.stdout, result.stdout_total), (b"", 300_002), "the result of a stream")

    numbers: dict[int, tuple[int, bytes]] = {}

    async def one(number: int) -> None:
        result = await case.sh(d.out(b"%d" % number), d.sleep(0.02), d.exit(number))
        numbers[number] = result.exit_code, result.stdout

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(one, number)
    equal(numbers, {n: (n, b"%d" % n) for n in range(8)}, "eight calls at once")

    started = time.monotonic()
    result = await case.sh(d.out(b"early"), d.beat("beat"), cwd=scratch, timeout=0.5)
    took = time.monotonic() - started
    equal((result.exit_code, result.timed_out, result.stdout), (124, True, b"early"), "a timeout")
    limit = 0.5 + TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS
    require(0.45 <= took < limit, f"a timeout of 0.5 s took {took:.1f} s")
    require(await case.exists(scratch / "beat"), "the command never ran")
    require(not await case.beats(scratch / "beat"), "the command lives on after its timeout")
    equal((await case.sh(d.out(b"alive"))).stdout, b"alive", "the next command")


async def _chunks(*pieces: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if fails:
        raise Sabotage("by the source")


@check(
    "script.files",
    "FS-1", "FS-2", "FS-3", "FS-4", "FS-5", "FS-6", "FS-7",
    kind=Kind.SCRIPT, place=Place.OWN, profile="smoke", deadline_s=60,
)  # fmt: skip
async def files_script(case: Case) -> None:
    """A story of files: contents, names, ranges, links, renames, removals, errors, streams."""
    files, root = case.files, WORKSPACE
    equal(list(await files.list(root)), [], "a new workspace")
    contents = {
        "a": b"", "ab": b"\n", "A": b"\0\xff\xfe", "d/a": b"x\r\ny", "d/e/f": bytes(range(256)),
        "da/x": case.bytes(65_537), "with space": b"1", "-dash": b"2", "$(x)": b"3", "é": b"4",
    }  # fmt: skip
    for name, data in contents.items():
        await files.write(root / name, data)
    for name, data in contents.items():
        equal(await files.read(root / name), data, f"the content of {name}")
        stat = await files.stat(root / name)
        equal((stat.type, stat.size), (FileType.FILE, len(data)), f"stat of {name}")
    top = sorted({name.split("/")[0] for name in contents})
    equal([entry.path.name for entry in await files.list(root)], top, "names at the top")
    equal([e.path.name for e in await files.list(root / "d")], ["a", "e"], "names in d")
    data = contents["d/e/f"]
    for offset, length in ((0, 10), (250, 100), (256, 1), (300, 5), (7, None), (3, 0)):
        end = None if length is None else offset + length
        found = await files.read(root / "d/e/f", offset=offset, length=length)
        equal(found, data[offset:end], f"range {offset}+{length}")

    await files.write(root / "a", b"new")
    equal(await files.read(root / "a"), b"new", "a file written again")
    await files.rename(root / "a", root / "ab")
    equal(await files.read(root / "ab"), b"new", "a file renamed over another")
    require(not await case.exists(root / "a"), "the old name is still there")
    await files.rename(root / "d", root / "D")
    equal(await files.read(root / "D/e/f"), data, "a file in a directory that moved")
    equal(await files.read(root / "da/x"), contents["da/x"], "a sibling with the same beginning")
    await files.remove(root / "D/a")
    with expect_raises(Conflict, what="remove of a full directory"):
        await files.remove(root / "D")
    await files.remove(root / "D", recursive=True)
    equal(await files.read(root / "da/x"), contents["da/x"], "a sibling of what was removed")
    await files.make_directory(root / "new/deep")
    await files.make_directory(root / "new/deep")
    with expect_raises(AlreadyExists, what="make_directory again"):
        await files.make_directory(root / "new/deep", exist_ok=False)

    for name in ("read", "stat", "list", "remove", "download"):
        with expect_raises(NotFound, what=f"{name} of nothing"):
            await operations(case)[name](root / "none")
    for name in ("read", "write", "upload", "download"):
        with expect_raises(IsADirectory, what=f"{name} of a directory"):
            await operations(case)[name](root / "new")
    with expect_raises(NotADirectory, what="list of a file"):
        await files.list(root / "ab")
    stray = case.name("none-")
    for path, kind in (
        ("ab", InvalidArgument), ("/workspace/../etc/passwd", InvalidArgument),
        ("/workspace/a\0b", InvalidArgument), ("/etc/passwd", OutsideWorkspace),
        ("/workspacefoo", OutsideWorkspace),
    ):  # fmt: skip
        for name in ("read", "write", "stat", "remove"):
            place = harmless(name, path, stray)
            with expect_raises(kind, what=f"{name} of {place!r}"):
                await operations(case)[name](place)

    if case.features.symlinks:
        await files.symlink(root / "in", "new/../ab")
        await files.symlink(root / "out", f"/etc/{stray}")
        equal(await files.read(root / "in"), b"new", "a read through a link")
        await files.write(root / "in", b"by link")
        equal(await files.read(root / "ab"), b"by link", "a write through a link")
        equal((await files.stat(root / "in")).link, "new/../ab", "the link that was kept")
        for name in ("read", "write", "download"):
            with expect_raises(OutsideWorkspace, what=f"{name} through a link that leads out"):
                await operations(case)[name](root / "out")
        await files.remove(root / "out")
        await files.remove(root / "in")
        equal(await files.read(root / "ab"), b"by link", "what a removed link led to")
    if case.features.modes:
        await files.chmod(root / "ab", 0o750)
        await files.write(root / "ab", b"kept")
        equal((await files.stat(root / "ab")).mode, 0o750, "the mode after a write")

    equal(await files.upload(root / "up", _chunks(b"one", b"", b"two")), 6, "bytes uploaded")
    with expect_raises(Sabotage, what="an upload that breaks"):
        await files.upload(root / "up", _chunks(b"half", fails=True))
    pieces = [piece async for piece in files.download(root / "up")]
    equal(b"".join(pieces), b"onetwo", "the file after a broken upload")
    many = await files.read_many([root / "up", root / "none"])
    require(many[0] == b"onetwo" and isinstance(many[1], NotFound), f"read_many gave {many}")
    if case.pinned.spec.target is not None:
        d = case.dialect
        result = await case.sh(d.load("up"), d.save("by-command", b"5"), d.remove("with space"))
        equal(result.stdout, b"onetwo", "a command reads our file")
        equal(await files.read(root / "by-command"), b"5", "we read a command's file")
        require(not await case.exists(root / "with space"), "a command's removal is not seen")


@check(
    "script.checkpoint",
    "CP-1", "CP-2", "CP-3", "CP-7", "CP-8",
    needs={"cap:portable_checkpoint"}, kind=Kind.SCRIPT, place=Place.OWN, profile="smoke",
    deadline_s=60,
)  # fmt: skip
async def checkpoint_script(case: Case) -> None:
    """A story of trees: scan, change, scan, restore, change, restore the other, refuse, scan."""
    files, t = case.files, case.instance.tree
    empty = await capture(case.instance)
    equal(empty.shape, {}, "a new workspace")
    await furnish(case)
    one = await capture(case.instance)
    require(len(one.shape) >= 8, f"a furnished workspace is scanned as {sorted(one.shape)}")
    state = (await t.scan()).state
    await files.write(WORKSPACE / "a", b"fir5t")
    fast = {entry.path: entry.digest for entry in (await t.scan(state)).entries}
    require(fast.get("a") not in (None, one.shape["a"][3]), "a file written again is not scanned")
    await wreck(case)
    two = await capture(case.instance)
    require(one.shape != two.shape, "a wrecked tree is scanned as before")
    await t.restore(plan(one))
    equal((await capture(case.instance)).shape, one.shape, "the first tree, restored")
    equal(await files.read(WORKSPACE / "a"), b"first", "a file of the first tree")
    require(not await case.exists(WORKSPACE / "added"), "what was added is still there")
    await files.write(WORKSPACE / "dir" / "later", b"edit after restore")
    await t.restore(plan(two))
    equal((await capture(case.instance)).shape, two.shape, "the second tree, restored")
    await t.restore(plan(one))
    equal((await capture(case.instance)).shape, one.shape, "the first tree, restored again")
    broken = plan(two, missing=[two.shape["a"][3]])
    with expect_raises(CheckpointCorrupt, what="a restore with a missing blob"):
        await t.restore(broken)
    equal((await capture(case.instance)).shape, one.shape, "the live tree after a refused restore")
    evil = tree({"x": b"evil"})
    for path in ("../evil", "/tmp/evil", "none/evil"):  # noqa: S108 - hostile on purpose
        entry = Entry(
            path=path, type=FileType.FILE, mode=0o644, size=4, digest=evil.entries[0].digest
        )
        bad = Tree(entries=(entry,), contents=evil.contents)
        with expect_raises(InvalidArgument, what=f"a tree with {path}"):
            await t.restore(plan(bad))
    await t.restore(plan(empty))
    equal((await capture(case.instance)).shape, {}, "the empty tree, restored")
    equal(await t.recover(), False, "recover when nothing was interrupted")
    if case.pinned.spec.target is not None:
        await t.restore(plan(one))
        d = case.dialect
        result = await case.sh(d.load("a"), d.save("after", b"1"))
        equal((result.exit_code, result.stdout), (0, b"first"), "a command in a restored tree")
        require("after" in (await capture(case.instance)).shape, "what it wrote is not scanned")


@check(
    "script.life",
    "LC-1", "LC-2", "LC-5", "LC-9", "PR-7",
    kind=Kind.SCRIPT, place=Place.NONE, profile="smoke", deadline_s=180,
)  # fmt: skip
async def life_script(case: Case) -> None:
    """A story of instances: made, apart, attached, lost or destroyed, and gone."""
    ctx = case.site.context()
    promised = case.provider.descriptor.features(case.pinned.spec)
    async with case.another() as one, case.another() as two:
        require(one.ref.id != two.ref.id, "two instances have one id")
        for instance, text in ((one, b"one"), (two, b"two")):
            equal(await instance.status(), InstanceStatus.RUNNING, "status of a new instance")
            equal(list(await instance.files.list(WORKSPACE)), [], "its workspace")
            equal(instance.features.missing(promised), (), "promised features not in force")
            await instance.files.write(WORKSPACE / "file", text)
        equal(await one.files.read(WORKSPACE / "file"), b"one", "the first's file")
        if one.features.attach:
            listed = {ref.id for ref in await case.provider.list(Owner(store=ctx.owner.store), ctx)}
            require({one.ref.id, two.ref.id} <= listed, "an instance is not listed")
            inner = await case.provider.attach(one.ref, case.pinned, ctx)
            again = guarded(inner, case.site.meter)
            equal(await again.files.read(WORKSPACE / "file"), b"one", "a file after attach")
            await again.detach()
        await two.destroy()
        await two.destroy()
        await case.provider.destroy(two.ref, ctx)
        equal(await two.status(), InstanceStatus.ABSENT, "status of a destroyed instance")
        with expect_raises(Lost, what="read after destroy"):
            await two.files.read(WORKSPACE / "file")
        equal(await one.files.read(WORKSPACE / "file"), b"one", "the other's file")
        if case.pinned.spec.target is not None:
            result = await one.exec(ExecRequest(shell=case.dialect.load("file")))
            equal(result.stdout, b"one", "a command in the other")
        if await case.site.lane.lose(one.ref):
            with expect_raises(Lost, what="read after a loss", effect=Effect.NONE):
                await one.files.read(WORKSPACE / "file")
            equal(await one.status(), InstanceStatus.ABSENT, "status after a loss")
        else:
            case.evidence["loss"] = "the lane can't lose an instance"
    left = {ref.id for ref in await case.provider.list(Owner(store=ctx.owner.store), ctx)}
    require(not left & {one.ref.id, two.ref.id}, "a destroyed instance is still listed")


@check(
    "script.attack",
    "FS-1", "FS-2", "FS-4", "CP-8",
    needs={"symlinks", "attack"}, kind=Kind.SCRIPT, place=Place.OWN, profile="smoke", deadline_s=60,
)  # fmt: skip
async def attack_script(case: Case) -> None:
    """A story of break-outs: links, chains, folders, names and options, all held."""
    files, root = case.files, WORKSPACE
    await files.write(root / "plain", b"mine")
    await files.make_directory(root / "dir")
    stray = case.name("none-")  # who fails this may well write to it, or empty it
    for name, text in {
        "abs": f"/etc/{stray}", "rel": "../" * 9 + f"etc/{stray}", "folder": f"/{stray}",
        "up": f"../{stray}", "self": f"/proc/self/root/{stray}", "chain": "folder",
        "dir/chain": "../abs", "loop": "loop", "there": "/etc/passwd",
    }.items():  # fmt: skip
        await files.symlink(root / name, text)
    known = operations(case)
    targets = (
        "abs", "rel", "folder/file", "chain/file", "dir/chain", "self/file", "folder/new/file",
        "up/escaped",
    )  # fmt: skip
    for name in ("read", "download"):
        with expect_raises(OutsideWorkspace, what=f"{name} of what is there"):
            await known[name](root / "there")
    for target in targets:
        for name in ("read", "write", "download", "upload"):
            with expect_raises(OutsideWorkspace, what=f"{name} of {target}"):
                await known[name](root / target)
    for target in ("folder", "chain", "up", "self"):
        with expect_raises(OutsideWorkspace, what=f"list of {target}"):
            await files.list(root / target)
        with expect_raises(OutsideWorkspace, what=f"rename into {target}"):
            await files.rename(root / "plain", root / target / "x")
        if case.pinned.spec.target is not None:
            with expect_raises(OutsideWorkspace, what=f"cwd {target}"):
                await case.sh(case.dialect.exit(0), cwd=root / target)
    for odd in ("$(touch pwned)", "; touch pwned", "`touch pwned`", "-rf", "--help", "a\tb"):
        try:
            await files.write(root / "dir" / odd, b"x")
        except InvalidArgument:
            continue
        equal(await files.read(root / "dir" / odd), b"x", f"the content of {odd!r}")
        await files.remove(root / "dir" / odd)
    require(not await case.exists(root / "pwned"), "a name was run as a command")
    await files.symlink(root / "dir" / "back", "..")
    await files.remove(root / "dir", recursive=True)
    equal(await files.read(root / "plain"), b"mine", "a file beside the attacks")
    names = sorted(os.fsencode(entry.path.name) for entry in await files.list(root))
    equal(
        names,
        [b"abs", b"chain", b"folder", b"loop", b"plain", b"rel", b"self", b"there", b"up"],
        "left",
    )
