"""Bugs of exec. Those that wrap any adapter are also tried on real processes."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import attrs

from pinfold.errors import (
    Internal,
    InvalidArgument,
    Lost,
    NotFound,
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


@mutant("EX-1.nonzero")
class RaisesOnFailure(Bug):
    """A command that fails raises."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.exit_code == 3:
            raise Internal("command failed")
        return result


@mutant("EX-1.nonzero")
class RaisesForeignErrors(Bug):
    """An error of the adapter's own kind leaves it."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        raise KeyError("exit_code")


@mutant("EX-1.nonzero")
class WrongTypes(Bug):
    """The output is text, not bytes."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        text: Any = result.stdout.decode("utf-8", "replace")
        return attrs.evolve(result, stdout=text)


@mutant("EX-2.codes")
class CodesAreSigned(Bug):
    """Exit codes above 127 lose their highest bit."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=result.exit_code & 0x7F)


@mutant("EX-2.codes")
class CodesAreBooleans(Bug):
    """Every failure is exit code 1."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=min(result.exit_code, 1), timed_out=False)


@mutant("EX-2.last-command")
class FirstFailureCounts(Bug):
    """A script ends with its first failure's code, as under `set -e`."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        failed = result.exit_code == 0 and result.stdout == b"on"
        return attrs.evolve(result, exit_code=1) if failed else result


@mutant("EX-2.signals")
class SignalsAreLost(Bug):
    """A death by signal is told as -1 would be: 255, no signal."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.signal is None or result.timed_out:
            return result
        return attrs.evolve(result, exit_code=255, signal=None)


@mutant("EX-2.signals-argv")
class CodesAreTakenForSignals(Bug):
    """A plain exit code above 128 is taken for a death by signal."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        code = result.exit_code
        if 128 < code < 160 and not result.timed_out:
            return attrs.evolve(result, signal=code - 128)
        return result


@mutant("EX-2.not-found")
class MissingCommandRaises(Bug):
    """A command that is not there raises not_found."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.exit_code == 127:
            raise NotFound("command not found")
        return result


@mutant("EX-2.not-executable")
class NotExecutableIsNotFound(Bug):
    """A file that is not executable is told as missing."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=127) if result.exit_code == 126 else result


@mutant("EX-6.separate")
class MergesStreams(Bug):
    """stderr ends up in stdout."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        both = result.stdout + result.stderr
        return attrs.evolve(
            result, stdout=both, stdout_total=len(both), stderr=b"", stderr_total=0,
            stdout_truncated=False, stderr_truncated=False,
        )  # fmt: skip


@mutant("EX-6.bytes")
class DecodesOutput(Bug):
    """Output passes through text, with replacement."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        data = result.stdout.decode("utf-8", "replace").encode()
        return attrs.evolve(result, stdout=data, stdout_total=len(data), stdout_truncated=False)


@mutant("EX-6.bytes")
class AddsCarriageReturns(Bug):
    """Newlines become CR LF, as through a terminal."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        data = result.stdout.replace(b"\n", b"\r\n")
        return attrs.evolve(result, stdout=data, stdout_total=len(data), stdout_truncated=False)


@mutant("EX-6.nothing")
class Chatters(Bug):
    """A silent command gets a line of the adapter's on stderr."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.stdout or result.stderr:
            return result
        return attrs.evolve(result, stderr=b"done\n", stderr_total=5)


@mutant("EX-7.cap")
class TruncatedTooEarly(Bug):
    """Output of exactly the cap loses its last byte."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if 0 < len(result.stdout) == request.stdout_cap:
            return attrs.evolve(result, stdout=result.stdout[:-1], stdout_truncated=True)
        return result


@mutant("EX-7.cap")
class KeepsTheTail(Bug):
    """Beyond the cap the tail is kept, not the head."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, stdout_cap=10_000_000)

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        cap = request.stdout_cap
        tail = result.stdout[max(0, len(result.stdout) - cap) :] if cap else b""
        return attrs.evolve(result, stdout=tail, stdout_truncated=result.stdout_total > len(tail))


@mutant("EX-7.undisturbed")
class EndsAtTheCap(Bug):
    """A command whose output is cut is told as killed."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=141, signal=None) if result.truncated else result


@mutant("EX-7.flood")
class StopsCounting(Bug):
    """Bytes are counted up to 1 MiB alone."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, stdout_total=min(result.stdout_total, 1 << 20))


@mutant("EX-7.both")
class LosesTheEnd(Bug):
    """The end of large output is lost when both streams are busy."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if len(result.stdout) > 100_000 and result.stderr:
            data = result.stdout[:100_000]
            return attrs.evolve(result, stdout=data, stdout_total=len(data))
        return result


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


