"""Many files in few round trips: batches and trees (contract section 5)."""

from __future__ import annotations

import builtins
from abc import ABC
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from pinfold._tasks import each_of, iterating
from pinfold.errors import Effect, InvalidArgument, IsADirectory, PinfoldError, TooLarge
from pinfold.posix._bulk import SMALL_BYTES, Bulk, Content, Failure, Operation, batched, groups
from pinfold.posix._call import ProgramFailed, Shell
from pinfold.posix._layout import Layout, Place, temporary
from pinfold.posix._probe import Tools
from pinfold.posix._records import Record
from pinfold.posix._trouble import error_of
from pinfold.posix._walk import walk
from pinfold.provider import Files, FileStat, FileType, TreeItem
from pinfold.spec import Limits

__all__ = ["ManyFiles", "errors", "file_stat", "once", "too_large"]

#: What is collected before it is written (`upload_tree`).
_FLUSH_BYTES: Final = 8 * 1024 * 1024
_FLUSH_ITEMS: Final = 5000


class ManyFiles(Files, ABC):
    """What `ShellFiles` does for many files at once; one at a time is left to it."""

    def __init__(self, shell: Shell, layout: Layout, tools: Tools, limits: Limits) -> None:
        self._shell = shell
        self._layout = layout
        self._tools = tools
        self._limits = limits
        self._bulk = Bulk(shell, tools)

    def _inner(self, path: PurePosixPath | str, doing: str, refusal: type[PinfoldError]) -> Place:
        place = self._layout.place(path)
        if place.is_root:
            raise refusal(
                f"can't {doing} {str(path)!r}: it is the workspace or a writable root itself",
                hint="name something in it",
                details={"path": str(path)},
            )
        return place

    def _fits(self, path: PurePosixPath | str, size: int) -> None:
        limit = self._limits.file_bytes
        if limit is not None and size > limit:
            raise TooLarge(
                f"can't write {str(path)!r}: this target's files hold at most {limit} bytes",
                details={"path": str(path), "limit": limit},
            )

    def _places(
        self, paths: Sequence[PurePosixPath | str]
    ) -> tuple[builtins.list[Any], dict[int, Place]]:
        results: builtins.list[Any] = [None] * len(paths)
        places: dict[int, Place] = {}
        for at, path in enumerate(paths):
            try:
                places[at] = self._layout.place(path)
            except PinfoldError as exc:
                results[at] = exc
        return results, places

    async def stat_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[FileStat | PinfoldError]:
        results, places = self._places(paths)
        order = builtins.list(places)
        found = await self._bulk.stat([places[at].args for at in order])
        for at, fact in zip(order, found, strict=True):
            path = places[at].path
            results[at] = (
                error_of(fact, path, "stat")
                if isinstance(fact, ProgramFailed)
                else file_stat(path, fact)
            )
        return [result for result in results if result is not None]

    async def read_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[bytes | PinfoldError]:
        if not self._tools.tar:
            return await super().read_many(paths)
        results, places = self._places(paths)
        first: dict[str, int] = {}
        for at, place in places.items():
            first.setdefault(place.text, at)
        order = builtins.list(first.values())
        items = [(places[at].directory, places[at].name, 0) for at in order]
        async with aclosing(self._bulk.small(items, self._limits.read_bytes)) as found:
            async for index, data in found:
                results[order[index]] = data
        for at, place in places.items():
            earlier = first[place.text]
            if results[earlier] is None:
                # A link, or something else: this way tells what.
                results[earlier] = await _or_error(self.read(place.path))
            results[at] = results[earlier]
        return [result for result in results if result is not None]

    async def write_many(self, files: Mapping[PurePosixPath | str, bytes]) -> None:
        new = []
        for path, data in files.items():
            self._fits(path, len(data))
            new.append(_New(self._inner(path, "write", IsADirectory), data, None))
        if not self._tools.tar:
            await super().write_many(files)
            return
        by_root: dict[str, builtins.list[_New]] = {}
        for each in new:
            by_root.setdefault(self._layout.root_of(each.place.directory), []).append(each)
        done = False
        for root, each_new in by_root.items():
            await self._do(root, _writes(each_new), done=done)
            done = True

    async def _do(self, root: str, steps: Iterable[_Step], *, done: bool = False) -> None:
        """Do many things in order, in as few round trips as their names need.

        Args:
            root: the physical root that they are in.
            steps: what.
            done: something was done before, by the same call.
        """
        for batch in batched(steps):
            contents = [
                Content(
                    f"{number}/{new.place.name}",
                    len(new.data),
                    new.data,
                    0o644 if new.mode is None else new.mode,
                )
                for number, step in enumerate(batch)
                for new in step.files
            ]
            operations = [
                attrs.evolve(step.operation, extra=str(number)) if step.files else step.operation
                for number, step in enumerate(batch)
            ]
            staged = temporary() if contents else ""
            try:
                failures = await self._bulk.apply(
                    root, operations, contents, staged=staged, clean=bool(contents)
                )
                for failure in failures:
                    await self._settle(failure, batch)
            except ProgramFailed as exc:
                error = error_of(exc, self._layout.caller(batch[0].path), "write")
                raise _after(error, done=done) from None
            except PinfoldError as exc:
                raise _after(exc, done=True) from None
            done = True

    async def _settle(self, failure: Failure, batch: Sequence[_Step]) -> None:
        """Write by itself what could not be written with others; raise what else has failed."""
        operation = failure.operation
        if operation.kind not in {"files", "contents"}:
            where = PurePosixPath(operation.directory, failure.names[0])
            raise error_of(failure.why, self._layout.caller(where), operation.kind)
        names = set(failure.names)
        for new in batch[int(operation.extra)].files:
            if new.place.name in names:
                await self.write(new.place.path, new.data, mode=new.mode)

    async def download_tree(self, path: PurePosixPath | str) -> AsyncIterator[TreeItem]:
        if not (self._tools.find and self._tools.tar):
            async for plain in super().download_tree(path):
                yield plain
            return
        place = self._layout.place(path)
        with errors(place.path, "read the tree"):
            _, records, _ = await walk(self._shell, self._tools, place)
        records.sort(key=lambda record: record.name)
        root = await self.stat(path)
        # Through a link to a directory it is the directory that is meant.
        mode = root.mode if root.type is FileType.DIRECTORY else None
        yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY, mode=mode)
        for record in records:
            if record.type in {FileType.DIRECTORY, FileType.SYMLINK}:
                yield _tree_item(record)
        files = [record for record in records if record.type is FileType.FILE]
        items = [(*place.below(record.name), record.size) for record in files]
        left = dict(enumerate(files))
        async with aclosing(self._bulk.small(items)) as found:
            async for index, data in found:
                yield _tree_item(left.pop(index), once(data), len(data))
        for record in left.values():
            yield _tree_item(record, self.download(place.path / record.name), record.size)

    async def upload_tree(
        self,
        path: PurePosixPath | str,
        items: AsyncIterable[TreeItem] | Iterable[TreeItem],
    ) -> int:
        if not self._tools.tar:
            return await super().upload_tree(path, items)
        top = self._layout.place(path)
        root = self._layout.root_of(top.directory)
        await self.make_directory(top.path)
        batch, count, done = _Planting(), 0, False
        modes: dict[Place, int] = {}
        async with aclosing(each_of(items)) as each:
            async for item in each:
                if item.path.is_absolute():
                    raise InvalidArgument(f"a path in a tree is relative, not {str(item.path)!r}")
                place = self._layout.place(top.path / item.path)
                large = item.type is FileType.FILE and item.size > SMALL_BYTES
                if large or batch.is_full or batch.is_on_the_way_to(place):
                    await self._do(root, batch.steps(), done=done)
                    batch, done = _Planting(), True
                if large:
                    await self.upload(place.path, item.chunks or once(b""), mode=item.mode)
                else:
                    await batch.add(place, item)
                if item.type is FileType.DIRECTORY and item.mode is not None:
                    modes[place] = item.mode
                count += 1
        await self._do(root, batch.steps(), done=done)
        # Not with the last files: one that could not be written with them is written after them.
        await self._do(root, _closing(modes), done=True)
        return count


