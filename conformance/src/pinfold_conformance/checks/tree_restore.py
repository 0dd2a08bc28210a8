"""Restoring a workspace: exact, journalled, portable, against hostile trees (CP-2 … CP-9)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel

from pinfold.errors import CheckpointCorrupt, Conflict, InvalidArgument, NoSpace, PinfoldError
from pinfold.provider import Entry, FileType, RestorePlan
from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, expect_raises, require
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.checks._trees import Tree, capture, plan, tree
from pinfold_conformance.dialects import How

NEEDS = {"cap:portable_checkpoint"}


async def furnish(case: Case) -> None:
    """Fill a workspace with one of everything that the target can represent."""
    files = case.files
    await files.write(WORKSPACE / "a", b"first")
    await files.write(WORKSPACE / "dir" / "sub" / "b", b"second\0\xff")
    await files.write(WORKSPACE / "dir" / "same", b"first")
    await files.write(WORKSPACE / "with space", b"")
    await files.make_directory(WORKSPACE / "empty" / "inner")
    if case.features.modes:
        await files.chmod(WORKSPACE / "a", 0o755)
        await files.chmod(WORKSPACE / "empty", 0o700)
        await files.chmod(WORKSPACE / "dir" / "same", 0o400)
    if case.features.symlinks:
        await files.symlink(WORKSPACE / "link", "dir/sub/b")
        await files.symlink(WORKSPACE / "dir" / "out", "/etc/pinfold-nobodys")
        await files.symlink(WORKSPACE / "dir" / "up", "../../../pinfold-nobodys")
        await files.symlink(WORKSPACE / "dangling", "nowhere")
    if case.features.non_utf8_names:
        await files.write(WORKSPACE / os.fsdecode(b"odd-\xff"), b"odd")


async def wreck(case: Case) -> None:
    """Change a furnished workspace in every way."""
    files = case.files
    await files.write(WORKSPACE / "a", b"changed")
    await files.remove(WORKSPACE / "dir" / "sub", recursive=True)
    await files.write(WORKSPACE / "dir" / "sub", b"a file now")
    await files.remove(WORKSPACE / "with space")
    await files.make_directory(WORKSPACE / "with space" / "deep")
    await files.write(WORKSPACE / "added" / "x", b"added")
    await files.remove(WORKSPACE / "empty", recursive=True)
    if case.features.modes:
        await files.chmod(WORKSPACE / "a", 0o600)
    if case.features.symlinks:
        await files.remove(WORKSPACE / "link")
        await files.write(WORKSPACE / "link", b"a file now")
        await files.symlink(WORKSPACE / "new link", "a")


@check("CP-2.exact", needs=NEEDS, place=Place.CLEAN)
async def exact(case: Case) -> None:
    """Restore gives exactly that tree: what was added is gone, what was deleted is back."""
    await furnish(case)
    before = await capture(case.instance)
    require(len(before.entries) >= 8, f"the scan tells of {len(before.entries)} names only")
    await wreck(case)
    wrecked = await capture(case.instance)
    require(wrecked.shape != before.shape, "the changes are not in the scan")
    report = await case.instance.tree.restore(plan(before))
    equal((await capture(case.instance)).shape, before.shape, "the restored tree")
    equal(await case.files.read(WORKSPACE / "a"), b"first", "a file, read")
    require(not await case.exists(WORKSPACE / "added"), "what was added is still there")
    if report.state is not None:
        again = await case.instance.tree.scan(report.state)
        require(
            again.unchanged or Tree(entries=again.entries, contents={}).shape == before.shape,
            "the state that restore returned gives another tree",
        )
    witness = case.site.lane.witness(case.inner)
    if witness is not None:
        equal(await witness.read(WORKSPACE / "a"), b"first", "a file, seen by the witness")
        names = sorted(path for path in before.shape if "/" not in path)
        equal(sorted(await witness.list(WORKSPACE)), names, "names, seen by the witness")


@check("CP-2.back-and-forth", needs=NEEDS, place=Place.CLEAN)
async def back_and_forth(case: Case) -> None:
    """Restores in any order: to the other, back, twice, to the empty tree and from it."""
    empty = await capture(case.instance)
    await furnish(case)
    one = await capture(case.instance)
    await wreck(case)
    two = await capture(case.instance)
    for name, wanted in (
        ("the first", one), ("the second", two), ("the second again", two), ("the empty", empty),
        ("the first, from empty", one), ("the empty again", empty), ("the second, from empty", two),
    ):  # fmt: skip
        await case.instance.tree.restore(plan(wanted))
        equal((await capture(case.instance)).shape, wanted.shape, f"restored: {name}")
    await case.files.write(WORKSPACE / "after", b"1")
    equal(await case.files.read(WORKSPACE / "after"), b"1", "a write after restores")
    require(one.shape != two.shape, "both trees are the same: the check proves nothing")


@check("CP-2.links", needs={*NEEDS, "symlinks"}, place=Place.CLEAN)
async def links(case: Case) -> None:
    """Links come back verbatim, never followed; those that lead out are listed."""
    wanted = tree(
        {
            "dir": None,
            "dir/file": b"1",
            "dir/in": "../top",
            "dir/out": "../../etc/passwd",
            "abs": "/etc/passwd",
            "top": "dir/file",
            "dots": "../pinfold-nobodys",
            "long": "a/" * 20 + "b" * 200,
            "odd": "two  spaces and 'quotes'",
            "messy": " ./a//b/../c/ ",
        }
    )
    report = await case.instance.tree.restore(plan(wanted))
    equal((await capture(case.instance)).shape, wanted.shape, "the restored tree")
    equal(sorted(report.escaping_links), ["abs", "dir/out", "dots"], "links that lead out (CP-2)")
    refused = case.evidence["refused"] = {}
    odd = {"a newline": "a\nb", "only a newline": "\n", "4095 bytes": "../" * 1364 + "nob"}
    for what, text in odd.items():
        one = tree({"dir": None, "dir/link": text})
        try:
            report = await case.instance.tree.restore(plan(one))
        except InvalidArgument as exc:  # by name, before anything changes (CP-4)
            require("link" in exc.message, f"a refusal that names no link: {exc.message}")
            refused[what] = exc.message
            equal((await capture(case.instance)).shape, wanted.shape, "a tree after a refusal")
            continue
        equal((await capture(case.instance)).shape, one.shape, f"a link with {what}")
        out = ["dir/link"] if what == "4095 bytes" else []
        equal(list(report.escaping_links), out, f"links that lead out, with {what}")
        wanted = one


@check("CP-2.over-links", needs={*NEEDS, "symlinks"}, place=Place.CLEAN, kind=Kind.ATTACK)
async def over_links(case: Case) -> None:
    """A live tree full of links that lead away is replaced without touching what they lead to."""
    files = case.files
    await files.write(WORKSPACE / "kept" / "file", b"kept")
    await files.symlink(WORKSPACE / "dir", "kept")
    await files.symlink(WORKSPACE / "file", "kept/file")
    wanted = tree(
        {"dir": None, "dir/file": b"new", "file": b"other", "kept": None, "kept/file": b"kept"}
    )
    await case.instance.tree.restore(plan(wanted))
    equal((await capture(case.instance)).shape, wanted.shape, "the restored tree")
    equal(await files.read(WORKSPACE / "kept" / "file"), b"kept", "what a link led to")
    if case.pinned.spec.target is None:
        return
    d, outside = case.dialect, case.name("outside-")
    place = f"/tmp/{outside}"  # noqa: S108 - in the guest
    made = await case.sh(d.mkdir(place), d.save(f"{place}/file", b"mine"), d.load(f"{place}/file"))
    try:
        await case.sh(d.remove("dir"), d.link("dir", place))
        await case.instance.tree.restore(plan(wanted))
        after = await case.sh(d.load(f"{place}/file"))
        equal(after.stdout, made.stdout, "a file outside, which a link of the live tree led to")
    finally:
        await case.sh(d.remove(place))


@check("CP-2.usable", needs={*NEEDS, "exec"}, place=Place.CLEAN)
async def usable(case: Case) -> None:
    """After a restore commands see the tree, and may change it as before."""
    d = case.dialect
    wanted = tree({"dir": None, "dir/file": b"1", "tool": (d.exit(5) + "\n").encode()})
    await case.instance.tree.restore(plan(wanted))
    result = await case.sh(
        d.load("dir/file"), d.append("dir/file", b"2"), d.rename("dir", "moved"), d.save("new", b"")
    )
    equal((result.exit_code, result.stdout, result.stderr), (0, b"1", b""), "a command")
    found = (await capture(case.instance)).shape
    equal(sorted(found), ["moved", "moved/file", "new", "tool"], "the tree afterwards")


@check("CP-3.running", needs={*NEEDS, "exec"}, place=Place.OWN)
async def running(case: Case) -> None:
    """A restore is refused while an exec runs; nothing is touched, and later it works."""
    d = case.dialect
    await case.files.write(WORKSPACE / "live", b"1")
    wanted = tree({"restored": b"2"})
    codes: list[int] = []

    async def command() -> None:
        script = d.seq(d.save("began", b""), d.wait_for("go"), d.exit(3))
        codes.append((await case.sh(script, timeout=20)).exit_code)

    async def began() -> bool:
        return await case.exists(WORKSPACE / "began")

    async with anyio.create_task_group() as group:
        group.start_soon(command)
        await case.until(began, "the command has begun")
        with expect_raises(Conflict, what="a restore while a command runs"):
            await case.instance.tree.restore(plan(wanted))
        equal(await case.files.read(WORKSPACE / "live"), b"1", "the live tree")
        await case.files.write(WORKSPACE / "go", b"")
    equal(codes, [3], "the command beside the refused restore")
    await case.instance.tree.restore(plan(wanted))
    equal((await capture(case.instance)).shape, wanted.shape, "the restore afterwards")


@check("CP-3.verified-first", "CP-8", needs=NEEDS, place=Place.CLEAN)
async def verified_first(case: Case) -> None:
    """A blob that is missing or damaged is checkpoint_corrupt before the live tree is touched."""
    await furnish(case)
    live = await capture(case.instance)
    wanted = tree({f"f{n}": b"%d" % n * 1000 for n in range(5)})
    last = wanted.entries[-1].digest
    for what, broken in (
        ("missing", plan(wanted, missing=[last])),
        ("damaged", plan(wanted, corrupt=[last])),
    ):
        with expect_raises(CheckpointCorrupt, what=f"a restore with a {what} blob") as caught:
            await case.instance.tree.restore(broken)
        require(last in str(caught.error.details), "the error does not name the blob (CP-8)")
        equal(
            (await capture(case.instance)).shape, live.shape, f"the live tree after a {what} blob"
        )
    await case.instance.tree.restore(plan(wanted))
    equal((await capture(case.instance)).shape, wanted.shape, "the same plan with sound blobs")


@check("CP-3.wrong-content", "CP-8", needs=NEEDS, place=Place.CLEAN)
async def wrong_content(case: Case) -> None:
    """A blob whose bytes are not those of its digest never becomes part of the tree unseen."""
    live = tree({"live": b"1"})
    await case.instance.tree.restore(plan(live))
    wanted = tree({"file": b"expected"})
    digest = wanted.entries[0].digest

    async def lies(_: str) -> AsyncIterator[bytes]:
        yield b"tampered"

    try:
        await case.instance.tree.restore(RestorePlan(entries=wanted.entries, fetch=lies))
    except CheckpointCorrupt:
        equal((await capture(case.instance)).shape, live.shape, "the live tree")
        case.evidence["verified by"] = "the target"
    else:  # core verifies blobs before it hands them out; a scan must then tell the truth
        found = (await capture(case.instance)).shape
        equal(sorted(found), ["file"], "names of the restored tree")
        require(
            found.get("file", ("",) * 4)[3] != digest,
            "a scan vouches for bytes that are not there (CP-1)",
        )
        case.evidence["verified by"] = "core"


async def _cancel_after(scope: anyio.CancelScope, given: anyio.Event, turns: int | None) -> None:
    await given.wait()
    if turns is not None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()


@check("CP-3.interrupted", needs=NEEDS, place=Place.OWN, deadline_s=60)
async def interrupted(case: Case) -> None:
    """A restore cancelled at any blob, or after one: the tree is the old or the new one, whole."""
    await furnish(case)
    live = await capture(case.instance)
    wanted = tree({"d": None, **{f"d/f{n}": b"%d" % n * 100 for n in range(6)}})
    outcomes = []
    last = len(wanted.contents) - 1
    # At each blob, and then some turns of the event loop after the last: while names are swapped.
    for stop, turns in [
        *[(n, None) for n in range(last + 2)],
        *[(last, n) for n in (0, 1, 2, 4, 9)],
    ]:
        with anyio.CancelScope() as scope:
            count, given = 0, anyio.Event()

            async def fetch(
                digest: str,
                stop: int = stop,
                turns: int | None = turns,
                scope: anyio.CancelScope = scope,
                given: anyio.Event = given,
            ) -> AsyncIterator[bytes]:
                nonlocal count
                if count == stop and turns is None:
                    scope.cancel()
                    await anyio.sleep_forever()
                yield wanted.contents[digest]
                if count == stop:
                    given.set()
                count += 1

            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_after, scope, given, turns)
                await case.instance.tree.restore(RestorePlan(entries=wanted.entries, fetch=fetch))
                group.cancel_scope.cancel()
        await case.instance.tree.recover()
        found = (await capture(case.instance)).shape
        require(
            found in (live.shape, wanted.shape),
            f"cancelled at blob {stop}, turn {turns}, it left a mixed tree: {sorted(found)} (CP-3)",
        )
        outcomes.append("old" if found == live.shape else "new")
        if found == wanted.shape:
            await case.instance.tree.restore(plan(live))
            equal((await capture(case.instance)).shape, live.shape, "the first tree again")
    case.evidence["outcomes"] = outcomes
    equal(await case.instance.tree.recover(), False, "recover when nothing is interrupted")
    await case.files.write(WORKSPACE / "after", b"1")
    equal(await case.files.read(WORKSPACE / "after"), b"1", "a write afterwards")


@check("CP-3.ends-jobs", "CP-9", needs={*NEEDS, "exec", "background"}, place=Place.OWN)
async def ends_jobs(case: Case) -> None:
    """A restore ends background processes and says so; none of them writes into the new tree."""
    d = case.dialect
    await case.sh(d.start(d.beat("beat"), How.QUIET))
    await case.lives(WORKSPACE / "beat", "the job beats")
    wanted = tree({"beat": b"", "file": b"1"})
    report = await case.instance.tree.restore(plan(wanted))
    equal(report.processes_ended, True, "processes_ended")
    require(not await case.beats(WORKSPACE / "beat"), "the job lives on after a restore (CP-3)")
    equal((await capture(case.instance)).shape, wanted.shape, "the restored tree")
    report = await case.instance.tree.restore(plan(wanted))
    equal(report.processes_ended, False, "processes_ended where there was none")


@check("CP-3.no-space", needs={*NEEDS, "limit:workspace_bytes"}, place=Place.CLEAN, deadline_s=120)
async def no_space(case: Case) -> None:
    """A tree that has no room is refused, and nothing is touched."""
    live = tree({"live": b"1"})
    await case.instance.tree.restore(plan(live))
    room, piece = case.limits.workspace_bytes or 0, 4 * 1024 * 1024
    data = bytes(piece)
    wanted = tree({f"f{n}": data for n in range(room // piece + 2)})
    with expect_raises(NoSpace, what=f"a tree beyond {room} bytes"):
        await case.instance.tree.restore(plan(wanted))
    equal((await capture(case.instance)).shape, live.shape, "the live tree")


@check("CP-4.foreign", needs=NEEDS, place=Place.CLEAN)
async def foreign(case: Case) -> None:
    """A tree that no scan of this target gave is restored, and scanned the same."""
    items: dict[str, object] = {
        "README": b"made elsewhere\n",
        "src": None,
        "src/main": b"\0" * 5000,
        "src/é": b"",
        "deep": None,
    }
    for depth in range(1, 12):
        items["deep" + "/d" * depth] = None
    wanted = tree(items)
    await case.instance.tree.restore(plan(wanted))
    equal((await capture(case.instance)).shape, wanted.shape, "the restored tree")


@check("CP-4.other", needs={*NEEDS, "hook:other"}, place=Place.CLEAN, deadline_s=180)
async def other(case: Case) -> None:
    """A tree moves to another provider and back, and is the same at every stop."""
    other_site = case.site.other
    if other_site is None:
        raise TypeError("there is no other site")
    await furnish(case)
    if case.features.non_utf8_names:
        await case.files.remove(WORKSPACE / os.fsdecode(b"odd-\xff"))
    mine = await capture(case.instance)
    require(len(mine.entries) >= 8, f"the scan tells of {len(mine.entries)} names only")
    async with other_site.lent() as there:
        await there.tree.restore(plan(mine))
        theirs = await capture(there)
        equal(theirs.shape, mine.shape, f"the tree on {other_site.lane.name}")
        await there.files.write(WORKSPACE / "from there", b"1")
        changed = await capture(there)
        require("from there" in changed.shape, "a file written there is not scanned there")
        await case.instance.tree.restore(plan(changed))
        equal((await capture(case.instance)).shape, changed.shape, "the tree that came back")


@check("CP-4.names-refused", needs={*NEEDS, "!non_utf8_names"}, place=Place.CLEAN)
async def names_refused(case: Case) -> None:
    """A name that the target can't represent is refused by name, before anything changes."""
    live = tree({"live": b"1"})
    await case.instance.tree.restore(plan(live))
    wanted = tree({"file": b"2", os.fsdecode(b"odd\xff"): b"3"})
    with expect_raises(InvalidArgument, what="a tree with a non-UTF-8 name") as caught:
        await case.instance.tree.restore(plan(wanted))
    require("odd" in str(caught.error), "the error does not name the entry (CP-4)")
    equal((await capture(case.instance)).shape, live.shape, "the live tree")


