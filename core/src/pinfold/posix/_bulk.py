"""Many names in one round trip: facts, contents, changes."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from typing import Final, Literal, Protocol, TypeVar

import attrs

from pinfold._tasks import iterating
from pinfold.posix._call import CHUNK, ProgramFailed, Shell
from pinfold.posix._probe import Tools
from pinfold.posix._records import Record, from_stat
from pinfold.posix._tar import END, Reader, folder, header, padding
from pinfold.provider import FileType

__all__ = [
    "SMALL_BYTES",
    "Bulk",
    "Content",
    "Failure",
    "Operation",
    "batched",
    "batched_names",
    "groups",
]

#: Files up to this size travel together; so many bytes of them are held at a time.
SMALL_BYTES: Final = 256 * 1024
_HELD_BYTES: Final = 8 * 1024 * 1024
#: Bytes of arguments in one round trip; a transport may pass all of them as one string.
_BATCH_BYTES: Final = 64 * 1024
#: Digits of a SHA-256.
_HEX: Final = 64

Kind = Literal["unlink", "purge", "mkdir", "link", "chmod", "files", "contents"]


@attrs.frozen
class Group:
    """Names in one directory; `at` are their places in the caller's sequence."""

    directory: str
    names: tuple[str, ...]
    at: tuple[int, ...]

    @property
    def args(self) -> tuple[str, str]:
        """Two arguments of a program: a name holds no slash, so that slashes can join them."""
        return self.directory, "/".join(self.names)


@attrs.frozen
class Operation:
    """One thing to be done to names in a directory, as `apply.sh` takes it.

    `extra` is the text of a link, the octal mode for chmod, the staged group's number for files and
    contents. `files` replace what is there; `contents` take on its mode, and what is there and no
    file is left to the caller.
    """

    kind: Kind
    directory: str
    names: tuple[str, ...]
    extra: str = ""

    @property
    def args(self) -> tuple[str, str, str, str]:
        """Four arguments of `apply.sh`."""
        return self.kind, self.directory, "/".join(self.names), self.extra


@attrs.frozen
class Content:
    """A file on its way into the target: its name in the staged directory, and its bytes."""

    name: str
    size: int
    chunks: bytes | AsyncIterable[bytes]
    mode: int = 0o644
    mtime_ns: int = 0


@attrs.frozen
class Failure:
    """What was not done: names of an operation, and why; `odd` means that it is the caller's."""

    operation: Operation
    names: tuple[str, ...]
    why: ProgramFailed


class _HasArgs(Protocol):
    @property
    def args(self) -> tuple[str, ...]: ...


_Item = TypeVar("_Item", bound=_HasArgs)


def groups(items: Iterable[tuple[int, str, str]]) -> Iterator[Group]:
    """Sort (place, directory, name) by directory, into groups that fit into a batch."""
    by_directory: dict[str, list[tuple[int, str]]] = {}
    for at, directory, name in items:
        by_directory.setdefault(directory, []).append((at, name))
    for directory, members in by_directory.items():
        start = size = 0
        for index, (_, name) in enumerate(members):
            size += _length(name)
            if size > _BATCH_BYTES // 2 and index > start:
                yield _group(directory, members[start:index])
                start, size = index, _length(name)
        yield _group(directory, members[start:])


def _group(directory: str, members: Sequence[tuple[int, str]]) -> Group:
    return Group(directory, tuple(name for _, name in members), tuple(at for at, _ in members))


def _length(text: str) -> int:
    if text.isascii():
        return len(text) + 1
    return len(text.encode("utf-8", "surrogateescape")) + 1


