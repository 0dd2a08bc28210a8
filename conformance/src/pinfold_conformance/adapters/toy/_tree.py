"""The workspace of the reference adapter as one value (CP)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256

import attrs

from pinfold.errors import Conflict, InvalidArgument, NoSpace
from pinfold.provider import (
    Blob,
    Entry,
    Features,
    FileMark,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Tree,
)
from pinfold.spec import Limits
from pinfold_conformance.adapters.toy._world import Dir, Fifo, File, Link, Node, World

__all__ = ["ToyTree", "leads_out"]

_PIECE = 1 << 20
_RACY_NS = 2_000_000_000


def leads_out(path: str, text: str) -> bool:
    """Say whether a link at `path` leads out of the workspace by its text."""
    if text.startswith("/"):
        return text != "/workspace" and not text.startswith("/workspace/")
    depth = path.count("/")
    for part in text.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False


@attrs.define(kw_only=True)
class ToyTree(Tree):
    """A restore stages the whole tree and swaps it in with one assignment.

    Attributes:
        busy: a foreground exec runs.
        end_jobs: ends background processes and says whether there were any.
        ready: lets the world catch up with the clock.
    """

    world: World
    features: Features
    limits: Limits
    busy: Callable[[], bool]
    end_jobs: Callable[[], bool]
    ready: Callable[[], None]

    async def scan(self, since: ScanState | None = None) -> Scan:
        self.ready()
        started = time.time_ns()
        entries, skipped, marks = [], [], {}
        for path, node in self.world.walk():
            if isinstance(node, Fifo):
                skipped.append(path)
                continue
            entry = self.entry(path, node, since)
            entries.append(entry)
            if isinstance(node, File):
                marks[path] = _mark(node, entry.digest)
        return Scan(
            entries=tuple(entries),
            skipped=tuple(skipped),
            state=ScanState(started_ns=started, files=marks),
        )

    def entry(self, path: str, node: Node, since: ScanState | None) -> Entry:
        """Return what a checkpoint holds of a node."""
        if isinstance(node, Dir):
            return Entry(path=path, type=FileType.DIRECTORY, mode=node.mode, mtime_ns=node.mtime_ns)
        if isinstance(node, Link):
            return Entry(
                path=path,
                type=FileType.SYMLINK,
                mode=0o777,
                link=node.text,
                mtime_ns=node.mtime_ns,
            )
        assert isinstance(node, File)  # noqa: S101 - FIFOs are skipped before
        return Entry(
            path=path,
            type=FileType.FILE,
            mode=node.mode,
            size=len(node.data),
            digest=self.digest(path, node, since),
            mtime_ns=node.mtime_ns,
        )

    def digest(self, path: str, node: File, since: ScanState | None) -> str:
        """Return a file's digest, read anew unless CP-7 calls it unchanged."""
        if since is not None and (mark := since.files.get(path)) is not None:
            same = mark == _mark(node, mark.digest)
            if same and node.ctime_ns < since.started_ns - _RACY_NS:
                return mark.digest
        return sha256(node.data).hexdigest()

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        self.ready()
        for entry in entries:
            node = dict(self.world.walk()).get(entry.path)
            if not isinstance(node, File):
                yield Blob(path=entry.path, data=b"", last=True)
                continue
            data = bytes(node.data)
            for start in range(0, max(1, len(data)), _PIECE):
                last = start + _PIECE >= len(data)
                yield Blob(
                    path=entry.path,
                    data=data[start : start + _PIECE],
                    last=last,
                    digest=sha256(data).hexdigest() if last else "",
                )

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        self.ready()
        if self.busy():
            raise Conflict("a command is running", hint="wait for it, or end it")
        self.check(plan)
        root = await self.stage(plan)
        if self.busy():  # one may have begun while the contents were fetched
            raise Conflict("a command is running", hint="wait for it, or end it")
        ended = self.end_jobs()
        self.world.root.children["workspace"] = root
        return RestoreReport(
            escaping_links=tuple(
                entry.path
                for entry in plan.entries
                if entry.link is not None and leads_out(entry.path, entry.link)
            ),
            processes_ended=ended,
        )

    def check(self, plan: RestorePlan) -> None:
        """Refuse, before anything is touched, what is hostile or can't be represented."""
        directories, seen = {""}, set()
        for entry in plan.entries:
            parts = entry.path.split("/")
            above = "/".join(parts[:-1])
            if not all(parts) or "." in parts or ".." in parts or "\0" in entry.path:
                raise InvalidArgument(f"the tree has a hostile path: {entry.path!r}")
            if above not in directories or entry.path in seen:
                raise InvalidArgument(f"the tree has no sound place for {entry.path!r}")
            if not self.features.symlinks and entry.type is FileType.SYMLINK:
                raise InvalidArgument(f"there are no symbolic links here: {entry.path!r}")
            if not self.features.non_utf8_names and not _is_utf8(entry.path):
                raise InvalidArgument(f"names are UTF-8 here: {entry.path!r}")
            seen.add(entry.path)
            if entry.type is FileType.DIRECTORY:
                directories.add(entry.path)
        size = sum(entry.size for entry in plan.entries)
        if self.limits.workspace_bytes is not None and size > self.limits.workspace_bytes:
            raise NoSpace(f"no room for {size} bytes")

    async def stage(self, plan: RestorePlan) -> Dir:
        """Return the new tree, with every content fetched."""
        root = Dir(mode=self.world.workspace.mode)
        directories = {"": root}
        for entry in plan.entries:
            above, _, name = entry.path.rpartition("/")
            node: Node
            if entry.type is FileType.DIRECTORY:
                node = directories[entry.path] = Dir(mode=entry.mode)
            elif entry.type is FileType.SYMLINK:
                node = Link(text=entry.link or "")
            else:
                data = bytearray()
                async for chunk in plan.fetch(entry.digest):
                    data += chunk
                node = File(data=data, mode=entry.mode)
            if not self.features.modes:
                node.mode = 0o755 if isinstance(node, Dir) else 0o644
            node.mtime_ns = entry.mtime_ns or node.mtime_ns
            directories[above].children[name] = node
        return root

    async def recover(self) -> bool:
        return False  # one assignment: nothing to interrupt


def _mark(node: File, digest: str) -> FileMark:
    return FileMark(len(node.data), node.mtime_ns, node.ctime_ns, node.inode, digest)


def _is_utf8(text: str) -> bool:
    return not any("\udc80" <= char <= "\udcff" for char in text)
