"""Running our own shell programs in a guest, and understanding their answers."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

import anyio
import attrs
from anyio.abc import ByteReceiveStream, ByteSendStream

from pinfold._tasks import iterating
from pinfold.errors import Effect, OutcomeUnknown, PinfoldError, Unavailable
from pinfold.posix._gate import Gate
from pinfold.posix._guest import TASK, Guest, Process

__all__ = [
    "CHUNK",
    "Answer",
    "Boundary",
    "ProgramFailed",
    "Shell",
    "feed",
    "program",
]

CHUNK: Final = 65536
#: What a stdin is given at once: whoever splits it further does it where it costs less.
_SENT_BYTES: Final = 1024 * 1024

#: How the answer of a program begins that does what it was asked for.
_OK: Final = b"ok\n"
_LET_GO_SECONDS: Final = 5.0
_CLEAN_UP_SECONDS: Final = 2.0
#: A program opens what it was asked for at once; a FIFO swapped in would hold it for ever.
_OPEN_SECONDS: Final = 10.0
_TROUBLE_BYTES: Final = 4096
#: More than a status with the name of a signal takes.
_LINE_BYTES: Final = 256

#: Plain text in the C locale, names as they are, times in UTC.
_ENV: Final = {"LC_ALL": "C", "TZ": "UTC0", "QUOTING_STYLE": "literal"}


class ProgramFailed(Exception):
    """A program answered `error CODE`; `trouble` is what its tools said."""

    def __init__(self, code: str, trouble: str) -> None:
        super().__init__(f"{code}: {trouble}")
        self.code = code
        self.trouble = trouble


@attrs.frozen
class Answer:
    """What a program said after `ok`, and what its tools complained of."""

    said: bytes
    trouble: str


@cache
def program(name: str) -> str:
    """Return the text of a program of ours, its comments taken out."""
    text = resources.files("pinfold.posix").joinpath("programs", f"{name}.sh").read_text("utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


class Boundary:
    """What ends a stream before its end-of-file: random, so that nothing else can contain it.

    The program gets its halves apart, the last first: a listing of processes does not hold it.
    """

    def __init__(self) -> None:
        self.head, self.tail = secrets.token_hex(16), secrets.token_hex(16)
        self.bytes = (self.head + self.tail).encode()

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes | None]:
        """Return what surely comes before the boundary, what may be its beginning, and what comes
        after it: None when it was not found.
        """
        before, found, after = data.partition(self.bytes)
        if found:
            return before, b"", after
        at = data.find(self.bytes[:1], max(0, len(data) - len(self.bytes) + 1))
        while at >= 0:
            if self.bytes.startswith(data[at:]):
                return data[:at], data[at:], None
            at = data.find(self.bytes[:1], at + 1)
        return data, b"", None

    def split_line(self, data: bytes) -> tuple[bytes, bytes, bytes | None]:
        """Do as `split` where the boundary begins a line of ours.

        Returns:
            What surely comes before it; what may be its beginning, or comes after the line; and the
            rest of the line, None when it is not there or not whole.
        """
        before, pending, after = self.split(data)
        if after is None:
            return before, pending, None
        line, newline, rest = after.partition(b"\n")
        if newline:
            return before, rest, line
        if len(after) > _LINE_BYTES:  # a forgery
            return data, b"", None
        return before, data[len(before) :], None


class Shell:
    """A guest's shell, to run our programs in.

    Args:
        guest: where.
        path: the shell's name.
        roots: the physical workspace and writable roots, each ended by `//`.
        gate: passed before a program is started.
    """

    def __init__(
        self, guest: Guest, path: str = "sh", *, roots: str = "", gate: Gate | None = None
    ) -> None:
        self.guest = guest
        self.path = path
        self.roots = roots
        self._gate = gate

    def argv(self, boundary: Boundary, names: tuple[str, ...], *args: str) -> list[str]:
        """Return the argv that runs programs, one after the other, with arguments."""
        text = "".join(program(name) for name in ("prelude", *names))
        return [self.path, "-c", text, "pinfold", self.roots, boundary.tail, boundary.head, *args]

    async def call(
        self,
        *names: str,
        args: tuple[str, ...] = (),
        stdin: AsyncIterable[bytes] | None = None,
        mutates: bool = False,
    ) -> bytes:
        """Run a program to its end and return what it said after `ok`.

        Args:
            names: the programs, all in one shell.
            args: their arguments.
            stdin: what is fed to it; when it raises, the program is given up, and that propagates.
            mutates: it changes something, so that without an answer the outcome is unknown.

        Raises:
            ProgramFailed: it said why it did nothing.
            OutcomeUnknown, Unavailable: it didn't come to its end.
            Lost, Unreachable: from the guest.
        """
        answer = await self.ask(*names, args=args, stdin=stdin, mutates=mutates)
        return answer.said

    async def ask(
        self,
        *names: str,
        args: tuple[str, ...] = (),
        stdin: AsyncIterable[bytes] | None = None,
        mutates: bool = False,
        boundary: Boundary | None = None,
        persist: bool = False,
        take: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Do as `call`; return what its tools complained of besides.

        Args:
            take: gets what it says after `ok`, while it says it; the answer then has nothing of it.
                What it raises, of ours, propagates.
            boundary: the caller's own, which `stdin` may end with.
            persist: a program that is not waited for to its end goes on to it all the same.
        """
        boundary = boundary or Boundary()
        process = await self._spawn(boundary, names, args)
        said, text, trouble = _Said(process.stdout, boundary), bytearray(), bytearray()
        broken: list[Exception] = []
        collected = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:

                async def give() -> None:
                    try:
                        await feed(process.stdin, stdin)
                    except Exception as exc:  # noqa: BLE001 -- the caller's own: handed back to it
                        broken.append(exc)
                        tasks.cancel_scope.cancel()

                async def listen() -> None:
                    await _collect(process.stderr, trouble)
                    collected.set()

                tasks.start_soon(give)
                tasks.start_soon(listen)
                try:
                    while (chunk := await said.more()) is not None:
                        text += chunk
                        if take is not None and text.startswith(_OK):
                            take(bytes(text[len(_OK) :]))
                            del text[len(_OK) :]
                    with anyio.move_on_after(_LET_GO_SECONDS):
                        await process.wait()
                        await collected.wait()
                except PinfoldError as exc:  # the target's: told as it is, and not in a group
                    if not said.finished:
                        broken.append(exc)
                tasks.cancel_scope.cancel()
        finally:
            if persist:
                with anyio.move_on_after(_LET_GO_SECONDS, shield=True):
                    await process.aclose()
            else:
                await _let_go(process, patience=0 if said.finished else _CLEAN_UP_SECONDS)
        if broken:
            raise broken[0]
        return _answer(bytes(text), bytes(trouble), finished=said.finished, mutates=mutates)

    async def stream(self, *names: str, args: tuple[str, ...] = ()) -> AsyncGenerator[bytes]:
        """Run a program and yield what it says after `ok`, while it says it.

        Raises: as `call`; `TimeoutError` when it says nothing at first.
        """
        boundary = Boundary()
        process = await self._spawn(boundary, names, args)
        said = _Said(process.stdout, boundary)
        try:
            await process.stdin.aclose()
            head = b""
            with anyio.fail_after(_OPEN_SECONDS):
                while b"\n" not in head and (chunk := await said.more()) is not None:
                    head += chunk
            if not head.startswith(_OK):
                _answer(head, await _trouble(process), finished=said.finished, mutates=False)
            if len(head) > len(_OK):
                yield head[len(_OK) :]
            while (chunk := await said.more()) is not None:
                if chunk:
                    yield chunk
            if not said.finished:
                trouble = await _trouble(process)
                raise Unavailable(
                    "the target stopped sending before the end: what has come is incomplete",
                    details={"trouble": trouble.decode("utf-8", "replace")},
                )
            with anyio.move_on_after(_LET_GO_SECONDS):
                await process.wait()
        except TimeoutError:
            await self.reap(f"{TASK}={boundary.tail}", "0")
            raise
        finally:
            await _let_go(process, patience=0)

    async def reap(self, mark: str, grace: str) -> bool:
        """End every process that carries a mark, a variable's NAME=VALUE or its beginning.

        Args:
            mark: which.
            grace: seconds between TERM and KILL; "" to signal none, and wait for them.

        Returns:
            Whether there were any.

        Raises: as `call`. When it is cancelled, the target goes on with it.
        """
        return (await self.ask("reap", args=(mark, grace), persist=True)).said == b"some"

    async def _spawn(
        self, boundary: Boundary, names: tuple[str, ...], args: tuple[str, ...]
    ) -> Process:
        if self._gate is not None:
            await self._gate()
        env = {**_ENV, TASK: boundary.tail}
        return await self.guest.spawn(self.argv(boundary, names, *args), env, PurePosixPath("/"))


