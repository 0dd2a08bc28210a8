"""One bashkit sandbox: commands, files and tree over one virtual file system (EX)."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final, Literal

import anyio
import anyio.to_thread
import attrs

from pinfold.errors import NotADirectory, NotFound, OutcomeUnknown, PinfoldError
from pinfold.provider import (
    Details,
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Sink,
    check_exec,
    guest_env,
)
from pinfold.spec import Limits
from pinfold_bashkit._files import BashkitFiles
from pinfold_bashkit._interpreter import WARM, Interpreter, Settings
from pinfold_bashkit._output import Output, Streamed
from pinfold_bashkit._script import only_reads, quote, script_of
from pinfold_bashkit._tree import BashkitTree
from pinfold_bashkit._vfs import Vfs

if TYPE_CHECKING:
    import bashkit

__all__ = ["BashkitInstance"]

_LOG: Final = logging.getLogger("pinfold.bashkit")

#: How much later than ours the interpreter's own timeout strikes: it also ends what is deaf to us,
#: but alone it would let a script go on for a while.
_BACKSTOP_SECONDS: Final = 0.25
#: From here on a timeout is never: bashkit can't count that far.
_FOR_EVER_SECONDS: Final = 1e9
#: How long a command may take to end, before it is left behind and the sandbox goes on with a copy
#: of its files. Together with the copying this must fit into KILL_GRACE_SECONDS.
_GRACE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.005

_LIMITS: Final[tuple[tuple[str, Literal["memory", "cpu"]], ...]] = (
    ("bytes", "memory"),
    ("memory", "memory"),
    ("too large", "memory"),
    ("limit exceeded", "cpu"),
    ("budget", "cpu"),
)


@attrs.define
class _Run:
    """One command on its way through a worker thread."""

    interpreter: Interpreter
    script: str
    output: Output
    timeout: float | None
    result: bashkit.ExecResult | None = None
    timed_out: bool = False
    seconds: float = 0.0
    ended: bool = False

    def work(self) -> None:
        started = time.monotonic()
        try:
            self.result = self.interpreter.run(self.script, self.output)
        finally:
            self.seconds = time.monotonic() - started
            self.ended = True

    def settle(self, *, late: bool) -> None:
        """Judge how it ended, and complete its output; `late`: the deadline struck first."""
        # Some built-ins give up at the deadline by themselves, and call it an error of theirs.
        self.timed_out = late or (self.timeout is not None and self.seconds >= self.timeout)
        error = None if self.result is None else self.result.error
        self.output.settle(self.result)
        if error is not None and not self.timed_out:
            self.output.note(f"bash: {error}\n")


class BashkitInstance(Instance):
    """A sandbox in this process; its commands run one at a time, each in a worker thread."""

    def __init__(
        self,
        *,
        ref: InstanceRef,
        owner: Owner,
        settings: Settings,
        features: Features,
        limits: Limits,
        details: Details,
        generation: int,
    ) -> None:
        self.ref = ref
        self.owner = owner
        self.features = features
        self.details = details
        self.vfs = Vfs()
        self.files = BashkitFiles(self.vfs, limits)
        self._turn = anyio.Lock(fast_acquire=True)
        self._threads = anyio.CapacityLimiter(math.inf)
        self.tree = BashkitTree(self.vfs, limits, self._turn, self._threads)
        self._settings = settings
        self._limits = limits
        self._generation = generation
        self._running: _Run | None = None

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        check_exec(request, self._limits, argv_bytes=self.features.argv_bytes)
        async with self._turn:  # first come, first served; the clock starts after it (EX-13)
            return await self._exec(request, sink)

    async def _exec(self, request: ExecRequest, sink: Sink | None) -> ExecResult:
        env, dropped = guest_env(request, {})
        cwd = self._directory(request)
        timeout = request.timeout_seconds
        own_timeout = None
        if timeout is not None and timeout < _FOR_EVER_SECONDS:
            own_timeout = timeout + _BACKSTOP_SECONDS
        if self._settings.timeout_seconds != own_timeout:
            self._settings = attrs.evolve(self._settings, timeout_seconds=own_timeout)
        interpreter = WARM.take(self._settings, self.vfs)
        try:
            stdin = self.vfs.stage(request.stdin) if request.stdin else None
            script = script_of(request, cwd=cwd, env=env, stdin=stdin, parses=interpreter.parses)
        except PinfoldError:
            WARM.keep(self.vfs, interpreter)
            raise
        streamed = None if sink is None else Streamed()
        output = streamed or Output(request.stdout_cap, request.stderr_cap)
        run = self._running = _Run(interpreter, script, output, timeout)
        writes = not only_reads(request, interpreter.analyze)
        self.vfs.changes += writes
        try:
            if streamed is None or sink is None:
                await self._run(run)
            else:
                await self._run_streamed(run, streamed, sink)
        finally:
            self._running = None
            self.vfs.changes += writes
            if stdin is not None:
                self.vfs.unstage()
        if self.vfs.gone:
            raise OutcomeUnknown("the sandbox was destroyed while the command ran")
        if run.result is not None and run.result.error is None:
            WARM.keep(self.vfs, interpreter)
        return self._result(run, dropped, streamed=streamed is not None)

    def _directory(self, request: ExecRequest) -> str:
        place = self.vfs.locate(request.cwd, follow=True)
        if place.meta is None:
            raise NotFound(f"there is no cwd {str(request.cwd)!r}")
        if place.meta["file_type"] != "directory":
            raise NotADirectory(f"cwd {str(request.cwd)!r} is no directory")
        return place.path

    # --- a command's life ---

    async def _run(self, run: _Run) -> None:
        """Run it to its end, its timeout or a cancellation; on return nothing of it goes on."""
        try:
            with anyio.move_on_after(run.timeout) as clock:
                await anyio.to_thread.run_sync(
                    run.work, abandon_on_cancel=True, limiter=self._threads
                )
        finally:
            if not run.ended:
                with anyio.CancelScope(shield=True):
                    await self._end(run)
        run.settle(late=clock.cancelled_caught)

    async def _run_streamed(self, run: _Run, output: Streamed, sink: Sink) -> None:
        failure: Exception | None = None

        async def produce() -> None:
            try:
                await self._run(run)
            finally:
                output.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            try:
                await output.pump(sink)
            except Exception as exc:  # noqa: BLE001  # the sink's own: it ends the command
                failure = exc
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _end(self, run: _Run) -> None:
        """End a command that still runs; one that is deaf is left behind, without its files."""
        run.interpreter.stop()
        run.output.release()
        with anyio.move_on_after(_GRACE_SECONDS):
            while not run.ended:  # a thread sets it, if it ever does
                await anyio.sleep(_POLL_SECONDS)
        if not run.ended and not self.vfs.gone:
            await self._abandon()

    async def _abandon(self) -> None:
        """Go on with a copy of the files, which nothing of the command can reach."""
        async with self.vfs.moving():
            try:
                root = await anyio.to_thread.run_sync(self._copied, limiter=self._threads)
            except Exception:  # noqa: BLE001  # better lost than written to by what has ended
                _LOG.exception("sandbox %s is given up: its files can't be copied", self.ref.id)
                self.vfs.destroy()
            else:
                if not self.vfs.gone:
                    self.vfs.root = root

    def _copied(self) -> bashkit.FileSystem:
        root, fifos = self.vfs.copy(workspace=True)
        if fifos:
            script = ";".join(f"mkfifo {quote(path)}" for path in fifos)
            Interpreter(self._settings, root).run(script, lambda *_: None)
        return root

    def _result(self, run: _Run, dropped: tuple[str, ...], *, streamed: bool) -> ExecResult:
        result, stdout, stderr = run.result, run.output.stdout, run.output.stderr
        limit: Literal["memory", "cpu", "output"] | None = None
        if run.timed_out or result is None:
            exit_code = 124
        elif result.error is not None:
            exit_code = 2 if result.error.startswith("parse error") else result.exit_code & 0xFF
            limit = next((limit for text, limit in _LIMITS if text in result.error), None)
        else:
            exit_code = result.exit_code & 0xFF
            if result.stdout_truncated or result.stderr_truncated:
                limit = "output"  # beyond Limits.output_bytes bashkit drops, and does not count
        return ExecResult(
            exit_code=exit_code,
            stdout=b"" if streamed else stdout.data,
            stderr=b"" if streamed else stderr.data,
            stdout_truncated=not streamed and len(stdout.data) < stdout.total,
            stderr_truncated=not streamed and len(stderr.data) < stderr.total,
            stdout_total=stdout.total,
            stderr_total=stderr.total,
            timed_out=run.timed_out,
            limit=limit,
            duration_ms=round(run.seconds * 1000),
            env_dropped=dropped,
            generation=self._generation,
        )

    # --- its own life ---

    async def status(self) -> InstanceStatus:
        return InstanceStatus.ABSENT if self.vfs.gone else InstanceStatus.RUNNING

    async def destroy(self) -> None:
        if self.vfs.gone:
            return
        WARM.drop(self.vfs)
        self.vfs.destroy()
        run = self._running
        if run is not None:
            run.interpreter.stop()
            run.output.release()
