"""A tree as one manifest for each directory: built from a listing, compared, read back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import attrs

from pinfold.checkpoint._codec import pack, unpack
from pinfold.checkpoint._io import Io, in_thread
from pinfold.checkpoint._keys import object_key
from pinfold.checkpoint._manifest import (
    MANIFEST_BYTES,
    Damaged,
    Directory,
    Draft,
    Newer,
    Subdirectory,
    decode,
)
from pinfold.checkpoint._record import CheckpointRecord
from pinfold.errors import CheckpointCorrupt, InvalidArgument
from pinfold.provider import Entry, FileType

__all__ = ["Built", "Delta", "Manifests", "build", "corrupt", "newer"]

MAX_ENTRIES: Final = 20_000_000
MAX_PATH: Final = 65_536
_BATCH: Final = 256
_CACHE_BYTES: Final = 16 * 2**20


@attrs.frozen
class Built:
    """A tree with all its manifests.

    Attributes:
        directories: the path of each directory ("" is the workspace) to its manifest.
        members: the same paths to the entries in them.
    """

    directories: Mapping[str, Directory] = attrs.field(repr=False)
    members: Mapping[str, Sequence[Entry]] = attrs.field(repr=False)

    @property
    def root(self) -> Directory:
        """The workspace's own."""
        return self.directories[""]


def build(entries: Iterable[Entry]) -> Built:
    """Return the manifests of a tree that a target listed.

    Raises:
        InvalidArgument: the listing is none of a tree: absolute names, `..`, parents that are no
            directories or come later, the same name twice, absurd sizes (CP-8).
    """
    drafts = {"": Draft()}
    members: dict[str, list[Entry]] = {"": []}
    at, draft, inside = "", drafts[""], members[""]
    for entry in entries:
        path = entry.path
        parent, slash, name = path.rpartition("/")
        if parent != at:
            if parent not in drafts:
                raise _unfit(f"{path!r:.500} has no directory before it")
            at, draft, inside = parent, drafts[parent], members[parent]
        if slash and not parent:
            raise _unfit(f"{path!r:.500} is absolute")
        try:
            draft.add(name, entry)
        except Damaged as exc:
            raise _unfit(str(exc)) from exc
        inside.append(entry)
        if entry.type is FileType.DIRECTORY:
            if path in drafts:
                raise _unfit(f"{path!r:.500} is there twice")
            drafts[path], members[path] = Draft(), []
    directories: dict[str, Directory] = {}
    for path in reversed(drafts):
        below = [
            Subdirectory(made.digest, made.object)
            for entry in members[path]
            if entry.type is FileType.DIRECTORY
            for made in (directories[entry.path],)
        ]
        try:
            directories[path] = drafts[path].close(below)
        except Damaged as exc:
            raise _unfit(f"in {path!r:.500}: {exc}") from exc
    return Built(directories, members)


def _unfit(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"the target's listing of the workspace can't be stored: {what}",
        hint="earlier checkpoints stand; a listing like this is a target's error, or its attack",
    )


@attrs.define
class Delta:
    """What a tree has that another lacks.

    Attributes:
        manifests: stored manifests, by their digest.
        contents: content, as digest and size, to the files that have it; never an empty one.
    """

    manifests: dict[str, bytes] = attrs.Factory(dict)
    contents: dict[tuple[str, int], list[Entry]] = attrs.Factory(dict)

    def add(self, entry: Entry) -> None:
        """Add a file."""
        self.contents.setdefault((entry.digest, entry.size), []).append(entry)


