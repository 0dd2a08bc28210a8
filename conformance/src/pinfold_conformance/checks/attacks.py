"""Break-out attempts by files that the guest plants (FS-2, FS-4, FS-7, CP-8)."""

from __future__ import annotations

from collections import Counter

import anyio

from pinfold.errors import NotRegular, PinfoldError
from pinfold.provider import FileType
from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, require
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.checks._attacks import a_field, attacks, escaped
from pinfold_conformance.checks._trees import capture, plan, tree
from pinfold_conformance.checks.files_paths import operations

NEEDS = {"exec", "symlinks", "attack"}


@check("FS-2.matrix", needs=NEEDS, kind=Kind.ATTACK, place=Place.OWN, deadline_s=240)
async def matrix(case: Case) -> None:
    """Every link form, reference form and operation: nothing outside is read or touched."""
    async with a_field(case) as field:
        tried: Counter[str] = Counter()
        for attack in attacks(case):
            how = await escaped(case, field, attack)
            if how is not None:
                raise CheckFailed(f"{attack.id}: {how} (FS-2)")
            tried[attack.id.split(".")[0]] += 1
        case.evidence.update(tries=sum(tried.values()), forms=dict(tried))


@check("FS-4.hardlink", needs={"exec", "attack"}, kind=Kind.ATTACK, place=Place.OWN)
async def hardlink(case: Case) -> None:
    """A file with a second name is replaced by a write, not written into: inside and outside."""
    d, case.evidence["planted"] = case.dialect, []
    async with a_field(case) as field:
        inside = field.scratch / "other"
        await case.files.write(inside, b"kept")
        others = {"inside": "other", "outside": f"{field.outside}/canary"}
        for where, other in others.items():
            for name in ("write", "upload"):
                made = await case.sh(d.remove("hard"), d.hardlink("hard", other), cwd=field.scratch)
                if made.exit_code != 0:
                    continue  # the guest is refused it, so there is nothing to defend
                if (await case.files.stat(field.scratch / "hard")).type is not FileType.FILE:
                    continue  # what it has instead of hard links
                before = await case.sh(d.load(other), cwd=field.scratch)
                case.evidence["planted"].append(f"{where} by {name}")
                await operations(case)[name](field.scratch / "hard")
                after = await case.sh(d.load(other), cwd=field.scratch)
                equal(after.stdout, before.stdout, f"the file {where} after a {name} (FS-4)")
                found = await case.files.read(field.scratch / "hard")
                equal(found, b"new", f"the file that was replaced by a {name}")
        equal(await case.files.read(inside), b"kept", "a file with one name")


@check(
    "FS-7.fifo", needs={"exec", "special_files", "attack"}, kind=Kind.ATTACK, place=Place.OWN,
    deadline_s=60,
)  # fmt: skip
async def fifo(case: Case) -> None:
    """A FIFO in the way of any operation never hangs it: leaf, through a link, in a tree."""
    d, scratch = case.dialect, await case.scratch()
    await case.files.make_directory(scratch / "dir")
    await case.sh(d.fifo("dir/fifo"), cwd=scratch)
    paths = [scratch / "dir" / "fifo"]
    if case.features.symlinks:
        await case.sh(d.link("link", "dir/fifo"), cwd=scratch)
        paths.append(scratch / "link")
    for path in paths:
        for name in ("read", "write", "download", "upload"):
            with anyio.move_on_after(4) as scope:
                try:
                    await operations(case)[name](path)
                except NotRegular:
                    continue
                except PinfoldError as exc:
                    raise CheckFailed(f"{name} of a FIFO: {type(exc).__name__}") from exc
            require(not scope.cancelled_caught, f"{name} of a FIFO hangs (FS-7)")
            raise CheckFailed(f"{name} of a FIFO is not refused (FS-7)")
    with anyio.move_on_after(10) as scope:
        if case.capabilities.portable_checkpoint:
            await case.instance.tree.scan()
        found = [item.path.name async for item in case.files.download_tree(scratch)]
        require("fifo" not in found, "a FIFO is part of a downloaded tree")
        await case.files.remove(scratch / "dir", recursive=True)
    require(not scope.cancelled_caught, "a FIFO in a tree hangs (FS-7)")


@check(
    "CP-1.never-out", needs={*NEEDS, "cap:portable_checkpoint"}, kind=Kind.ATTACK, place=Place.OWN,
)  # fmt: skip
async def never_out(case: Case) -> None:
    """A scan never descends through a link: what is outside is no part of a checkpoint."""
    async with a_field(case) as field:
        await case.sh(case.dialect.link("link", field.outside), cwd=field.scratch)
        found = await capture(case.instance)
        require(
            field.canary not in found.contents.values(), "a checkpoint holds a file from outside"
        )
        paths = [path for path in found.shape if path.endswith("/link")]
        equal(paths, [f"{field.scratch.name}/link"], "the link, as a link")
        require(not any("link/" in path for path in found.shape), "a scan went through a link")


@check(
    "CP-2.never-through", needs={*NEEDS, "cap:portable_checkpoint"}, kind=Kind.ATTACK,
    place=Place.OWN,
)  # fmt: skip
async def never_through(case: Case) -> None:
    """A restore over planted links writes nothing through them, and removes nothing behind them."""
    d = case.dialect
    async with a_field(case) as field:
        await case.files.remove(field.scratch, recursive=True)
        await case.sh(d.link("dir", field.outside), d.link("file", f"{field.outside}/canary"))
        wanted = tree({"dir": None, "dir/canary": b"evil", "dir/planted": b"evil", "file": b"evil"})
        await case.instance.tree.restore(plan(wanted))
        equal((await capture(case.instance)).shape, wanted.shape, "the restored tree")
        after = await case.sh(d.load(f"{field.outside}/canary"))
        equal(after.stdout, field.canary, "the file outside (CP-2)")
        planted = await case.sh(d.exists(f"{field.outside}/planted"))
        equal(planted.exit_code, 1, "something was restored to the outside")
        await case.sh(d.remove("dir"), d.link("dir", field.outside))
        await case.instance.tree.restore(plan(tree({})))
        after = await case.sh(d.load(f"{field.outside}/canary"))
        equal(after.stdout, field.canary, "the file outside, after a restore to nothing")
        equal(list(await case.files.list(WORKSPACE)), [], "the workspace")
