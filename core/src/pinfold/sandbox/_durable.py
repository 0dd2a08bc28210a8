"""A life with a store: found, made, replaced and checkpointed, whoever holds it (CP, LC)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import anyio
import attrs

from pinfold._tasks import background
from pinfold.checkpoint import CheckpointRecord
from pinfold.connections import provider_failure, scrub_error
from pinfold.errors import (
    Conflict,
    Effect,
    Lost,
    NotFound,
    PinfoldError,
    StaleGeneration,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from pinfold.events import Event, EventType
from pinfold.provider import (
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Pausable,
    ScanState,
)
from pinfold.sandbox._ending import end_for_good
from pinfold.sandbox._group_commit import GroupCommit
from pinfold.sandbox._life import Life
from pinfold.sandbox._provision import END_TIMEOUT_SECONDS, Maker, bootstrap, typed_errors
from pinfold.sandbox._record import Claim, Records, SandboxRecord, Stored, live_state
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import DesiredState, LiveState, ObservedState
from pinfold.sandbox._store import Store
from pinfold.spec import Durability, IdleAction

__all__ = ["DurableLife"]

T = TypeVar("T")

#: How long a claim is believed without being renewed; it is renewed three times as often.
LEASE_SECONDS: Final = 30.0
#: The stored deadline is this much late, so that it need not be written at every call.
IDLE_SLACK: Final = 0.1

_POLL_SECONDS: Final = 0.05


class DurableLife(Life):
    """One controller's hold on a durable sandbox.

    It carries the generation that it last had an instance of. Once another controller has moved
    on, this one is stale for good: it touches nothing, and says so (LC-2).
    """

    def __init__(self, record: SandboxRecord, store: Store, runtime: Runtime) -> None:
        self._id = record.id
        self._record = record
        self._version = 0
        self._store = store
        self._runtime = runtime
        self._records = Records(store.state, runtime)
        self._controller = runtime.ids.make("ctl_")
        self._instance: Instance | None = None
        self._generation: int | None = None
        self._made_by: Maker | None = None
        self._suspect = False
        self._closed = False
        self._gate = anyio.Lock()
        self._in_flight = 0
        self._idle = anyio.Event()
        self._idle.set()
        self._commits = GroupCommit()

    # --- what is so ---------------------------------------------------------------------------

    @property
    def record(self) -> SandboxRecord:
        """The record as it was read or written last."""
        return self._record

    @property
    def _spec_durability(self) -> Durability:
        return self._record.pinned.spec.durability

    @property
    def _checkpointed(self) -> bool:
        return self._spec_durability is Durability.CHECKPOINTED

    @property
    def known(self) -> LiveState:
        return live_state(self._record, self._runtime, self._instance)

    async def look(self) -> LiveState:
        self._adopt(await self._records.load(self._id))
        mine = self._instance if self._generation == self._record.generation else None
        return live_state(self._record, self._runtime, mine)

    async def events(self) -> tuple[Event, ...]:
        return await self._records.events(self._id)

    # --- doing something ------------------------------------------------------------------------

    async def call(self, work: Callable[[Instance], Awaitable[T]], *, mutates: bool = False) -> T:
        try:
            return await self._once(work, mutates=mutates)
        except Lost as exc:
            # It provably did nothing: after recovery it may run within the same call (EX-14).
            # Where there can be none, that is said, and noted (LC-4).
            if exc.effect is not Effect.NONE:
                raise
        return await self._once(work, mutates=mutates)

    async def _once(self, work: Callable[[Instance], Awaitable[T]], *, mutates: bool) -> T:
        async with self.operation(mutates=mutates) as instance:
            return await work(instance)

    @asynccontextmanager
    async def operation(self, *, mutates: bool = False) -> AsyncIterator[Instance]:
        instance = await self._ensure()
        self._begin()
        try:
            await self.awake()
            async with background(self._keep_awake):
                try:
                    with typed_errors():
                        yield instance
                except Unavailable:
                    self._suspect = True  # the next call looks before it leaps
                    raise
                except PinfoldError as exc:
                    if mutates and exc.effect is not Effect.NONE:
                        await self._settle()
                    raise
                if mutates:
                    await self._settle()
        finally:
            self._end()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Instance]:
        # No task of its own: a generator may be ended by another task than began it.
        instance = await self._ensure()
        self._begin()
        try:
            await self.awake()
            with typed_errors():
                yield instance
        except Unavailable:
            self._suspect = True
            raise
        finally:
            self._end()

    async def awake(self) -> None:
        with suppress(PinfoldError):  # an unwritten deadline must not end the work
            await self._touch()

    def _begin(self) -> None:
        self._in_flight += 1
        if self._in_flight == 1:
            self._idle = anyio.Event()

    def _end(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    async def _keep_awake(self) -> None:
        """Work in flight is activity: move the deadline along with it (LC-7)."""
        while True:
            await anyio.sleep(self._awake_seconds)
            await self.awake()

    @property
    def _awake_seconds(self) -> float:
        after = self._record.pinned.spec.lifecycle.idle_after_seconds
        return 60.0 if after is None else max(0.05, after * IDLE_SLACK / 2)

    async def _touch(self) -> None:
        stored, now = self._record.idle_deadline_us, self._runtime.clock.now_us()
        idle_us = self._idle_us
        if idle_us is None:
            due = self._record.last_activity_us + 60_000_000 < now
        else:
            due = stored is None or stored < now + idle_us
        if due:
            await self._update(self._active)

    @property
    def _idle_us(self) -> int | None:
        """How long it may be idle; None is for ever."""
        lifecycle = self._record.pinned.spec.lifecycle
        if lifecycle.idle_action is IdleAction.KEEP_RUNNING or lifecycle.idle_after_seconds is None:
            return None
        return lifecycle.idle_after_seconds * 1_000_000

    def _active(self, record: SandboxRecord) -> SandboxRecord:
        """Return a record of a sandbox that was active just now."""
        now, idle_us = self._runtime.clock.now_us(), self._idle_us
        deadline = None if idle_us is None else now + int(idle_us * (1 + IDLE_SLACK))
        return attrs.evolve(record, last_activity_us=now, idle_deadline_us=deadline)

    def _adopt(self, stored: Stored) -> None:
        # Answers of concurrent writes may arrive out of order; versions only grow.
        if stored.version >= self._version:
            self._record, self._version = stored.record, stored.version

    async def _update(
        self,
        change: Callable[[SandboxRecord], SandboxRecord],
        *events: tuple[EventType, Mapping[str, Any]],
        free_name: bool = False,
    ) -> Stored:
        stored = await self._records.update(
            self._id, change, *events, carried=self._generation, free_name=free_name
        )
        self._adopt(stored)
        return stored

    # --- having an instance -------------------------------------------------------------------

    async def start(self) -> None:
        """Have compute ready now, not at the first operation."""
        await self._ensure()

    async def _ensure(self) -> Instance:
        """Return the instance, made or found or replaced as needed; one at a time (LC-5)."""
        async with self._gate:
            while True:
                stored = await self._records.load(self._id)
                self._adopt(stored)
                self._refuse(stored.record)
                instance = await self._step(stored)
                if instance is not None:
                    self._suspect = False
                    return instance

    def _refuse(self, record: SandboxRecord) -> None:
        if self._closed:
            raise Conflict("this handle is closed", hint="reopen the sandbox")
        if record.desired is DesiredState.DELETED:
            raise Conflict(f"sandbox {record.name!r} is deleted", hint="open another one")
        if record.observed is ObservedState.DRAINING:
            raise Conflict(
                f"sandbox {record.name!r} is draining and takes no new work",
                hint="use the sandbox that took its place, or fork it",
            )
        if self._generation is not None and record.generation != self._generation:
            raise StaleGeneration(carried=self._generation, current=record.generation)

    async def _step(self, stored: Stored) -> Instance | None:
        """Come one step nearer to an instance; None means: look again."""
        record = stored.record
        if record.claim is not None:
            if record.claim.expires_us > self._runtime.clock.now_us():
                await anyio.sleep(_POLL_SECONDS)
                return None
            return await self._replace(stored, "takeover")
        if record.observed is ObservedState.READY:
            return await self._ready(stored)
        if record.observed is ObservedState.PAUSED:
            return await self._resume(stored)
        if record.observed is ObservedState.LOST and not self._checkpointed:
            raise _lost(record)
        reason = "lost" if record.observed is ObservedState.LOST else "first"
        return await self._replace(stored, reason)

    async def _ready(self, stored: Stored) -> Instance | None:
        record = stored.record
        instance = self._instance
        if instance is None:
            return await self._attach(stored)
        if self._suspect:
            status = await _status(instance)
            if status is InstanceStatus.ABSENT:
                return await self._lose(stored)
            if status is InstanceStatus.UNREACHABLE:
                raise Unreachable(
                    f"sandbox {record.name!r} does not answer; it may well be there",
                    hint="try again; it is replaced only when it is definitely gone",
                )
            if status is InstanceStatus.PAUSED:
                return await self._resume(stored)
        if record.restoring is not None:
            await self._finish_restore(instance, record.restoring)
        return instance

    async def _attach(self, stored: Stored) -> Instance | None:
        """Take up the instance that another controller, or an earlier one, made."""
        record = stored.record
        maker = await self._maker()
        provider = maker.provider
        if provider is None or record.ref is None or not maker.promised.attach:
            # The end of its controlling process was a pause (LC-1).
            return await self._resume(stored)
        ctx = maker.context(record.generation)
        try:
            with typed_errors():
                instance = await provider.attach(record.ref, record.pinned, ctx)
                missing = instance.features.missing(
                    provider.descriptor.features(record.pinned.spec)
                )
                if missing:
                    raise Unavailable(
                        f"the instance of {record.name!r} lacks {', '.join(missing)} by now",
                        hint="mend the target",
                        retryable=False,
                    )
                await instance.tree.recover()
        except Lost:
            return await self._lose(stored)
        state = await self._scan_state(record)
        self._hold(instance, record, state)
        return None if record.restoring is None else await self._ready(stored)

    async def _scan_state(self, record: SandboxRecord) -> tuple[CheckpointRecord, ScanState] | None:
        if record.checkpoint_id is None or record.ref is None:
            return None
        with suppress(PinfoldError):  # without it the next scan reads everything, no more
            base = await self._store.checkpoints.record(record.checkpoint_id, sandbox=self._id)
            state = await self._store.checkpoints.load_state(base, record.ref.id)
            return None if state is None else (base, state)
        return None

    def _hold(
        self,
        instance: Instance,
        record: SandboxRecord,
        scanned: tuple[CheckpointRecord, ScanState] | None,
    ) -> None:
        self._instance = instance
        self._generation = record.generation
        self._commits.base, self._commits.state = scanned or (None, None)

    async def _lose(self, stored: Stored) -> Instance | None:
        """Note a definite absence, and replace what was lost if it can be (LC-4, LC-5)."""
        if self._checkpointed:
            return await self._replace(stored, "lost")
        record = attrs.evolve(stored.record, observed=ObservedState.LOST)
        event = (EventType.INSTANCE_LOST, _instance_facts(stored.record))
        with suppress(Conflict):
            await self._records.replace(stored, record, event)
        raise _lost(record)

    async def _resume(self, stored: Stored) -> Instance | None:
        """Wake a paused sandbox: the same instance where it can be, else the next generation."""
        record = stored.record
        maker = await self._maker()
        instance = self._instance
        if not maker.promised.attach and instance is None:
            if record.generation and not self._checkpointed:
                return await self._lose(stored)
            return await self._replace(stored, "resumed")
        if instance is None:
            if record.ref is None:
                return await self._replace(stored, "resumed")
            provider = maker.provider
            assert provider is not None  # noqa: S101 - core's own instance has no `attach`
            try:
                with typed_errors():
                    ctx = maker.context(record.generation)
                    instance = await provider.attach(record.ref, record.pinned, ctx)
            except Lost:
                return await self._lose(stored)
        processes_lost = False
        try:
            with typed_errors():
                if isinstance(instance, Pausable):
                    processes_lost = await instance.resume()
                await instance.tree.recover()
        except Lost:
            return await self._lose(stored)
        changed = attrs.evolve(
            self._active(record), observed=ObservedState.READY, desired=DesiredState.READY
        )
        event = (EventType.RESUMED, {"process_state_lost": processes_lost})
        try:
            stored = await self._records.replace(stored, changed, event)
        except Conflict:
            return None
        self._adopt(stored)
        if self._instance is None:
            self._hold(instance, stored.record, await self._scan_state(stored.record))
        return instance

    # --- making the next generation ---------------------------------------------------------

    async def _maker(self) -> Maker:
        if self._made_by is None:
            owner = Owner(store=await self._store.state.identity(), sandbox=self._id)
            spec = self._record.pinned.spec
            self._made_by = Maker(runtime=self._runtime, spec=spec, owner=owner)
        return self._made_by

    async def _replace(self, stored: Stored, reason: str) -> Instance | None:
        """Claim the next generation and make it (LC-2, LC-5); None when somebody was quicker."""
        before = stored.record
        claimed = attrs.evolve(
            before,
            generation=before.generation + 1,
            observed=ObservedState.RECOVERING if before.generation else ObservedState.PROVISIONING,
            desired=DesiredState.READY,
            ref=None,
            claim=self._claim(),
            failure=None,
        )
        lost = (EventType.INSTANCE_LOST, _instance_facts(before))
        events = (lost,) if reason == "lost" and before.observed is not ObservedState.LOST else ()
        try:
            stored = await self._records.replace(stored, claimed, *events)
        except Conflict:
            return None  # the next look tells who was quicker, and whether this handle is stale
        self._adopt(stored)
        self._instance, self._generation = None, claimed.generation
        try:
            async with background(self._renew):
                instance = await self._make(before, reason)
        except BaseException as exc:
            with anyio.CancelScope(shield=True):
                await self._give_up(before, exc)
            raise
        return instance

    def _claim(self) -> Claim:
        lease = int(LEASE_SECONDS * 1_000_000)
        return Claim(owner=self._controller, expires_us=self._runtime.clock.now_us() + lease)

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(LEASE_SECONDS / 3)
            with suppress(PinfoldError):  # a lost claim shows at the end, when it is to be honoured
                await self._update(
                    lambda r: r if r.claim is None else attrs.evolve(r, claim=self._claim())
                )

    async def _make(self, before: SandboxRecord, reason: str) -> Instance:
        maker = await self._maker()
        pinned, generation = before.pinned, before.generation + 1
        ctx = maker.context(generation)
        provider = maker.provider
        if provider is not None and (before.generation or reason == "takeover"):
            with typed_errors():
                # What an earlier incarnation, or a dead claimant, left behind (LC-2).
                refs = [
                    *([before.ref] if before.ref else []),
                    *await provider.list(maker.owner, ctx),
                ]
                for ref in dict.fromkeys(refs):
                    await provider.destroy(ref, ctx)
        instance = await maker.create(pinned, generation)
        try:
            with typed_errors():
                await bootstrap(instance, pinned)
                scanned = await self._fill(instance, before)
            kind = EventType.READY
            facts: dict[str, Any] = {}
            if before.generation:
                kind = EventType.RESUMED if reason == "resumed" else EventType.RECOVERED
                facts = {
                    **_instance_facts(before),
                    "current_instance_id": instance.ref.id,
                    "checkpoint_id": before.checkpoint_id,
                }
            await self._update(
                lambda r: attrs.evolve(
                    self._active(r),
                    observed=ObservedState.READY,
                    ref=instance.ref,
                    claim=None,
                    restoring=None,
                    checkpoint_id=r.restoring or r.checkpoint_id,
                ),
                (kind, facts),
            )
        except BaseException:
            await maker.discard(instance)
            raise
        self._hold(instance, self._record, scanned)
        return instance

    async def _fill(
        self, instance: Instance, before: SandboxRecord
    ) -> tuple[CheckpointRecord, ScanState] | None:
        checkpoint_id = before.restoring or before.checkpoint_id
        if checkpoint_id is None:
            return None
        checkpoints = self._store.checkpoints
        base = await checkpoints.record(checkpoint_id, sandbox=self._id)
        report = await checkpoints.restore(instance.tree, base)
        return None if report.state is None else (base, report.state)

    async def _give_up(self, before: SandboxRecord, exc: BaseException) -> None:
        """Let the claim go, so that the next operation may try at once (LC-6)."""
        failed = isinstance(exc, PinfoldError) and "exit_code" in exc.details
        observed = ObservedState.FAILED if failed or not before.generation else ObservedState.LOST
        failure = scrub_error(exc).to_dict() if isinstance(exc, PinfoldError) else None
        events = ((EventType.FAILED, failure or {}),) if failed else ()
        with anyio.move_on_after(END_TIMEOUT_SECONDS), suppress(PinfoldError):
            await self._update(
                lambda r: attrs.evolve(r, observed=observed, claim=None, failure=failure), *events
            )
        # Nobody else moved on: the next operation of this very handle may try again.
        self._generation = None

    # --- checkpoints --------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Commit a checkpoint that covers what was just done, if one is owed (LC-3)."""
        if not self._checkpointed or self._commits.batches:
            self._commits.owed = self._checkpointed
            return
        try:
            await self._commits.share(self._commit)
        except PinfoldError as exc:
            exc.effect = Effect.DONE  # the work itself is done; the last checkpoint stays current
            raise

    async def _commit(self) -> CheckpointRecord:
        """Commit the workspace and make the result current; nothing where nothing changed."""
        instance, generation = self._instance, self._generation
        if instance is None or generation is None:
            raise Conflict("there is no instance to take a checkpoint of")
        checkpoints, commits = self._store.checkpoints, self._commits
        base = commits.base
        if base is None and self._record.checkpoint_id is not None:
            with suppress(PinfoldError):
                base = await checkpoints.record(self._record.checkpoint_id, sandbox=self._id)
        try:
            with typed_errors():
                done = await checkpoints.commit(
                    instance.tree,
                    sandbox=self._id,
                    generation=generation,
                    base=base,
                    state=commits.state,
                )
            if done.record.checkpoint_id != self._record.checkpoint_id:
                event = (EventType.CHECKPOINT_CREATED, _checkpoint_facts(done.record))
                await self._update(
                    lambda r: attrs.evolve(r, checkpoint_id=done.record.checkpoint_id), event
                )
        except Unavailable:
            self._suspect = True
            raise
        commits.base, commits.state, commits.owed = done.record, done.state, False
        if done.created:
            await self._after_commit(done.record, instance, done.state)
        return done.record

    async def _after_commit(
        self, record: CheckpointRecord, instance: Instance, state: ScanState
    ) -> None:
        # Both only save work later: the checkpoint is current whatever becomes of them.
        with suppress(PinfoldError):
            if instance.features.attach:
                await self._store.checkpoints.save_state(record, instance.ref.id, state)
            if self._store.keep is not None:
                await self._store.checkpoints.retain(
                    self._id, self._store.keep, protect=[record.checkpoint_id]
                )

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Let all mutations of a block share one checkpoint, at its end (LC-3)."""
        self._commits.batches += 1
        try:
            yield
        finally:
            self._commits.batches -= 1
            if not self._commits.batches and self._commits.owed:
                await self._settle()

    async def checkpoint(self, tag: str | None = None) -> CheckpointRecord:
        """Take a checkpoint now, under any durability that can."""
        maker = await self._maker()
        descriptor = maker.descriptor
        spec = self._record.pinned.spec
        if descriptor is not None and not descriptor.capabilities(spec).portable_checkpoint:
            raise Unimplemented(f"{descriptor.name} has no portable checkpoints")
        await self._ensure()
        self._begin()
        try:
            await self.awake()
            record = await self._commits.share(self._commit)
        finally:
            self._end()
        if tag is not None:
            await self._store.checkpoints.tag(record, tag)
        return record

    async def restore(self, checkpoint_id: str) -> None:
        """Go back to a checkpoint of this sandbox (CP-2, CP-3)."""
        record = await self._store.checkpoints.record(checkpoint_id, sandbox=self._id)
        instance = await self._ensure()
        if self._in_flight:
            raise Conflict("work is in flight", hint="wait for it, or end it")
        self._begin()
        try:
            await self.awake()
            await self._update(lambda r: attrs.evolve(r, restoring=record.checkpoint_id))
            await self._finish_restore(instance, record.checkpoint_id)
        finally:
            self._end()

    async def _finish_restore(self, instance: Instance, checkpoint_id: str) -> None:
        checkpoints = self._store.checkpoints
        try:
            record = await checkpoints.record(checkpoint_id, sandbox=self._id)
            with typed_errors():
                report = await checkpoints.restore(instance.tree, record)
        except Unavailable:
            self._suspect = True
            raise
        except PinfoldError:
            # It was refused before anything was touched: the rollback is off.
            await self._update(lambda r: attrs.evolve(r, restoring=None))
            raise
        self._commits.base, self._commits.state = record, report.state
        if report.state is None:
            self._commits.base = None
        await self._update(
            lambda r: attrs.evolve(r, restoring=None, checkpoint_id=checkpoint_id),
            (
                EventType.CHECKPOINT_RESTORED,
                {
                    **_checkpoint_facts(record),
                    "escaping_links": list(report.escaping_links),
                    "process_state_lost": report.processes_ended,
                },
            ),
        )

    # --- resting and ending ---------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop the compute and keep the files (LC-1); the next operation resumes it."""
        async with self._gate:
            stored = await self._records.load(self._id)
            self._refuse(stored.record)
            if stored.record.observed is ObservedState.PAUSED:
                return
            if self._in_flight:
                raise Conflict("work is in flight", hint="wait for it, or end it")
            if stored.record.observed is not ObservedState.READY:
                raise Conflict(f"the sandbox is {stored.record.observed}; it can't be paused")
            instance = self._instance
            if instance is None and not (await self._maker()).promised.attach:
                # It lives in another controller, if that lives: there it goes on when it is needed.
                await self._rested(None, processes_lost=True)
                return
            while instance is None:
                stored = await self._records.load(self._id)
                self._refuse(stored.record)
                instance = await self._step(stored)
            if self._checkpointed:
                await self._commits.share(self._commit)
            await self._stop(instance)

    async def _stop(self, instance: Instance) -> None:
        with typed_errors():
            if isinstance(instance, Pausable):
                await instance.pause()
                ref, processes_lost = instance.ref, not instance.features.attach
            elif self._checkpointed:
                await instance.destroy()
                ref, processes_lost = None, True
                self._instance = None
            else:
                raise Unimplemented(
                    "this target can't be paused, and without checkpoints its files would be lost",
                    hint="use durability checkpointed, or idle_action keep_running",
                )
        await self._rested(ref, processes_lost=processes_lost)

    async def _rested(self, ref: InstanceRef | None, *, processes_lost: bool) -> None:
        await self._update(
            lambda r: attrs.evolve(
                r,
                observed=ObservedState.PAUSED,
                desired=DesiredState.PAUSED,
                ref=ref,
                idle_deadline_us=None,
            ),
            (EventType.PAUSED, {"process_state_lost": processes_lost}),
        )

    async def watch(self) -> None:
        """Act on the idle deadline for as long as this controller lives (LC-7)."""
        while True:
            if self._in_flight:
                await self.awake()
                with anyio.move_on_after(self._awake_seconds):
                    await self._idle.wait()
                continue
            deadline = self._record.idle_deadline_us
            now = self._runtime.clock.now_us()
            if deadline is None or self._instance is None:
                await anyio.sleep(1.0)
            elif now < deadline:
                await anyio.sleep(min(1.0, (deadline - now) / 1e6))
            else:
                with suppress(PinfoldError):
                    if not await self.act_on_idle():
                        await anyio.sleep(1.0)

    async def act_on_idle(self) -> bool:
        """Do what the lifecycle says is due, if it still is; say whether it was done (LC-7)."""
        await self.look()
        deadline, lifecycle = self._record.idle_deadline_us, self._record.pinned.spec.lifecycle
        now = self._runtime.clock.now_us()
        if deadline is None or now < deadline or self._record.observed is not ObservedState.READY:
            return False
        if lifecycle.idle_action is IdleAction.KEEP_RUNNING:
            return False
        try:
            await self.pause()
        except Unimplemented:
            # It can't rest: it is left as it is, and not asked again.
            await self._update(lambda r: attrs.evolve(r, idle_deadline_us=None))
            return False
        return True

    async def drain(
        self, *, timeout_seconds: float, command: Callable[[Instance], Awaitable[Any]] | None = None
    ) -> bool:
        """Refuse new work, wait for what runs, destroy nothing (LC-8).

        Returns:
            Whether all work of this controller ended before the deadline.
        """
        instance = await self._ensure()
        await self._update(
            lambda r: attrs.evolve(r, observed=ObservedState.DRAINING),
            (EventType.DRAINING, {"timeout_seconds": timeout_seconds}),
        )
        with anyio.move_on_after(timeout_seconds):
            await self._idle.wait()
        done = self._in_flight == 0
        if command is not None:
            with typed_errors():
                await command(instance)
            if self._checkpointed:
                await self._commits.share(self._commit)
        return done

    async def delete(self) -> None:
        """End the sandbox: its compute, its checkpoints, its name; its journal stays."""
        async with self._gate:
            stored = await self._records.update(
                self._id, lambda r: attrs.evolve(r, desired=DesiredState.DELETED, claim=None)
            )
            await end_for_good(stored, self._store, self._runtime, self._instance)
            self._instance, self._closed = None, True
            self._adopt(await self._records.load(self._id))

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._gate:
                if self._closed:
                    return
                self._closed = True
                instance, self._instance = self._instance, None
                if instance is None:
                    return
                try:
                    with anyio.fail_after(END_TIMEOUT_SECONDS), typed_errors():
                        await instance.detach()
                except TimeoutError:
                    raise Unreachable(
                        f"the instance of {self._record.name!r} could not be let go in time",
                        effect=Effect.UNKNOWN,
                    ) from None
                if not instance.features.attach:
                    with suppress(StaleGeneration, NotFound):
                        await self._ended_with_us()

    async def _ended_with_us(self) -> None:
        """Note that the compute ended with its controller: a pause (LC-1), of what was ready."""
        if self._record.observed is ObservedState.READY:
            await self._update(
                lambda r: attrs.evolve(
                    r, observed=ObservedState.PAUSED, ref=None, idle_deadline_us=None
                ),
                (EventType.PAUSED, {"process_state_lost": True}),
            )
        else:  # draining stays so, and lost: neither takes new work
            await self._update(lambda r: attrs.evolve(r, ref=None))


async def _status(instance: Instance) -> InstanceStatus:
    try:
        return await instance.status()
    except PinfoldError:
        return InstanceStatus.UNREACHABLE
    except Exception as exc:  # noqa: BLE001 - a provider's bug is no proof of absence
        raise provider_failure(exc) from None


def _lost(record: SandboxRecord) -> Lost:
    return Lost(
        f"the compute of {record.name!r} is gone, and durability {record.pinned.spec.durability}"
        " keeps no copy of its files",
        hint="open another one; durability checkpointed would have brought it back",
        details={"sandbox_id": record.id, "generation": record.generation},
    )


def _instance_facts(record: SandboxRecord) -> dict[str, Any]:
    return {
        "provider": record.pinned.provider,
        "previous_instance_id": record.ref.id if record.ref is not None else None,
        "process_state_lost": True,
    }


def _checkpoint_facts(record: CheckpointRecord) -> dict[str, Any]:
    return {
        "checkpoint_id": record.checkpoint_id,
        "tree_digest": record.tree_digest,
        "entries": record.entries,
        "skipped": len(record.skipped),
        "unsettled": len(record.unsettled),
    }
