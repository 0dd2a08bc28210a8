"""The handle that callers hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Self

import anyio
import attrs

from pinfold.connections import provider_failure, scrub_error
from pinfold.errors import (
    Conflict,
    Effect,
    OutcomeUnknown,
    PinfoldError,
    Unavailable,
    Unreachable,
)
from pinfold.events import AuditAction, Event, EventType
from pinfold.provider import (
    NO_CAPABILITIES,
    Capabilities,
    Descriptor,
    ExecRequest,
    ExecResult,
    Features,
    Files,
    Instance,
    Sink,
)
from pinfold.sandbox._files import SandboxFiles
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._stream import ExecStream, open_stream
from pinfold.spec import (
    BOOTSTRAP_TIMEOUT_SECONDS,
    EXEC_TIMEOUT_SECONDS,
    KILL_GRACE_SECONDS,
    OUTPUT_CAP_BYTES,
    WORKSPACE,
    PinnedSpec,
)
from pinfold.views import (
    EnvironmentView,
    ResolvedFrom,
    SandboxView,
    details_of,
    environment_view,
    view_containment,
    view_target,
)

__all__ = ["DesiredState", "ObservedState", "Sandbox"]


class DesiredState(StrEnum):
    """What is wanted of a sandbox (LC)."""

    READY = "ready"
    PAUSED = "paused"
    DELETED = "deleted"


class ObservedState(StrEnum):
    """What a sandbox is seen to be (LC)."""

    ABSENT = "absent"
    PROVISIONING = "provisioning"
    READY = "ready"
    PAUSED = "paused"
    DRAINING = "draining"
    LOST = "lost"
    RECOVERING = "recovering"
    FAILED = "failed"
    DELETED = "deleted"


@attrs.define(kw_only=True)
class _State:
    """The part of a sandbox that changes."""

    desired: DesiredState = DesiredState.READY
    observed: ObservedState = ObservedState.PROVISIONING
    generation: int = 1
    last_activity_at: str = ""
    in_flight: int = 0


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
        instance: Instance,
        runtime: Runtime,
    ) -> None:
        self.id = sandbox_id
        self.name = name
        self.pinned = pinned
        self.files: Files = SandboxFiles(self._operation, self._audit)
        self._resolved_from = resolved_from
        self._descriptor = descriptor
        self._instance = instance
        self._runtime = runtime
        self._state = _State(last_activity_at=runtime.now())
        self._events: list[Event] = []
        self._closing = anyio.Lock()

    # --- what it is -----------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """The six facts (RS-7)."""
        if self._descriptor is None:
            return NO_CAPABILITIES
        return self._descriptor.capabilities(self.pinned.spec)

    @property
    def features(self) -> Features:
        """The features in force (PR-7)."""
        return self._instance.features

    @property
    def generation(self) -> int:
        """The number of the physical incarnation (LC-1)."""
        return self._state.generation

    @property
    def events(self) -> tuple[Event, ...]:
        """The journal so far, in order (EV-1)."""
        return tuple(self._events)

    async def view(self) -> SandboxView:
        """Return the sandbox as seed 001 shows it, with `details` beside (TR-2)."""
        spec, state = self.pinned.spec, self._state
        return SandboxView(
            capabilities=self.capabilities,
            containment=view_containment(spec),
            durability=str(spec.durability),
            resolved_from=self._resolved_from,
            sandbox_id=self.id,
            name=self.name,
            role="primary",
            generation=state.generation,
            desired_state=str(state.desired),
            observed_state=str(state.observed),
            last_activity_at=state.last_activity_at,
            sandbox_template_revision_id=spec.template_revision_id,
            spec=spec,
            target=view_target(spec),
            details=self._details(),
        )

    async def environment(self) -> EnvironmentView:
        """Return the environment as seed 000 shows it, with `details` beside (TR-2)."""
        view = environment_view(self.pinned.spec, self._descriptor, self._resolved_from)
        return attrs.evolve(view, details=self._details())

    def _details(self) -> dict[str, Any] | None:
        return details_of(
            self.pinned.spec,
            self._descriptor,
            features=self._instance.features,
            instance=self._instance.details,
            unpinned=self.pinned.unpinned,
        )

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

    async def _exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        facts: dict[str, Any] = {
            "argv": None if request.argv is None else list(request.argv),
            "shell": request.shell,
            "cwd": str(request.cwd),
            "env_names": sorted(request.env),
        }
        try:
            async with self._operation(mutates=True) as instance:
                result = await instance.exec(request, sink)
        except OutcomeUnknown:
            self._audit(AuditAction.EXEC, {**facts, "exit_code": None, "outcome": "unknown"})
            raise
        except PinfoldError as exc:
            if exc.effect is not Effect.NONE:  # refused before the start leaves no record
                self._audit(AuditAction.EXEC, {**facts, "exit_code": None, "outcome": exc.code})
            raise
        except anyio.get_cancelled_exc_class():
            self._audit(AuditAction.EXEC, {**facts, "exit_code": None, "outcome": "cancelled"})
            raise
        self._audit(
            AuditAction.EXEC,
            {**facts, "exit_code": result.exit_code, "timed_out": result.timed_out},
        )
        return attrs.evolve(result, generation=self._state.generation)

    @asynccontextmanager
    async def _operation(self, *, mutates: bool = False) -> AsyncIterator[Instance]:
        """Everything that touches the instance goes through here.

        It is the one place for what an operation needs before and after: liveness, activity, the
        typed errors, no secret in any of them, and (with a store) recovery and checkpoints, which
        is what `mutates` is for.
        """
        if self._state.observed is not ObservedState.READY:
            raise Conflict(
                f"the sandbox is {self._state.observed}",
                hint="open another one" if self._state.desired is DesiredState.DELETED else "",
            )
        self._state.in_flight += 1
        self._state.last_activity_at = self._runtime.now()
        try:
            yield self._instance
        except PinfoldError as exc:
            raise scrub_error(exc)  # noqa: B904 - the same error, without secrets
        except Exception as exc:  # noqa: BLE001 - nothing untyped comes out of a sandbox
            error = provider_failure(exc)
            raise error from error.__cause__
        finally:
            self._state.in_flight -= 1
            self._state.last_activity_at = self._runtime.now()

    def _emit(self, kind: EventType, **data: Any) -> None:
        self._events.append(self._runtime.event(kind, self.id, self._state.generation, data))

    def _audit(self, action: AuditAction, data: Mapping[str, Any]) -> None:
        facts = {key: value for key, value in data.items() if value is not None}
        self._runtime.audit(action, self.id, self._state.generation, facts)

    # --- its beginning and its end --------------------------------------------------------

    async def _begin(self) -> None:
        """Run the bootstrap commands on the empty workspace, and be ready (LC-5, LC-6)."""
        self._emit(EventType.CREATED, digest=self.pinned.digest)
        for command in self.pinned.spec.bootstrap.commands:
            request = ExecRequest(shell=command, timeout_seconds=BOOTSTRAP_TIMEOUT_SECONDS)
            result = await self._instance.exec(request)
            if result.exit_code != 0:
                self._state.observed = ObservedState.FAILED
                self._emit(EventType.FAILED, command=command, exit_code=result.exit_code)
                raise Unavailable(
                    f"a bootstrap command ended with exit code {result.exit_code}: {command}",
                    hint="mend the command; its output is in the details",
                    retryable=False,
                    details={
                        "command": command,
                        "exit_code": result.exit_code,
                        "stdout": result.stdout_text,
                        "stderr": result.stderr_text,
                    },
                )
        self._state.observed = ObservedState.READY
        self._emit(EventType.READY)

    async def close(self) -> None:
        """End the sandbox and everything in it; idempotent, and finishes when it is cancelled.

        Raises:
            Unreachable: its compute may still be there; call it again.
        """
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._state.observed is ObservedState.DELETED:
                    return
                self._state.desired = DesiredState.DELETED
                try:
                    with anyio.fail_after(KILL_GRACE_SECONDS * 6):
                        await self._instance.destroy()
                except TimeoutError:
                    raise Unreachable(
                        f"{self.id} could not be ended in time; it may still be there",
                        hint="close it again, or see `pinfold targets`",
                        effect=Effect.UNKNOWN,
                    ) from None
                except PinfoldError as exc:
                    raise scrub_error(exc)  # noqa: B904 - the same error, without secrets
                self._state.observed = ObservedState.DELETED
                self._emit(EventType.DELETED)

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
        return f"<Sandbox {self.id} {self.name} {self._state.observed}>"