@check("CP-4.links-refused", needs={*NEEDS, "!symlinks"}, place=Place.CLEAN)
async def links_refused(case: Case) -> None:
    """A link where the target has none is refused by name, before anything changes."""
    live = tree({"live": b"1"})
    await case.instance.tree.restore(plan(live))
    with expect_raises(InvalidArgument, what="a tree with a link") as caught:
        await case.instance.tree.restore(plan(tree({"file": b"2", "a-link": "file"})))
    require("a-link" in str(caught.error), "the error does not name the entry (CP-4)")
    equal((await capture(case.instance)).shape, live.shape, "the live tree")


EVIL = tree({"x": b"evil"})


def _file(path: str) -> Entry:
    (one,) = EVIL.entries
    return Entry(path=path, type=one.type, mode=one.mode, size=one.size, digest=one.digest)


def _folder(path: str) -> Entry:
    return Entry(path=path, type=FileType.DIRECTORY, mode=0o755)


def _link(path: str, text: str) -> Entry:
    return Entry(path=path, type=FileType.SYMLINK, mode=0o777, link=text)


def hostile(place: str, *, symlinks: bool) -> dict[str, tuple[Entry, ...]]:
    """Return trees that no honest checkpoint has; `place` is outside."""
    found = {
        "an absolute name": (_file(place),),
        "dot-dot": (_file("../evil"),),
        "dot-dot inside": (_folder("a"), _file("a/../../evil")),
        "dot": (_file("./evil"),),
        "an empty part": (_folder("a"), _file("a//evil")),
        "a trailing slash": (_file("evil/"),),
        "NUL": (_file("ev\0il"),),
        "a missing parent": (_file("none/evil"),),
        "a file as parent": (_file("f"), _file("f/evil")),
        "a duplicate": (_file("evil"), _file("evil")),
        "a folder twice": (_folder("evil"), _file("evil")),
        "the root itself": (_folder("."), _file("evil")),
    }
    if symlinks:
        above = place.rpartition("/")[0]
        found["a link as parent"] = (_link("l", above), _file("l/evil"))
        found["a link inside as parent"] = (_folder("d"), _link("l", "d"), _file("l/evil"))
        found["a link and a file"] = (_link("evil", place), _file("evil"))
    return found


