"""One session with a helper: many operations at once over one connection, and over the next.

No task of ours runs in the background. Of those that wait for the helper, one reads for all
of them; when it has what it wanted, it hands over to the next.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import Final

import anyio

from pinfold.errors import Effect, Lost, OutcomeUnknown, PinfoldError, Unavailable, Unreachable
from pinfold.posix._resident._wire import (
    ACK_EVERY,
    GREETING_BYTES,
    IN_CREDIT,
    MAX_OUT,
    UNLIMITED,
    WELCOME_BYTES,
    WINDOW,
    Call,
    Code,
    Cursor,
    Decoder,
    Frame,
    From,
    Greeting,
    Malformed,
    Open,
    To,
    answer,
    frame,
    frame_head,
)

__all__ = ["Link", "Refused", "Session", "Stream"]

#: A connection on which nothing moves for so long is tried, and given up after as long again.
_QUIET_SECONDS: Final = 10.0
#: How long a helper waits for a new connection; and we for one to succeed.
_GRACE_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0
#: Beyond this a send is stuck. It can't be interrupted in between: half a frame is worse than none.
_SEND_SECONDS: Final = 10.0
_PIECE: Final = 256 << 10
_U64: Final = 8


class Refused(Exception):
    """The helper answered an operation with an error code."""

    def __init__(self, code: Code, errno: int, about: str) -> None:
        super().__init__(f"{code.name.lower()} (errno {errno}): {about}")
        self.code = code
        self.errno = errno
        self.about = about


class Link(ABC):
    """One connection to a helper, as bytes."""

    @abstractmethod
    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; safe to be cancelled.

        Raises:
            anyio.EndOfStream, anyio.BrokenResourceError: the connection is gone.
        """

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            anyio.BrokenResourceError, anyio.ClosedResourceError: the connection is gone.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close it; idempotent, never raises."""


class Connector(ABC):
    """Makes new connections to the same helper."""

    @abstractmethod
    async def connect(self) -> Link:
        """Open one, right before its greeting.

        Raises:
            Lost: the helper is definitely gone.
            Unavailable: it may be reached later.
        """


class _Waiter:
    """Somebody who waits for something that the helper will say."""

    __slots__ = ("event", "ready")

    def __init__(self) -> None:
        self.ready = False
        self.event: anyio.Event | None = None

    def wake(self) -> None:
        self.ready = True
        if self.event is not None:
            self.event.set()


class _Pending(_Waiter):
    """A CALL without its REPLY."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        super().__init__()
        self.reply: bytes = b""


