"""What a state store holds, and what it promises."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import attrs

from pinfold.errors import AlreadyExists, Conflict, InvalidArgument, TooLarge
from pinfold.spec import canonical_json, freeze, json_faults

__all__ = [
    "Delete",
    "JournalEntry",
    "NewEntry",
    "Put",
    "StateRecord",
    "StateStore",
    "Written",
    "check_after",
    "check_key",
    "check_kind",
    "check_limit",
    "check_topic",
    "check_write",
    "conflict",
    "event_id",
    "sequence_of",
]

MAX_VALUE_BYTES: Final = 2**20
_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KEY: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_EVENT: Final = re.compile(r"ev_[0-9a-f]{32}")


def event_id(sequence: int) -> str:
    """Return the id of the journal's entry of that number; ids sort as numbers do (EV-1)."""
    return f"ev_{sequence:032x}"


def sequence_of(event: str) -> int:
    """Return the number in an entry's id; 0 for the empty string, before all entries.

    Raises:
        InvalidArgument: it is no such id.
    """
    if not event:
        return 0
    if not isinstance(event, str) or not _EVENT.fullmatch(event):
        raise InvalidArgument(
            f"no event id: {event!r:.100}", hint="an event id is ev_ and 32 hex digits"
        )
    return min(int(event[3:], 16), 2**63 - 1)


@attrs.frozen(kw_only=True)
class StateRecord:
    """One record as it was at one moment.

    Attributes:
        kind: what sort of thing it is: `sandbox`, `name`, ….
        key: which one.
        version: grows with every write; no two writes in one store have the same, and one that
            was deleted and made again goes on counting.
        value: a JSON object.
    """

    kind: str
    key: str
    version: int
    value: Mapping[str, Any] = attrs.field(converter=freeze)


@attrs.frozen(kw_only=True)
class Put:
    """Make or replace a record, if it is as expected.

    Attributes:
        kind, key: which record.
        value: a JSON object of at most 1 MiB.
        expect: the version that it must have; 0 where there must be none.
    """

    kind: str
    key: str
    value: Mapping[str, Any]
    expect: int


@attrs.frozen(kw_only=True)
class Delete:
    """Remove a record, if it has the version that is expected."""

    kind: str
    key: str
    expect: int


@attrs.frozen(kw_only=True)
class NewEntry:
    """What is to be written to the journal.

    Attributes:
        topic: what it is about: a sandbox's id.
        data: a JSON object of at most 1 MiB.
        time_ns: when, in nanoseconds since the epoch.
    """

    topic: str
    data: Mapping[str, Any]
    time_ns: int


@attrs.frozen(kw_only=True)
class JournalEntry:
    """What is in the journal; entries are ordered by id, in the order of their writes (EV-1)."""

    sequence: int
    topic: str
    data: Mapping[str, Any] = attrs.field(converter=freeze)
    time_ns: int

    @property
    def id(self) -> str:
        """`ev_` and 32 hex digits."""
        return event_id(self.sequence)


@attrs.frozen(kw_only=True)
class Written:
    """What a write came to.

    Attributes:
        versions: of each change, in order; 0 for a deletion.
        entries: of the journal, in order.
    """

    versions: tuple[int, ...] = ()
    entries: tuple[JournalEntry, ...] = ()


