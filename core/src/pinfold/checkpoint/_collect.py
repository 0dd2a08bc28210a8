"""Collection: what no checkpoint needs goes, beside writers and other collectors (CP-10)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from pinfold.checkpoint._codec import pack, unpack
from pinfold.checkpoint._io import Io, in_thread
from pinfold.checkpoint._keys import (
    CHUNKED,
    CLOCK,
    FOSSILS,
    LEASES,
    NOTES,
    OBJECTS,
    chunked_key,
    fossil_key,
    fossil_of,
    is_content,
    is_fossil,
    object_key,
)
from pinfold.checkpoint._leases import expired
from pinfold.checkpoint._manifest import Damaged, Newer, decode
from pinfold.checkpoint._merkle import Manifests, corrupt, newer
from pinfold.checkpoint._objects import ObjectInfo
from pinfold.checkpoint._record import CheckpointRecord
from pinfold.checkpoint._records import Records
from pinfold.checkpoint._upload import CHUNK_LIST_BYTES, LARGE, chunks_from
from pinfold.provider import FileType

__all__ = ["CollectReport", "Collector"]

_BATCH: Final = 256
_NOTE_BYTES: Final = 2**30


@attrs.frozen(kw_only=True)
class CollectReport:
    """What a collection did.

    Attributes:
        deleted: objects that are gone.
        deleted_bytes: what they took, as stored.
        restored: objects that had been set aside and were needed after all.
        pending: objects that are set aside, until writers that may need them have ended; the next
            collection goes on with them.
    """

    deleted: int = 0
    deleted_bytes: int = 0
    restored: int = 0
    pending: int = 0

    def __add__(self, other: CollectReport) -> CollectReport:
        return CollectReport(
            deleted=self.deleted + other.deleted,
            deleted_bytes=self.deleted_bytes + other.deleted_bytes,
            restored=self.restored + other.restored,
            pending=self.pending + other.pending,
        )


@attrs.define
class _Marks:
    """What live records need: keys, and what was gone through already."""

    records: set[str] = attrs.Factory(set)
    manifests: set[str] = attrs.Factory(set)
    keys: set[str] = attrs.Factory(set)


@attrs.frozen
class _Note:
    """The leases that there were after some fossils had been set aside."""

    leases: frozenset[str]
    fossils: frozenset[str]


def _note_to(note: _Note) -> bytes:
    body = {"version": 1, "leases": sorted(note.leases), "fossils": sorted(note.fossils)}
    return pack(json.dumps(body).encode("ascii"))


def _note_from(data: bytes) -> _Note:
    try:
        body = json.loads(unpack(data, _NOTE_BYTES))
        return _Note(leases=frozenset(body["leases"]), fossils=frozenset(body["fossils"]))
    except (Damaged, ValueError, KeyError, TypeError):
        # As if there were none: the leases of now are noted, which are those and later ones.
        return _Note(leases=frozenset(), fossils=frozenset())


@attrs.frozen
class Collector:
    """Collects one store."""

    io: Io
    records: Records
    manifests: Manifests
    lease_seconds: float
    token: Callable[[], str]

    async def collect(self) -> CollectReport:
        """Do what `CheckpointStore.collect` says."""
        await in_thread(self.io.objects.sweep)
        marks = _Marks()
        report = CollectReport()
        runs: dict[str, list[ObjectInfo]] = {}
        # Listed first: what a note is about has been set aside before, and never is again.
        notes = await self.io.list(NOTES)
        for info in await self.io.list(FOSSILS):
            if is_fossil(info.key):
                runs.setdefault(fossil_of(info.key)[0], []).append(info)
        for run, fossils in runs.items():
            report += await self._finish(run, fossils, marks)
        # Another collector may have dealt with them all just before they were noted.
        await self.io.delete(info.key for info in notes if info.key.split("/")[1] not in runs)
        return report + await self._begin(marks)

    async def _begin(self, marks: _Marks) -> CollectReport:
        # Leases, then objects, then records: what a writer puts later is not on the list at all.
        leases = await self._active()
        listed = [*await self.io.list(CHUNKED), *await self.io.list(OBJECTS)]
        objects = [info for info in listed if is_content(info.key)]
        await self._mark(marks)
        # No more than politeness: a writer's fresh objects would have to be brought back later.
        since = min(leases.values(), default=float("inf"))
        doomed = [o.key for o in objects if o.key not in marks.keys and o.modified < since]
        if not doomed:
            return CollectReport()
        run = self.token()
        await self.io.move([(key, fossil_key(run, key)) for key in doomed])
        fossils = await self.io.list(f"{FOSSILS}/{run}")
        return await self._finish(run, fossils, marks, complete=True)

    async def _finish(
        self, run: str, fossils: Sequence[ObjectInfo], marks: _Marks, *, complete: bool = False
    ) -> CollectReport:
        """Delete what a collection set aside, or bring it back, where nobody may still need it.

        Args:
            run: the collection, also another's, and one that is still under way.
            fossils: those of its fossils that are dealt with; listed before this was called.
            marks: what is known to be needed so far.
            complete: none of them is on its way any more.
        """
        inside = {fossil_of(info.key)[1]: info for info in fossils}
        notes = await self._notes(run)
        fresh = inside.keys() - {key for note in notes.values() for key in note.fossils}
        if not complete and not self.io.objects.atomic_moves:
            # A copy whose original is there may be half a move: whoever finds it, relies on it.
            fresh -= await self.io.exists(fresh)
        active = await self._active()  # after all of the above
        if fresh:
            key = f"{NOTES}/{run}/{self.token()}"
            notes[key] = _Note(leases=frozenset(active), fossils=frozenset(fresh))
            if active:
                await self.io.put({key: _note_to(notes[key])})
        done = [key for key, note in notes.items() if note.leases.isdisjoint(active)]
        ready = inside.keys() & {key for name in done for key in notes[name].fossils}
        back = await self._settle({key: inside[key].key for key in ready}, marks)
        await self.io.delete(done)
        gone = ready - marks.keys
        return CollectReport(
            deleted=len(gone),
            deleted_bytes=sum(inside[key].size for key in gone),
            restored=back,
            pending=len(inside) - len(ready),
        )

    async def _settle(self, fossils: dict[str, str], marks: _Marks) -> int:
        """Bring back those fossils that records need, delete the rest; return how many came back.

        Args:
            fossils: their former keys, and where they are now.
            marks: what is known to be needed so far.
        """
        if not fossils:
            return 0
        await self._mark(marks)
        needed = fossils.keys() & marks.keys
        there = await self.io.exists(needed)
        # Chunks before the lists that name them.
        back = sorted(needed - there, key=lambda key: (key.startswith(CHUNKED), key))
        await self.io.move([(fossils[key], key) for key in back])
        await self.io.delete(fossil for key, fossil in fossils.items() if key not in back)
        return len(back)

    async def _notes(self, run: str) -> dict[str, _Note]:
        keys = [info.key for info in await self.io.list(f"{NOTES}/{run}")]
        return {key: _note_from(data) for key, data in (await self.io.find(keys)).items()}

    async def _active(self) -> dict[str, float]:
        """Return the leases at work, and since when; those of the dead are removed."""
        leases = await self.io.list(LEASES)
        if not leases:
            return {}
        now = await self._now()
        dead = [info.key for info in leases if expired(info, now, self.lease_seconds)]
        await self.io.delete(dead)
        return {info.key: info.modified for info in leases if info.key not in dead}

    async def _now(self) -> float:
        """Return the time by the store's own clock."""
        while True:
            key = f"{CLOCK}/{self.token()}"
            await self.io.put({key: b""})
            probes = await self.io.list(CLOCK)
            times = [info.modified for info in probes if info.key == key]
            if times:  # else another collector took it for a dead one's
                break
        dead = [info.key for info in probes if expired(info, times[0], self.lease_seconds)]
        await self.io.delete({key, *dead})
        return times[0]

    async def _mark(self, marks: _Marks) -> None:
        """Add what records need that were not gone through before.

        Raises:
            CheckpointCorrupt: a record or manifest can't be read; so nothing is deleted.
            InvalidArgument: one is of a later version (SP-3); so nothing is deleted.
        """
        keys = [key for key in await self.records.keys() if key not in marks.records]
        records, faults = await self.records.read(keys)
        for exc in faults.values():
            raise exc
        for record in records:
            await self._mark_tree(record, marks)
        marks.records.update(keys)

    async def _mark_tree(self, record: CheckpointRecord, marks: _Marks) -> None:
        level = {record.manifest.removeprefix("sha256:")} - marks.manifests
        while level:
            following: set[str] = set()
            large: dict[str, int] = {}
            batches = list(level)
            for start in range(0, len(batches), _BATCH):
                batch = batches[start : start + _BATCH]
                stored, faults = await self.manifests.read(batch)
                for digest, reason in faults.items():
                    raise corrupt(record, object_key(digest), reason)
                await in_thread(
                    lambda: _mark_files(record, stored, marks.keys, following, large)  # noqa: B023
                )
            await self._mark_chunks(record, large, marks)
            marks.manifests |= level
            marks.keys.update(map(object_key, level))
            level = following - marks.manifests

    async def _mark_chunks(
        self, record: CheckpointRecord, large: dict[str, int], marks: _Marks
    ) -> None:
        lists = [key for key in large if key not in marks.keys]
        for start in range(0, len(lists), _BATCH):
            batch = lists[start : start + _BATCH]
            found = await self.io.find(batch)
            for key in batch:
                try:
                    raw = unpack(found[key], CHUNK_LIST_BYTES)
                    chunks = chunks_from(raw, large[key])
                except KeyError:
                    raise corrupt(record, key, "it is missing") from None
                except Newer as exc:
                    raise newer(record, key, exc) from exc
                except Damaged as exc:
                    raise corrupt(record, key, str(exc)) from exc
                marks.keys.add(key)
                marks.keys.update(map(object_key, chunks))


def _mark_files(
    record: CheckpointRecord,
    stored: dict[str, bytes],
    keys: set[str],
    following: set[str],
    large: dict[str, int],
) -> None:
    for digest, data in stored.items():
        try:
            entries, below, _ = decode(data, "")
        except Newer as exc:
            raise newer(record, object_key(digest), exc) from exc
        except Damaged as exc:
            raise corrupt(record, object_key(digest), str(exc)) from exc
        following.update(child.object for child in below)
        for entry in entries:
            if entry.type is not FileType.FILE or not entry.size:
                continue
            if entry.size > LARGE:
                large[chunked_key(entry.digest)] = entry.size
            else:
                keys.add(object_key(entry.digest))
