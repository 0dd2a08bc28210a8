"""The file system machine: every operation beside the reference adapter, which is the model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from pinfold.errors import NotFound, PinfoldError, Unavailable
from pinfold.provider import ExecRequest, Features, FileType, InstanceRef
from pinfold.spec import WORKSPACE, Limits
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, short
from pinfold_conformance._trace import Step
from pinfold_conformance.adapters.toy._instance import Body, ToyInstance
from pinfold_conformance.adapters.toy._kernel import Kernel
from pinfold_conformance.adapters.toy._world import Dir, File, Link, World
from pinfold_conformance.dialects import Toy
from pinfold_conformance.machines._base import Choose, Machine

__all__ = ["FilesMachine", "model_of"]

#: Adversarial on purpose: siblings with one beginning, cases, blanks, dashes, two forms of one é.
NAMES = ("a", "ab", "A", "d", "d/a", "da/x", "d/e/f", "a b", "-n", "é", "e\u0301")
ODD = ("new\nline", "tab\tname", os.fsdecode(b"odd\xff"))
DATA = ("", "\n", "a\r\nb", "\0", "\xff\xfe", "x" * 4097, "y" * 65_537)
OUT = ("/etc/pinfold-nobodys", "../../pinfold-nobodys")  # who follows them does no harm
LINKS = ("a", "d", "../a", "d/a", *OUT, ".", "missing", "d/e")
MODES = (0o644, 0o600, 0o755, 0o700)


def model_of(features: Features, limits: Limits) -> ToyInstance:
    """Return a reference instance with the features and limits of the target."""
    return ToyInstance(
        Body(world=World(), kernel=Kernel(), network=False),
        ref=InstanceRef(provider="model", id="model"),
        features=features,
        limits=limits,
        generation=1,
    )


class FilesMachine(Machine):
    """Random file operations, by the api and by commands, audited by three routes."""

    name: ClassVar[str] = "files"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.model = model_of(case.features, case.limits)
        self.names: tuple[str, ...] = NAMES
        self._toy = Toy()

    async def reset(self) -> None:
        await self.case.site.lane.reset(self.case.inner)
        self.model = model_of(self.case.features, self.case.limits)
        self.names = (*NAMES, *[name for name in ODD if await self._kept(name)])

    async def _kept(self, name: str) -> bool:
        """Say whether the target keeps an odd name; a refusal by name is as good (FS-3)."""
        files = self.case.files
        try:
            await files.write(WORKSPACE / name, b"")
            await files.remove(WORKSPACE / name)
        except PinfoldError:
            return False
        return True

    def choose(self, choose: Choose) -> Sequence[Step]:
        if choose.of([False, False, True]):
            return self._excursion(choose)
        path, other = choose.of(self.names), choose.of(self.names)
        kinds = ["write", "write", "read", "mkdir", "remove", "rename", "upload", "list", "range"]
        if self.case.features.symlinks:
            kinds += ["symlink", "symlink"]
        if self.case.features.modes:
            kinds.append("chmod")
        if self.case.pinned.spec.target is not None:
            kinds += ["command", "command-remove"]
        kind = choose.of(kinds)
        args: dict[str, Any] = {"path": path}
        match kind:
            case "write" | "upload" | "command":
                args["data"] = choose.of(DATA[:6] if kind == "command" else DATA)
            case "remove":
                args["recursive"] = choose.of([False, True])
            case "rename":
                args["to"] = other
            case "symlink":
                args["text"] = choose.of(LINKS)
            case "chmod":
                args["mode"] = choose.of(MODES)
            case "range":
                args["offset"] = choose.of([0, 1, 4096, 70_000])
                args["length"] = choose.of([0, 1, 5000])
        steps = [Step(kind, args)]
        if kind in ("rename", "remove", "command"):
            steps.append(Step("audit"))
        return steps

    def _excursion(self, choose: Choose) -> Sequence[Step]:
        """A folder beside a sibling of the same beginning: changed, moved, removed, audited."""
        folder, sibling = choose.of([("d", "da"), ("a", "ab"), ("A", "a")])
        last = choose.of(["rename", "remove"])
        return [
            Step("remove", {"path": folder, "recursive": True}),
            Step("remove", {"path": sibling, "recursive": True}),
            Step("write", {"path": f"{folder}/f", "data": choose.of(DATA)}),
            Step("write", {"path": f"{sibling}/x", "data": choose.of(DATA)}),
            Step("list", {"path": folder}),
            Step("rename", {"path": folder, "to": "e"})
            if last == "rename"
            else Step("remove", {"path": folder, "recursive": True}),
            Step("audit"),
            Step("write", {"path": "e/f", "data": choose.of(DATA)}),
            Step("remove", {"path": "e", "recursive": True}),
            Step("audit"),
        ]

    async def apply(self, step: Step) -> None:
        if step.do == "audit":
            await self.audit()
            return
        # What `rm -f` says of a path below a file is each tool's own affair; what it does is not.
        untold = step.do == "command-remove" and not self._has_parent(step.args["path"])
        ours = await self._outcome(self.model, step, model=True)
        theirs = await self._outcome(self.case.instance, step, model=False)
        if isinstance(ours, PinfoldError) != isinstance(theirs, PinfoldError):
            raise CheckFailed(
                f"{step.do} of {step.args.get('path')!r} gave {_said(theirs)}; "
                f"the model gives {_said(ours)}"
            )
        if isinstance(theirs, Unavailable):
            raise CheckFailed(f"{step.do} was taken for lost compute: {theirs.message} (FS-5)")
        if not isinstance(theirs, PinfoldError) and not untold:
            equal(theirs, ours, f"{step.do} of {step.args.get('path')!r}, against the model")

    def _has_parent(self, name: str) -> bool:
        """Say whether a name's parent, links followed, is a directory of the model or absent."""
        parent = PurePosixPath(name).parent
        try:
            node = self.model.body.world.find(WORKSPACE / parent).node
        except NotFound:
            return True
        except PinfoldError:
            return False
        return node is None or isinstance(node, Dir)

    def _needed(self, name: str) -> int:
        """Return the bits that a mode must have lest the rest can't be looked at by its owner."""
        try:
            node = self.model.body.world.find(WORKSPACE / name).node
        except PinfoldError:
            return 0
        return 0o700 if isinstance(node, Dir) else 0

    async def _outcome(self, instance: Any, step: Step, *, model: bool) -> Any:
        try:
            return await self._do(instance, step, model=model)
        except PinfoldError as exc:
            return exc

    async def _do(self, instance: Any, step: Step, *, model: bool) -> Any:
        files, args = instance.files, step.args
        path = WORKSPACE / args["path"]
        data = args.get("data", "").encode("latin-1")
        match step.do:
            case "write":
                return await files.write(path, data)
            case "upload":
                return await files.upload(path, _one(data))
            case "read":
                return await files.read(path)
            case "range":
                return await files.read(path, offset=args["offset"], length=args["length"])
            case "mkdir":
                return await files.make_directory(path)
            case "remove":
                return await files.remove(path, recursive=args["recursive"])
            case "rename":
                return await files.rename(path, WORKSPACE / args["to"])
            case "symlink":
                return await files.symlink(path, args["text"])
            case "chmod":
                return await files.chmod(path, args["mode"] | self._needed(args["path"]))
            case "list":
                found = await files.list(path)
                return [(e.path.name, str(e.type), e.size, e.link) for e in found]
            case "command" | "command-remove":
                d = self._toy if model else self.case.dialect
                name = args["path"]
                script = d.save(name, data) if step.do == "command" else d.remove(name)
                result = await instance.exec(ExecRequest(shell=script, timeout_seconds=20))
                return result.exit_code == 0
        raise CheckFailed(f"there is no step {step.do!r}")

    async def audit(self) -> None:
        expected = expected_tree(self.model.body.world)
        equal(await self._walk(), expected, "the workspace by list and read, against the model")
        if self.case.capabilities.portable_checkpoint:
            scan = await self.case.instance.tree.scan()
            found = {entry.path: (str(entry.type), entry.link) for entry in scan.entries}
            wanted = {path: (facts[0], facts[2]) for path, facts in expected.items()}
            equal(found, wanted, "the workspace by scan, against the model")
        witness = self.case.site.lane.witness(self.case.inner)
        if witness is not None:
            for path, facts in expected.items():
                if facts[0] == "file":
                    data = await witness.read(WORKSPACE / path)
                    equal(data, facts[1], f"{path!r} by the witness, against the model")

    async def _walk(self) -> dict[str, tuple[Any, ...]]:
        found: dict[str, tuple[Any, ...]] = {}
        pending = [WORKSPACE]
        while pending:
            for entry in await self.case.files.list(pending.pop()):
                name = str(entry.path.relative_to(WORKSPACE))
                data = None
                if entry.type is FileType.FILE:
                    data = await self.case.files.read(entry.path)
                elif entry.type is FileType.DIRECTORY:
                    pending.append(entry.path)
                found[name] = (str(entry.type), data, entry.link)
        return found


def expected_tree(world: World) -> dict[str, tuple[Any, ...]]:
    """Return a model's workspace: type, content and link text by path."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, node in world.walk():
        if isinstance(node, File):
            found[path] = ("file", bytes(node.data), None)
        elif isinstance(node, Dir):
            found[path] = ("directory", None, None)
        elif isinstance(node, Link):
            found[path] = ("symlink", None, node.text)
    return found


def _said(outcome: Any) -> str:
    return type(outcome).__name__ if isinstance(outcome, PinfoldError) else short(outcome)


async def _one(data: bytes) -> AsyncIterator[bytes]:
    middle = len(data) // 2
    for piece in (data[:middle], data[middle:]):
        yield piece
