"""Trees as values: what a scan and its blobs hold, and plans made from them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from hashlib import sha256
from typing import Any

import attrs

from pinfold.errors import CheckpointCorrupt
from pinfold.provider import Entry, FileType, RestorePlan, Scan
from pinfold_conformance._expect import equal, require
from pinfold_conformance._guard import GuardedInstance

__all__ = ["Tree", "capture", "plan", "tree"]


@attrs.frozen(kw_only=True)
class Tree:
    """A whole tree: entries and contents by digest."""

    entries: tuple[Entry, ...]
    contents: Mapping[str, bytes] = attrs.field(repr=False)

    @property
    def shape(self) -> dict[str, tuple[Any, ...]]:
        """What CP-1 hashes, by path: type, mode, size, digest, link; no times."""
        return {
            entry.path: (
                str(entry.type),
                None if entry.type is FileType.SYMLINK else entry.mode,
                entry.size,
                entry.digest,
                entry.link,
            )
            for entry in self.entries
        }


async def capture(instance: GuardedInstance) -> Tree:
    """Return the workspace of an instance, every blob read and held to its digest."""
    scan: Scan = await instance.tree.scan()
    files = [entry for entry in scan.entries if entry.type is FileType.FILE]
    found: dict[str, bytearray] = {}
    ended: dict[str, str] = {}
    async for blob in instance.tree.read(files):
        require(blob.path not in ended, f"a piece of {blob.path} after its last one")
        found.setdefault(blob.path, bytearray()).extend(blob.data)
        if blob.last:
            ended[blob.path] = blob.digest
    equal(sorted(ended), sorted(entry.path for entry in files), "files that read gave")
    contents = {}
    for entry in files:
        data = bytes(found[entry.path])
        digest = sha256(data).hexdigest()
        equal(ended[entry.path], digest, f"the digest told with the blob of {entry.path!r}")
        equal(digest, entry.digest, f"the digest of {entry.path!r} (CP-1)")
        equal(len(data), entry.size, f"the size of {entry.path!r}")
        contents[digest] = data
    return Tree(entries=scan.entries, contents=contents)


def tree(items: Mapping[str, Any], *, mode: int = 0o644) -> Tree:
    """Return a tree made by hand: bytes are files, None a directory, text a link."""
    entries: list[Entry] = []
    contents: dict[str, bytes] = {}
    digests: dict[bytes, str] = {}  # large trees repeat themselves: what is equal is hashed once
    for path in sorted(
        items, key=lambda p: [s.encode("utf-8", "surrogateescape") for s in p.split("/")]
    ):
        value = items[path]
        if value is None:
            entries.append(Entry(path=path, type=FileType.DIRECTORY, mode=0o755))
        elif isinstance(value, str):
            entries.append(Entry(path=path, type=FileType.SYMLINK, mode=0o777, link=value))
        else:
            if value not in digests:
                digests[value] = sha256(value).hexdigest()
            digest = digests[value]
            contents[digest] = value
            entries.append(
                Entry(path=path, type=FileType.FILE, mode=mode, size=len(value), digest=digest)
            )
    return Tree(entries=tuple(entries), contents=contents)


def plan(wanted: Tree, *, missing: Iterable[str] = (), corrupt: Iterable[str] = ()) -> RestorePlan:
    """Return the plan that restores a tree.

    Args:
        wanted: the tree.
        missing: digests whose blob is not there.
        corrupt: digests whose blob turns out damaged after its first bytes.
    """
    gone, bad = set(missing), set(corrupt)

    async def fetch(digest: str) -> AsyncIterator[bytes]:
        if digest in gone:
            raise CheckpointCorrupt(f"blob {digest} is missing", details={"blob": digest})
        data = wanted.contents[digest]
        for start in range(0, len(data), 256 * 1024):
            yield data[start : start + 256 * 1024]
            if digest in bad:
                raise CheckpointCorrupt(f"blob {digest} is damaged", details={"blob": digest})

    return RestorePlan(entries=wanted.entries, fetch=fetch)
