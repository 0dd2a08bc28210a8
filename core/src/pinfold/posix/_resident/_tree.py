"""The workspace as a whole by the helper (contract section 6)."""

from __future__ import annotations

import os
import posixpath
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from typing import Final

import anyio
import attrs

from pinfold._tasks import iterating
from pinfold.errors import (
    Conflict,
    InvalidArgument,
    PinfoldError,
    Unavailable,
)
from pinfold.posix._gate import Gate
from pinfold.posix._resident._exec import ResidentGuest
from pinfold.posix._resident._files import TEMPORARY, TYPES, Current, ending, errors, records
from pinfold.posix._resident._stream import Stream
from pinfold.posix._resident._wire import IN_CREDIT, MAX_OUT, Cursor, Facts, Malformed, Open, text
from pinfold.posix._restore import check_restorable, verified
from pinfold.provider import (
    Blob,
    Entry,
    FileMark,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Tree,
)
from pinfold.spec import WORKSPACE

__all__ = ["ResidentTree"]

#: A ctime this close to a scan, or later, proves nothing (CP-7).
_RACY_NS: Final = 2_000_000_000
_NO_TOKEN: Final = bytes(32)
_STAGING: Final = TEMPORARY + "restore-by-helper"
_NAME_BYTES: Final = 255
_UNDO_SECONDS: Final = 60.0
_TRIES: Final = 3

_DIRECTORY, _FILE_NEW, _LINK, _GONE, _FILE_KEPT, _DONE = range(1, 7)
_DATA, _LAST, _NO_FILE = range(3)


@attrs.frozen
class _Fetched:
    """One answer of FETCH: a piece of contents, or with `facts` the end of a file."""

    data: bytes = b""
    facts: Facts | None = None
    digest: str = ""
    changed: bool = False
    missing: bool = False


_NOTHING: Final = _Fetched()


def _mark(facts: Facts, digest: str) -> FileMark:
    return FileMark(facts.size, facts.mtime_ns, facts.ctime_ns, facts.inode, digest)