@attrs.frozen
class _New:
    """A file to be written; mode None keeps the one that is there."""

    place: Place
    data: bytes
    mode: int | None


@attrs.frozen
class _Step:
    """An operation, with the files that it moves to where they belong."""

    operation: Operation
    files: Sequence[_New] = ()

    @property
    def args(self) -> tuple[str, ...]:
        """The operation's."""
        return self.operation.args

    @property
    def path(self) -> PurePosixPath:
        """Where it is, or begins, in the target."""
        return PurePosixPath(self.operation.directory, self.operation.names[0])


def _writes(files: Iterable[_New]) -> Iterator[_Step]:
    wanted: dict[bool, dict[tuple[str, str], _New]] = {}
    for new in files:
        wanted.setdefault(new.mode is None, {})[new.place.args] = new
    for keep, by_args in wanted.items():
        members = list(by_args.values())
        for group in groups((at, *args) for at, args in enumerate(by_args)):
            operation = Operation("contents" if keep else "files", group.directory, group.names)
            yield _Step(operation, [members[at] for at in group.at])


def _closing(modes: Mapping[Place, int]) -> Iterator[_Step]:
    """Yield the changes of modes, the deepest first: a directory may be closed to writes."""
    alike: dict[tuple[str, int], list[str]] = {}
    for place in sorted(modes, key=lambda place: place.text.count("/"), reverse=True):
        alike.setdefault((place.directory, modes[place]), []).append(place.name)
    for (directory, mode), names in alike.items():
        for group in groups((0, directory, name) for name in names):
            yield _Step(Operation("chmod", directory, group.names, f"{mode:o}"))


