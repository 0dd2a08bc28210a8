"""Commands and terminals by the helper."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from struct import Struct
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from pinfold.errors import OutcomeUnknown, PinfoldError, TooLarge, Unavailable
from pinfold.posix._guest import COOKIE, ExecutingGuest, SupervisedProcess, TerminalGuest
from pinfold.posix._resident._places import Places
from pinfold.posix._resident._session import Session
from pinfold.posix._resident._stream import Refused, Stream
from pinfold.posix._resident._trouble import error_of
from pinfold.posix._resident._wire import (
    DROP_STDERR,
    DROP_STDOUT,
    IN_CREDIT,
    TERMINAL,
    Code,
    Cursor,
    Malformed,
    Open,
    texts,
)
from pinfold.provider import ExecResult, LimitMet, OutputStream, Sink, Terminal, TerminalSize
from pinfold.spec import (
    KILL_GRACE_SECONDS,
    RETURN_GRACE_SECONDS,
    TERM_GRACE_SECONDS,
    TreeKill,
)

__all__ = ["ResidentGuest"]

_ARGUMENTS: Final = Struct("<BQQIHH")
#: The most that a sink gets at once.
_SINK_BYTES: Final = 65536
_NO_SIZE: Final = TerminalSize()
#: After its timeout the helper itself ends a command: one that is late is asked about.
_LATE_SECONDS: Final = TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS - 1.0
_LAST_WORD_SECONDS: Final = 0.5
_TIMED_OUT: Final = 124
_E2BIG: Final = 7
_NAMES: Final[tuple[OutputStream, OutputStream]] = ("stdout", "stderr")
_LIMITS: Final[tuple[LimitMet | None, ...]] = (
    None,
    "memory",
    "cpu",
    "disk",
    "pids",
)

#: Gives the session that works now, started again if need be.
Current = Callable[[], Awaitable[tuple[Session, Places]]]


def _encode(
    cwd: bytes,
    flags: int,
    *,
    second_credit: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_seconds: float | None = None,
    size: TerminalSize = _NO_SIZE,
) -> bytes:
    timeout = 0 if timeout_seconds is None else min(math.ceil(timeout_seconds * 1000), 1 << 52)
    numbers = _ARGUMENTS.pack(
        flags, second_credit, timeout, round(TERM_GRACE_SECONDS * 1000), size.rows, size.columns
    )
    variables = texts([f"{name}={value}" for name, value in env.items()])
    return cwd + numbers + texts(argv) + variables


class _Ending:
    """The results of an EXEC."""

    def __init__(self, cursor: Cursor) -> None:
        signalled, value = cursor.flag(), cursor.u8()
        self.timed_out = cursor.flag()
        limit = cursor.u8()
        self.background = cursor.flag()
        self.microseconds = cursor.u64()
        self.totals = cursor.u64(), cursor.u64()
        cursor.end()
        if limit >= len(_LIMITS) or (signalled and not 1 <= value <= 64):
            raise Malformed("an impossible end of a command")
        self.signal = value if signalled else None
        self.exit_code = 128 + value if signalled else value
        self.limit = _LIMITS[limit]


async def _ending(stream: Stream, cwd: PurePosixPath) -> _Ending:
    """Wait for a command's end.

    Raises: as `SupervisingGuest.spawn` for what was not started; OutcomeUnknown otherwise.
    """
    try:
        return _Ending(await stream.finish())
    except Refused as exc:
        if exc.code is Code.LOST:
            raise OutcomeUnknown(
                "what watched the command was ended before the command was; all of it is dead",
                hint="a command must not end its parent; look what it has done",
            ) from None
        if exc.code is Code.UNAVAILABLE:
            raise Unavailable(
                "the target can't start another process",
                hint="a limit on processes, descriptors or memory may be reached",
                details={"errno": exc.errno},
            ) from None
        if exc.errno == _E2BIG:
            raise TooLarge(
                "the target does not take that many, or so long, arguments and variables",
                hint="pass what is large in a file, or as stdin",
            ) from None
        raise error_of(exc, cwd, "use as cwd") from None
    except Malformed as exc:
        raise OutcomeUnknown(f"the helper broke its protocol: {exc}") from None
    except OutcomeUnknown:
        raise
    except PinfoldError as exc:
        raise stream.fate(exc) from exc


class ResidentGuest(ExecutingGuest, TerminalGuest):
    """A target with a helper in it."""

    def __init__(self, current: Current, cookies: Iterator[str]) -> None:
        self._current = current
        self._cookies = cookies
        self.tree_kill = TreeKill.GROUP  # until a helper says more
        #: Commands that run now.
        self.running = 0

    async def execute(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        *,
        stdin: bytes,
        timeout_seconds: float | None,
        stdout_cap: int,
        stderr_cap: int,
        sink: Sink | None,
    ) -> ExecResult:
        self.running += 1
        try:
            return await self._execute(
                argv,
                env,
                cwd,
                stdin=stdin,
                timeout_seconds=timeout_seconds,
                caps=(stdout_cap, stderr_cap),
                sink=sink,
            )
        finally:
            self.running -= 1

    async def _execute(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        *,
        stdin: bytes,
        timeout_seconds: float | None,
        caps: tuple[int, int],
        sink: Sink | None,
    ) -> ExecResult:
        session, places = await self._current()
        flags = 0 if sink is not None else DROP_STDOUT | DROP_STDERR
        caps = caps if sink is None else (IN_CREDIT, IN_CREDIT)
        arguments = _encode(
            places.encode(cwd),
            flags,
            second_credit=caps[1],
            argv=argv,
            env=self._marked(env),
            timeout_seconds=timeout_seconds,
        )
        stream = session.open(Open.EXEC, arguments, credit=caps[0], second_credit=caps[1])
        stream.patient = True
        try:
            await _feed(stream, stdin, sink, timeout_seconds)
            ending = await _ending(stream, cwd)
            if sink is not None:
                await _deliver(stream, sink)
        except BaseException:
            if not (stream.ended or stream.abandoned):
                await stream.abandon(KILL_GRACE_SECONDS - 0.5)
            raise
        kept = (b"", b"") if sink is not None else (stream.take(1), stream.take(2))
        out, err = ending.totals
        return ExecResult(
            exit_code=_TIMED_OUT if ending.timed_out else ending.exit_code,
            stdout=kept[0],
            stderr=kept[1],
            stdout_truncated=sink is None and out > len(kept[0]),
            stderr_truncated=sink is None and err > len(kept[1]),
            stdout_total=out,
            stderr_total=err,
            timed_out=ending.timed_out,
            signal=None if ending.timed_out else ending.signal,
            limit=ending.limit,
            duration_ms=round(ending.microseconds / 1000),
        )

    def _marked(self, env: Mapping[str, str]) -> Mapping[str, str]:
        return env if COOKIE in env else {**env, COOKIE: next(self._cookies)}

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> SupervisedProcess:
        session, places = await self._current()
        arguments = _encode(
            places.encode(cwd), 0, second_credit=IN_CREDIT, argv=argv, env=self._marked(env)
        )
        stream = session.open(Open.EXEC, arguments, credit=IN_CREDIT, second_credit=IN_CREDIT)
        stream.patient = True
        await stream.flush()
        return _Process(stream, cwd)

    async def open_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        size: TerminalSize,
    ) -> Terminal:
        session, places = await self._current()
        arguments = _encode(
            places.encode(cwd),
            TERMINAL,
            second_credit=IN_CREDIT,
            argv=argv,
            env=self._marked({"TERM": "xterm-256color", **env}),
            size=size,
        )
        stream = session.open(Open.EXEC, arguments, credit=IN_CREDIT)
        stream.patient = True
        await stream.flush()
        return _Terminal(stream, cwd)


class _Lateness:
    """Waits for what a command does, and asks, once it is late, whether its target stands still."""

    def __init__(self, stream: Stream, timeout_seconds: float | None) -> None:
        self._stream = stream
        self._due = math.inf
        if timeout_seconds is not None:
            self._due = anyio.current_time() + timeout_seconds + _LATE_SECONDS

    async def wait(self, what: Callable[[], Awaitable[None]]) -> None:
        """Wait for it.

        Raises:
            OutcomeUnknown: the target stands still; the command will be ended when it goes on.
        """
        with suppress(PinfoldError), anyio.CancelScope(deadline=self._due) as late:  # `_ending`
            await what()
        if not late.cancelled_caught:
            return
        why = await self._stream.session.suspended()
        if why is not None:
            await self._stream.abandon(_LAST_WORD_SECONDS)
            raise OutcomeUnknown(
                f"{why.message}; the command is past its timeout, and is ended when that goes on",
                hint=f"{why.hint}; look what the command has done before it is run again",
                details=why.details,
            )
        self._due = anyio.current_time() + _LATE_SECONDS


async def _feed(
    stream: Stream, stdin: bytes, sink: Sink | None, timeout_seconds: float | None
) -> None:
    """Send stdin and pass output on, until the command has ended."""
    rest, over, lateness = memoryview(stdin), False, _Lateness(stream, timeout_seconds)
    while True:
        while rest and (size := stream.send_some(rest)):
            rest = rest[size:]
            await lateness.wait(partial(stream.session.room, patient=True))
        if not rest and not over:
            over = True
            stream.end_input()
        if sink is not None and await _deliver(stream, sink):
            continue  # while the sink took its time more may have come, and all credit be used up
        if stream.ended:
            return
        await lateness.wait(stream.moved)


async def _deliver(stream: Stream, sink: Sink) -> bool:
    """Pass on what has come; whether there was anything."""
    found = False
    for index in (1, 2):
        data = stream.take(index)
        for at in range(0, len(data), _SINK_BYTES):
            await sink(_NAMES[index - 1], data[at : at + _SINK_BYTES])
        if data:
            found = True
            stream.return_credit(index, len(data))
    return found


class _Output(ByteReceiveStream):
    def __init__(self, stream: Stream, index: int) -> None:
        self._stream = stream
        self._index = index
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._rest:
            self._rest = self._stream.take(self._index)
            if self._rest:
                self._stream.return_credit(self._index, len(self._rest))
                break
            if self._stream.ended:
                raise anyio.EndOfStream
            try:
                await self._stream.moved()
            except PinfoldError as exc:
                raise anyio.BrokenResourceError from exc
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def aclose(self) -> None:
        return None


class _Input(ByteSendStream):
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._closed = False

    async def send(self, item: bytes) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        try:
            if not await self._stream.send(item):
                raise anyio.BrokenResourceError
        except PinfoldError as exc:
            raise anyio.BrokenResourceError from exc

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.end_input()
            await self._stream.flush()


class _Process(SupervisedProcess):
    """A command; its streams end with what had been written when it ended."""

    def __init__(self, stream: Stream, cwd: PurePosixPath) -> None:
        self._stream = stream
        self._cwd = cwd
        self.stdin: ByteSendStream = _Input(stream)
        self.stdout: ByteReceiveStream = _Output(stream, 1)
        self.stderr: ByteReceiveStream = _Output(stream, 2)

    async def wait(self) -> int:
        ending = await _ending(self._stream, self._cwd)
        return ending.exit_code if ending.signal is None else -ending.signal

    async def signal(self, number: int) -> None:
        self._stream.signal(number)
        with suppress(PinfoldError):
            await self._stream.flush()

    async def kill_tree(self, grace_seconds: float) -> None:
        with suppress(PinfoldError):
            self._stream.kill(grace_seconds)
            while not self._stream.ended:
                for index in (1, 2):  # nobody may be reading, and the end comes behind it
                    self._stream.return_credit(index, len(self._stream.take(index)))
                await self._stream.moved()

    async def settle(self) -> None:
        return None  # END says that all of its own output has come

    async def aclose(self) -> None:
        return None


class _Terminal(Terminal):
    def __init__(self, stream: Stream, cwd: PurePosixPath) -> None:
        self._stream = stream
        self._cwd = cwd
        self._output = _Output(stream, 1)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._output.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        try:
            if not await self._stream.send(data):
                raise anyio.BrokenResourceError
        except PinfoldError as exc:
            raise anyio.BrokenResourceError from exc

    async def resize(self, size: TerminalSize) -> None:
        self._stream.resize(size.rows, size.columns)
        await self._stream.flush()

    async def wait(self) -> int:
        return (await _ending(self._stream, self._cwd)).exit_code

    async def aclose(self) -> None:
        if not self._stream.ended:
            await self._stream.abandon(KILL_GRACE_SECONDS - 0.5)
