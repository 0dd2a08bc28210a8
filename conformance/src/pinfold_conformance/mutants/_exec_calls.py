"""Bugs in what goes into a command, and between commands (EX-3, EX-9 ... EX-15)."""

from __future__ import annotations

import os
import select
from contextlib import suppress

import anyio
import attrs

from pinfold.errors import (
    Internal,
    InvalidArgument,
    Lost,
    OutcomeUnknown,
    OutsideWorkspace,
    TooLarge,
    Unavailable,
    Unreachable,
)
from pinfold.provider import ExecRequest, ExecResult, OutputStream, Sink
from pinfold.spec import Limits
from pinfold_conformance.adapters.toy._kernel import Process
from pinfold_conformance.mutants._base import BugInstance, BugToy, mutant

Bug = BugInstance


@mutant("EX-3.cwd")
class ForgivesCwd(Bug):
    """A cwd outside is silently replaced by the workspace."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        try:
            return await self.inner.exec(request, sink)
        except OutsideWorkspace:
            return await self.inner.exec(attrs.evolve(request, cwd="/workspace"), sink)


@mutant("EX-3.cwd-used")
class IgnoresCwd(Bug):
    """Every command runs in the workspace."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, cwd="/workspace")


@mutant("EX-9.sizes")
class CutsStdin(Bug):
    """stdin beyond 64 KiB is lost."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, stdin=request.stdin[: 64 * 1024])


@mutant("EX-9.bytes")
class TrimsStdin(Bug):
    """The last newline of stdin is lost."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, stdin=request.stdin.removesuffix(b"\n"))


@mutant("EX-9.none")
class InheritsStdin(Bug):
    """Without stdin the controller's own is read."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        if request.stdin or not select.select([0], [], [], 0)[0]:
            return request
        return attrs.evolve(request, stdin=os.read(0, 65_536))


@mutant("EX-9.unread")
class BreaksOnUnreadStdin(Bug):
    """A large stdin that is not read fails the call."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if len(request.stdin) > 500_000 and result.exit_code:
            raise Internal("broken pipe")
        return result


@mutant("EX-9.limit")
class StdinWithoutLimit(Bug):
    """stdin beyond the limit is cut instead of refused."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, stdin=request.stdin[: Limits().stdin_bytes])


@mutant("EX-11.exact")
class JoinsArguments(Bug):
    """argv is joined to one line for the shell."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        if request.argv is None:
            return request
        return attrs.evolve(request, argv=None, shell=" ".join(request.argv))


@mutant("EX-11.exact")
class DropsEmptyArguments(Bug):
    """Empty arguments are lost."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        if request.argv is None:
            return request
        return attrs.evolve(request, argv=tuple(arg for arg in request.argv if arg))


@mutant("EX-11.many")
class CutsManyArguments(Bug):
    """Arguments beyond the five hundredth are lost."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, argv=request.argv and request.argv[:500])


@mutant("EX-11.limit")
class LimitWithoutType(Bug):
    """What is too large is refused as merely invalid."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        try:
            return await self.inner.exec(request, sink)
        except TooLarge as exc:
            raise InvalidArgument(exc.message) from exc


@mutant("EX-11.bytes")
class ReplacesBytes(Bug):
    """Bytes that are not UTF-8 are replaced in arguments."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        if request.argv is None:
            return request
        argv = [os.fsencode(arg).decode("utf-8", "replace") for arg in request.argv]
        return attrs.evolve(request, argv=argv)


@mutant("EX-12.request")
class StripsValues(Bug):
    """Values of variables lose the blanks at their ends."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, env={name: v.strip() for name, v in request.env.items()})


@mutant("EX-12.no-leak")
class LeaksEnvironment(Bug):
    """The controller's environment is passed on."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        mine = {name: value for name, value in os.environ.items() if name.isidentifier()}
        return attrs.evolve(request, env={**mine, **request.env})


