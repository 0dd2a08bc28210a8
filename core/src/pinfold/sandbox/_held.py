"""One controller's hold on a record: what is so, and whether work is in flight (LC-2, LC-7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pinfold.errors import PinfoldError
from pinfold.events import Event, EventType
from pinfold.provider import Instance, Owner
from pinfold.sandbox._group_commit import GroupCommit
from pinfold.sandbox._life import Life
from pinfold.sandbox._provision import Maker
from pinfold.sandbox._record import Records, SandboxRecord, Stored, live_state
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import LiveState
from pinfold.sandbox._store import Store
from pinfold.spec import Durability, IdleAction

__all__ = ["Held"]

#: The stored deadline is this much late, so that it need not be written at every call.
IDLE_SLACK: Final = 0.1


class Held(Life):
    """A record, the generation that this controller carries, and its instance if it has one.

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

    async def _maker(self) -> Maker:
        if self._made_by is None:
            owner = Owner(store=await self._store.state.identity(), sandbox=self._id)
            spec = self._record.pinned.spec
            self._made_by = Maker(runtime=self._runtime, spec=spec, owner=owner)
        return self._made_by

    # --- activity (LC-7) --------------------------------------------------------------------------

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
            due = stored is None or stored < now + idle_us or self._is_far(stored)
        if due:
            await self._update(self._active)

    def _is_far(self, deadline_us: int) -> bool:
        """Say whether a deadline is too far ahead: a clock left it that has jumped back since."""
        idle_us = self._idle_us
        return idle_us is not None and deadline_us > self._runtime.clock.now_us() + 2 * idle_us

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