async def _read_exactly(link: Link, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await link.receive(size - len(data))
    return data


class Session:
    """A session; made by `start`.

    Attributes:
        greeting: what the helper said of itself.
        failure: why nothing works any more; None while it does.
    """

    def __init__(self, connector: Connector, greeting: Greeting, token: bytes) -> None:
        self.greeting = greeting
        self.failure: PinfoldError | None = None
        self._connector = connector
        self._token = token
        self._link: Link | None = None
        self._numbers = 0
        self._pending: dict[int, _Pending] = {}
        self._streams: dict[int, Stream] = {}
        # Outgoing: sent but not acknowledged, then not sent yet. `_base` is the offset of the first.
        self._sent: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._base = 0
        self._unacked = 0
        self._sending = anyio.Lock()
        self._room_waiters: list[_Waiter] = []
        # Incoming.
        self._decoder = Decoder()
        self._received = 0
        self._told = 0
        self._leader: _Waiter | None = None
        self._followers: dict[_Waiter, None] = {}
        self._ping: int | None = None

    @classmethod
    async def start(cls, link: Link, connector: Connector) -> Session:
        """Take up the conversation on a first connection.

        Raises:
            Malformed: that is no helper of ours.
            anyio.EndOfStream, anyio.BrokenResourceError: the connection is gone.
        """
        greeting = Greeting.parse(await _read_exactly(link, GREETING_BYTES))
        session = cls(connector, greeting, secrets.token_bytes(32))
        await link.send(answer(session._token, 0))
        if await _read_exactly(link, WELCOME_BYTES) != bytes(_U64):
            raise Malformed("a new helper says that it has received something")
        session._link = link
        return session

    # --- operations ---------------------------------------------------------------------------

    async def call(self, operation: Call, arguments: bytes, *, mutates: bool = False) -> Cursor:
        """Carry out a short operation and return its results.

        Args:
            operation: which.
            arguments: encoded.
            mutates: without an answer the outcome is then unknown.

        Raises:
            Refused: the helper says why not.
            OutcomeUnknown, Unavailable: the helper went away.
        """
        number, pending = self.begin_call(operation, arguments)
        return await self.finish_call(number, pending, mutates=mutates)

    def begin_call(self, operation: Call, arguments: bytes) -> tuple[int, _Pending]:
        """Put a short operation on its way; `finish_call` is to follow."""
        self._check()
        number = self._next_number()
        pending = self._pending[number] = _Pending()
        self._put(frame_head(To.CALL, number, 1 + len(arguments)) + bytes((operation,)) + arguments)
        return number, pending

    async def finish_call(self, number: int, pending: _Pending, *, mutates: bool) -> Cursor:
        """Wait for a short operation's results."""
        try:
            await self._flush()
            await self._wait(pending)
        except PinfoldError as exc:
            raise self._unknown(exc) if mutates else exc from None
        finally:
            if not pending.ready:
                self._pending[number] = _Pending()  # its reply will come, for nobody
        return _results(pending.reply)

    def open(
        self,
        operation: Open,
        arguments: bytes,
        *,
        credit: int = UNLIMITED,
        second_credit: int = UNLIMITED,
    ) -> Stream:
        """Put a long operation on its way; nothing is sent before the stream is waited for.

        Raises:
            Unavailable: the helper is gone; nothing was sent.
        """
        self._check()
        number = self._next_number()
        head = frame_head(To.OPEN, number, 9 + len(arguments))
        self._put(head + bytes((operation,)) + credit.to_bytes(8, "little") + arguments)
        stream = self._streams[number] = Stream(self, number, credit, second_credit)
        return stream

    async def end_jobs(self) -> int:
        """End all commands and background jobs; return how many are still there."""
        return (await self.call(Call.JOBS, b"\1", mutates=True)).u32()

    async def count_jobs(self) -> int:
        """Return how many commands and background jobs there are."""
        return (await self.call(Call.JOBS, b"\0")).u32()

    async def aclose(self) -> None:
        """Say goodbye: the helper ends all that it started, and itself."""
        if self.failure is None and self._link is not None:
            self._put(frame(To.BYE, 0))
            with anyio.move_on_after(_SEND_SECONDS, shield=True):
                await self._flush()
                while self._link is not None:  # until the helper has ended, and all with it
                    await self._read_some()
        self._fail(Lost("the helper was ended"))
        await self._hang_up()

    def _next_number(self) -> int:
        while True:
            self._numbers = self._numbers + 1 if self._numbers < 0xFFFFFFFF else 1
            if self._numbers not in self._streams and self._numbers not in self._pending:
                return self._numbers

    def _check(self) -> None:
        if self.failure is not None:
            raise Unreachable(self.failure.message, effect=Effect.NONE) from self.failure

    def _unknown(self, cause: PinfoldError) -> OutcomeUnknown:
        error = OutcomeUnknown(
            f"the helper went away in between: {cause.message}",
            hint="look what has been done before it is done again",
        )
        error.__cause__ = cause
        return error

    # --- out -----------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unacked += len(data)

    async def _flush(self) -> None:
        """Send what is to be sent. When the connection is gone it stays: the next one carries it."""
        while self._unsent and self._link is not None:
            async with self._sending:
                if not self._unsent or self._link is None:
                    return
                piece = self._unsent.popleft()
                if len(piece) < _PIECE // 4 and self._unsent:
                    parts = [piece]
                    size = len(piece)
                    while self._unsent and size + len(self._unsent[0]) <= _PIECE:
                        parts.append(self._unsent.popleft())
                        size += len(parts[-1])
                    piece = b"".join(parts)
                self._sent.append(piece)
                link, done = self._link, False
                with anyio.move_on_after(_SEND_SECONDS, shield=True):
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await link.send(piece)
                        done = True
                if not done and self._link is link:
                    await self._hang_up()

    async def room(self) -> None:
        """Wait until not too much is on its way."""
        while self._unacked > WINDOW:
            waiter = _Waiter()
            self._room_waiters.append(waiter)
            await self._flush()
            await self._wait(waiter)

    def _acknowledged(self, total: int) -> None:
        if total < self._base:
            raise Malformed("it takes an acknowledgement back")
        while self._sent and self._base + len(self._sent[0]) <= total:
            piece = self._sent.popleft()
            self._base += len(piece)
            self._unacked -= len(piece)
        if total > self._base + sum(map(len, self._sent)):
            raise Malformed("it acknowledges what was never sent")
        if self._unacked <= WINDOW:
            for waiter in self._room_waiters:
                waiter.wake()
            self._room_waiters.clear()

    # --- in --------------------------------------------------------------------------------------

    async def _wait(self, waiter: _Waiter) -> None:
        """Wait until somebody wakes the waiter: reading for all, or while another does."""
        while not waiter.ready:
            if self.failure is not None:
                raise self.failure
            if self._leader is None:
                self._leader = waiter
                try:
                    while not waiter.ready and self.failure is None:
                        await self._read_some()
                finally:
                    self._leader = None
                    self._hand_over()
            else:
                waiter.event = anyio.Event()
                self._followers[waiter] = None
                try:
                    await waiter.event.wait()
                finally:
                    self._followers.pop(waiter, None)
                    if not waiter.ready and waiter.event.is_set() and self._leader is None:
                        self._hand_over()  # it was to lead, and was cancelled

    def _hand_over(self) -> None:
        for waiter in self._followers:
            if not waiter.ready and waiter.event is not None:
                waiter.event.set()
                return

    async def _read_some(self) -> None:
        link = self._link
        if link is None:
            await self._reconnect()
            return
        data = b""
        try:
            with anyio.move_on_after(_QUIET_SECONDS) as quiet:
                data = await link.receive(MAX_OUT)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            if self._link is link:
                await self._hang_up()
            return
        if quiet.cancelled_caught:
            await self._is_anyone_there()
            return
        self._received += len(data)
        try:
            for one in self._decoder.feed(data):
                self._take(one)
        except Malformed as exc:
            self._fail(Lost(f"the helper broke its protocol: {exc}"))
            await self._hang_up()
            return
        if self._received - self._told >= ACK_EVERY:
            self._told = self._received
            self._put(frame(To.ACK, 0, self._received.to_bytes(_U64, "little")))
        if self._unsent:
            await self._flush()

    async def _is_anyone_there(self) -> None:
        if self._ping is not None:
            self._ping = None
            await self._hang_up()  # a new connection will tell whether it is stopped
            return
        self._ping, _ = self.begin_call(Call.PING, b"")
        await self._flush()

    def _take(self, one: Frame) -> None:
        if one.kind is From.OUT or one.kind is From.GRANT or one.kind is From.END:
            stream = self._streams.get(one.number)
            if stream is None:
                raise Malformed(f"it answers operation {one.number}, which there is not")
            if one.kind is From.OUT:
                stream.take_output(one.payload)
            elif one.kind is From.GRANT:
                stream.take_grant(one.payload)
            else:
                del self._streams[one.number]
                stream.take_end(one.payload)
        elif one.kind is From.REPLY:
            pending = self._pending.pop(one.number, None)
            if pending is None:
                raise Malformed(f"it replies to call {one.number}, which there is not")
            if one.number == self._ping:
                self._ping = None
            pending.reply = one.payload
            pending.wake()
        else:
            cursor = Cursor(one.payload)
            self._acknowledged(cursor.u64())
            cursor.end()

    # --- connections --------------------------------------------------------------------------------

    async def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with anyio.move_on_after(_SEND_SECONDS, shield=True):
                await link.aclose()

    async def _reconnect(self) -> None:
        """Go on over a new connection, within the time that the helper waits for one."""
        pause = 0.05
        try:
            with anyio.fail_after(_GRACE_SECONDS):
                while True:
                    try:
                        await self._try_connection()
                        return
                    except (Unavailable, anyio.EndOfStream, anyio.BrokenResourceError) as exc:
                        if isinstance(exc, Lost) or not isinstance(exc, Unavailable):
                            raise
                    await anyio.sleep(pause)
                    pause = min(2 * pause, 1.0)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self._fail(Lost("the helper is gone"))
        except Lost as exc:
            self._fail(exc)
        except Malformed as exc:
            self._fail(Lost(f"the helper broke its protocol: {exc}"))
        except TimeoutError:
            self._fail(Unreachable("the helper can't be reached any more"))

    async def _try_connection(self) -> None:
        link = await self._connector.connect()
        try:
            with anyio.move_on_after(_CONNECT_SECONDS) as patience:
                greeting = Greeting.parse(await _read_exactly(link, GREETING_BYTES))
                if greeting.session != self.greeting.session:
                    raise Lost("another helper is there in place of ours")
                await link.send(answer(self._token, self._received))
                raw = await _read_exactly(link, WELCOME_BYTES)
                async with self._sending:
                    self._go_on_from(int.from_bytes(raw, "little"))
                    self._link = link
            if patience.cancelled_caught:
                raise Lost("the helper does not answer: it is stopped")
        except BaseException:
            with anyio.move_on_after(_SEND_SECONDS, shield=True):
                await link.aclose()
            raise
        await self._flush()

    def _go_on_from(self, received: int) -> None:
        self._acknowledged(received)
        again = b"".join(self._sent)[received - self._base :]
        if again:
            self._unsent.appendleft(again)
        dropped = received - self._base
        self._unacked -= dropped
        self._base = received
        self._sent.clear()

    def _fail(self, why: PinfoldError) -> None:
        if self.failure is not None:
            return
        self.failure = why
        for pending in self._pending.values():
            if pending.event is not None:
                pending.event.set()
        for stream in self._streams.values():
            stream.take_failure()
        for waiter in [*self._room_waiters, *self._followers]:
            if waiter.event is not None:
                waiter.event.set()


def _results(raw: bytes) -> Cursor:
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
        self._input_room = IN_CREDIT
        self._output: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        #: What the helper may still send; it must keep to it.
        self._credit = [credit, second_credit]
        self._owed = [0, 0]
        self._limited = (credit < UNLIMITED, second_credit < UNLIMITED)
        self._end: bytes | None = None
        self._waiters: list[_Waiter] = []
        self._abandoned = False

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
            self.session._put(frame(To.CREDIT, self.number, payload))

    async def moved(self) -> None:
        """Wait until something has happened: output, a grant, or the end.

        Raises:
            PinfoldError: the session is over.
        """
        if self._end is not None:
            return
        waiter = _Waiter()
        self._waiters.append(waiter)
        try:
            await self.session._flush()
            await self.session._wait(waiter)
        finally:
            if not waiter.ready:
                self._waiters.remove(waiter)

    def send_some(self, data: memoryview) -> int:
        """Put as much input on its way as may be sent; return how much that was."""
        size = min(len(data), self._input_room, MAX_OUT)
        if size and not self.ended:
            self._input_room -= size
            head = frame_head(To.DATA, self.number, size)
            self.session._put(head + data[:size] if size < 1024 else head)
            if size >= 1024:
                self.session._put(bytes(data[:size]))
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
                await self.session.room()
            else:
                await self.moved()
        await self.session._flush()
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
            self.session._put(frame(kind, self.number, payload))

    async def flush(self) -> None:
        """Send what was put on its way."""
        await self.session._flush()

    async def finish(self) -> Cursor:
        """Wait for the end and return the results; output may still be taken.

        Raises:
            Refused: the helper says why not.
            PinfoldError: the session is over.
        """
        while self._end is None:
            await self.moved()
        return _results(self._end)

    async def abandon(self, seconds: float) -> None:
        """End it, drop its output, and wait a while for its end; never raises, not cancelled."""
        self._abandoned = True
        with anyio.move_on_after(seconds, shield=True), suppress(PinfoldError):
            self.kill(0)
            for index in (1, 2):
                self.take(index)
            while not self.ended:
                await self.moved()

    # --- what the session brings -----------------------------------------------------------------

    def take_output(self, payload: bytes) -> None:
        """Take an OUT."""
        index = payload[0] if payload else 0
        size = len(payload) - 1
        if index not in (1, 2) or not 1 <= size <= MAX_OUT:
            raise Malformed("an output frame is not as it should be")
        if self._limited[index - 1]:
            if size > self._credit[index - 1]:
                raise Malformed("more output than credit")
            self._credit[index - 1] -= size
        if self._abandoned:
            self.return_credit(index, size)
        else:
            self._output[index - 1].append(payload[1:])
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
