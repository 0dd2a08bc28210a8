"""Running one command to its end: pipes, caps, deadlines (contract section 4)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Final

import anyio
import attrs
from anyio.abc import ByteReceiveStream

from pinfold.errors import OutcomeUnknown, PinfoldError
from pinfold.posix._call import CHUNK, Boundary, feed
from pinfold.posix._gate import Gate
from pinfold.posix._guest import SupervisedProcess
from pinfold.posix._layout import Layout
from pinfold.posix._supervise import Command, Outcome, Running, Supervisor
from pinfold.provider import (
    ExecRequest,
    ExecResult,
    Features,
    OutputStream,
    Sink,
    check_exec,
    guest_env,
)
from pinfold.spec import KILL_GRACE_SECONDS, RETURN_GRACE_SECONDS, TERM_GRACE_SECONDS, Limits

__all__ = ["ExecRunner"]

_TIMED_OUT: Final = 124
#: To end a tree: the grace is a part of it. What is left of the contract's limit is for the rest.
_KILL_SECONDS: Final = min(TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS, KILL_GRACE_SECONDS) - 1.0
_LAST_WORDS_SECONDS: Final = 0.3
_LET_GO_SECONDS: Final = 0.6
#: How long output may stand still, after the process has ended, before the rest is given up.
_STILL_SECONDS: Final = 2.0


class _Output:
    """One stream's bytes: kept up to a cap, or passed to a sink; counted always (EX-7, EX-15)."""

    def __init__(self, name: OutputStream, cap: int, sink: Sink | None) -> None:
        self.name = name
        self.cap = cap
        self.sink = sink
        self.kept = bytearray()
        self.total = 0
        self.steps = 0
        self.busy = False
        self.complete = False
        #: What stands behind the boundary, on its line.
        self.status = b""
        self.ended = anyio.Event()

    async def pump(
        self, stream: ByteReceiveStream, boundary: Boundary | None, *, to_the_end: bool
    ) -> None:
        pending = b""
        try:
            while not self.complete or to_the_end:
                chunk = await stream.receive(CHUNK)
                self.steps += 1
                if boundary is not None and not self.complete:
                    chunk, pending, line = boundary.split_line(pending + chunk)
                    if line is not None:
                        self.complete, self.status = True, line
                        chunk, pending = chunk + pending if to_the_end else chunk, b""
                await self._take(chunk)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._take(pending)
            self.complete = self.complete or boundary is None
        self.ended.set()

    async def _take(self, chunk: bytes) -> None:
        if not chunk:
            return
        self.total += len(chunk)
        if self.sink is None:
            self.kept += chunk[: max(0, self.cap - len(self.kept))]
            return
        self.busy = True
        await self.sink(self.name, chunk)
        self.busy = False

    @property
    def truncated(self) -> bool:
        return self.sink is None and self.total > len(self.kept)