@attrs.define
class _Planting:
    """What travels together."""

    directories: list[Place] = attrs.field(factory=list)
    links: dict[PurePosixPath, tuple[Place, str]] = attrs.field(factory=dict)
    files: list[_New] = attrs.field(factory=list)
    held: int = 0

    def is_on_the_way_to(self, place: Place) -> bool:
        """Say whether a link of this batch, which is made last, is a part of a later path."""
        return bool(self.links) and any(
            part in self.links for part in (place.path, *place.path.parents)
        )

    async def add(self, place: Place, item: TreeItem) -> None:
        if item.type is FileType.DIRECTORY:
            self.directories.append(place)
        elif item.type is FileType.SYMLINK:
            self.links[place.path] = place, item.link or ""
        else:
            chunks = item.chunks or once(b"")
            async with iterating(chunks):
                data = b"".join([chunk async for chunk in chunks])
            self.files.append(_New(place, data, item.mode))
            self.held += len(data)

    def steps(self) -> Iterator[_Step]:
        """Yield what makes it all: directories, files in them, links last."""
        filled = {new.place.directory for new in self.files}
        empty = (place for place in self.directories if place.physical not in filled)
        for group in groups((0, *place.args) for place in empty):
            yield _Step(Operation("mkdir", group.directory, group.names))
        yield from _writes(self.files)
        for place, text in self.links.values():
            yield _Step(Operation("link", place.directory, (place.name,), text))

    @property
    def is_full(self) -> bool:
        items = len(self.directories) + len(self.links) + len(self.files)
        return items >= _FLUSH_ITEMS or self.held >= _FLUSH_BYTES


def file_stat(path: PurePosixPath, record: Record) -> FileStat:
    """Return what callers see of a record."""
    return FileStat(
        path=path,
        type=record.type,
        size=0 if record.type is FileType.OTHER else record.size,
        mode=record.mode,
        mtime_ns=record.mtime_ns,
        link=record.link,
    )


def _tree_item(
    record: Record, chunks: AsyncIterable[bytes] | None = None, size: int = 0
) -> TreeItem:
    return TreeItem(
        path=PurePosixPath(record.name),
        type=record.type,
        mode=record.mode,
        size=size,
        link=record.link,
        chunks=chunks,
    )


@contextmanager
def errors(path: PurePosixPath, doing: str) -> Iterator[None]:
    """Turn a program's failure into a typed error."""
    try:
        yield
    except ProgramFailed as exc:
        raise error_of(exc, path, doing) from None


async def _or_error(reading: Awaitable[bytes]) -> bytes | PinfoldError:
    try:
        return await reading
    except PinfoldError as exc:
        return exc


def _after(error: PinfoldError, *, done: bool) -> PinfoldError:
    if done and error.effect is Effect.NONE:
        error.effect = Effect.DONE
    return error


def too_large(path: PurePosixPath | str, limit: int) -> TooLarge:
    """Return the error for a read that would hold too much."""
    return TooLarge(
        f"can't read {str(path)!r} at once: more than {limit} bytes",
        hint="use download, or read a part of it",
        details={"path": str(path), "limit": limit},
    )


async def once(data: bytes) -> AsyncIterator[bytes]:
    """Yield all of it."""
    yield data