def _answer(said: bytes, trouble: bytes, *, finished: bool, mutates: bool) -> Answer:
    head, newline, rest = said.partition(b"\n")
    text = trouble.decode("utf-8", "replace").strip()
    if newline and head.startswith(b"error "):
        raise ProgramFailed(head[6:].decode("ascii", "replace"), text)
    if newline and head == b"ok" and finished:
        return Answer(rest, text)
    kind = OutcomeUnknown if mutates else Unavailable
    raise kind(
        "a program of pinfold's did not come to its end in the target" + (text and f": {text}"),
        hint="see whether the target still runs",
        effect=Effect.UNKNOWN if mutates else Effect.NONE,
    )


async def _trouble(process: Process) -> bytes:
    into = bytearray()
    with anyio.move_on_after(_LET_GO_SECONDS):
        await _collect(process.stderr, into)
    return bytes(into)


async def feed(stdin: ByteSendStream, chunks: AsyncIterable[bytes] | None) -> None:
    """Send chunks and the end-of-file; a reader that stops reading is no error (EX-9).

    A generator is closed, also when it was not read to its end.
    """
    try:
        if chunks is not None:
            async with iterating(chunks):
                async for chunk in chunks:
                    for start in range(0, len(chunk), _SENT_BYTES):
                        try:
                            await stdin.send(chunk[start : start + _SENT_BYTES])
                        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                            return
    finally:
        with anyio.CancelScope(shield=True), suppress(anyio.BrokenResourceError):
            await stdin.aclose()