@check("CP-8.hostile", needs=NEEDS, place=Place.CLEAN, kind=Kind.ATTACK)
async def hostile_trees(case: Case) -> None:
    """Trees with hostile names are refused by type, and nothing is touched."""
    live = tree({"live": b"1"})
    await case.instance.tree.restore(plan(live))
    folder = f"/tmp/{case.name('evil-')}"  # noqa: S108 - in the guest
    place = f"{folder}/evil"
    if case.pinned.spec.target is not None:
        await case.sh(case.dialect.mkdir(folder))
    try:
        for what, entries in hostile(place, symlinks=case.features.symlinks).items():
            with expect_raises(InvalidArgument, what=f"a tree with {what}"):
                await case.instance.tree.restore(
                    plan(Tree(entries=entries, contents=EVIL.contents))
                )
            found = (await capture(case.instance)).shape
            equal(found, live.shape, f"the live tree after {what}")
    finally:
        if case.pinned.spec.target is not None:
            await case.sh(case.dialect.remove(folder))


@check("CP-8.sizes", needs=NEEDS, place=Place.CLEAN, kind=Kind.ATTACK)
async def sizes(case: Case) -> None:
    """An entry whose size is not that of its bytes never becomes a tree that a scan denies."""
    live = tree({"live": b"1"})
    await case.instance.tree.restore(plan(live))
    honest = tree({"file": b"12345"})
    for size in (0, 4, 6, 2**62):
        lying = tuple(
            Entry(path=e.path, type=e.type, mode=e.mode, size=size, digest=e.digest)
            for e in honest.entries
        )
        try:
            with anyio.fail_after(10):
                await case.instance.tree.restore(
                    plan(Tree(entries=lying, contents=honest.contents))
                )
        except PinfoldError:
            found = (await capture(case.instance)).shape
            require(found in (live.shape, honest.shape), "a refused tree left something else")
        else:
            found = (await capture(case.instance)).shape
            equal(found, honest.shape, f"a file of 5 bytes said to be of {size}")
            await case.instance.tree.restore(plan(live))
