"""The handle that callers hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Self

import anyio
import attrs

from pinfold.errors import Effect, InvalidArgument, OutcomeUnknown, PinfoldError, Unimplemented
from pinfold.events import AuditAction, Event
from pinfold.memory import NoCompute
from pinfold.provider import (
    NO_CAPABILITIES,
    Capabilities,
    Descriptor,
    Endpoint,
    ExecRequest,
    ExecResult,
    Features,
    Files,
    Instance,
    Ports,
    Sink,
    Terminal,
    Terminals,
    TerminalSize,
)
from pinfold.sandbox._callers import CallersError
from pinfold.sandbox._files import SandboxFiles
from pinfold.sandbox._life import Life
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import LiveState
from pinfold.sandbox._stream import ExecStream, open_stream
from pinfold.spec import EXEC_TIMEOUT_SECONDS, OUTPUT_CAP_BYTES, WORKSPACE, PinnedSpec
from pinfold.views import (
    EnvironmentView,
    ResolvedFrom,
    SandboxView,
    details_of,
    environment_view,
    view_containment,
    view_target,
)

__all__ = ["Sandbox", "sandbox_view"]


class Sandbox:
    """A place where commands run and files are, until it is closed.

    Made by `pinfold.open`. Every method may be called from several tasks at once.

    Attributes:
        id: `sbx_` and 32 hex digits.
        name: the profile's name, the name given, or `inline`.
        pinned: what it was made from; immutable.
        files: its files (FS).
    """

    def __init__(
        self,
        *,
        sandbox_id: str,
        name: str,
        pinned: PinnedSpec,
        resolved_from: ResolvedFrom,
        descriptor: Descriptor | None,
        life: Life,
        runtime: Runtime,
    ) -> None:
        self.id = sandbox_id
        self.name = name
        self.pinned = pinned
        self.files: Files = SandboxFiles(life, self._audit)
        self._resolved_from = resolved_from
        self._descriptor = descriptor
        self._life = life
        self._runtime = runtime

    # --- what it is -----------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """The six facts (RS-7)."""
        if self._descriptor is None:
            return NO_CAPABILITIES
        return self._descriptor.capabilities(self.pinned.spec)

    @property
    def features(self) -> Features:
        """The features in force, or promised while there is no instance yet (PR-7)."""
        features = self._life.known.features
        if features is not None:
            return features
        if self._descriptor is None:
            return NoCompute.features
        return self._descriptor.features(self.pinned.spec)

    @property
    def generation(self) -> int:
        """The number of the physical incarnation, as far as this handle knows (LC-1)."""
        return self._life.known.generation

    async def events(self) -> tuple[Event, ...]:
        """Return the journal so far, in order (EV-1)."""
        return await self._life.events()

    async def view(self) -> SandboxView:
        """Return the sandbox as seed 001 shows it, with `details` beside (TR-2)."""
        return sandbox_view(
            await self._life.look(),
            sandbox_id=self.id,
            name=self.name,
            pinned=self.pinned,
            descriptor=self._descriptor,
            resolved_from=self._resolved_from,
        )

    async def environment(self) -> EnvironmentView:
        """Return the environment as seed 000 shows it, with `details` beside (TR-2)."""
        view = environment_view(self.pinned.spec, self._descriptor, self._resolved_from)
        return attrs.evolve(view, details=(await self.view()).details)

    # --- what it does ---------------------------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: PurePosixPath | str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_seconds: float | None = EXEC_TIMEOUT_SECONDS,
        stdout_cap: int = OUTPUT_CAP_BYTES,
        stderr_cap: int = OUTPUT_CAP_BYTES,
    ) -> ExecResult:
        """Run one command to its end and return what came of it (EX).

        Args:
            argv: the program and its arguments, no shell between.
            shell: a script for the target's shell; exactly one of argv and shell.
            cwd: where it runs, in the caller's view.
            env: variables added to the target's defaults.
            stdin: its standard input, then end-of-file.
            timeout_seconds: after which it is ended, with exit code 124; None is unlimited.
            stdout_cap: bytes of stdout to keep, the head; more is counted.
            stderr_cap: bytes of stderr to keep.

        Raises:
            InvalidArgument, NotFound, TooLarge, Unimplemented, Unavailable: as
            `pinfold.provider.Instance.exec`; never for an exit code (EX-1).
            Conflict: the sandbox is closed.
        """
        return await self._exec(
            ExecRequest(
                argv=argv,
                shell=shell,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout_seconds=timeout_seconds,
                stdout_cap=stdout_cap,
                stderr_cap=stderr_cap,
            )
        )

    def stream(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: PurePosixPath | str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_seconds: float | None = EXEC_TIMEOUT_SECONDS,
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run one command and yield its output while it runs, uncapped (EX-15).

        Use it as `async with box.stream([...]) as chunks: async for chunk in chunks: ...`; then
        `await chunks.result()`. Leaving the block ends the command.

        Raises: as `exec`; what happens once it runs is raised where the chunks are read.
        """
        request = ExecRequest(
            argv=argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds
        )

        async def run(sink: Sink) -> ExecResult:
            return await self._exec(request, sink)

        return open_stream(run)

    @asynccontextmanager
    async def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        cwd: PurePosixPath | str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        size: TerminalSize = TerminalSize(),  # noqa: B008 - frozen
    ) -> AsyncIterator[Terminal]:
        """Open a terminal for the length of a block; leaving it ends what runs in it.

        Args:
            argv: what runs in it; by default the target's shell.
            cwd: where.
            env: variables added to the target's defaults.
            size: in character cells.

        Raises:
            Unimplemented: the target has no terminals (capability `pty`).
        """
        asked = ExecRequest(argv=["sh"] if argv is None else argv, cwd=cwd, env=env)
        usual = argv is None and not asked.env and asked.cwd == WORKSPACE
        request = None if usual else asked
        start, moved = self._runtime.clock.monotonic(), [0, 0]
        none = Unimplemented("this target has no terminals", hint="see its capability pty")
        if not self.capabilities.pty:
            raise none  # without making any compute
        own = CallersError()
        with own.raised():
            async with self._life.operation(mutates=True) as instance:
                if not isinstance(instance, Terminals):
                    raise none
                inner = await instance.open_terminal(request, size)
                self._audit(AuditAction.ATTACH, {"argv": None if argv is None else list(argv)})
                try:
                    with own.kept():
                        yield _Counted(inner, moved)
                finally:
                    with anyio.CancelScope(shield=True):
                        await inner.aclose()
                    self._audit(
                        AuditAction.DETACH,
                        {
                            "seconds": round(self._runtime.clock.monotonic() - start, 3),
                            "bytes_in": moved[0],
                            "bytes_out": moved[1],
                        },
                    )

    async def expose(self, port: int) -> Endpoint:
        """Make a port of the sandbox reachable, and say where.

        Raises:
            Unimplemented: the target has no ports (capability `ports`).
            InvalidArgument: no such port can be.
        """
        none = Unimplemented("this target exposes no ports", hint="see its capability ports")

        async def work(instance: Instance) -> Endpoint:
            if not isinstance(instance, Ports):
                raise none
            return await instance.expose(port)

        if not self.capabilities.ports:
            raise none  # without making any compute
        if type(port) is not int or not 1 <= port <= 65_535:
            raise InvalidArgument("a port is 1..65535")
        return await self._life.call(work)

    async def _exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        async def run() -> ExecResult:
            return await self._life.call(lambda it: it.exec(request, sink), mutates=True)

        result = await self._audited(request, run)
        generation = self._life.known.generation
        if result.generation == generation:
            return result
        return attrs.evolve(result, generation=generation)

    async def _audited(
        self, request: ExecRequest, run: Callable[[], Awaitable[ExecResult]]
    ) -> ExecResult:
        """Run a command, and tell the audit what came of it (EV-2)."""
        outcome: dict[str, Any] = {}
        try:
            result = await run()
            outcome = {"exit_code": result.exit_code, "timed_out": result.timed_out}
        except OutcomeUnknown:
            outcome = {"outcome": "unknown"}
            raise
        except PinfoldError as exc:
            if exc.effect is not Effect.NONE:  # refused before the start leaves no record
                outcome = {"outcome": exc.code}
            raise
        except anyio.get_cancelled_exc_class():
            outcome = {"outcome": "cancelled"}
            raise
        finally:
            if outcome and self._runtime.hooks.audits:
                self._audit(AuditAction.EXEC, {**_facts(request), **outcome})
        return result

    def _audit(self, action: AuditAction, data: Mapping[str, Any]) -> None:
        if not self._runtime.hooks.audits:
            return
        facts = {key: value for key, value in data.items() if value is not None}
        self._runtime.audit(action, self.id, self._life.known.generation, facts)

    def batch(self) -> AbstractAsyncContextManager[None]:
        """Let all mutations of a block share one checkpoint, at its end (LC-3).

        Nothing in the block is covered by a checkpoint before its end. Without checkpoints it
        changes nothing.
        """
        return self._life.batch()

    # --- its end --------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go of the sandbox; idempotent, and finishes when it is cancelled.

        Without a store the sandbox ends, and everything in it.

        Raises:
            Unreachable: its compute may still be there; call it again.
        """
        await self._life.close()

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        """Hold the sandbox for the length of a block, and close it at its end."""
        try:
            yield
        finally:
            await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.name} {self._life.known.observed}>"


def _facts(request: ExecRequest) -> dict[str, Any]:
    return {
        "argv": None if request.argv is None else list(request.argv),
        "shell": request.shell,
        "cwd": str(request.cwd),
        "env_names": sorted(request.env),
    }


class _Counted(Terminal):
    """A terminal whose bytes are counted for the audit (EV-2)."""

    def __init__(self, inner: Terminal, moved: list[int]) -> None:
        self._inner = inner
        self._moved = moved

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        data = await self._inner.receive(max_bytes)
        self._moved[1] += len(data)
        return data

    async def send(self, data: bytes) -> None:
        await self._inner.send(data)
        self._moved[0] += len(data)

    async def resize(self, size: TerminalSize) -> None:
        await self._inner.resize(size)

    async def wait(self) -> int:
        return await self._inner.wait()

    async def aclose(self) -> None:
        await self._inner.aclose()


def sandbox_view(
    state: LiveState,
    *,
    sandbox_id: str,
    name: str,
    pinned: PinnedSpec,
    descriptor: Descriptor | None,
    resolved_from: ResolvedFrom,
) -> SandboxView:
    """Return the view that a pinned spec and a live state make (TR-2)."""
    spec = pinned.spec
    details = details_of(
        spec,
        descriptor,
        features=state.features,
        instance=state.details,
        unpinned=pinned.unpinned,
    )
    if state.idle_deadline is not None:
        details = {**(details or {}), "idle_deadline": state.idle_deadline}
        if state.overdue:
            details["overdue"] = True
    return SandboxView(
        capabilities=NO_CAPABILITIES if descriptor is None else descriptor.capabilities(spec),
        containment=view_containment(spec),
        durability=str(spec.durability),
        resolved_from=resolved_from,
        sandbox_id=sandbox_id,
        name=name,
        role="primary",
        generation=state.generation,
        desired_state=str(state.desired),
        observed_state=str(state.observed),
        current_checkpoint_id=state.current_checkpoint_id,
        last_activity_at=state.last_activity_at,
        sandbox_template_revision_id=spec.template_revision_id,
        spec=spec,
        target=view_target(spec),
        details=details,
    )
