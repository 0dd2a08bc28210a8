"""A command's output while it runs (EX-15)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import attrs
from anyio.streams.memory import MemoryObjectReceiveStream

from pinfold._tasks import background
from pinfold.errors import Conflict, Internal
from pinfold.provider import ExecResult, OutputStream, Sink

__all__ = ["Chunk", "ExecStream", "open_stream"]


@attrs.frozen
class Chunk:
    """A piece of output.

    Attributes:
        stream: `stdout` or `stderr`.
        data: the bytes, never empty.
    """

    stream: OutputStream
    data: bytes


@attrs.define(eq=False)
class _Outcome:
    result: ExecResult | None = None
    error: BaseException | None = None


class ExecStream(AsyncIterator[Chunk]):
    """Iterate over the output; then `result()` is what came of the command.

    The command waits while the caller does: nothing is buffered beyond the target's own pipes.
    """

    def __init__(self, chunks: MemoryObjectReceiveStream[Chunk], outcome: _Outcome) -> None:
        self._chunks = chunks
        self._outcome = outcome

    async def __anext__(self) -> Chunk:
        try:
            return await self._chunks.receive()
        except anyio.EndOfStream:
            if self._outcome.error is not None:
                raise self._outcome.error from None
            raise StopAsyncIteration from None
        except anyio.ClosedResourceError:
            raise Conflict(
                "the stream was left, and its command with it",
                hint="read it, or ask for its result, inside its block",
            ) from None

    async def result(self) -> ExecResult:
        """Read what is left, throw it away, and return the result: totals, but no output.

        Raises:
            Conflict: the block was left before the command had ended, and so ended it.
            PinfoldError: what the command raised.
        """
        try:
            while self._outcome.result is None:  # once known it is known, also after the block
                await anext(self)
        except StopAsyncIteration:
            pass
        if self._outcome.result is None:
            raise Internal("the command ended without a result")
        return self._outcome.result


@asynccontextmanager
async def open_stream(
    run: Callable[[Sink], Awaitable[ExecResult]],
) -> AsyncIterator[ExecStream]:
    """Run a command in the background of a block; leaving the block early ends it (EX-5)."""
    send, receive = anyio.create_memory_object_stream[Chunk](0)
    outcome = _Outcome()

    async def sink(stream: OutputStream, data: bytes) -> None:
        if data:
            await send.send(Chunk(stream, data))

    async def work() -> None:
        async with send:
            try:
                outcome.result = await run(sink)
            except Exception as exc:  # noqa: BLE001 - raised where the caller reads
                outcome.error = exc

    async with receive, background(work):
        yield ExecStream(receive, outcome)