@mutant("EX-4.timeout")
class TimeoutLosesOutput(Bug):
    """After a timeout the output so far is lost."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if not result.timed_out:
            return result
        return attrs.evolve(result, stdout=b"", stdout_total=0, stdout_truncated=False)


@mutant("EX-4.argv")
class TimeoutRaises(Bug):
    """A timeout raises."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.timed_out:
            raise Unavailable("timed out")
        return result


@mutant("EX-4.own-124")
class OwnCodeIsATimeout(Bug):
    """A command that exits 124 is taken for timed out."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, timed_out=result.exit_code == 124)


@mutant("EX-4.fractions")
class WholeSeconds(Bug):
    """Timeouts are cut to whole seconds."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        timeout = request.timeout_seconds
        return attrs.evolve(request, timeout_seconds=timeout and max(int(timeout), 0.001))


@mutant("EX-4.tree")
class KillsTheLeader(BugToy):
    """A timeout ends the command alone; its children live on."""

    def kill_tree(self, process: Process) -> None:
        self.body.kernel.kill(process)


@mutant("EX-4.tree")
class KillsTheGroup(BugToy):
    """A timeout ends the session alone; children of other sessions live on."""

    def kill_tree(self, process: Process) -> None:
        for other in self.body.kernel.of_job(process.job):
            if other.session == process.session:
                self.body.kernel.kill(other)


@mutant("EX-4.deaf")
class OnlyAsks(BugToy):
    """A timeout sends TERM and no more."""

    def kill_tree(self, process: Process) -> None:
        for other in self.body.kernel.of_job(process.job):
            self.body.kernel.kill(other, 15)


@mutant("EX-4.holders")
class WaitsForHolders(Bug):
    """After a timeout it waits until nobody holds the output."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        result = await self.inner.exec(request, sink)
        if result.timed_out:
            await anyio.sleep(6)
        return result


@mutant("EX-4.flood")
class FloodKeepsRunning(Bug):
    """The deadline is not looked at while output comes."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        large = request.stdout_cap < 2000
        return attrs.evolve(request, timeout_seconds=9.0) if large else request


@mutant("EX-4.no-effect-after", strict=True)
class EffectsAfterReturn(BugToy):
    """What a command started goes on after its timeout."""

    def kill_tree(self, process: Process) -> None:
        self.body.kernel.kill(process)


@mutant("EX-5.cancel")
class CancelLeavesTree(BugToy):
    """A cancelled command goes on."""

    def kill_tree(self, process: Process) -> None:
        import time

        if time.monotonic() - self._began > 25:  # a timeout, not a cancellation
            super().kill_tree(process)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        import time

        self._began = time.monotonic()
        return await super().exec(request, sink)


@mutant("EX-5.cancel-asleep")
class CancelWaits(Bug):
    """A cancellation waits until the command ends by itself."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        with anyio.CancelScope(shield=True):
            timeout = min(request.timeout_seconds or 7.0, 7.0)
            return await self.inner.exec(attrs.evolve(request, timeout_seconds=timeout), sink)
        raise Internal("unreachable")


@mutant("EX-8.background")
class WaitsForChildren(BugToy):
    """The call returns when the last child has ended."""

    def ended(self, process: Process) -> bool:
        return not process.alive and not self.body.kernel.of_job(process.job)


@mutant("EX-8.background")
class EndsChildren(BugToy):
    """Children end with the command."""

    async def _exec(self, request: ExecRequest, sink: Sink | None) -> ExecResult:
        result = await super()._exec(request, sink)
        self.end_jobs()
        return result


@mutant("EX-8.waited", strict=True)
class ForgetsJobs(BugToy):
    """Jobs are ended with their command, unfinished."""

    def ended(self, process: Process) -> bool:
        if not process.alive:
            for other in self.body.kernel.of_job(process.job):
                self.body.kernel.kill(other)
        return not process.alive


@mutant("EX-11.bytes-absent", strict=True)
class TakesBytesSilently(BugToy):
    """Arguments that are not UTF-8 are taken though argv_bytes is denied."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        kept, self.features = self.features, attrs.evolve(self.features, argv_bytes=True)
        try:
            return await super().exec(request, sink)
        finally:
            self.features = kept


@mutant("EX-2.signals-absent", strict=True)
class SignalsUnclaimed(BugToy):
    """Signals are told though the feature is denied."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        result = await super().exec(request, sink)
        died = result.exit_code == 137
        return attrs.evolve(result, signal=9 if died else None)


@mutant("machine.exec")
class ConfusesCaps(Bug):
    """The cap of stdout counts for stderr too, when both are small."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if request.stderr_cap == 5 and len(result.stderr) == 5:
            data: Sequence[int] = result.stderr[:4]
            return attrs.evolve(result, stderr=bytes(data), stderr_truncated=True)
        return result
