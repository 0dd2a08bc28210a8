"""Restoring a tree, journalled: either tree stands afterwards, whatever happens (CP-2, CP-3).

First everything new is staged in the workspace under names of ours, each blob verified on its way.
Then a journal of what is to be done is put in place by a rename: from then on the restore is
finished, before that it is undone. Every step can be done again.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, get_args

from pinfold._tasks import iterating
from pinfold.errors import CheckpointCorrupt, Conflict, InvalidArgument, Unavailable
from pinfold.posix._bulk import Bulk, Content, Kind, Operation, batched, groups
from pinfold.posix._call import ProgramFailed, Shell
from pinfold.posix._exec import ExecRunner
from pinfold.posix._gate import Gate
from pinfold.posix._guest import COOKIE
from pinfold.posix._layout import TEMPORARY, Layout
from pinfold.posix._probe import Tools
from pinfold.posix._trouble import error_of
from pinfold.provider import (
    Entry,
    Files,
    FileType,
    RestorePlan,
    RestoreReport,
    check_entries,
)
from pinfold.spec import TERM_GRACE_SECONDS, WORKSPACE

if TYPE_CHECKING:
    from pinfold.posix._tree import ShellTree

__all__ = ["Restorer"]

_JOURNAL: Final = f"{TEMPORARY}restore"
_VERSION: Final = 1
_DIRECTORY_MODE: Final = 0o755
#: Without these an owner can't change what is in a directory.
_OWNER: Final = 0o700


class Restorer:
    """Restores the workspace.

    Args:
        shell: runs our programs, past the gate.
        layout: where the workspace is.
        tools: what the target has.
        files: to write and read the journal; past the gate.
        runner: knows whether a command runs.
        gate: closed while a restore is under way.
        mark: the beginning of every cookie of this instance.
    """

    def __init__(
        self,
        shell: Shell,
        layout: Layout,
        tools: Tools,
        files: Files,
        runner: ExecRunner,
        gate: Gate,
        mark: str,
    ) -> None:
        self._shell = shell
        self._root = str(layout.root)
        self._layout = layout
        self._tools = tools
        self._files = files
        self._bulk = Bulk(shell, tools)
        self._runner = runner
        self._gate = gate
        self._mark = mark
        self._swept = False

    async def restore(self, plan: RestorePlan, tree: ShellTree) -> RestoreReport:
        """Make the workspace the plan's tree; as `Tree.restore`."""
        check_restorable(plan.entries)
        if self._runner.running:
            raise Conflict("a command is running: the workspace can't be restored now")
        async with self._gate.closed():
            await self._clear()
            staged: dict[str, tuple[str, str]] = {}
            before = await tree.scan()
            await self._stage(plan, Changes(before.entries, before.skipped, plan.entries), staged)
            ended = await self._end_processes()
            if ended:  # they may have written until now
                before = await tree.scan(before.state)
                changes = Changes(before.entries, before.skipped, plan.entries)
                await self._stage(plan, changes, staged)
            changes = Changes(before.entries, before.skipped, plan.entries)
            steps = list(changes.steps(staged))
            await self._files.write(WORKSPACE / _JOURNAL, _to_json(steps))
            await self._finish(steps)
            state = await tree.state_of(plan.entries)
        return RestoreReport(
            escaping_links=tuple(
                entry.path
                for entry in plan.entries
                if entry.link is not None and self._leads_out(entry)
            ),
            processes_ended=ended,
            state=state,
        )

    async def recover(self) -> bool:
        """Finish or undo an interrupted restore; as `Tree.recover`."""
        names = await self._ours(sweep=not self._swept)
        self._swept = True
        if not any(name.startswith(_JOURNAL) for name in names):
            return False
        if _JOURNAL in names:
            chunks = self._files.download(WORKSPACE / _JOURNAL)
            async with iterating(chunks):
                data = b"".join([chunk async for chunk in chunks])
            await self._finish(_from_json(data))
        else:
            await self._clear()
        return True

    async def _finish(self, steps: Sequence[tuple[str, Operation]]) -> None:
        for staged, operations in _by_stage(steps):
            for batch in batched([self._physical(operation) for operation in operations]):
                try:
                    failures = await self._bulk.apply(self._root, batch, staged=staged)
                except ProgramFailed as exc:
                    raise error_of(exc, WORKSPACE, "restore") from None
                for failure in failures:
                    where = PurePosixPath(failure.operation.directory, failure.names[0])
                    raise error_of(failure.why, self._layout.caller(where), "restore")
        await self._clear()

    async def _stage(
        self, plan: RestorePlan, changes: Changes, staged: dict[str, tuple[str, str]]
    ) -> None:
        """Put the contents of new files where a rename finds them; note which stage and group."""
        new = [entry for entry in changes.new_files if entry.path not in staged]
        if not new:
            return
        stage = f"{_JOURNAL}.{len({name for name, _ in staged.values()})}"
        numbers: dict[str, int] = {}
        contents: list[Content] = []
        for entry in new:
            folder, _, name = entry.path.rpartition("/")
            number = numbers.setdefault(folder, len(numbers))
            contents.append(
                Content(
                    f"{number}/{name}",
                    entry.size,
                    verified(plan, entry),
                    mode=entry.mode,
                    mtime_ns=entry.mtime_ns,
                )
            )
            staged[entry.path] = stage, str(number)
        if not self._tools.tar:
            for entry, content in zip(new, contents, strict=True):
                place = WORKSPACE / stage / content.name
                await self._files.upload(place, verified(plan, entry), mode=content.mode)
            return
        try:
            await self._bulk.apply(self._root, (), contents, times=True, staged=stage)
        except ProgramFailed as exc:
            raise error_of(exc, WORKSPACE, "stage the files of") from None

    async def _end_processes(self) -> bool:
        try:
            return await self._shell.reap(f"{COOKIE}={self._mark}", f"{TERM_GRACE_SECONDS:g}")
        except ProgramFailed as exc:
            raise error_of(exc, WORKSPACE, "end the processes of") from None

    async def _ours(self, *, sweep: bool = False) -> list[str]:
        try:
            said = await self._shell.call(
                "paths", "ours", args=(self._root, "1" if sweep else ""), mutates=sweep
            )
        except ProgramFailed as exc:
            raise error_of(exc, WORKSPACE, "look into") from None
        return said.decode("utf-8", "surrogateescape").split("//\n")[:-1]

    async def _clear(self) -> None:
        """Remove what is staged; the journal first: without it nothing is finished."""
        names = [name for name in await self._ours() if name.startswith(_JOURNAL)]
        for name in sorted(names):
            await self._files.remove(WORKSPACE / name, recursive=True)

    def _physical(self, operation: Operation) -> Operation:
        directory = str(PurePosixPath(self._root, operation.directory))
        return Operation(operation.kind, directory, operation.names, operation.extra)

    def _leads_out(self, entry: Entry) -> bool:
        base = posixpath.join(self._root, posixpath.dirname(entry.path))
        end = posixpath.normpath(posixpath.join(base, entry.link or ""))
        return end != self._root and not end.startswith(f"{self._root}/")


