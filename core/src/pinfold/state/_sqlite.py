"""A state store in one SQLite file, for any number of processes of one machine."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from pinfold._paths import expanded
from pinfold.errors import (
    InvalidArgument,
    Locked,
    NoSpace,
    PermissionDenied,
    PinfoldError,
    Unavailable,
)
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

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SqliteStateStore"]

_T = TypeVar("_T")

#: The layout of the file. A later one is refused by name (SP-3).
SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE record (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE TABLE journal (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    time_ns INTEGER NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX journal_topic ON journal (topic, sequence);
CREATE TABLE counter (version INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
"""
_making = threading.Lock()
_THREADS: Final = 4
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("pinfold_state_threads")


class SqliteStateStore(StateStore):
    """State in a file, through the standard library's sqlite3, in WAL mode.

    Each process has one connection; a fork opens its own. Calls run in worker threads.

    Args:
        path: the file, made when it is first used, for its owner alone. On this machine's own
            disk: WAL needs memory that all its users share.
        fsync: whether a write that was done also survives a power cut; without it the last few
            may be lost to one (never to a killed process), the file itself never.
        busy_seconds: how long a call waits for other writers before it raises `Locked`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, fsync: bool = True, busy_seconds: float = 30.0
    ) -> None:
        self.path = Path(expanded(path)).absolute()
        self._fsync = fsync
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"SqliteStateStore({str(self.path)!r})"

    async def get(self, kind: str, key: str) -> StateRecord | None:
        check_kind(kind)
        check_key(key)
        rows = await self._select(
            "SELECT version, value FROM record WHERE kind = ? AND key = ?", (kind, key)
        )
        for version, value in rows:
            return StateRecord(kind=kind, key=key, version=version, value=json.loads(value))
        return None

    async def list(self, kind: str, *, after: str = "", limit: int = 1000) -> Sequence[StateRecord]:
        check_after(after)
        rows = await self._select(
            "SELECT key, version, value FROM record WHERE kind = ? AND key > ?"
            " ORDER BY key LIMIT ?",
            (check_kind(kind), after, check_limit(limit)),
        )
        return tuple(
            StateRecord(kind=kind, key=key, version=version, value=json.loads(value))
            for key, version, value in rows
        )

    async def journal(
        self, *, topic: str | None = None, after: str = "", limit: int = 1000
    ) -> Sequence[JournalEntry]:
        check_topic(topic)
        where = "sequence > ?" if topic is None else "sequence > ? AND topic = ?"
        parameters = (sequence_of(after), *(() if topic is None else (topic,)))
        rows = await self._select(
            f"SELECT sequence, topic, time_ns, data FROM journal WHERE {where}"  # noqa: S608
            " ORDER BY sequence LIMIT ?",
            (*parameters, check_limit(limit)),
        )
        return tuple(
            JournalEntry(sequence=row[0], topic=row[1], time_ns=row[2], data=json.loads(row[3]))
            for row in rows
        )

    async def write(
        self, changes: Sequence[Put | Delete] = (), journal: Sequence[NewEntry] = ()
    ) -> Written:
        values, entries = check_write(changes, journal)

        def act(connection: sqlite3.Connection) -> Written:
            versions = _apply(connection, changes, values)
            written: list[JournalEntry] = []
            for entry, data in zip(journal, entries, strict=True):
                row = connection.execute(
                    "INSERT INTO journal (topic, time_ns, data) VALUES (?, ?, ?)",
                    (entry.topic, entry.time_ns, data),
                )
                written.append(
                    JournalEntry(
                        sequence=row.lastrowid or 0,
                        topic=entry.topic,
                        time_ns=entry.time_ns,
                        data=json.loads(data),
                    )
                )
            return Written(versions=tuple(versions), entries=tuple(written))

        return await self._run(lambda connection: self._transaction(connection, act))

    async def close(self) -> None:
        def shut() -> None:
            with self._lock:
                if self._connection is not None and self._pid == os.getpid():
                    self._connection.close()
                self._connection = None

        await to_thread.run_sync(shut)

    async def _select(self, query: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        return await self._run(
            lambda connection: self._patiently(
                lambda: connection.execute(query, parameters).fetchall()
            )
        )

    async def _run(self, act: Callable[[sqlite3.Connection], _T]) -> _T:
        limiter = _limiter.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(_THREADS)
            _limiter.set(limiter)

        def locked() -> _T:
            with self._lock, self._translated():
                return act(self._connected())

        return await to_thread.run_sync(locked, limiter=limiter)

    # --- in a worker thread, under the lock ---

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None or self._pid != os.getpid():
            self._connection = self._connect()
            self._pid = os.getpid()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_file(self.path)
        except OSError as exc:
            raise PermissionDenied(
                f"the state store {self.path} can't be opened: {exc.strerror}",
                hint="choose another place for the store",
            ) from exc
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
            level = "FULL" if self._fsync else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {level}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._transaction(connection, _make_schema)
            elif version > SCHEMA_VERSION:
                raise InvalidArgument(
                    f"the state store {self.path} is of version {version};"
                    f" this pinfold reads {SCHEMA_VERSION}",
                    hint="upgrade pinfold",
                    details={"version": version, "supported": SCHEMA_VERSION},
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _transaction(
        self, connection: sqlite3.Connection, act: Callable[[sqlite3.Connection], _T]
    ) -> _T:
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            result = act(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(Exception):  # it may be that the failure has rolled back already
                connection.execute("ROLLBACK")
            raise
        return result

    def _patiently(self, act: Callable[[], _T]) -> _T:
        """Try until the other writers let go. SQLite's own waiting favours whoever just wrote."""
        import sqlite3

        deadline = time.monotonic() + self._busy_seconds
        pause = 0.0002
        while True:
            try:
                return act()
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
                if time.monotonic() >= deadline:
                    raise
            time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - no secret
            pause = min(pause * 1.5, 0.01)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except PinfoldError:
            raise
        except sqlite3.Error as exc:
            name = getattr(exc, "sqlite_errorname", "") or type(exc).__name__
            what = f"the state store {self.path}: {exc} ({name})"
            details = {"sqlite": name}
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                hint = f"other writers held it for {self._busy_seconds:g} s; try again"
                raise Locked(what, hint=hint, details=details) from exc
            # The last is where the memory that WAL shares finds no room, as on a disk that is full.
            if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")):
                raise NoSpace(what, hint="make room", details=details) from exc
            if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN")):
                hint = "the file and its folder must be writable"
                raise PermissionDenied(what, hint=hint, details=details) from exc
            if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
                hint = "the file is damaged, or no state store"
                raise Unavailable(what, hint=hint, details=details, retryable=False) from exc
            raise Unavailable(what, details=details) from exc


def _make_file(path: Path) -> None:
    """Make a file for its owner alone, and never open one that is there.

    Whoever closes a file lets go of all the locks that this process has on it: those of SQLite's
    other connections, too, whose log the next process would then remove under their feet.
    """
    with _making:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        os.close(fd)


def _make_schema(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:  # nobody else made it meanwhile
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _apply(
    connection: sqlite3.Connection, changes: Sequence[Put | Delete], values: Sequence[str]
) -> list[int]:
    for change in changes:
        row = connection.execute(
            "SELECT version FROM record WHERE kind = ? AND key = ?", (change.kind, change.key)
        ).fetchone()
        current = 0 if row is None else row[0]
        if current != change.expect:
            raise conflict(change, current)
    versions: list[int] = []
    for change, value in zip(changes, values, strict=True):
        if isinstance(change, Delete):
            connection.execute(
                "DELETE FROM record WHERE kind = ? AND key = ?", (change.kind, change.key)
            )
            versions.append(0)
            continue
        (version,) = connection.execute(
            "UPDATE counter SET version = version + 1 RETURNING version"
        ).fetchone()
        connection.execute(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?)",
            (change.kind, change.key, version, value),
        )
        versions.append(version)
    return versions
