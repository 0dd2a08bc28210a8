"""The checkpoint machine: edits, captures and restores in any order, each restore audited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import anyio

from pinfold.errors import CheckpointCorrupt
from pinfold.provider import RestorePlan, ScanState
from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, expect_raises
from pinfold_conformance._trace import Step
from pinfold_conformance.checks._trees import Tree, capture, plan, tree
from pinfold_conformance.machines._base import Choose, Machine

__all__ = ["TreeMachine"]

NAMES = ("a", "ab", "d/a", "d/e/f", "da", "A", "with space")
DATA = ("", "1", "2", "\0\xff", "long" * 5000)


class TreeMachine(Machine):
    """A workspace, and checkpoints of it that nothing may change."""

    name: ClassVar[str] = "tree"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.saved: dict[str, Tree] = {}
        self.live: dict[str, tuple[Any, ...]] = {}
        self.state: ScanState | None = None

    async def reset(self) -> None:
        await self.case.site.lane.reset(self.case.inner)
        self.saved, self.live, self.state = {}, {}, None

    def choose(self, choose: Choose) -> Sequence[Step]:
        kinds = ["edit", "edit", "capture", "excursion", "excursion", "scan"]
        if self.saved:
            kinds += ["restore", "restore", "broken", "cancelled"]
        kind = choose.of(kinds)
        known = sorted(self.saved)
        match kind:
            case "edit":
                return [self._edit(choose)]
            case "capture":
                return [Step("capture", {"name": f"c{len(known)}"})]
            case "scan":
                return [Step("scan")]
            case "restore" | "broken":
                return [Step(kind, {"name": choose.of(known)})]
            case "cancelled":
                return [Step(kind, {"name": choose.of(known), "at": choose.number(0, 3)})]
        one, two = f"c{len(known)}", f"c{len(known) + 1}"
        return [
            Step("capture", {"name": one}),
            self._edit(choose),
            Step("scan"),
            Step("capture", {"name": two}),
            Step("restore", {"name": one}),
            self._edit(choose),
            Step("restore", {"name": one}),
            Step("restore", {"name": two}),
            Step("scan"),
            Step("broken", {"name": one}),
            Step("cancelled", {"name": one, "at": choose.number(0, 2)}),
        ]

    def _edit(self, choose: Choose) -> Step:
        kinds = ["write", "write", "remove", "mkdir", "rename"]
        if self.case.features.symlinks:
            kinds.append("symlink")
        if self.case.features.modes:
            kinds.append("chmod")
        if self.case.pinned.spec.target is not None:
            kinds.append("command")
        return Step(
            choose.of(kinds),
            {
                "path": choose.of(NAMES),
                "to": choose.of(NAMES),
                "data": choose.of(DATA),
                "mode": choose.of([0o600, 0o755, 0o644]),
            },
        )

    async def apply(self, step: Step) -> None:
        from pinfold.errors import PinfoldError

        name = str(step.args.get("name", ""))
        if step.do in ("restore", "broken", "cancelled") and name not in self.saved:
            return  # its capture was minimised away
        match step.do:
            case "capture":
                self.saved[name] = await capture(self.case.instance)
            case "scan":
                await self._scan()
            case "restore":
                await self._restore(name)
            case "broken":
                await self._broken(name)
            case "cancelled":
                await self._cancelled(name, int(step.args["at"]))
            case _:
                try:
                    await self._change(step)
                except PinfoldError:
                    return  # what an edit may do is the file machine's business

    async def _change(self, step: Step) -> None:
        files, args = self.case.files, step.args
        path, data = WORKSPACE / args["path"], args["data"].encode("latin-1")
        match step.do:
            case "write":
                await files.write(path, data)
                equal(await files.read(path), data, "a file that was just written")
            case "remove":
                await files.remove(path, recursive=True)
            case "mkdir":
                await files.make_directory(path)
            case "rename":
                await files.rename(path, WORKSPACE / args["to"])
            case "symlink":
                await files.symlink(path, args["to"])
            case "chmod":
                await files.chmod(path, args["mode"])
            case "command":
                d = self.case.dialect
                await self.case.sh(d.save(args["path"], data[:2000]))
            case _:
                raise CheckFailed(f"there is no step {step.do!r}")

    async def _scan(self) -> None:
        """An incremental scan tells what a full one tells (CP-7)."""
        tree = self.case.instance.tree
        fast = await tree.scan(self.state)
        full = Tree(entries=(await tree.scan()).entries, contents={}).shape
        if not fast.unchanged:
            found = Tree(entries=fast.entries, contents={}).shape
            equal(found, full, "an incremental scan, against a full one")
            self.live = full
        else:
            equal(full, self.live, "a full scan, where an incremental one says unchanged")
        self.state = fast.state

    async def _restore(self, name: str) -> None:
        wanted = self.saved[name]
        report = await self.case.instance.tree.restore(plan(wanted))
        equal((await capture(self.case.instance)).shape, wanted.shape, "a restored tree")
        self.state = report.state
        self.live = wanted.shape

    async def _broken(self, name: str) -> None:
        wanted = self.saved[name]
        if not wanted.contents:
            return
        # Content that is there already, and verified in its place, need not be fetched: make it
        # another tree, and not one that an earlier step of this kind has left and a capture kept.
        left = b"before"
        while left in wanted.contents.values():
            left += b"."
        before = tree({"left": left})
        await self.case.instance.tree.restore(plan(before))
        gone = min(wanted.contents)
        with expect_raises(CheckpointCorrupt, what="a restore whose blob is missing"):
            await self.case.instance.tree.restore(plan(wanted, missing=[gone]))
        equal((await capture(self.case.instance)).shape, before.shape, "the tree it left (CP-3)")
        self.state, self.live = None, before.shape

    async def _cancelled(self, name: str, at: int) -> None:
        wanted = self.saved[name]
        before = await capture(self.case.instance)
        count = 0
        with anyio.CancelScope() as scope:

            async def fetch(digest: str) -> AsyncIterator[bytes]:
                nonlocal count
                if count == at:
                    scope.cancel()
                    await anyio.sleep_forever()
                count += 1
                yield wanted.contents[digest]

            await self.case.instance.tree.restore(RestorePlan(entries=wanted.entries, fetch=fetch))
        await self.case.instance.tree.recover()
        found = (await capture(self.case.instance)).shape
        if found not in (before.shape, wanted.shape):
            raise CheckFailed("a cancelled restore left a mixed tree (CP-3)")
        self.state = None

    async def audit(self) -> None:
        for name in sorted(self.saved):
            await self._restore(name)
