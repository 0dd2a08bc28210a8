"""A life without a store: one instance, from open to close."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import attrs

from pinfold._register import Claim, Register
from pinfold.errors import Conflict, Effect, PinfoldError, Unreachable
from pinfold.events import Event, EventType
from pinfold.provider import Instance, InstanceRef, Owner
from pinfold.resolve import pin
from pinfold.sandbox._life import Life
from pinfold.sandbox._provision import END_TIMEOUT_SECONDS, Maker, bootstrap, typed_errors
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import DesiredState, LiveState, ObservedState
from pinfold.spec import Kind, PinnedSpec, ResolvedSpec

__all__ = ["EphemeralLife"]

T = TypeVar("T")


class EphemeralLife(Life):
    """One instance; what it was is gone when it is closed."""

    def __init__(
        self,
        sandbox_id: str,
        pinned: PinnedSpec,
        instance: Instance,
        runtime: Runtime,
        claim: Claim | None,
    ) -> None:
        self._id = sandbox_id
        self.pinned = pinned
        self._instance = instance
        self._runtime = runtime
        self._claim = claim
        self._events: list[Event] = []
        self._closing = anyio.Lock()
        self._active_ns = runtime.clock.now_ns()
        self._state = LiveState(
            desired=DesiredState.READY,
            observed=ObservedState.PROVISIONING,
            generation=1,
            features=instance.features,
            details=instance.details,
        )

    @classmethod
    async def begin(cls, spec: ResolvedSpec, sandbox_id: str, runtime: Runtime) -> EphemeralLife:
        """Pin, create and bootstrap; on failure or cancellation nothing is left."""
        maker = Maker(runtime=runtime, spec=spec, owner=Owner(store="", sandbox=sandbox_id))
        claim: Claim | None = None
        if spec.target is not None and spec.target.kind is not Kind.VFS:
            # Something of it outlives its controller's death: entered before it exists (LC-9).
            register = Register(runtime.register)
            claim = register.claim(sandbox_id)

            async def enter(ref: InstanceRef, entered: Claim = claim) -> None:
                entered.add(ref)

            owner = Owner(store=register.store, sandbox=sandbox_id)
            maker = attrs.evolve(maker, owner=owner, register=enter)
        try:
            with typed_errors():
                pinned = await pin(spec, runtime.catalog, maker.context(1))
            instance = await maker.create(pinned, 1)
            life = cls(sandbox_id, pinned, instance, runtime, claim)
            try:
                await life._bootstrap()
            except BaseException:
                await maker.discard(instance)
                raise
        except BaseException:
            if claim is not None:
                claim.close()  # what could not be ended stays entered, for gc
            raise
        return life

    async def _bootstrap(self) -> None:
        self._emit(EventType.CREATED, digest=self.pinned.digest)
        try:
            with typed_errors():
                await bootstrap(self._instance, self.pinned)
        except PinfoldError as exc:
            self._set(observed=ObservedState.FAILED)
            self._emit(EventType.FAILED, **exc.to_dict())
            raise
        self._set(observed=ObservedState.READY)
        self._emit(EventType.READY)

    def _set(self, **changes: Any) -> None:
        self._state = attrs.evolve(self._state, **changes)

    def _emit(self, kind: EventType, **data: Any) -> None:
        event = self._runtime.event(kind, self._id, self._state.generation, data)
        self._events.append(event)

    @property
    def known(self) -> LiveState:
        return self._state

    async def look(self) -> LiveState:
        return attrs.evolve(self._state, last_activity_at=self._runtime.rfc3339(self._active_ns))

    async def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    async def call(self, work: Callable[[Instance], Awaitable[T]], *, mutates: bool = False) -> T:
        self._refuse()
        try:
            with typed_errors():
                return await work(self._instance)
        finally:
            self._active_ns = self._runtime.clock.now_ns()

    @asynccontextmanager
    async def operation(self, *, mutates: bool = False) -> AsyncIterator[Instance]:
        self._refuse()
        try:
            with typed_errors():
                yield self._instance
        finally:
            self._active_ns = self._runtime.clock.now_ns()

    def _refuse(self) -> None:
        if self._state.observed is not ObservedState.READY:
            raise Conflict(f"the sandbox is {self._state.observed}", hint="open another one")

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._state.observed is ObservedState.DELETED:
                    return
                self._set(desired=DesiredState.DELETED, observed=ObservedState.DRAINING)
                try:
                    with anyio.fail_after(END_TIMEOUT_SECONDS), typed_errors():
                        await self._instance.destroy()
                except TimeoutError:
                    raise Unreachable(
                        f"{self._id} could not be ended in time; it may still be there",
                        hint="close it again, or run `pinfold gc` later",
                        effect=Effect.UNKNOWN,
                    ) from None
                self._set(observed=ObservedState.DELETED)
                self._emit(EventType.DELETED)
                if self._claim is not None:
                    self._claim.release()