class ResidentTree(Tree):
    """The workspace of a target with a helper in it."""

    def __init__(
        self,
        current: Current,
        guest: ResidentGuest,
        gate: Gate,
        end_earlier: Callable[[], Awaitable[bool]],
    ) -> None:
        self._current = current
        self._guest = guest
        self._gate = gate
        #: Ends what was left by controllers before this one; says whether there was anything.
        self._end_earlier = end_earlier

    async def scan(self, since: ScanState | None = None) -> Scan:
        token = _NO_TOKEN
        if since is not None and since.token:
            with suppress(ValueError):
                token = bytes.fromhex(since.token)
        found: dict[str, tuple[Facts, bytes]] = {}
        session, places = await self._current()
        arguments = places.workspace + text(TEMPORARY) + token[:32].ljust(32, b"\0")
        stream = session.open(Open.SCAN, arguments, credit=4 * IN_CREDIT)
        async with ending(stream):
            with errors(WORKSPACE, "scan"):
                async with aclosing(records(stream)) as each:
                    async for facts, path, link in each:
                        name = _checked(path)
                        if name in found:
                            raise Malformed(f"{name!r} is listed twice")
                        found[name] = facts, link
                cursor = await stream.finish()
                same, token, started = cursor.flag(), cursor.take(32), cursor.i64()
                cursor.end()
        if same and since is not None:
            return Scan(state=since, unchanged=True)
        return await self._digest(found, since or ScanState(), token, started)

    async def _digest(
        self,
        found: Mapping[str, tuple[Facts, bytes]],
        since: ScanState,
        token: bytes,
        started: int,
    ) -> Scan:
        marks: dict[str, FileMark] = {}
        unread: list[str] = []
        newest = since.started_ns - _RACY_NS
        for path, (facts, _) in found.items():
            if facts.type != 1:
                continue
            mark = since.files.get(path)
            if mark is not None and facts.ctime_ns < newest and mark == _mark(facts, mark.digest):
                marks[path] = mark
            else:
                unread.append(path)
        read: dict[str, _Fetched] = {}
        unsettled = unread
        for _ in range(_TRIES):  # until it is as it was the last time
            dirty, unsettled = unsettled, []
            at = 0
            async with aclosing(self._fetch(dirty, contents=False)) as answers:
                async for one in answers:
                    path = dirty[at]
                    at += 1
                    before = read[path].facts if path in read else found[path][0]
                    read[path], seen = one, one.facts
                    if seen is not None and (
                        one.changed or seen != before or seen.ctime_ns >= started
                    ):
                        unsettled.append(path)
        gone = {path for path, one in read.items() if one.facts is None}
        entries = []
        for path, (facts, link) in found.items():
            now = read.get(path, _NOTHING)
            digest = now.digest or (marks[path].digest if path in marks else "")
            if facts.type != 4 and path not in gone:
                entries.append(_entry(path, now.facts or facts, link, digest))
        marks |= {
            path: _mark(one.facts, one.digest)
            for path, one in read.items()
            if one.facts is not None and path not in unsettled
        }
        entries.sort(key=lambda entry: entry.path)
        settled = (
            not gone
            and not unsettled
            and all(mark.ctime_ns < started - _RACY_NS for mark in marks.values())
        )
        return Scan(
            entries=tuple(entries),
            skipped=tuple(sorted(path for path, (facts, _) in found.items() if facts.type == 4)),
            unsettled=tuple(sorted(unsettled)),
            state=ScanState(started_ns=started, files=marks, token=token.hex() if settled else ""),
        )

    async def _fetch(
        self, paths: Sequence[str], *, contents: bool
    ) -> AsyncGenerator[_Fetched, None]:
        if not paths:
            return
        session, places = await self._current()
        arguments = places.workspace + bytes((contents,))
        stream = session.open(Open.FETCH, arguments, credit=4 * IN_CREDIT)
        async with ending(stream):
            with errors(WORKSPACE, "read files of"):
                held, count = b"", 0
                names = b"".join(map(text, paths))
                async with aclosing(_exchange(stream, names)) as chunks:
                    async for data in chunks:
                        held += data
                        found, held = _parse_fetched(held)
                        for one in found:
                            count += not one.data
                            if count > len(paths):
                                raise Malformed("more files than were asked for")
                            yield one
                (await stream.finish()).end()
                if held or count != len(paths):
                    raise Malformed("fewer files than were asked for")

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        paths = [entry.path for entry in entries if entry.type is FileType.FILE]
        at = 0
        async with aclosing(self._fetch(paths, contents=True)) as answers:
            async for one in answers:
                if one.data:
                    yield Blob(path=paths[at], data=one.data)
                    continue
                yield Blob(path=paths[at], data=b"", last=True, digest=one.digest)
                at += 1

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        if self._guest.running:
            raise Conflict("a command is running", hint="wait for it, or end it, then restore")
        check_restorable(plan.entries)
        for entry in plan.entries:
            _representable(entry)
        async with self._gate.closed():
            return await self._restore(plan)

    async def _restore(self, plan: RestorePlan) -> RestoreReport:
        session, places = await self._current()
        had = await session.count_jobs()
        if had and (left := await session.end_jobs()):
            raise Unavailable(f"{left} background processes could not be ended")
        earlier = await self._end_earlier()
        now = await self.scan()
        actions = _actions(plan.entries, now)
        if actions:
            arguments = places.workspace + text(_STAGING)
            stream = session.open(Open.RESTORE, arguments)
            await _carry_out(stream, actions, plan)
        state = (await self.scan(now.state)).state
        return RestoreReport(
            escaping_links=tuple(
                entry.path for entry in plan.entries if _escapes(entry, places.root)
            ),
            processes_ended=bool(had) or earlier,
            state=state,
        )

    async def recover(self) -> bool:
        session, places = await self._current()
        stream = session.open(Open.RECOVER, places.workspace + text(_STAGING))
        async with ending(stream):
            with errors(WORKSPACE, "finish the restore of"):
                cursor = await stream.finish()
                found = cursor.u8()
                cursor.end()
        return found != 0


def _checked(path: bytes) -> str:
    name = os.fsdecode(path)
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise Malformed(f"a path in the workspace is {name!r}")
    return name


def _entry(path: str, facts: Facts, link: bytes, digest: str) -> Entry:
    kind = TYPES[facts.type - 1]
    return Entry(
        path=path,
        type=kind,
        mode=0o777 if kind is FileType.SYMLINK else facts.mode,
        size=facts.size if kind is FileType.FILE else 0,
        digest=digest,
        link=os.fsdecode(link) if kind is FileType.SYMLINK else None,
        mtime_ns=facts.mtime_ns,
    )


def _parse_fetched(held: bytes) -> tuple[list[_Fetched], bytes]:
    """Return the whole answers, and what is left."""
    found: list[_Fetched] = []
    cursor, whole = Cursor(held), 0
    while cursor.left:
        try:
            kind = cursor.u8()
            if kind == _DATA:
                size = cursor.u32()
                if not 0 < size <= MAX_OUT:
                    raise _Wrong(f"a piece of {size} bytes")
                one = _Fetched(data=cursor.take(size))
            elif kind == _LAST:
                facts, digest = cursor.facts(), cursor.take(32).hex()
                one = _Fetched(facts=facts, digest=digest, changed=cursor.flag())
            elif kind == _NO_FILE:
                one = _Fetched(missing=True)
            else:
                raise _Wrong(f"an answer of kind {kind}")
        except _Wrong:
            raise
        except Malformed:
            break  # it goes on in the next chunk; a piece is bounded
        whole = len(held) - cursor.left
        found.append(one)
    return found, held[whole:]


class _Wrong(Malformed):
    """Not merely cut off."""


