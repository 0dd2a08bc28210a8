"""A life with a store: what callers ask of a durable sandbox (CP, LC)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import attrs

from pinfold._tasks import background
from pinfold.checkpoint import CheckpointRecord, Progress
from pinfold.errors import (
    CheckpointCorrupt,
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
from pinfold.events import EventType
from pinfold.provider import Instance, InstanceRef, Pausable
from pinfold.sandbox._ending import end_for_good
from pinfold.sandbox._provision import END_TIMEOUT_SECONDS, typed_errors
from pinfold.sandbox._replacing import Replacing
from pinfold.sandbox._states import DesiredState, ObservedState
from pinfold.spec import IdleAction

__all__ = ["DurableLife"]

T = TypeVar("T")


class DurableLife(Replacing):
    """One controller's durable sandbox: worked in, checkpointed, put to rest, drained and ended."""

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

    # --- checkpoints ------------------------------------------------------------------------------

    async def checkpoint(
        self, tag: str | None = None, progress: Progress | None = None
    ) -> CheckpointRecord:
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
            record = await self._commits.share(lambda: self._commit(progress))
        finally:
            self._end()
        if tag is not None:
            await self._store.checkpoints.tag(record, tag)
        return record

    async def restore(self, checkpoint_id: str, progress: Progress | None = None) -> None:
        """Go back to a checkpoint of this sandbox (CP-2, CP-3)."""
        record = await self._store.checkpoints.record(checkpoint_id, sandbox=self._id)
        try:
            instance = await self._ensure()
        except (CheckpointCorrupt, NotFound):
            instance = await self._ensure_from(record)
        if self._in_flight:
            raise Conflict("work is in flight", hint="wait for it, or end it")
        self._begin()
        try:
            await self.awake()
            await self._update(lambda r: attrs.evolve(r, restoring=record.checkpoint_id))
            await self._finish_restore(instance, record.checkpoint_id, progress)
        finally:
            self._end()

    async def _ensure_from(self, record: CheckpointRecord) -> Instance:
        """Have compute from this checkpoint, where the current one is damaged or gone (CP-8)."""
        wanted = record.checkpoint_id
        await self._update(lambda r: attrs.evolve(r, restoring=wanted))
        try:
            return await self._ensure()
        except PinfoldError:
            await self._update(
                lambda r: attrs.evolve(r, restoring=None) if r.restoring == wanted else r
            )
            raise

    # --- resting and ending -----------------------------------------------------------------------

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
            elif self._is_far(deadline):
                await self.awake()  # the clock has jumped back: counted from now on
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
