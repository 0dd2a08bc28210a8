"""One long operation with a helper, and what all operations share."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from pinfold.errors import OutcomeUnknown, PinfoldError
from pinfold.posix._resident._wire import (
    IN_CREDIT,
    MAX_OUT,
    UNLIMITED,
    Code,
    Cursor,
    Malformed,
    To,
    frame,
    frame_head,
)

if TYPE_CHECKING:
    from pinfold.posix._resident._session import Session

__all__ = ["Refused", "Stream", "Waiter", "results", "unknown"]


class Refused(Exception):
    """The helper answered an operation with an error code."""

    def __init__(self, code: Code, errno: int, about: str) -> None:
        super().__init__(f"{code.name.lower()} (errno {errno}): {about}")
        self.code = code
        self.errno = errno
        self.about = about


class Waiter:
    """Somebody who waits for something that the helper will say."""

    __slots__ = ("event", "given_up", "patient", "ready")

    def __init__(self, *, patient: bool = False) -> None:
        self.ready = False
        #: It waits on where the target stands still, which may be for ever.
        self.patient = patient
        self.given_up: PinfoldError | None = None
        self.event: anyio.Event | None = None

    def wake(self) -> None:
        """Let it go on."""
        self.ready = True
        if self.event is not None:
            self.event.set()

    def give_up(self, why: PinfoldError) -> None:
        """Let it go on, to raise this."""
        self.given_up = why
        if self.event is not None:
            self.event.set()


def unknown(cause: PinfoldError) -> OutcomeUnknown:
    """Return the error for what may or may not have been done."""
    return OutcomeUnknown(
        f"the helper went away in between: {cause.message}",
        hint="look what has been done before it is done again",
    )


def results(raw: bytes) -> Cursor:
    """Return a cursor on the results of a REPLY or an END.

    Raises:
        Refused: it has none.
        Malformed: it is neither.
    """
    cursor = Cursor(raw)
    try:
        code = Code(cursor.u8())
    except ValueError:
        raise Malformed("an unknown code") from None
    if code is Code.OK:
        return cursor
    errno, about = cursor.u32(), cursor.text()
    cursor.end()
    raise Refused(code, errno, about.decode("utf-8", "surrogateescape"))


class Stream:
    """A long operation: its input, its outputs, its end."""

    def __init__(self, session: Session, number: int, credit: int, second_credit: int) -> None:
        self.session = session
        self.number = number
        self._start = session.end
        self._input_room = IN_CREDIT
        self._output: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        #: What the helper may still send; it must keep to it.
        self._credit = [credit, second_credit]
        self._owed = [0, 0]
        self._limited = (credit < UNLIMITED, second_credit < UNLIMITED)
        self._end: bytes | None = None
        self._waiters: list[Waiter] = []
        self.abandoned = False
        #: It has a deadline of its own, and is waited for while the target stands still.
        self.patient = False

    @property
    def ended(self) -> bool:
        """Its END has come, or the session is over."""
        return self._end is not None or self.session.failure is not None

    def take(self, index: int) -> bytes:
        """Return all that has come of output 1 or 2 and was not taken yet."""
        queue = self._output[index - 1]
        if not queue:
            return b""
        data = queue.popleft() if len(queue) == 1 else b"".join(queue)
        queue.clear()
        return data

    def return_credit(self, index: int, size: int) -> None:
        """Allow the helper as much output again as was taken."""
        self._owed[index - 1] += size
        if self._owed[index - 1] >= IN_CREDIT // 4 and not self.ended:
            owed, self._owed[index - 1] = self._owed[index - 1], 0
            self._credit[index - 1] += owed
            payload = bytes((index,)) + owed.to_bytes(8, "little")
            self.session.put(frame(To.CREDIT, self.number, payload))

    async def moved(self) -> None:
        """Wait until something has happened: output, a grant, or the end.

        Raises:
            PinfoldError: the session is over, or the target stands still.
        """
        if self._end is not None:
            return
        waiter = Waiter(patient=self.patient)
        self._waiters.append(waiter)
        try:
            await self.session.flush()
            await self.session.wait(waiter)
        finally:
            if not waiter.ready:
                self._waiters.remove(waiter)

    def send_some(self, data: memoryview) -> int:
        """Put as much input on its way as may be sent; return how much that was."""
        size = min(len(data), self._input_room, MAX_OUT)
        if size and not self.ended:
            self._input_room -= size
            # In one piece: an engine passes on what it is sent by itself, a head alone too.
            self.session.put(frame_head(To.DATA, self.number, size) + data[:size])
        return size

    async def send(self, data: bytes) -> bool:
        """Send input, as the helper takes it; False when the operation has ended instead."""
        view = memoryview(data)
        while view:
            if self.ended:
                return False
            size = self.send_some(view)
            view = view[size:]
            if size:
                await self.session.room(patient=self.patient)
            else:
                await self.moved()
        await self.session.flush()
        return True

    def end_input(self) -> None:
        """Say that the input is complete."""
        self._tell(To.EOF, b"")

    def signal(self, number: int) -> None:
        """Send a signal to the command's group."""
        self._tell(To.SIGNAL, bytes((number,)))

    def kill(self, grace_seconds: float) -> None:
        """End the operation and all that it started."""
        self._tell(To.KILL, round(grace_seconds * 1000).to_bytes(4, "little"))

    def resize(self, rows: int, columns: int) -> None:
        """Tell a terminal its size."""
        self._tell(To.RESIZE, rows.to_bytes(2, "little") + columns.to_bytes(2, "little"))

    def _tell(self, kind: To, payload: bytes) -> None:
        if not self.ended:
            self.session.put(frame(kind, self.number, payload))

    async def flush(self) -> None:
        """Send what was put on its way."""
        await self.session.flush()

    async def finish(self) -> Cursor:
        """Wait for the end and return the results; output may still be taken.

        Raises:
            Refused: the helper says why not.
            PinfoldError: the session is over, or the target stands still.
        """
        while self._end is None:
            await self.moved()
        return results(self._end)

    def fate(self, cause: PinfoldError) -> PinfoldError:
        """Return the error for an operation that changes something, once the session is over."""
        return self.session.fate(self._start, cause)

    async def abandon(self, seconds: float) -> None:
        """End it, drop its output, and wait a while for its end; never raises, not cancelled."""
        self.abandoned = True
        with anyio.move_on_after(seconds, shield=True), suppress(PinfoldError):
            self.kill(0)
            for index in (1, 2):
                self.take(index)
            while not self.ended:
                await self.moved()

    # --- what the session brings -----------------------------------------------------------------

    def take_output(self, index: int, data: bytes) -> None:
        """Take some of an OUT."""
        size = len(data)
        if index not in (1, 2):
            raise Malformed(f"there is no output {index}")
        if self._limited[index - 1]:
            if size > self._credit[index - 1]:
                raise Malformed("more output than credit")
            self._credit[index - 1] -= size
        if self.abandoned:
            self.return_credit(index, size)
        else:
            self._output[index - 1].append(data)
        self._wake()

    def take_grant(self, payload: bytes) -> None:
        """Take a GRANT."""
        cursor = Cursor(payload)
        self._input_room += cursor.u64()
        cursor.end()
        if self._input_room > IN_CREDIT:
            raise Malformed("more input granted than was taken")
        self._wake()

    def take_end(self, payload: bytes) -> None:
        """Take the END."""
        self._end = payload
        self._wake()

    def take_failure(self) -> None:
        """The session is over."""
        for waiter in self._waiters:
            if waiter.event is not None:
                waiter.event.set()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()
