"""The handle of a durable sandbox: an ephemeral one's, and what a store makes possible."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final

import anyio

from pinfold._tasks import background
from pinfold.checkpoint import CheckpointRecord, Progress
from pinfold.errors import InvalidArgument
from pinfold.events import Event, EventType
from pinfold.provider import Context, ExecRequest, ExecResult, Instance, Owner
from pinfold.resolve import AnyLayer, pin, provider_of, resolve
from pinfold.sandbox._durable import DurableLife
from pinfold.sandbox._provision import Maker, typed_errors
from pinfold.sandbox._record import Records, SandboxRecord
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._sandbox import Sandbox
from pinfold.sandbox._states import ObservedState
from pinfold.sandbox._store import Store
from pinfold.spec import Durability, PinnedSpec, ResolvedSpec
from pinfold.views import ResolvedFrom

__all__ = ["DurableSandbox", "create"]


class DurableSandbox(Sandbox):
    """A sandbox that outlives its handle: any process finds it again by id or name.

    Its compute is made when it is first needed. Closing the handle leaves it as it is; `delete`
    ends it. Every method that changes something raises `StaleGeneration` once another controller
    has replaced the instance (LC-2).

    Attributes:
        store: where it is kept.
    """

    def __init__(self, record: SandboxRecord, store: Store, runtime: Runtime) -> None:
        life = DurableLife(record, store, runtime)
        target = record.pinned.spec.target
        super().__init__(
            sandbox_id=record.id,
            name=record.name,
            pinned=record.pinned,
            resolved_from=record.resolved_from,
            descriptor=None
            if target is None
            else provider_of(record.pinned.spec, runtime.catalog).value.descriptor,
            life=life,
            runtime=runtime,
        )
        self.store = store
        self._durable = life

    # --- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Have the compute ready now.

        Raises:
            Unavailable: it can't be made now, or a bootstrap command failed (LC-6).
            Lost: it is gone, and nothing keeps a copy (LC-4).
        """
        await self._durable.start()

    async def pause(self) -> None:
        """Stop the compute and keep the files; the next operation resumes it (LC-1).

        Raises:
            Conflict: work is in flight.
            Unimplemented: the target can't, and without checkpoints its files would be lost.
        """
        await self._durable.pause()

    async def drain(
        self, *, timeout_seconds: float = 60.0, command: Sequence[str] | None = None
    ) -> bool:
        """Refuse new work, wait for what runs, perhaps run a command; destroys nothing (LC-8).

        Args:
            timeout_seconds: how long to wait for work in flight.
            command: run after that, in the workspace; its exit code is in the audit.

        Returns:
            Whether all work ended before the deadline.

        Raises:
            InvalidArgument: no such time can be waited for.
        """
        if not 0 <= timeout_seconds < inf:
            raise InvalidArgument(
                f"timeout_seconds is a number of seconds, 0 or more, not {timeout_seconds!r}"
            )

        async def run(instance: Instance) -> ExecResult:
            request = ExecRequest(argv=command)
            return await self._audited(request, lambda: instance.exec(request))

        return await self._durable.drain(
            timeout_seconds=timeout_seconds, command=run if command is not None else None
        )

    async def delete(self) -> None:
        """End the sandbox: its compute, its checkpoints, its name; idempotent.

        Raises:
            Unreachable: its compute may still be there; call it again, or run `gc` later.
        """
        await self._durable.delete()

    async def events(self, *, after: str = "") -> tuple[Event, ...]:
        """Return the journal, in order, from after an event's id on (EV-1)."""
        return await self._durable._records.events(self.id, after=after)  # noqa: SLF001

    # --- checkpoints ------------------------------------------------------------------------

    async def checkpoint(
        self, tag: str | None = None, *, progress: Progress | None = None
    ) -> CheckpointRecord:
        """Take a checkpoint now (CP); one of an unchanged tree is the current one again.

        Args:
            tag: keeps it from being dropped, until another is tagged so.
            progress: told of bytes sent, and of bytes to be sent.

        Raises:
            Unimplemented: the target has no portable checkpoints.
        """
        return await self._durable.checkpoint(tag, progress)

    async def checkpoints(self) -> Sequence[CheckpointRecord]:
        """Return the checkpoints of this sandbox, the oldest first."""
        return await self.store.checkpoints.list(self.id)

    async def restore(self, checkpoint_id: str, *, progress: Progress | None = None) -> None:
        """Go back to a checkpoint: exactly that tree, all of it or nothing (CP-2, CP-3).

        Args:
            checkpoint_id: one of this sandbox's own.
            progress: told of bytes fetched, and of bytes in all.

        Raises:
            NotFound: this sandbox has no such checkpoint.
            Conflict: work is in flight.
            CheckpointCorrupt: it is damaged; the workspace is untouched.
        """
        await self._durable.restore(checkpoint_id, progress)

    async def fork(
        self,
        *,
        name: str | None = None,
        checkpoint_id: str | None = None,
        spec: AnyLayer | None = None,
    ) -> DurableSandbox:
        """Make another sandbox from a checkpoint; this one is untouched (LC-8).

        Args:
            name: of the other; by default it is named after its id.
            checkpoint_id: by default one that is taken now; of a drained sandbox its last.
            spec: of the other; by default this one's, with the very same pins (RS-3).

        Raises:
            SpecInvalid: the spec has faults.
            NotFound, AlreadyExists: no such checkpoint; the name is taken.
        """
        if checkpoint_id is None:
            checkpoint_id = await self._drained_checkpoint()
        if checkpoint_id is None:
            source = await self.checkpoint()
        else:
            source = await self.store.checkpoints.record(checkpoint_id, sandbox=self.id)
        pinned, resolved_from = self.pinned, self._resolved_from
        if spec is not None:
            pinned = await _pinned(resolve([spec], self._runtime.catalog), self._runtime)
            resolved_from = ResolvedFrom.SPEC
        other = await create(
            pinned,
            name=name,
            resolved_from=resolved_from,
            store=self.store,
            runtime=self._runtime,
            source=source,
        )
        event = (EventType.FORKED, {"fork": other.id, "checkpoint_id": source.checkpoint_id})
        await Records(self.store.state, self._runtime).update(self.id, lambda r: r, event)
        return other

    async def _drained_checkpoint(self) -> str | None:
        # It takes no new work, and under `checkpointed` its last checkpoint covers all of it.
        state = await self._durable.look()
        draining = state.observed is ObservedState.DRAINING
        covered = self.pinned.spec.durability is Durability.CHECKPOINTED
        return state.current_checkpoint_id if draining and covered else None

    async def migrate(
        self, spec: AnyLayer, *, name: str | None = None, timeout_seconds: float = 60.0
    ) -> DurableSandbox:
        """Go on elsewhere: a fork to another spec, made ready, and then this one is drained (LC-8).

        When the other can't be made ready, or this one can't be drained, the other is ended again
        and this one goes on. One that is drained already is left so.

        Raises: as `fork` and `start`; InvalidArgument by name for what the other target can't
            represent (CP-4).
        """
        other = await self.fork(spec=spec, name=name)
        drained = await self._is_draining()
        try:
            await other.start()
            if not drained:
                await self.drain(timeout_seconds=timeout_seconds)
        except BaseException:
            with anyio.CancelScope(shield=True):
                if drained or not await self._is_draining():  # else it goes on there already
                    await other.delete()
            raise
        return other

    async def _is_draining(self) -> bool:
        return (await self._durable.look()).observed is ObservedState.DRAINING

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        try:
            async with background(self._durable.watch):
                yield
        finally:
            await self.close()