class Manifests:
    """Reads manifests, checks them, and remembers the last few."""

    def __init__(self, io: Io) -> None:
        self._io = io
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

    def remember(self, manifests: Mapping[str, bytes]) -> None:
        """Keep what was just read or written at hand, within bounds."""
        for digest, stored in manifests.items():
            if digest not in self._cache:
                self._cache[digest] = stored
                self._cached_bytes += len(stored)
        while self._cached_bytes > _CACHE_BYTES:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    async def read(self, digests: Collection[str]) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the stored manifests, and for those that can't be had the reason."""
        found = {d: self._cache[d] for d in digests if d in self._cache}
        faults: dict[str, str] = {}
        wanted = [digest for digest in dict.fromkeys(digests) if digest not in found]
        for start in range(0, len(wanted), _BATCH):
            batch = wanted[start : start + _BATCH]
            packed = await self._io.find([object_key(digest) for digest in batch])
            fresh, bad = await in_thread(lambda: _checked(batch, packed))  # noqa: B023
            found |= fresh
            faults |= bad
            self.remember(fresh)
        return found, faults

    async def write(self, manifests: Mapping[str, bytes]) -> None:
        """Put manifests."""
        items = list(manifests.items())
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]

            def put() -> None:
                self._io.objects.put(
                    {object_key(digest): pack(stored) for digest, stored in batch}  # noqa: B023
                )

            await self._io.run("put", object_key(batch[0][0]), put)
        self.remember(manifests)

    async def compare(self, built: Built, base: CheckpointRecord | None) -> Delta:
        """Return what a tree has beyond a checkpoint; reads the directories that differ, no others.

        What can't be read of the checkpoint counts as not there.
        """
        delta = Delta()
        known: set[tuple[str, int]] = set()
        level = [("", base.manifest.removeprefix("sha256:") if base else None)]
        while level:
            changed = [(path, old) for path, old in level if built.directories[path].object != old]
            stored, _ = await self.read({old for _, old in changed if old is not None})
            level = []
            for path, old in changed:
                olds: dict[str, str] = {}
                if old is not None and old in stored:
                    olds = _contents(stored[old], path, known)
                mine = built.directories[path]
                delta.manifests[mine.object] = mine.stored
                for entry in built.members[path]:
                    if entry.type is FileType.DIRECTORY:
                        level.append((entry.path, olds.get(entry.path)))
                    elif entry.size and entry.type is FileType.FILE:
                        delta.add(entry)
        for content in known & delta.contents.keys():
            del delta.contents[content]
        return delta

    async def tree(self, record: CheckpointRecord) -> tuple[Entry, ...]:
        """Return all entries of a checkpoint, sorted by path, parents before children.

        Raises:
            CheckpointCorrupt: a manifest is missing or damaged, by name, or the whole is hostile:
                more entries than the record says, paths without end (CP-8).
            InvalidArgument: a manifest is of a later version (SP-3).
        """
        entries: list[Entry] = []
        root = record.manifest.removeprefix("sha256:")
        level = [("", Subdirectory(record.tree_digest.removeprefix("sha256:"), root))]
        most = min(record.entries, MAX_ENTRIES)
        while level:
            following: list[tuple[str, Subdirectory]] = []
            for start in range(0, len(level), _BATCH):
                batch = level[start : start + _BATCH]
                stored, faults = await self.read({at.object for _, at in batch})
                for digest, reason in faults.items():
                    raise corrupt(record, object_key(digest), reason)
                more = await in_thread(
                    lambda: _expand(record, batch, stored, entries, most)  # noqa: B023
                )
                following += more
            level = following
        if len(entries) != record.entries:
            raise corrupt(record, object_key(root), "it has fewer entries than its record says")
        entries.sort(key=lambda entry: entry.path)
        return tuple(entries)


def _checked(
    digests: Sequence[str], packed: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, str]]:
    found: dict[str, bytes] = {}
    faults: dict[str, str] = {}
    for digest in digests:
        data = packed.get(object_key(digest))
        if data is None:
            faults[digest] = "it is missing"
            continue
        try:
            stored = unpack(data, MANIFEST_BYTES)
        except Damaged as exc:
            faults[digest] = str(exc)
            continue
        if sha256(stored).hexdigest() == digest:
            found[digest] = stored
        else:
            faults[digest] = "its content does not have this digest"
    return found, faults


def _contents(stored: bytes, path: str, known: set[tuple[str, int]]) -> dict[str, str]:
    """Add a directory's contents to `known`; return its subdirectories' manifests."""
    try:
        entries, below, _ = decode(stored, f"{path}/" if path else "")
    except (Damaged, Newer):
        return {}
    known.update((entry.digest, entry.size) for entry in entries if entry.size)
    folders = [entry.path for entry in entries if entry.type is FileType.DIRECTORY]
    return {folder: child.object for folder, child in zip(folders, below, strict=True)}


def _expand(
    record: CheckpointRecord,
    batch: Sequence[tuple[str, Subdirectory]],
    stored: Mapping[str, bytes],
    entries: list[Entry],
    most: int,
) -> list[tuple[str, Subdirectory]]:
    following: list[tuple[str, Subdirectory]] = []
    for path, at in batch:
        key = object_key(at.object)
        try:
            inside, below, digest = decode(stored[at.object], f"{path}/" if path else "")
        except Newer as exc:
            raise newer(record, key, exc) from exc
        except Damaged as exc:
            raise corrupt(record, key, str(exc)) from exc
        if digest != at.digest:
            raise corrupt(record, key, "it is not the directory that its parent names")
        entries += inside
        if len(entries) > most or (inside and len(inside[-1].path) > MAX_PATH):
            raise corrupt(record, key, "the tree has no end: more entries than its record says")
        folders = [entry.path for entry in inside if entry.type is FileType.DIRECTORY]
        following += zip(folders, below, strict=True)
    return following


def corrupt(record: CheckpointRecord, key: str, reason: str) -> CheckpointCorrupt:
    """Return the error for an object that a checkpoint needs and can't have (CP-8)."""
    details: dict[str, Any] = {
        "checkpoint_id": record.checkpoint_id,
        "sandbox_id": record.sandbox_id,
        "object": key,
        "reason": reason,
    }
    return CheckpointCorrupt(
        f"checkpoint {record.checkpoint_id} is damaged: {key}: {reason}",
        hint="other checkpoints are not touched by this; go back to an earlier one",
        details=details,
    )


def newer(record: CheckpointRecord | str, key: str, exc: Newer) -> InvalidArgument:
    """Return the error for what a later pinfold wrote (SP-3)."""
    name = record if isinstance(record, str) else record.checkpoint_id
    return InvalidArgument(
        f"checkpoint {name} was written by a later pinfold: {key} is of {exc}",
        hint="upgrade pinfold",
        details={"object": key, "version": exc.version},
    )