class _Said:
    """What a program says, up to the boundary."""

    def __init__(self, stream: ByteReceiveStream, boundary: Boundary) -> None:
        self._stream = stream
        self._boundary = boundary
        self._pending = b""
        self._ended = False
        #: The boundary was seen.
        self.finished = False

    async def more(self) -> bytes | None:
        """Return what comes next, perhaps nothing, or None at the end."""
        if self._ended:
            return None
        try:
            chunk = await self._stream.receive(CHUNK)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._ended = True
            return self._pending
        clear, self._pending, after = self._boundary.split(self._pending + chunk)
        self.finished = after is not None
        self._ended = self.finished
        return clear


async def _collect(stream: ByteReceiveStream, into: bytearray) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            chunk = await stream.receive(CHUNK)
            into += chunk[: max(0, _TROUBLE_BYTES - len(into))]


async def _let_go(process: Process, *, patience: float) -> None:
    """Free a process; one that has not finished gets so many seconds to clean up after itself."""
    with anyio.move_on_after(_LET_GO_SECONDS, shield=True):
        with suppress(anyio.BrokenResourceError):
            await process.stdin.aclose()
        if patience:
            with anyio.move_on_after(patience):
                await process.wait()
        await process.signal(9)
        await process.wait()
    with anyio.move_on_after(_LET_GO_SECONDS, shield=True):
        await process.aclose()