async def _pinned(spec: ResolvedSpec, runtime: Runtime) -> PinnedSpec:
    maker = Maker(runtime=runtime, spec=spec, owner=Owner(store=""))
    ctx: Context = maker.context(0)
    with typed_errors():
        return await pin(spec, runtime.catalog, ctx)


#: A name stands on command lines, beside ids, files and paths, and is none of these.
_NAME: Final = re.compile(r"(?!sbx_)[A-Za-z0-9][A-Za-z0-9._-]{0,62}(?<!\.toml)(?<!\.json)")


def _check_name(name: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"a sandbox can't be called {name!r}",
            hint="a name has 1 to 63 letters, digits, '.', '_' and '-', the first a letter or"
            " digit, and neither begins as an id, sbx_, nor ends as a file, .toml or .json",
        )


async def create(
    what: PinnedSpec | ResolvedSpec,
    *,
    name: str | None,
    resolved_from: ResolvedFrom,
    store: Store,
    runtime: Runtime,
    source: CheckpointRecord | None = None,
) -> DurableSandbox:
    """Enter a new sandbox into a store: pinned, at generation 0, without compute yet.

    Raises:
        InvalidArgument: it can't be called so.
        AlreadyExists: a sandbox of that name is there.
        Unavailable, NotFound: it could not be pinned.
    """
    if name is not None:
        _check_name(name)
    await store.state.identity()  # whose the instances will be: settled before there is any
    pinned = what if isinstance(what, PinnedSpec) else await _pinned(what, runtime)
    sandbox_id = runtime.ids.make("sbx_")
    checkpoint_id = None
    if source is not None:
        adopted = await store.checkpoints.adopt(source, sandbox=sandbox_id, generation=0)
        checkpoint_id = adopted.checkpoint_id
    now = runtime.clock.now_us()
    record = SandboxRecord(
        id=sandbox_id,
        name=name or sandbox_id,
        resolved_from=resolved_from,
        pinned=pinned,
        checkpoint_id=checkpoint_id,
        created_us=now,
        last_activity_us=now,
        forked_from=source.sandbox_id if source is not None else None,
    )
    facts: dict[str, Any] = {"digest": pinned.digest}
    if source is not None:
        facts |= {"forked_from": source.sandbox_id, "checkpoint_id": source.checkpoint_id}
    try:
        stored = await Records(store.state, runtime).insert(record, (EventType.CREATED, facts))
    except BaseException:
        if source is not None:
            await store.checkpoints.forget(sandbox_id)
        raise
    return DurableSandbox(stored.record, store, runtime)
