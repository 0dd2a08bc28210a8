"""The stored part of a durable sandbox, and how it is changed: by compare-and-swap alone (LC-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pinfold.connections import scrub
from pinfold.errors import (
    AlreadyExists,
    Conflict,
    Effect,
    InvalidArgument,
    Locked,
    NotFound,
    StaleGeneration,
    Unavailable,
)
from pinfold.events import Event, EventType
from pinfold.provider import Instance, InstanceRef
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import DesiredState, LiveState, ObservedState
from pinfold.spec import PinnedSpec, from_json, to_json
from pinfold.state import Delete, JournalEntry, NewEntry, Put, StateStore, Written
from pinfold.views import ResolvedFrom

__all__ = ["Claim", "Records", "SandboxRecord", "Stored", "live_state"]

VERSION: Final = 1
_TRIES: Final = 100
#: Seconds between tries of a write that the store could not take.
_PAUSES: Final = (0.01, 0.1)


@attrs.frozen(kw_only=True)
class Claim:
    """Who makes the next generation, and until when that is believed (LC-2)."""

    owner: str
    expires_us: int


@attrs.frozen(kw_only=True)
class SandboxRecord:
    """A durable sandbox, as it is stored.

    Attributes:
        version: of this form; a newer one is refused (SP-3).
        id: `sbx_` and 32 hex digits.
        name: unique among the sandboxes that are not deleted.
        pinned: what it is made from, always.
        desired, observed: LC.
        generation: 0 before any compute; the number that every write carries.
        ref: of the instance of this generation; null while there is none.
        checkpoint_id: what recovery restores.
        restoring: the checkpoint of a rollback under way.
        claim: who is making this generation; null when it is made.
        created_us, last_activity_us: microseconds since the epoch.
        idle_deadline_us: when the idle action is due; null for never (LC-7).
        failure: the error that made it `failed`.
        forked_from: the sandbox that it was forked from.
    """

    version: int = VERSION
    id: str
    name: str
    resolved_from: ResolvedFrom
    pinned: PinnedSpec
    desired: DesiredState = DesiredState.READY
    observed: ObservedState = ObservedState.ABSENT
    generation: int = 0
    ref: InstanceRef | None = None
    checkpoint_id: str | None = None
    restoring: str | None = None
    claim: Claim | None = None
    created_us: int
    last_activity_us: int
    idle_deadline_us: int | None = None
    failure: Mapping[str, Any] | None = None
    forked_from: str | None = None


@attrs.frozen(kw_only=True)
class Stored:
    """A record, and the version that a write of it must expect."""

    record: SandboxRecord
    version: int


def live_state(
    record: SandboxRecord, runtime: Runtime, instance: Instance | None = None
) -> LiveState:
    """Return what a record tells, and an instance where one is at hand."""
    deadline = record.idle_deadline_us
    asleep = record.observed is not ObservedState.READY
    return LiveState(
        desired=record.desired,
        observed=record.observed,
        generation=record.generation,
        last_activity_at=runtime.rfc3339(record.last_activity_us * 1000),
        current_checkpoint_id=record.checkpoint_id,
        idle_deadline=None if deadline is None or asleep else runtime.rfc3339(deadline * 1000),
        overdue=deadline is not None and not asleep and deadline < runtime.clock.now_us(),
        features=None if instance is None else instance.features,
        details=None if instance is None else instance.details,
    )


@attrs.frozen
class Records:
    """The records of one store; every change comes with its events, in one write."""

    state: StateStore
    runtime: Runtime

    async def load(self, sandbox_id: str) -> Stored:
        """Return a record.

        Raises:
            NotFound: there is none.
            InvalidArgument: a later pinfold wrote it (SP-3).
        """
        found = await self.state.get("sandbox", sandbox_id)
        if found is None:
            raise NotFound(f"there is no sandbox {sandbox_id!r}", hint="see `pinfold list`")
        return Stored(record=_decode(found.value), version=found.version)

    async def find(self, id_or_name: str) -> Stored:
        """Return a record by id or by name.

        Raises:
            NotFound: there is none.
        """
        named = None
        if not id_or_name.startswith("sbx_"):
            with suppress(InvalidArgument):  # nothing can be called so
                named = await self.state.get("name", id_or_name)
            if named is None:
                raise NotFound(f"there is no sandbox {id_or_name!r}", hint="see `pinfold list`")
        return await self.load(id_or_name if named is None else named.value["id"])

    async def all(self) -> Sequence[Stored]:
        """Return every record, the oldest first."""
        found: list[Stored] = []
        after = ""
        while page := await self.state.list("sandbox", after=after):
            found += [Stored(record=_decode(item.value), version=item.version) for item in page]
            after = page[-1].key
        return found

    async def insert(
        self, record: SandboxRecord, *events: tuple[EventType, Mapping[str, Any]]
    ) -> Stored:
        """Make a record, and its name with it.

        Raises:
            AlreadyExists: a sandbox of that name is there.
        """
        try:
            written = await self._write(
                [
                    Put(kind="sandbox", key=record.id, value=to_json(record), expect=0),
                    Put(kind="name", key=record.name, value={"id": record.id}, expect=0),
                ],
                [self._entry(record, kind, data) for kind, data in events],
            )
        except AlreadyExists:
            raise AlreadyExists(
                f"there is a sandbox {record.name!r} already",
                hint="choose another name, or end that one",
                details={"name": record.name},
            ) from None
        self._tell(written.entries)
        return Stored(record=record, version=written.versions[0])

    async def replace(
        self,
        stored: Stored,
        record: SandboxRecord,
        *events: tuple[EventType, Mapping[str, Any]],
        free_name: bool = False,
    ) -> Stored:
        """Write a record over the one that was read.

        Raises:
            Conflict: somebody wrote meanwhile; nothing was written.
        """
        changes: list[Put | Delete] = [
            Put(kind="sandbox", key=record.id, value=to_json(record), expect=stored.version)
        ]
        if free_name:
            name = await self.state.get("name", record.name)
            if name is not None and name.value.get("id") == record.id:
                changes.append(Delete(kind="name", key=record.name, expect=name.version))
        written = await self._write(
            changes, [self._entry(record, kind, data) for kind, data in events]
        )
        self._tell(written.entries)
        return Stored(record=record, version=written.versions[0])

    async def update(
        self,
        sandbox_id: str,
        change: Callable[[SandboxRecord], SandboxRecord],
        *events: tuple[EventType, Mapping[str, Any]],
        carried: int | None = None,
        free_name: bool = False,
    ) -> Stored:
        """Change a record, again when somebody else was quicker.

        Args:
            sandbox_id: whose.
            change: the present record to the one to be; it may raise.
            events: for the journal, in the same write.
            carried: the generation that the change was made under; a stale one is refused (LC-2).
            free_name: let the name go.

        Raises:
            StaleGeneration: the sandbox is at another generation; nothing was written.
            Locked: somebody else is always quicker.
        """
        for _ in range(_TRIES):
            stored = await self.load(sandbox_id)
            if carried is not None and stored.record.generation != carried:
                raise StaleGeneration(carried=carried, current=stored.record.generation)
            changed = change(stored.record)
            if changed == stored.record and not events:
                return stored
            try:
                return await self.replace(stored, changed, *events, free_name=free_name)
            except Conflict:
                await anyio.lowlevel.checkpoint()
        raise Locked(f"{sandbox_id} is being written without a pause", hint="try again")

    async def events(self, sandbox_id: str, *, after: str = "") -> tuple[Event, ...]:
        """Return a sandbox's journal, in order, from after an id on (EV-1)."""
        found: list[Event] = []
        while page := await self.state.journal(topic=sandbox_id, after=after):
            found += [_event(entry) for entry in page]
            after = page[-1].id
        return tuple(found)

    async def _write(self, changes: Sequence[Put | Delete], journal: Sequence[NewEntry]) -> Written:
        """Write, and again where the store says that nothing happened and that again may help."""
        for pause in _PAUSES:
            try:
                return await self.state.write(changes, journal)
            except (Unavailable, Locked) as exc:
                if not exc.retryable or exc.effect is not Effect.NONE:
                    raise
                await anyio.sleep(pause)
        return await self.state.write(changes, journal)

    def _entry(self, record: SandboxRecord, kind: EventType, data: Mapping[str, Any]) -> NewEntry:
        return NewEntry(
            topic=record.id,
            data={"type": str(kind), "generation": record.generation, "data": scrub(data)},
            time_ns=self.runtime.clock.now_ns(),
        )

    def _tell(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            self.runtime.hooks.event(_event(entry))


def _event(entry: JournalEntry) -> Event:
    return Event(
        id=entry.id,
        type=EventType(entry.data["type"]),
        sandbox_id=entry.topic,
        generation=entry.data["generation"],
        time=Runtime.rfc3339(entry.time_ns),
        data=entry.data["data"],
    )


def _decode(value: Mapping[str, Any]) -> SandboxRecord:
    version = value.get("version")
    if version != VERSION:
        raise InvalidArgument(
            f"the record of {value.get('id')!r} has version {version!r};"
            f" this pinfold reads {VERSION}",
            hint="use the pinfold that wrote it, or a later one",
        )
    return from_json(value, SandboxRecord)