async def _exchange(stream: Stream, data: bytes) -> AsyncGenerator[bytes, None]:
    """Send all of the input while yielding the output, to its end."""
    rest, over = memoryview(data), False
    while True:
        while rest and (size := stream.send_some(rest)):
            rest = rest[size:]
            await stream.session.room()
        if not rest and not over:
            over = True
            stream.end_input()
        output = stream.take(1)
        if output:
            stream.return_credit(1, len(output))
            yield output
        elif stream.ended:
            return
        else:
            await stream.moved()


# --- restore ------------------------------------------------------------------------------------


def _representable(entry: Entry) -> None:
    name = entry.path.rpartition("/")[2]
    if len(os.fsencode(name)) > _NAME_BYTES:
        raise InvalidArgument(
            f"this target can't hold {entry.path!r}: a name has at most {_NAME_BYTES} bytes",
            details={"path": entry.path},
        )


def _escapes(entry: Entry, root: str) -> bool:
    """Whether a link's text leads out of the workspace."""
    if entry.link is None:
        return False
    place = posixpath.normpath(posixpath.join(root, posixpath.dirname(entry.path), entry.link))
    return place != root and not place.startswith(root.rstrip("/") + "/")


@attrs.frozen
class _Action:
    what: int
    path: str
    entry: Entry | None = None

    def encode(self) -> bytes:
        head = bytes((self.what,)) + text(self.path)
        entry = self.entry
        if entry is None:
            return head
        if self.what == _LINK:
            return head + text(entry.link or "")
        head += entry.mode.to_bytes(4, "little") + entry.mtime_ns.to_bytes(8, "little", signed=True)
        if self.what == _FILE_NEW:
            head += entry.size.to_bytes(8, "little") + bytes.fromhex(entry.digest)
        return head


def _actions(target: Iterable[Entry], now: Scan) -> list[_Action]:
    """What makes the tree that is there the tree to be, in the order in which it must be done."""
    wanted = {entry.path: entry for entry in target}
    there = {entry.path: entry for entry in now.entries}
    gone: list[_Action] = []
    lost: set[str] = set()  # directories that go, with all in them
    for path in sorted([*there, *now.skipped]):
        parent = path.rpartition("/")[0]
        entry = there.get(path)
        want = wanted.get(path)
        if parent in lost:
            lost.add(path)
        elif entry is None or want is None or want.type is not entry.type:
            gone.append(_Action(_GONE, path))
            lost.add(path)
    changes: list[_Action] = []
    for path, want in wanted.items():
        entry = None if path in lost else there.get(path)
        action = _change(want, entry)
        if action is not None:
            changes.append(action)
    # A directory in which something changes gets its mode and time again afterwards.
    touched = {action.path.rpartition("/")[0] for action in (*gone, *changes)}
    said = {action.path for action in changes}
    changes += [
        _Action(_DIRECTORY, path, wanted[path])
        for path in touched
        if path in wanted and path not in said and wanted[path].type is FileType.DIRECTORY
    ]
    changes.sort(key=lambda action: action.path)
    return gone + changes


def _change(want: Entry, entry: Entry | None) -> _Action | None:
    if want.type is FileType.DIRECTORY:
        if entry is None or entry.mode != want.mode:
            return _Action(_DIRECTORY, want.path, want)
    elif want.type is FileType.SYMLINK:
        if entry is None or entry.link != want.link:
            return _Action(_LINK, want.path, want)
    elif entry is None or entry.digest != want.digest:
        return _Action(_FILE_NEW, want.path, want)
    elif (entry.mode, entry.mtime_ns) != (want.mode, want.mtime_ns):
        return _Action(_FILE_KEPT, want.path, want)
    return None


async def _carry_out(stream: Stream, actions: Sequence[_Action], plan: RestorePlan) -> None:
    complete = False
    try:
        with errors(WORKSPACE, "restore"):
            async with aclosing(_encoded(actions, plan)) as pieces:
                async for data in pieces:
                    if not await stream.send(data):
                        break  # it has ended before its time: `finish` says why
            complete = True
            if not stream.ended:
                stream.end_input()
            try:
                (await stream.finish()).u32()
            except PinfoldError as exc:
                raise stream.fate(exc) from exc
    finally:
        if not complete and not stream.ended:
            # An input that ends too early: what was staged is removed.
            with anyio.move_on_after(_UNDO_SECONDS, shield=True), suppress(PinfoldError, Exception):
                stream.end_input()
                await stream.finish()
        elif not stream.ended:
            await stream.abandon(_UNDO_SECONDS)


async def _encoded(actions: Sequence[_Action], plan: RestorePlan) -> AsyncGenerator[bytes, None]:
    """Yield the actions and, each behind its own, the contents."""
    held = bytearray()
    for action in actions:
        held += action.encode()
        entry = action.entry
        if action.what == _FILE_NEW and entry is not None:
            chunks = verified(plan, entry)
            async with iterating(chunks):
                async for chunk in chunks:
                    held += chunk
                    if len(held) >= MAX_OUT:
                        yield bytes(held)
                        held.clear()
        if len(held) >= MAX_OUT:
            yield bytes(held)
            held.clear()
    yield bytes(held) + bytes((_DONE,))