@mutant("EX-12.own")
class DropsSilently(Bug):
    """Dropped PINFOLD_* variables are not listed."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, env_dropped=())


@mutant("EX-10.nothing-leaks")
class KeepsTheShell(BugToy):
    """One shell serves all calls: exports stay."""

    def environment(self, request: ExecRequest) -> tuple[dict[str, str], tuple[str, ...]]:
        env, dropped = super().environment(request)
        if getattr(self, "_leaked", False):
            env["leaked_export"] = "1"
        self._leaked = "leak" in (request.shell or "")
        return env, dropped


@mutant("EX-10.many")
class WearsOut(Bug):
    """After 25 calls every further one fails."""

    calls = 0

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        self.calls += 1
        return attrs.evolve(result, exit_code=1) if self.calls > 25 else result


@mutant("EX-13.no-mixing")
class MixesResults(Bug):
    """Concurrent calls share one buffer."""

    running = 0
    last: ExecResult | None = None

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.running += 1
        try:
            result = await self.inner.exec(request, sink)
        finally:
            self.running -= 1
        mixed, self.last = self.last, result
        return mixed if self.running and mixed is not None else result


@mutant("EX-13.concurrent")
class Serialises(Bug):
    """Calls queue though concurrent_exec is claimed."""

    lock: anyio.Lock | None = None

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.lock = self.lock or anyio.Lock()
        async with self.lock:
            return await self.inner.exec(request, sink)


@mutant("EX-13.queue", strict=True)
class TimesTheQueue(Bug):
    """The clock of a call runs while it queues."""

    lock: anyio.Lock | None = None

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.lock = self.lock or anyio.Lock()
        with anyio.move_on_after(request.timeout_seconds):
            async with self.lock:
                return await self.inner.exec(request, sink)
        return ExecResult(exit_code=124, timed_out=True)


@mutant("EX-13.cancel-one")
class CancelsAll(BugToy):
    """Cancelling one call ends the processes of all."""

    def kill_tree(self, process: Process) -> None:
        for other in list(self.body.kernel.processes):
            self.body.kernel.kill(other)


@mutant("EX-14.lost")
class LostIsUnreachable(Bug):
    """Definite absence is told as a passing trouble."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        try:
            return await self.inner.exec(request, sink)
        except Lost as exc:
            raise Unreachable(exc.message) from exc


@mutant("EX-14.lost-midway")
class LossIsAResult(Bug):
    """A command whose compute went away came to 137."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        try:
            return await self.inner.exec(request, sink)
        except Unavailable as exc:
            if isinstance(exc, Lost) and exc.effect == "none":
                raise
            return ExecResult(exit_code=137)


@mutant("EX-14.cut")
class SendsAgain(Bug):
    """After a broken connection the command is sent again."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        try:
            return await self.inner.exec(request, sink)
        except OutcomeUnknown:
            return await self.inner.exec(request, sink)


@mutant("EX-15.while-running")
class StreamsAtTheEnd(Bug):
    """A stream is collected, and given to the sink when the command has ended."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if sink is None:
            return await self.inner.exec(request)
        kept: list[tuple[OutputStream, bytes]] = []

        async def collect(stream: OutputStream, data: bytes) -> None:
            kept.append((stream, data))

        result = await self.inner.exec(request, collect)
        for stream, data in kept:
            await sink(stream, data)
        return result


@mutant("EX-15.uncapped")
class CapsStreams(Bug):
    """A stream ends at its cap."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if sink is None:
            return await self.inner.exec(request)
        left = 1_000_000

        async def capped(stream: OutputStream, data: bytes) -> None:
            nonlocal left
            if data[:left]:
                await sink(stream, data[:left])
            left -= len(data[:left])

        return await self.inner.exec(request, capped)


@mutant("EX-15.back-pressure")
class BuffersStreams(Bug):
    """The sink is not waited for: what it has not taken yet piles up."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if sink is None:
            return await self.inner.exec(request)
        send, receive = anyio.create_memory_object_stream[tuple[OutputStream, bytes]](10**9)

        async def pile(stream: OutputStream, data: bytes) -> None:
            send.send_nowait((stream, data))

        async def pass_on() -> None:
            async with receive:
                async for stream, data in receive:
                    await sink(stream, data)

        async with anyio.create_task_group() as group:
            group.start_soon(pass_on)
            async with send:
                return await self.inner.exec(request, pile)
        raise Internal("unreachable")


@mutant("EX-15.sink-raises")
class SwallowsSinkErrors(Bug):
    """What a sink raises is lost, and the command goes on."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if sink is None:
            return await self.inner.exec(request)

        async def safe(stream: OutputStream, data: bytes) -> None:
            with suppress(Exception):
                await sink(stream, data)

        return await self.inner.exec(attrs.evolve(request, timeout_seconds=2.0), safe)


@mutant("EX-11.bytes-absent", strict=True)
class TakesBytesSilently(BugToy):
    """Arguments that are not UTF-8 are taken though argv_bytes is denied."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        kept, self.features = self.features, attrs.evolve(self.features, argv_bytes=True)
        try:
            return await super().exec(request, sink)
        finally:
            self.features = kept
