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
from pinfold.posix._bulk import SMALL_BYTES, Bulk, Content, Operation, batched, groups
from pinfold.posix._call import ProgramFailed, Shell
from pinfold.posix._layout import Layout, Place, temporary
from pinfold.posix._probe import Tools
from pinfold.posix._records import Record
from pinfold.posix._trouble import error_of
from pinfold.provider import Files, FileStat, FileType, TreeItem
from pinfold.spec import Limits

__all__ = ["ManyFiles", "errors", "file_stat", "once", "too_large"]

#: What is collected before it is written (`upload_tree`).
_FLUSH_BYTES: Final = 8 * 1024 * 1024
_FLUSH_ITEMS: Final = 1000


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
        first: dict[tuple[str, str], int] = {}
        for at, place in places.items():
            first.setdefault(place.args, at)
        order = builtins.list(first.values())
        items = [(*places[at].args, 0) for at in order]
        async with aclosing(self._bulk.small(items, self._limits.read_bytes)) as found:
            async for index, data in found:
                results[order[index]] = data
        for at, place in places.items():
            earlier = first[place.args]
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
        else:
            await self._plant(new)

    async def _plant(self, files: Sequence[_New]) -> None:
        """Write many files, in as few round trips as their names need."""
        wanted: dict[tuple[str, bool], dict[tuple[str, str], _New]] = {}
        for new in files:
            root = self._layout.root_of(new.place.directory)
            wanted.setdefault((root, new.mode is None), {})[new.place.args] = new
        done = False
        for (root, keep), by_args in wanted.items():
            numbered = ((at, *args) for at, args in enumerate(by_args))
            members = builtins.list(by_args.values())
            for batch in batched(builtins.list(groups(numbered))):
                operations, contents = [], []
                for number, group in enumerate(batch):
                    operations.append(Operation("files", group.directory, group.names, str(number)))
                    for name, at in zip(group.names, group.at, strict=True):
                        new = members[at]
                        mode = 0o644 if new.mode is None else new.mode
                        contents.append(Content(f"{number}/{name}", len(new.data), new.data, mode))
                try:
                    failures = await self._bulk.apply(
                        root, operations, contents, staged=temporary(), keep=keep, clean=True
                    )
                    for failure in failures:
                        for name in failure.names:
                            new = by_args[failure.operation.directory, name]
                            await self.write(new.place.path, new.data, mode=new.mode)
                except ProgramFailed as exc:
                    error = error_of(exc, members[batch[0].at[0]].place.path, "write")
                    raise _after(error, done=done) from None
                except PinfoldError as exc:
                    raise _after(exc, done=True) from None
                done = True

    async def download_tree(self, path: PurePosixPath | str) -> AsyncIterator[TreeItem]:
        if not (self._tools.find and self._tools.tar):
            async for plain in super().download_tree(path):
                yield plain
            return
        place = self._layout.place(path)
        with errors(place.path, "read the tree"):
            _, records, _ = await self._bulk.walk(place)
        records.sort(key=lambda record: record.name)
        root = await self.stat(path)
        yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY, mode=root.mode)
        for record in records:
            if record.type in {FileType.DIRECTORY, FileType.SYMLINK}:
                yield _tree_item(record)
        files = [record for record in records if record.type is FileType.FILE]
        places = [self._layout.place(place.path / record.name) for record in files]
        items = [(*inner.args, r.size) for inner, r in zip(places, files, strict=True)]
        left = dict(enumerate(files))
        async with aclosing(self._bulk.small(items)) as found:
            async for index, data in found:
                record = attrs.evolve(left.pop(index), size=len(data))
                yield _tree_item(record, once(data))
        for index, record in left.items():
            yield _tree_item(record, self.download(places[index].path))

    async def upload_tree(
        self,
        path: PurePosixPath | str,
        items: AsyncIterable[TreeItem] | Iterable[TreeItem],
    ) -> int:
        if not self._tools.tar:
            return await super().upload_tree(path, items)
        root = self._layout.place(path).path
        await self.make_directory(root)
        batch, count = _Planting(), 0
        modes: builtins.list[tuple[Place, int]] = []
        async with aclosing(each_of(items)) as each:
            async for item in each:
                if item.path.is_absolute():
                    raise InvalidArgument(f"a path in a tree is relative, not {str(item.path)!r}")
                place = self._layout.place(root / item.path)
                if item.type is FileType.FILE and item.size > SMALL_BYTES:
                    await self._flush(batch)
                    batch = _Planting()
                    await self.upload(place.path, item.chunks or once(b""), mode=item.mode)
                else:
                    await batch.add(place, item)
                if item.type is FileType.DIRECTORY and item.mode is not None:
                    modes.append((place, item.mode))
                count += 1
                if batch.is_full:
                    await self._flush(batch)
                    batch = _Planting()
        await self._flush(batch)
        # Last, and the deepest first: a directory may be closed to writes.
        modes.sort(key=lambda pair: len(pair[0].path.parts), reverse=True)
        await self._operate(
            [
                Operation("chmod", place.directory, (place.name,), f"{mode:o}")
                for place, mode in modes
            ]
        )
        return count

    async def _flush(self, batch: _Planting) -> None:
        directories = groups((0, *place.args) for place in batch.directories)
        await self._operate([Operation("mkdir", g.directory, g.names) for g in directories])
        await self._plant(batch.files)
        await self._operate(
            [Operation("link", place.directory, (place.name,), text) for place, text in batch.links]
        )

    async def _operate(self, operations: Sequence[Operation]) -> None:
        for batch in batched(operations):
            for failure in await self._bulk.apply(str(self._layout.root), batch):
                operation = failure.operation
                where = PurePosixPath(operation.directory, failure.names[0])
                raise error_of(failure.why, self._layout.caller(where), operation.kind)


@attrs.frozen
class _New:
    """A file to be written; mode None keeps the one that is there."""

    place: Place
    data: bytes
    mode: int | None


@attrs.define
class _Planting:
    """What travels together."""

    directories: list[Place] = attrs.field(factory=list)
    links: list[tuple[Place, str]] = attrs.field(factory=list)
    files: list[_New] = attrs.field(factory=list)
    held: int = 0

    async def add(self, place: Place, item: TreeItem) -> None:
        if item.type is FileType.DIRECTORY:
            self.directories.append(place)
        elif item.type is FileType.SYMLINK:
            self.links.append((place, item.link or ""))
        else:
            chunks = item.chunks or once(b"")
            async with iterating(chunks):
                data = b"".join([chunk async for chunk in chunks])
            self.files.append(_New(place, data, item.mode))
            self.held += len(data)

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


def _tree_item(record: Record, chunks: AsyncIterable[bytes] | None = None) -> TreeItem:
    return TreeItem(
        path=PurePosixPath(record.name),
        type=record.type,
        mode=record.mode,
        size=record.size if chunks is not None else 0,
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
