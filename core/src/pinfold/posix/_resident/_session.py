"""One session with a helper: many operations at once over one connection, and over the next.

No task of ours runs in the background. Of those that wait for the helper, one reads for all
of them; when it has what it wanted, it hands over to the next.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

import anyio

from pinfold.errors import Effect, Lost, PinfoldError, TooLarge, Unavailable, Unreachable
from pinfold.posix._resident._link import Connector, Link
from pinfold.posix._resident._outgoing import SMALL, Outgoing
from pinfold.posix._resident._stream import Stream, Waiter, results, unknown
from pinfold.posix._resident._wire import (
    ACK_EVERY,
    GREETING_BYTES,
    MAX_OUT,
    MAX_PAYLOAD,
    UNLIMITED,
    WELCOME_BYTES,
    WINDOW,
    Call,
    Cursor,
    Decoder,
    Frame,
    From,
    Greeting,
    Malformed,
    Open,
    Output,
    To,
    answer,
    frame,
    frame_head,
)

__all__ = ["Session"]

#: A connection on which nothing moves for so long is tried, and given up after as long again.
_QUIET_SECONDS: Final = 10.0
#: Idle for longer, it is asked whether it lives before anything is entrusted to it.
_IDLE_SECONDS: Final = 1.0
#: A helper that has not answered by then may be in a target that stands still.
_PROMPT_SECONDS: Final = 2.0
#: How long a helper waits for a new connection; and we for one to succeed.
_GRACE_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0
#: Beyond this a send is stuck. It can't be interrupted in between: half a frame is worse than none.
_SEND_SECONDS: Final = 10.0
_U64: Final = 8
_BROKEN: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class _Pending(Waiter):
    """A CALL without its REPLY, and where in the stream it begins."""

    __slots__ = ("reply", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start
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
        self._outgoing = Outgoing()
        self._sending = anyio.Lock(fast_acquire=True)
        self._room_waiters: list[Waiter] = []
        # Incoming.
        self._decoder = Decoder()
        self._received = 0
        self._told = 0
        self._leader: Waiter | None = None
        self._followers: dict[Waiter, None] = {}
        self._reading: anyio.CancelScope | None = None
        self._ping: int | None = None
        self._closing = False
        self._heard = anyio.current_time()

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

    # --- operations ------------------------------------------------------------

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
        """Put a short operation on its way; `finish_call` is to follow.

        Raises:
            TooLarge: no frame can carry it; nothing was sent.
            Unavailable: the helper is gone; nothing was sent.
        """
        self._check(1 + len(arguments))
        number = self._next_number()
        pending = self._pending[number] = _Pending(self.end)
        self.put(frame_head(To.CALL, number, 1 + len(arguments)) + bytes((operation,)) + arguments)
        return number, pending

    async def finish_call(self, number: int, pending: _Pending, *, mutates: bool) -> Cursor:
        """Wait for a short operation's results."""
        try:
            await self.flush()
            await self.wait(pending)
        except PinfoldError as exc:
            if mutates:
                raise self.fate(pending.start, exc) from exc
            raise
        return results(pending.reply)

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
            TooLarge: no frame can carry it; nothing was sent.
            Unavailable: the helper is gone; nothing was sent.
        """
        self._check(9 + len(arguments))
        number = self._next_number()
        head = frame_head(To.OPEN, number, 9 + len(arguments))
        stream = self._streams[number] = Stream(self, number, credit, second_credit)
        self.put(head + bytes((operation,)) + credit.to_bytes(8, "little") + arguments)
        return stream

    async def check(self) -> None:
        """Find out whether the helper lives: if it was not heard of for a while, or was cut off.

        What is then sent to another one has provably never reached this one (EX-14).

        Raises:
            Unavailable: the target stands still; nothing is to be entrusted to it.
        """
        if self.failure is not None:
            return
        idle = anyio.current_time() - self._heard > _IDLE_SECONDS
        if not idle and self._link is not None and not self._link.was_cut():
            return
        number, ping = self.begin_call(Call.PING, b"")
        with suppress(PinfoldError):
            with anyio.move_on_after(_PROMPT_SECONDS):
                await self.finish_call(number, ping, mutates=False)
                return
        if self.failure is None and (still := await self.suspended()) is not None:
            raise still
        with suppress(PinfoldError):
            await self.finish_call(number, ping, mutates=False)

    async def suspended(self) -> Unavailable | None:
        """As `Guest.suspended`."""
        return await self._connector.suspended()

    async def end_jobs(self) -> int:
        """End all commands and background jobs; return how many are still there."""
        return (await self.call(Call.JOBS, b"\1", mutates=True)).u32()

    async def count_jobs(self) -> int:
        """Return how many commands and background jobs there are."""
        return (await self.call(Call.JOBS, b"\0")).u32()

    async def aclose(self) -> None:
        """Say goodbye: the helper ends all that it started, and itself."""
        if self.failure is None and self._link is not None:
            self._closing = True
            self.put(frame(To.BYE, 0))
            with anyio.move_on_after(_SEND_SECONDS, shield=True), suppress(PinfoldError):
                await self.flush()
                await self.wait(Waiter())  # until the helper has ended, and all with it
        self._fail(Lost("the helper was ended"))
        await self._hang_up()

    async def detach(self) -> None:
        """Let go for good: background jobs live on, and the helper as long as they do."""
        if self.failure is None and self._link is not None:
            self.put(frame(To.DETACH, 0))
            with anyio.move_on_after(_SEND_SECONDS, shield=True):
                await self.flush()
        self._fail(Lost("the helper was let go"))
        await self._hang_up()

    def _next_number(self) -> int:
        while True:
            self._numbers = self._numbers + 1 if self._numbers < 0xFFFFFFFF else 1
            if self._numbers not in self._streams and self._numbers not in self._pending:
                return self._numbers

    def _check(self, size: int) -> None:
        """Make sure that a frame with so large a payload may be sent."""
        if self.failure is not None:
            raise Unreachable(str(self.failure), effect=Effect.NONE)
        if size > MAX_PAYLOAD:  # the helper would take us for an enemy, and end everything
            raise TooLarge(
                f"a request has at most {MAX_PAYLOAD} bytes, not {size}: its texts are too long, "
                "or too many",
                hint="pass what is large in a file, or as stdin",
            )

    # --- out ------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where in the stream the next frame begins."""
        return self._outgoing.end

    def fate(self, start: int, cause: PinfoldError) -> PinfoldError:
        """Return the error for what begins at `start`, now that the session is over.

        Where no connection was ever given a byte of it, it has not been done (EX-14).
        """
        if self._outgoing.was_given(start):
            return unknown(cause)
        return type(cause)(cause.message, hint=cause.hint, effect=Effect.NONE)

    def put(self, data: bytes) -> None:
        """Put frames, or parts of one, behind what is to be sent."""
        self._outgoing.put(data)

    async def flush(self) -> None:
        """Send what is to be sent; what the connection does not carry is left to the next."""
        out = self._outgoing
        while out.waits() and self._link is not None:
            if not self._sending.locked() and self._send_now(self._link):
                continue
            async with self._sending:
                if not out.waits() or self._link is None:
                    return
                piece = out.next_piece()
                out.sent(piece, len(piece))
                link, done = self._link, False
                with anyio.move_on_after(_SEND_SECONDS, shield=True):
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await link.send(piece)
                        done = True
                if not done and self._link is link:
                    await self._hang_up()

    def _send_now(self, link: Link) -> bool:
        """Send a piece if it is small and the connection takes it at once: it mostly does.

        To wait for that, and to limit how long, costs as much as all else of a small operation.
        """
        piece = self._outgoing.next_piece()
        size = link.send_now(piece) if len(piece) < SMALL else 0
        self._outgoing.sent(piece, size)
        return size == len(piece)

    async def room(self, *, patient: bool = False) -> None:
        """Wait until not too much is on its way."""
        while self._outgoing.held > WINDOW:
            waiter = Waiter(patient=patient)
            self._room_waiters.append(waiter)
            await self.flush()
            await self.wait(waiter)

    def _make_room(self) -> None:
        if self._outgoing.held <= WINDOW:
            for waiter in self._room_waiters:
                waiter.wake()
            self._room_waiters.clear()

    # --- in ------------------------------------------------------------

    async def wait(self, waiter: Waiter) -> None:
        """Wait until somebody wakes the waiter: reading for all, or while another does."""
        while not waiter.ready:
            if self.failure is not None:
                raise type(self.failure)(self.failure.message)
            if waiter.given_up is not None:
                raise waiter.given_up
            if self._leader is None:
                self._leader = waiter
                try:
                    while not (waiter.ready or waiter.given_up or self.failure):
                        await self._read_some()
                finally:
                    self._leader = None
                    self._hand_over()
            else:
                waiter.event = anyio.Event()
                self._followers[waiter] = None
                try:
                    await waiter.event.wait()
                except BaseException:
                    if waiter.event.is_set():  # it was to lead, perhaps, and was cancelled
                        self._hand_over()
                    raise
                finally:
                    self._followers.pop(waiter, None)

    def _hand_over(self) -> None:
        """Let another read, if nobody does."""
        if self._leader is not None:
            return
        for waiter in self._followers:
            if waiter.event is not None and not waiter.event.is_set():
                waiter.event.set()
                return

    async def _read_some(self) -> None:
        link = self._link
        if link is None:
            if self._closing:
                self._fail(Lost("the helper was ended"))
            else:
                await self._reconnect()
            return
        await self.flush()
        if self._link is not link:
            return
        data = b""
        try:
            with anyio.move_on_after(_QUIET_SECONDS) as quiet:
                self._reading = quiet
                data = await link.receive(MAX_OUT)
        except _BROKEN:
            if self._link is link:
                await self._hang_up()
            return
        finally:
            self._reading = None
        if quiet.cancelled_caught:
            if self._link is link:
                await self._is_anyone_there()
            return
        self._received += len(data)
        self._heard = anyio.current_time()
        try:
            for one in self._decoder.feed(data):
                self._take(one)
        except Malformed as exc:
            self._fail(Lost(f"the helper broke its protocol: {exc}"))
            await self._hang_up()
            return
        if self._received - self._told >= ACK_EVERY:
            self._told = self._received
            self.put(frame(To.ACK, 0, self._received.to_bytes(_U64, "little")))

    async def _is_anyone_there(self) -> None:
        if self._ping is not None:
            if await self._stands_still():
                return  # the connection is as good as before
            self._ping = None
            await self._hang_up()  # a new connection will tell whether it is stopped
            return
        self._ping, _ = self.begin_call(Call.PING, b"")
        await self.flush()

    async def _stands_still(self) -> bool:
        """Say whether the target is kept from running; who can't wait for its end is told."""
        why = await self.suspended()
        if why is None:
            return False
        for waiter in (self._leader, *self._followers):
            if waiter is not None and not waiter.patient:
                waiter.give_up(why)
        return True

    def _take(self, one: Frame | Output) -> None:
        if isinstance(one, Output):
            self._stream(one.number).take_output(one.index, one.data)
        elif one.kind is From.GRANT or one.kind is From.END:
            stream = self._stream(one.number)
            if one.kind is From.GRANT:
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
            self._outgoing.acknowledged(cursor.u64())
            cursor.end()
            self._make_room()

    def _stream(self, number: int) -> Stream:
        stream = self._streams.get(number)
        if stream is None:
            raise Malformed(f"it answers operation {number}, which there is not")
        return stream

    # --- connections ------------------------------------------------------------

    async def _hang_up(self) -> None:
        link, self._link = self._link, None
        if self._reading is not None:
            self._reading.cancel()
        if link is not None:
            with anyio.move_on_after(_SEND_SECONDS, shield=True):
                await link.aclose()

    async def _reconnect(self) -> None:
        """Go on over a new connection, within the time that the helper waits for one."""
        pause = 0.05
        try:
            with anyio.fail_after(_GRACE_SECONDS) as patience:
                while True:
                    try:
                        await self._try_connection()
                    except Lost:
                        raise
                    except Unavailable:
                        if await self._stands_still():  # so does the helper's clock
                            if self._leader is not None and self._leader.given_up is not None:
                                return
                            patience.deadline = anyio.current_time() + _GRACE_SECONDS
                        await anyio.sleep(pause)
                    else:
                        return
                    pause = min(2 * pause, 1.0)
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
                    self._outgoing.go_on_from(int.from_bytes(raw, "little"))
                    self._link = link
                    self._make_room()
            if patience.cancelled_caught:
                raise Lost("the helper does not answer: it is stopped")
        except BaseException as exc:
            gone = False
            if isinstance(exc, _BROKEN):
                with anyio.move_on_after(_CONNECT_SECONDS):
                    gone = await link.was_refused()
            with anyio.move_on_after(_SEND_SECONDS, shield=True):
                await link.aclose()
            if gone:
                raise Lost("the helper is gone") from None
            if isinstance(exc, _BROKEN):
                raise Unreachable("the connection to the helper was cut at once") from None
            raise
        await self.flush()

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