class ExecRunner:
    """Runs commands.

    Args:
        supervisor: starts and ends them.
        layout: where the workspace is.
        shell: the path of the target's shell, for `request.shell`.
        features: in force.
        limits: the target's own.
        generation: of the instance.
        mark: the beginning of every cookie of this instance.
        gate: passed before anything is started.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        layout: Layout,
        shell: str,
        features: Features,
        limits: Limits,
        generation: int,
        mark: str,
        gate: Gate,
    ) -> None:
        self._supervisor = supervisor
        self._layout = layout
        self._shell = shell
        self._features = features
        self._limits = limits
        self._generation = generation
        self._mark = mark
        self._gate = gate
        self._turn = None if features.concurrent_exec else anyio.Lock()
        #: Commands that run now.
        self.running = 0

    async def run(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        """Run one command; as `Instance.exec`."""
        check_exec(request, self._limits, self._layout.names, argv_bytes=self._features.argv_bytes)
        argv = request.argv or (self._shell, "-c", request.shell or "")
        env, dropped = guest_env(request, {"PINFOLD_WORKSPACE": str(self._layout.root)})
        command = Command(
            argv=argv,
            env=env,
            cwd=self._layout.physical(request.cwd),
            has_stdin=bool(request.stdin),
            cookie=self._mark + secrets.token_hex(8),
        )
        async with self._turn or nullcontext():
            await self._gate()
            self.running += 1
            try:
                whole = await self._supervisor.execute(command, request, sink)
                if whole is not None:
                    return attrs.evolve(
                        whole,
                        signal=whole.signal if self._features.signals else None,
                        env_dropped=dropped,
                        generation=self._generation,
                    )
                run = _Run(
                    self._supervisor, command, request, sink, background=self._features.background
                )
                outcome = await run.run()
            finally:
                self.running -= 1
        return ExecResult(
            exit_code=outcome.exit_code,
            stdout=bytes(run.out.kept),
            stderr=bytes(run.err.kept),
            stdout_truncated=run.out.truncated,
            stderr_truncated=run.err.truncated,
            stdout_total=run.out.total,
            stderr_total=run.err.total,
            timed_out=run.timed_out,
            signal=outcome.signal if self._features.signals else None,
            limit=outcome.limit,
            duration_ms=round(run.seconds * 1000),
            env_dropped=dropped,
            generation=self._generation,
        )


class _Run:
    """One command's run."""

    def __init__(
        self,
        supervisor: Supervisor,
        command: Command,
        request: ExecRequest,
        sink: Sink | None,
        *,
        background: bool,
    ) -> None:
        self._supervisor = supervisor
        self._command = command
        self._request = request
        self._background = background
        self.out = _Output("stdout", request.stdout_cap, sink)
        self.err = _Output("stderr", request.stderr_cap, sink)
        self.timed_out = False
        self.seconds = 0.0
        self._failures: list[Exception] = []
        self._fed = False

    async def run(self) -> Outcome:
        """Run it; whatever happens, nothing of an unfinished command is left (EX-4, EX-5)."""
        running = await self._start()
        over = False
        try:
            await self._watch(running)
            if self._failures:
                raise self._failures[0]
            if self.timed_out:
                over = True
                return Outcome(exit_code=_TIMED_OUT)
            outcome = await running.outcome(self.out.status if self._complete else b"")
            over = True
            if not self._complete:
                raise OutcomeUnknown(
                    f"the end of the output was lost; the command ended with {outcome.exit_code}",
                    hint="look what it has done before it is run again",
                    details={"exit_code": outcome.exit_code, "signal": outcome.signal},
                )
            return outcome
        finally:
            if not over:
                with anyio.move_on_after(_KILL_SECONDS, shield=True):
                    await self._supervisor.end(self._command, running, TERM_GRACE_SECONDS)
            with anyio.move_on_after(_LET_GO_SECONDS, shield=True):
                await running.aclose()

    async def _start(self) -> Running:
        try:
            return await self._supervisor.start(self._command)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_KILL_SECONDS, shield=True):
                await self._supervisor.end(self._command, None, TERM_GRACE_SECONDS)
            raise

    async def _watch(self, running: Running) -> None:
        started = anyio.current_time()
        process, boundary = running.process, running.boundary
        async with anyio.create_task_group() as tasks:

            async def pump(output: _Output, stream: ByteReceiveStream) -> None:
                try:
                    await output.pump(stream, boundary, to_the_end=not self._background)
                except Exception as exc:  # noqa: BLE001 -- the sink's own: it ends the command
                    self._failures.append(exc)
                    tasks.cancel_scope.cancel()

            async def give() -> None:
                await feed(process.stdin, _once(self._request.stdin))
                self._fed = True

            tasks.start_soon(pump, self.out, process.stdout)
            tasks.start_soon(pump, self.err, process.stderr)
            tasks.start_soon(give)
            with anyio.move_on_after(self._request.timeout_seconds) as deadline:
                try:
                    await self._finish(running)
                except PinfoldError as exc:
                    unknown = OutcomeUnknown(
                        "the target went away while the command ran",
                        hint="look what it has done before it is run again",
                    )
                    unknown.__cause__ = exc
                    self._failures.append(unknown)
            self.seconds = self.seconds or anyio.current_time() - started
            if deadline.cancelled_caught:
                self.timed_out = True
                with anyio.move_on_after(_KILL_SECONDS):
                    await self._supervisor.end(self._command, running, TERM_GRACE_SECONDS)
                with anyio.move_on_after(_LAST_WORDS_SECONDS):
                    await self.out.ended.wait()
                    await self.err.ended.wait()
                self.seconds = anyio.current_time() - started
                if not (self.out.ended.is_set() and self.err.ended.is_set()):
                    await self._may_live_on()
            if not (self._fed and self.out.ended.is_set() and self.err.ended.is_set()):
                tasks.cancel_scope.cancel()

    async def _may_live_on(self) -> None:
        """Tell no timeout of a command that nobody could end (EX-4)."""
        why = None
        with anyio.move_on_after(_LET_GO_SECONDS):
            why = await self._supervisor.suspended()
        if why is not None:
            self._failures.append(
                OutcomeUnknown(
                    f"{why.message}; the command is past its timeout and could not be ended",
                    hint=f"{why.hint}; the command then goes on: look whether it still runs, and "
                    "what it has done, before it is run again",
                    details=why.details,
                )
            )

    async def _finish(self, running: Running) -> None:
        if self._background and running.process.distant:
            await self.out.ended.wait()
            await self.err.ended.wait()
            if self._complete:
                return
        await running.process.wait()
        if not self._background:
            await self.out.ended.wait()
            await self.err.ended.wait()
            await self._supervisor.idle(self._command, running)
            return
        if isinstance(running.process, SupervisedProcess):
            await running.process.settle()
        # What the command wrote is on its way, before the boundary. It is waited for as long as it
        # moves, or a sink is busy with it.
        while not (self.out.ended.is_set() and self.err.ended.is_set()):
            steps = self.out.steps + self.err.steps
            with anyio.move_on_after(_STILL_SECONDS):
                await self.out.ended.wait()
                await self.err.ended.wait()
            idle = not (self.out.busy or self.err.busy)
            if idle and steps == self.out.steps + self.err.steps:
                return

    @property
    def _complete(self) -> bool:
        return self.out.complete and self.err.complete


async def _once(data: bytes) -> AsyncIterator[bytes]:
    if data:
        yield data