class Changes:
    """What makes one tree of another."""

    def __init__(
        self, before: Sequence[Entry], skipped: Sequence[str], after: Sequence[Entry]
    ) -> None:
        self._before = {entry.path: entry for entry in before}
        self._skipped = skipped
        self._after = {entry.path: entry for entry in after}
        self.new_files = [
            entry
            for entry in after
            if entry.type is FileType.FILE
            and (
                (old := self._before.get(entry.path)) is None
                or old.type is not FileType.FILE
                or old.digest != entry.digest
            )
        ]

    def steps(self, staged: dict[str, tuple[str, str]]) -> Iterator[tuple[str, Operation]]:
        """Yield what is to be done, in order, each with the stage it takes files from."""
        for operation in (*self._opened(), *self._removed(), *self._made()):
            yield "", operation
        for group in groups((0, *_split(entry.path)) for entry in self.new_files):
            by_stage: dict[tuple[str, str], list[str]] = {}
            for name in group.names:
                by_stage.setdefault(staged[_join(group.directory, name)], []).append(name)
            for (stage, number), names in by_stage.items():
                yield stage, Operation("files", group.directory, tuple(names), number)
        for operation in (*self._linked(), *self._moded()):
            yield "", operation

    def _opened(self) -> Iterator[Operation]:
        """Directories that their owner could not change."""
        for entry in self._before.values():
            if entry.type is FileType.DIRECTORY and entry.mode & _OWNER != _OWNER:
                folder, name = _split(entry.path)
                yield Operation("chmod", folder, (name,), f"{entry.mode | _OWNER:o}")

    def _removed(self) -> Iterator[Operation]:
        purged: set[str] = set()
        unlinked: list[str] = []
        for path, entry in self._before.items():
            new = self._after.get(path)
            if any(parent in purged for parent in _parents(path)):
                continue
            if new is None or new.type is not entry.type:
                if entry.type is FileType.DIRECTORY:
                    purged.add(path)
                else:
                    unlinked.append(path)
        unlinked += [p for p in self._skipped if not any(q in purged for q in _parents(p))]
        for kind, paths in (("purge", purged), ("unlink", unlinked)):
            for group in groups((0, *_split(path)) for path in sorted(paths)):
                yield Operation(kind, group.directory, group.names)  # type: ignore[arg-type]

    def _made(self) -> Iterator[Operation]:
        new = [
            e.path for e in self._after.values() if e.type is FileType.DIRECTORY and self._is_new(e)
        ]
        for group in groups((0, *_split(path)) for path in new):
            yield Operation("mkdir", group.directory, group.names)

    def _linked(self) -> Iterator[Operation]:
        for entry in self._after.values():
            if entry.link is not None and (
                self._is_new(entry) or self._before[entry.path].link != entry.link
            ):
                folder, name = _split(entry.path)
                yield Operation("link", folder, (name,), entry.link)

    def _moded(self) -> Iterator[Operation]:
        """Modes last, and the deepest first: a directory may be closed by its own."""
        files, directories = [], []
        new = {entry.path for entry in self.new_files}
        for entry in self._after.values():
            if entry.type is FileType.DIRECTORY:
                old = _DIRECTORY_MODE if self._is_new(entry) else self._before[entry.path].mode
                if old != entry.mode or old & _OWNER != _OWNER:
                    directories.append(entry)
            elif entry.type is FileType.FILE:
                # unpacking may leave out what is beyond the permission bits
                special = entry.path in new and entry.mode & ~0o777
                if special or (
                    entry.path not in new and self._before[entry.path].mode != entry.mode
                ):
                    files.append(entry)
        directories.sort(key=lambda entry: entry.path.count("/"), reverse=True)
        for entries in (files, directories):
            by_mode: dict[tuple[str, int], list[str]] = {}
            for entry in entries:
                folder, name = _split(entry.path)
                by_mode.setdefault((folder, entry.mode), []).append(name)
            for (folder, mode), names in by_mode.items():
                for group in groups((0, folder, name) for name in names):
                    yield Operation("chmod", folder, group.names, f"{mode:o}")

    def _is_new(self, entry: Entry) -> bool:
        old = self._before.get(entry.path)
        return old is None or old.type is not entry.type


