"""A state store in this process's memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from anyio.lowlevel import checkpoint

from pinfold.state._model import (
    Delete,
    JournalEntry,
    NewEntry,
    Put,
    StateRecord,
    StateStore,
    Written,
    check_after,
    check_key,
    check_kind,
    check_limit,
    check_topic,
    check_write,
    conflict,
    sequence_of,
)

__all__ = ["MemoryStateStore"]


class MemoryStateStore(StateStore):
    """State that ends with the process; for ephemeral sandboxes and for tests.

    Any number of event loops and threads may use one.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], tuple[int, str]] = {}
        self._journal: list[JournalEntry] = []
        self._version = 0
        self._lock = threading.Lock()

    async def get(self, kind: str, key: str) -> StateRecord | None:
        name = (check_kind(kind), check_key(key))
        await checkpoint()
        found = self._records.get(name)
        return None if found is None else _record(name, found)

    async def list(self, kind: str, *, after: str = "", limit: int = 1000) -> Sequence[StateRecord]:
        check_kind(kind)
        check_after(after)
        check_limit(limit)
        await checkpoint()
        with self._lock:
            names = sorted(n for n in self._records if n[0] == kind and n[1] > after)[:limit]
            return tuple(_record(name, self._records[name]) for name in names)

    async def write(
        self, changes: Sequence[Put | Delete] = (), journal: Sequence[NewEntry] = ()
    ) -> Written:
        values, entries = check_write(changes, journal)
        await checkpoint()  # before the write: afterwards it has happened
        with self._lock:
            for change in changes:
                current, _ = self._records.get((change.kind, change.key), (0, ""))
                if current != change.expect:
                    raise conflict(change, current)
            versions: list[int] = []
            for change, value in zip(changes, values, strict=True):
                name = (change.kind, change.key)
                if isinstance(change, Delete):
                    del self._records[name]
                    versions.append(0)
                else:
                    self._version += 1
                    self._records[name] = (self._version, value)
                    versions.append(self._version)
            first = len(self._journal)
            for number, (entry, data) in enumerate(zip(journal, entries, strict=True), first + 1):
                self._journal.append(
                    JournalEntry(
                        sequence=number,
                        topic=entry.topic,
                        data=json.loads(data),
                        time_ns=entry.time_ns,
                    )
                )
            return Written(versions=tuple(versions), entries=tuple(self._journal[first:]))

    async def journal(
        self, *, topic: str | None = None, after: str = "", limit: int = 1000
    ) -> Sequence[JournalEntry]:
        check_topic(topic)
        start = sequence_of(after)
        check_limit(limit)
        await checkpoint()
        found: list[JournalEntry] = []
        for entry in self._journal[start:]:
            if topic is None or entry.topic == topic:
                found.append(entry)
                if len(found) == limit:
                    break
        return tuple(found)

    async def close(self) -> None:
        await checkpoint()


def _record(name: tuple[str, str], found: tuple[int, str]) -> StateRecord:
    value: dict[str, Any] = json.loads(found[1])
    return StateRecord(kind=name[0], key=name[1], version=found[0], value=value)