class StateStore(ABC):
    """Versioned JSON records with compare-and-swap, and an append-only journal (LC-2, EV-1).

    Several processes may use one store. A write happens whole or not at all, whenever the process
    dies; what was written is there for every later read, whoever reads. Two writes that expect
    the same version: one of them gets `Conflict`, and nothing of it was written.

    All methods raise `Locked` (busy for too long), `PermissionDenied`, `NoSpace` or `Unavailable`
    where the place fails; a write that raised one of these has not happened, except under
    `OutcomeUnknown`. `pinfold.state.suite` checks any implementation.
    """

    @abstractmethod
    async def get(self, kind: str, key: str) -> StateRecord | None:
        """Return a record, or None where there is none.

        Raises:
            InvalidArgument: no such kind or key can be.
        """

    @abstractmethod
    async def list(self, kind: str, *, after: str = "", limit: int = 1000) -> Sequence[StateRecord]:
        """Return records of a kind, sorted by the code points of their keys, from after a key on.

        Raises:
            InvalidArgument: no such kind can be, or the limit is not positive.
        """

    @abstractmethod
    async def write(
        self, changes: Sequence[Put | Delete] = (), journal: Sequence[NewEntry] = ()
    ) -> Written:
        """Make changes and write to the journal: all of it, or nothing.

        Raises:
            AlreadyExists: a record is there that was expected not to be.
            Conflict: a record has another version; `details` has kind, key, expected, current.
            InvalidArgument: not JSON, a bad kind or key, or the same record twice.
            TooLarge: a value above 1 MiB.
        """

    @abstractmethod
    async def journal(
        self, *, topic: str | None = None, after: str = "", limit: int = 1000
    ) -> Sequence[JournalEntry]:
        """Return entries in order, of one topic or of all, from after an id on.

        Raises:
            InvalidArgument: `after` is no event id, or the limit is not positive.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give back what the store holds open; it may be used again all the same."""

    async def put(
        self, kind: str, key: str, value: Mapping[str, Any], *, expect: int
    ) -> StateRecord:
        """Make or replace one record. Raises: as `write`."""
        change = Put(kind=kind, key=key, value=value, expect=expect)
        written = await self.write([change])
        return StateRecord(kind=kind, key=key, value=value, version=written.versions[0])

    async def delete(self, kind: str, key: str, *, expect: int) -> None:
        """Remove one record. Raises: as `write`."""
        await self.write([Delete(kind=kind, key=key, expect=expect)])

    async def append(self, *entries: NewEntry) -> Sequence[JournalEntry]:
        """Write to the journal alone. Raises: as `write`."""
        return (await self.write(journal=entries)).entries

    async def identity(self) -> str:
        """Return this store's own id, 32 hex digits, made when it is first asked for (LC-9)."""
        while True:
            record = await self.get("store", "identity")
            if record is not None:
                return str(record.value["id"])
            try:
                value = {"version": 1, "id": secrets.token_hex(16)}
                return str((await self.put("store", "identity", value, expect=0)).value["id"])
            except AlreadyExists:
                continue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def check_kind(kind: str) -> str:
    """Return a kind that may be used. Raises: InvalidArgument."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise InvalidArgument(
            f"no kind of record: {kind!r:.100}",
            hint="lower-case letters, digits and '_'; at most 64",
        )
    return kind


def check_key(key: str, what: str = "key") -> str:
    """Return a key or topic that may be used. Raises: InvalidArgument."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidArgument(
            f"no {what}: {key!r:.300}", hint="1 to 256 characters, no control characters"
        )
    return key


def check_after(after: str) -> None:
    """Refuse what is neither a key nor empty. Raises: InvalidArgument."""
    if after != "":
        check_key(after, "key to go on after")


def check_topic(topic: str | None) -> None:
    """Refuse what is neither a topic nor null. Raises: InvalidArgument."""
    if topic is not None:
        check_key(topic, "topic")


def check_limit(limit: int) -> int:
    """Return a limit that may be used. Raises: InvalidArgument."""
    if type(limit) is not int or limit < 1:
        raise InvalidArgument(f"the limit is not positive: {limit!r:.50}")
    return limit


def check_write(
    changes: Sequence[Put | Delete], journal: Sequence[NewEntry]
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the canonical JSON of each change ("" for a deletion) and of each entry.

    Raises:
        InvalidArgument, TooLarge: as `StateStore.write`.
    """
    seen: set[tuple[str, str]] = set()
    values: list[str] = []
    for change in changes:
        name = (check_kind(change.kind), check_key(change.key))
        if name in seen:
            raise InvalidArgument(f"{change.kind} {change.key!r} is in one write twice")
        seen.add(name)
        if type(change.expect) is not int or change.expect < (0 if isinstance(change, Put) else 1):
            raise InvalidArgument(
                f"{change.kind} {change.key!r} can't have version {change.expect!r:.50}",
                hint="expect the version that was read; 0 for a record that must be new",
            )
        what = f"{change.kind} {change.key!r}"
        values.append(_json(change.value, what) if isinstance(change, Put) else "")
    entries: list[str] = []
    for entry in journal:
        check_key(entry.topic, "topic")
        if type(entry.time_ns) is not int or abs(entry.time_ns) >= 2**63:
            raise InvalidArgument(f"no time in nanoseconds: {entry.time_ns!r:.50}")
        entries.append(_json(entry.data, f"an entry of {entry.topic!r}"))
    return values, entries


def _json(value: Mapping[str, Any], what: str) -> str:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{what} is no JSON object but {type(value).__name__}")
    faults = json_faults(value)
    if faults:
        raise InvalidArgument(f"{what} is not plain JSON: {faults[0]}")
    data = canonical_json(value)
    if len(data) > MAX_VALUE_BYTES:
        raise TooLarge(
            f"{what} takes {len(data)} bytes as JSON",
            hint=f"at most {MAX_VALUE_BYTES}; keep what is large in the checkpoint store",
        )
    return data.decode("utf-8")


def conflict(change: Put | Delete, current: int) -> Conflict:
    """Return the error for a record that is not as expected."""
    details = {
        "kind": change.kind,
        "key": change.key,
        "expected": change.expect,
        "current": current,
    }
    if not change.expect:
        return AlreadyExists(f"{change.kind} {change.key!r} is there already", details=details)
    now = f"is at version {current}" if current else "is gone"
    return Conflict(
        f"{change.kind} {change.key!r} {now}, not at {change.expect}",
        hint="read it again, and decide anew",
        details=details,
    )