def check_restorable(entries: Sequence[Entry]) -> None:
    """Refuse names that a tree can't have, and those that are ours (CP-8).

    Raises:
        InvalidArgument: naming the first of them.
    """
    check_entries(entries)
    for entry in entries:
        if entry.path.rpartition("/")[2].startswith(TEMPORARY):
            raise InvalidArgument(
                f"the tree has an entry that can't be restored: {entry.path!r}: "
                "the name is pinfold's own",
                details={"path": entry.path},
            )


async def verified(plan: RestorePlan, entry: Entry) -> AsyncIterator[bytes]:
    """Yield a file's contents.

    Raises:
        CheckpointCorrupt: at the end, when it was not what the entry says (CP-8).
    """
    sha, size = hashlib.sha256(), 0
    chunks = plan.fetch(entry.digest)
    async with iterating(chunks):
        async for chunk in chunks:
            sha.update(chunk)
            size += len(chunk)
            if size > entry.size:
                break
            yield chunk
    if size != entry.size or sha.hexdigest() != entry.digest:
        raise CheckpointCorrupt(
            f"the content of {entry.path!r} is damaged",
            hint="other checkpoints still work",
            details={"digest": entry.digest, "path": entry.path},
        )


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _by_stage(
    steps: Iterable[tuple[str, Operation]],
) -> Iterator[tuple[str, list[Operation]]]:
    stage = ""
    operations: list[Operation] = []
    for name, operation in steps:
        if name != stage and operations:
            yield stage, operations
            operations = []
        stage = name
        operations.append(operation)
    if operations:
        yield stage, operations


def _to_json(steps: Iterable[tuple[str, Operation]]) -> bytes:
    rows = [[stage, op.kind, op.directory, list(op.names), op.extra] for stage, op in steps]
    return json.dumps({"version": _VERSION, "steps": rows}).encode()


def _from_json(data: bytes) -> list[tuple[str, Operation]]:
    """Read a journal, which the guest may have written: it can do no more than a restore could."""
    try:
        journal = json.loads(data)
        if journal["version"] != _VERSION:
            raise ValueError(f"its version is {journal['version']}")
        return [_step(*row) for row in journal["steps"]]
    except (ValueError, TypeError, KeyError) as exc:
        raise Unavailable(
            f"a restore was interrupted, and its journal can't be read: {exc}",
            hint="restore a checkpoint into a new sandbox",
            retryable=False,
        ) from None


def _step(stage: Any, kind: Any, directory: Any, names: Any, extra: Any) -> tuple[str, Operation]:
    texts = [stage, directory, extra, *names]
    if kind not in get_args(Kind) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a step is malformed")
    for part in (*directory.split("/"), *names, stage):
        if part in {".", ".."} or "\0" in part or ("/" in part):
            raise ValueError("a step has a name that leads elsewhere")
    if directory.startswith("/") or (stage and not stage.startswith(_JOURNAL)):
        raise ValueError("a step leads elsewhere")
    return stage, Operation(kind, directory, tuple(names), extra)
