"""From a workspace to a checkpoint: only what changed is read, sent and stored (CP-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from pinfold.checkpoint._codec import unpack
from pinfold.checkpoint._io import Io, in_thread
from pinfold.checkpoint._keys import chunked_key, object_key, record_key
from pinfold.checkpoint._leases import Leases, suspects
from pinfold.checkpoint._manifest import Damaged, Newer
from pinfold.checkpoint._merkle import Built, Delta, Manifests, build, corrupt
from pinfold.checkpoint._record import LISTED, CheckpointRecord, encode_record
from pinfold.checkpoint._upload import CHUNK_LIST_BYTES, LARGE, Stored, chunks_from, upload
from pinfold.errors import Internal
from pinfold.provider import Entry, FileType, Scan, ScanState, Tree

__all__ = ["Commit", "Committer", "Progress"]

#: Told of bytes done and of bytes in all, as far as they are known.
Progress = Callable[[int, int], None]

_MANY: Final = 512


@attrs.frozen(kw_only=True)
class Commit:
    """What a commit came to.

    Attributes:
        record: the checkpoint that covers the workspace now.
        state: for the next commit on the same instance.
        created: whether `record` is new; not so when the tree is that of the base.
        files_sent: files that were read and sent, because the store lacked them.
        bytes_sent: their bytes.
    """

    record: CheckpointRecord
    state: ScanState
    created: bool
    files_sent: int = 0
    bytes_sent: int = 0


@attrs.define
class _Sent:
    files: int = 0
    bytes: int = 0
    total: int = 0
    progress: Progress | None = None

    def moved(self, count: int) -> None:
        self.bytes += count
        if self.progress is not None:
            self.progress(self.bytes, max(self.total, self.bytes))


@attrs.frozen
class Committer:
    """Makes checkpoints in one store.

    Attributes:
        io: the store.
        manifests: its manifests.
        leases: its leases.
        now_ns: the clock, nanoseconds since the epoch.
        token: gives 32 random hex digits.
    """

    io: Io
    manifests: Manifests
    leases: Leases
    now_ns: Callable[[], int]
    token: Callable[[], str]

    async def commit(
        self,
        tree: Tree,
        *,
        sandbox: str,
        generation: int,
        base: CheckpointRecord | None,
        state: ScanState | None,
        progress: Progress | None,
    ) -> Commit:
        """Do what `CheckpointStore.commit` says."""
        scan = await tree.scan(state)
        own = base is not None and base.sandbox_id == sandbox
        if scan.unchanged and base is not None and own:
            return Commit(record=base, state=scan.state, created=False)
        if scan.unchanged:
            scan = await tree.scan(None)
        built = await in_thread(lambda: build(scan.entries))
        if base is not None and own and f"sha256:{built.root.digest}" == base.tree_digest:
            return Commit(record=base, state=scan.state, created=False)
        async with self.leases.hold(f"a checkpoint of {sandbox}") as lease:
            sent = _Sent(progress=progress)
            final, built = await self._store(tree, scan, built, base, sent)
            record = self._record(final, built, sandbox, generation, base)
            await self._publish(record, lease)
        return Commit(
            record=record,
            state=final.state,
            created=True,
            files_sent=sent.files,
            bytes_sent=sent.bytes,
        )

    async def adopt(
        self, source: CheckpointRecord, *, sandbox: str, generation: int
    ) -> CheckpointRecord:
        """Do what `CheckpointStore.adopt` says."""
        async with self.leases.hold(f"a fork into {sandbox}") as lease:
            doubted = await suspects(self.io)
            base = source if await self._is_alive(source) else None
            if doubted or base is None:
                await self._secure(source, base, doubted)
            record = attrs.evolve(
                source,
                checkpoint_id=f"cp_{self.token()}",
                sandbox_id=sandbox,
                generation=generation,
                created_ns=max(self.now_ns(), source.created_ns + 1),
                parent=source.checkpoint_id,
            )
            await self._publish(record, lease)
            return record

    async def _secure(
        self, source: CheckpointRecord, base: CheckpointRecord | None, doubted: set[str]
    ) -> None:
        """Make sure of everything that a checkpoint needs, beside a collection."""
        entries = await self.manifests.tree(source)
        built = await in_thread(lambda: build(entries))
        delta = await self.manifests.compare(built, base)
        await self._doubt(built, delta, doubted)
        stored = await self._stored(delta.contents)
        for content, files in delta.contents.items():
            if content not in stored:
                raise corrupt(source, _key(files[0]), "it is being collected, or missing")
        await self.manifests.write(delta.manifests)

    async def _is_alive(self, base: CheckpointRecord) -> bool:
        key = record_key(base.sandbox_id, base.checkpoint_id)
        return bool(await self.io.exists([key]))

    async def _store(
        self, tree: Tree, scan: Scan, built: Built, base: CheckpointRecord | None, sent: _Sent
    ) -> tuple[Scan, Built]:
        """Bring into the store whatever it lacks; return the scan as it was really read."""
        # In this order, under the lease: what a collection sets aside later, it keeps for us.
        doubted = await suspects(self.io)
        if base is not None and not await self._is_alive(base):
            base = None
        delta = await self.manifests.compare(built, base)
        await self._doubt(built, delta, doubted)
        changed = await self._send(tree, delta, sent)
        if changed:
            scan = _as_read(scan, changed)
            built = await in_thread(lambda: build(scan.entries))
            again = await self.manifests.compare(built, base)
            await self._doubt(built, again, doubted)
            delta.manifests = again.manifests
        await self.manifests.write(delta.manifests)
        return scan, built

    async def _doubt(self, built: Built, delta: Delta, doubted: set[str]) -> None:
        """Add to `delta` whatever of the tree is being collected, though the base has it."""
        if not doubted:
            return
        for made in built.directories.values():
            if object_key(made.object) in doubted:
                delta.manifests[made.object] = made.stored
        files = [
            entry
            for inside in built.members.values()
            for entry in inside
            if entry.type is FileType.FILE and entry.size
        ]
        large = {chunked_key(entry.digest): entry for entry in files if entry.size > LARGE}
        lists = await self._chunk_lists(large)
        for entry in files:
            key = _key(entry)
            if not doubted.isdisjoint([key, *map(object_key, lists.get(key, ()))]):
                delta.add(entry)

    async def _chunk_lists(self, large: Mapping[str, Entry]) -> dict[str, list[str]]:
        """Return the chunks of large files, by the keys of their lists."""
        keys = list(large)
        lists: dict[str, list[str]] = {}
        for start in range(0, len(keys), _MANY):
            for key, data in (await self.io.find(keys[start : start + _MANY])).items():
                try:
                    raw = unpack(data, CHUNK_LIST_BYTES)
                    lists[key] = chunks_from(raw, large[key].size)
                except (Damaged, Newer):
                    continue  # as if it were not there: the file is read again
        return lists

    async def _send(self, tree: Tree, delta: Delta, sent: _Sent) -> dict[str, Stored | None]:
        """Send the contents that the store lacks; return the files that were found changed."""
        stored = await self._stored(delta.contents)
        changed: dict[str, Stored | None] = {}
        lacking = {what: files for what, files in delta.contents.items() if what not in stored}
        # One file for each content; where that one changed meanwhile, all the others with it.
        for pick in (slice(1), slice(1, None)):
            todo = [entry for files in lacking.values() for entry in files[pick]]
            if not todo:
                continue
            sent.total = sent.bytes + sum(entry.size for entry in todo)
            results = await upload(self.io, tree, todo, sent.moved)
            sent.files += len(todo)
            for entry in todo:
                result = results[entry.path]
                if result == Stored(entry.digest, entry.size):
                    lacking.pop((entry.digest, entry.size), None)
                else:
                    changed[entry.path] = result
        left = [e.path for files in lacking.values() for e in files if e.path not in changed]
        if left:
            raise Internal(f"contents were not stored: {left[:3]!r}")
        return changed

    async def _stored(
        self, contents: Mapping[tuple[str, int], Sequence[Entry]]
    ) -> set[tuple[str, int]]:
        """Return those contents that are in the store, each object asked for by name."""
        keys = {_key(files[0]): what for what, files in contents.items()}
        there = await self.io.rely(keys)
        large = {key: contents[keys[key]][0] for key in there if keys[key][1] > LARGE}
        lists = await self._chunk_lists(large)
        wanted = {object_key(chunk) for digests in lists.values() for chunk in digests}
        whole = await self.io.rely(wanted)
        return {
            keys[key]
            for key in there
            if key not in large or (key in lists and whole.issuperset(map(object_key, lists[key])))
        }

    def _record(
        self,
        scan: Scan,
        built: Built,
        sandbox: str,
        generation: int,
        base: CheckpointRecord | None,
    ) -> CheckpointRecord:
        return CheckpointRecord(
            checkpoint_id=f"cp_{self.token()}",
            sandbox_id=sandbox,
            generation=generation,
            created_ns=max(self.now_ns(), base.created_ns + 1 if base else 0),
            tree_digest=f"sha256:{built.root.digest}",
            manifest=f"sha256:{built.root.object}",
            parent=base.checkpoint_id if base else None,
            entries=len(scan.entries),
            total_bytes=sum(e.size for e in scan.entries if e.type is FileType.FILE),
            skipped=tuple(sorted(scan.skipped)[:LISTED]),
            unsettled=tuple(sorted(set(scan.unsettled))[:LISTED]),
        )

    async def _publish(self, record: CheckpointRecord, lease: str) -> None:
        """Put the record, last of all; it stands when the lease has held until then."""
        await self.io.sync()
        await self.leases.check(lease)
        key = record_key(record.sandbox_id, record.checkpoint_id)
        await self.io.put({key: encode_record(record)})
        await self.io.sync()
        try:
            await self.leases.check(lease)
        except Exception:
            await self.io.delete([key])
            raise


def _key(entry: Entry) -> str:
    return chunked_key(entry.digest) if entry.size > LARGE else object_key(entry.digest)


def _as_read(scan: Scan, changed: Mapping[str, Stored | None]) -> Scan:
    """Return the scan with what was read in place of what was listed (CP-6)."""
    return attrs.evolve(
        scan,
        entries=tuple(_corrected(scan.entries, changed)),
        unsettled=(*scan.unsettled, *changed),
        # Forget what is known of these files, so that the next scan reads them.
        state=attrs.evolve(
            scan.state,
            files={p: mark for p, mark in scan.state.files.items() if p not in changed},
            token="",
        ),
    )


def _corrected(entries: Iterable[Entry], changed: Mapping[str, Stored | None]) -> Iterable[Entry]:
    for entry in entries:
        if entry.path not in changed:
            yield entry
            continue
        read = changed[entry.path]
        if read is not None:
            yield attrs.evolve(entry, digest=read.digest, size=read.size)
