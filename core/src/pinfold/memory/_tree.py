"""The objects of `pinfold.memory` as one tree (CP)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from pinfold.errors import Conflict
from pinfold.memory._nodes import Directory, File, Link, Node, Store
from pinfold.provider import (
    Blob,
    Entry,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Tree,
    check_entries,
    leads_out,
)

__all__ = ["MemoryTree"]

PIECE = 1 << 20


class MemoryTree(Tree):
    """A tree in memory; what has not changed is known by the store's count of changes."""

    def __init__(self, store: Store, busy: Callable[[], bool] = lambda: False) -> None:
        self._store = store
        self._busy = busy

    def _state(self) -> ScanState:
        return ScanState(token=f"{id(self._store):x}.{self._store.version}")

    async def scan(self, since: ScanState | None = None) -> Scan:
        state = self._state()
        if since is not None and since.token == state.token:
            return Scan(state=state, unchanged=True)
        return Scan(
            entries=tuple(_entry(path, node) for path, node in self._store.walk()), state=state
        )

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        nodes = dict(self._store.walk())
        for entry in entries:
            node = nodes.get(entry.path)
            if not isinstance(node, File):
                yield Blob(path=entry.path, data=b"", last=True)
                continue
            data = node.data
            for start in range(0, max(len(data), 1), PIECE):
                last = start + PIECE >= len(data)
                yield Blob(
                    path=entry.path,
                    data=data[start : start + PIECE],
                    last=last,
                    digest=node.digest if last else "",
                )

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        if self._busy():
            raise Conflict("a command is running", hint="wait for it, or end it")
        check_entries(plan.entries)
        root = Directory(mode=self._store.root.mode)
        directories = {"": root}
        for entry in plan.entries:
            above, _, name = entry.path.rpartition("/")
            node: Node
            if entry.type is FileType.DIRECTORY:
                node = directories[entry.path] = Directory(mode=entry.mode)
            elif entry.type is FileType.SYMLINK:
                node = Link(entry.link or "")
            else:
                data = b"".join([chunk async for chunk in plan.fetch(entry.digest)])
                node = File(data, entry.mode)
            directories[above].children[name] = node
            node.mtime_ns = entry.mtime_ns or node.mtime_ns
        # The one step that shows: before it the old tree stands, after it the new one.
        self._store.root = root
        self._store.version += 1
        return RestoreReport(
            escaping_links=tuple(
                entry.path
                for entry in plan.entries
                if entry.type is FileType.SYMLINK and leads_out(entry.path, entry.link or "")
            ),
            state=self._state(),
        )

    async def recover(self) -> bool:
        return False  # a restore is one assignment: there is nothing to interrupt


def _entry(path: str, node: Node) -> Entry:
    if isinstance(node, File):
        return Entry(
            path=path,
            type=FileType.FILE,
            mode=node.mode,
            size=len(node.data),
            digest=node.digest,
            mtime_ns=node.mtime_ns,
        )
    if isinstance(node, Link):
        return Entry(
            path=path, type=FileType.SYMLINK, mode=0o777, link=node.text, mtime_ns=node.mtime_ns
        )
    return Entry(path=path, type=FileType.DIRECTORY, mode=node.mode, mtime_ns=node.mtime_ns)