def batched(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    """Cut things, in order, into lists whose arguments fit into one round trip."""
    batch: list[_Item] = []
    size = 0
    for item in items:
        length = sum(_length(arg) for arg in item.args)
        if batch and size + length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


def batched_names(names: Iterable[str]) -> Iterator[list[str]]:
    """Cut names, in order, into lists that fit into one round trip each."""
    batch: list[str] = []
    size = 0
    for name in names:
        if batch and size + _length(name) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += _length(name)
    if batch:
        yield batch


def _flat(items: Iterable[_HasArgs]) -> tuple[str, ...]:
    return tuple(arg for item in items for arg in item.args)


class Bulk:
    """Our programs for many names.

    Args:
        shell: runs them.
        tools: what the target has.
    """

    def __init__(self, shell: Shell, tools: Tools) -> None:
        self._shell = shell
        self._tools = tools

    async def stat(self, items: Sequence[tuple[str, str]]) -> list[Record | ProgramFailed]:
        """Return facts about names, each given with its directory; links are not followed."""
        found: list[Record | ProgramFailed] = [ProgramFailed("not_found", "")] * len(items)
        numbered = ((at, directory, name) for at, (directory, name) in enumerate(items))
        for batch in batched(groups(numbered)):
            said = await self._shell.call("paths", "stat", args=_flat(batch))
            text = said.decode("utf-8", "surrogateescape")
            for group in batch:
                line, _, text = text.partition("\n")
                code = line.removeprefix("in ")
                if code == "ok":
                    records, text = from_stat(text)
                    by_name = {record.name: record for record in records}
                else:
                    by_name = {}
                for at, name in zip(group.at, group.names, strict=True):
                    if name in by_name:
                        found[at] = by_name[name]
                    elif code != "ok":
                        found[at] = ProgramFailed(code, "")
        return found

    async def small(
        self, items: Sequence[tuple[str, str, int]], largest: int = SMALL_BYTES
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield places and contents of those small files that are certainly what the names mean.

        Args:
            items: directory, name and size, each name once. What does not come is the caller's: it
                is something else, gone, larger, or was swapped while it was read.
            largest: files beyond it don't come.
        """
        fitting = [(at, item) for at, item in enumerate(items) if item[2] <= largest]
        while fitting:
            total = count = 0
            while count < len(fitting) and (total <= _HELD_BYTES or not count):
                total += fitting[count][1][2]
                count += 1
            run, fitting = fitting[:count], fitting[count:]
            numbered = ((at, directory, name) for at, (directory, name, _) in run)
            for batch in batched(groups(numbered)):
                stream = self._shell.stream(
                    "paths", "pack", args=(self._tools.tar_blocks, *_flat(batch))
                )
                async with aclosing(stream):
                    reader = Reader(stream)
                    for group in batch:
                        if await reader.line() == "in ok":
                            for at, data in await _unpacked(reader, group, largest):
                                yield at, data

    async def hash(
        self, items: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[tuple[int, str | None, Record | None]]:
        """Yield places, SHA-256 of contents, and facts as they were when that was read.

        Args:
            items: directory and name, each name once. What does not come is the caller's: others
                changed its directory meanwhile.

        Yields:
            No digest for what is no file, or can't be read; no facts for what is gone.
        """
        plain = ((at, *item) for at, item in enumerate(items) if item[1] != "-")  # that is stdin
        for batch in batched(groups(plain)):
            said = await self._shell.call("paths", "hash", args=_flat(batch))
            text = said.decode("utf-8", "surrogateescape")
            for group in batch:
                found, text = _hashed(group, text)
                for each in found:
                    yield each

    async def apply(
        self,
        root: str,
        operations: Sequence[Operation],
        contents: Sequence[Content] = (),
        *,
        times: bool = False,
        staged: str = "",
        clean: bool = False,
    ) -> list[Failure]:
        """Do many things, in order.

        Args:
            root: the physical root that holds the staged directory.
            operations: all go in one round trip; see `batched`.
            contents: unpacked into the staged directory first, each below its group's number.
            times: they keep their times.
            staged: the staged directory's name.
            clean: the staged directory is removed in the end.

        Returns:
            What was not done.

        Raises:
            ProgramFailed: nothing was done.
            OutcomeUnknown: some may have been done.
        """
        flags = (
            ("p" if times else "m") if contents else "",
            "1" if clean else "",
            "1" if self._tools.rm_by_descriptor else "",
        )
        answer = await self._shell.ask(
            "paths",
            "apply",
            args=(root, staged, *flags, *_flat(operations)),
            stdin=_archive(contents) if contents else None,
            mutates=True,
        )
        text = answer.said.decode("utf-8", "surrogateescape")
        failures = []
        for operation in operations:
            while text.startswith("odd "):
                name, _, text = text[4:].partition("//\n")
                failures.append(Failure(operation, (name,), ProgramFailed("odd", "")))
            line, _, text = text.partition("\n")
            code = line.removeprefix("in ")
            if code != "ok":
                failed = ProgramFailed(code, answer.trouble)
                failures.append(Failure(operation, operation.names, failed))
        return failures


async def _unpacked(reader: Reader, group: Group, largest: int) -> list[tuple[int, bytes]]:
    """Read one directory's archive; nothing of it counts unless the directory stayed as it was."""
    now, before = await reader.line(), await reader.line()
    held = await reader.files(dict(zip(group.names, group.at, strict=True)), largest)
    after = await reader.line()
    return held if _stayed(now, before, after) else []


def _stayed(now: str | None, before: str | None, after: str | None) -> bool:
    return before == after and (before or "") < (now or "")


def _hashed(group: Group, text: str) -> tuple[list[tuple[int, str | None, Record | None]], str]:
    """Read one directory's digests and facts; nothing counts unless the directory stayed as it was.

    A link that was there all the time was followed: what has no facts of a file has no digest.
    """
    code, _, text = text.partition("\n")
    if code != "in ok":
        return [], text
    now, before, text = text.split("\n", 2)
    digests, text = _digests(group.names, text)
    records, text = from_stat(text)
    after, _, text = text.partition("\n")
    if not _stayed(now, before, after):
        return [], text
    facts = {record.name: record for record in records}
    found = []
    for at, name in zip(group.at, group.names, strict=True):
        fact = facts.get(name)
        is_file = fact is not None and fact.type is FileType.FILE
        found.append((at, digests.get(name) if is_file else None, fact))
    return found, text


def _digests(names: Sequence[str], text: str) -> tuple[dict[str, str], str]:
    """Read what sha256sum says of names, in their order; return what follows, too."""
    digests = {}
    for name in names:
        older = name.replace("\\", "\\\\").replace("\n", "\\n")
        newer = older.replace("\r", "\\r")
        for start, form in ((0, name), (1, newer), (1, older)):  # busybox, GNU
            line = f"  {form}\n"
            if text.startswith("\\" * start) and text.startswith(line, start + _HEX):
                digests[name] = text[start : start + _HEX]
                text = text[start + _HEX + len(line) :]
                break
    return digests, text


async def _archive(contents: Sequence[Content]) -> AsyncIterator[bytes]:
    held = bytearray()
    group = None
    for content in contents:
        if group != (group := content.name.partition("/")[0]):
            held += folder(group)
        held += header(content.name, content.size, content.mode, content.mtime_ns)
        left = content.size
        if isinstance(content.chunks, bytes):
            left -= len(content.chunks)
            held += content.chunks
        else:
            async with iterating(content.chunks):
                async for chunk in content.chunks:
                    left -= len(chunk)
                    held += chunk
                    if len(held) >= CHUNK:
                        yield bytes(held)
                        held.clear()
        if left:
            raise ValueError(f"{content.name}: {left} bytes more were announced than came")
        held += padding(content.size)
        if len(held) >= CHUNK:
            yield bytes(held)
            held.clear()
    held += header("end", 0) + END
    yield bytes(held)
