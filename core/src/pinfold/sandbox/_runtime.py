"""What a process brings along: plugins, connections, ids, time; one place to inject them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import attrs
from anyio import to_thread

from pinfold._ids import Clock, Ids
from pinfold.connections import Connections, scrub
from pinfold.events import AuditAction, AuditRecord, Event, EventType
from pinfold.plugins import Catalog, Hooks, hooks, installed

__all__ = ["Runtime"]


@attrs.frozen(kw_only=True)
class Runtime:
    """The surroundings of sandboxes; the default is what is installed and the real clock.

    Attributes:
        catalog: the providers.
        hooks: the embedders' hooks.
        connections: what can be connected to; null asks the hooks alone.
        clock: the time.
        ids: where ids come from.
        register: the folder of the register of ephemeral sandboxes; null is the user's (LC-9).
    """

    catalog: Catalog = attrs.field(factory=installed)
    hooks: Hooks = attrs.field(factory=hooks)
    connections: Connections | None = None
    clock: Clock = attrs.field(factory=Clock)
    ids: Ids = attrs.field(factory=Ids)
    register: Path | None = None

    async def ready(self) -> Self:
        """Return this, with its plugins loaded: imports are not for the event loop."""
        if not self.hooks.are_loaded:
            await to_thread.run_sync(self.hooks.load)
        return self

    @property
    def registered(self) -> Connections:
        """The connections in force."""
        return self.connections or Connections(hook=self.hooks.connection)

    def now(self) -> str:
        """Return the time as RFC 3339, UTC, milliseconds."""
        return self.rfc3339(self.clock.now_ns())

    @staticmethod
    def rfc3339(time_ns: int) -> str:
        """Return a time, given in nanoseconds since the epoch, as RFC 3339, UTC, milliseconds."""
        moment = datetime.fromtimestamp(time_ns // 1_000_000 / 1000, tz=UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def event(
        self, kind: EventType, sandbox_id: str, generation: int, data: Mapping[str, Any]
    ) -> Event:
        """Make an event, without secrets, and tell the embedders' hooks (EV-1)."""
        event = Event(
            id=self.ids.make("ev_"),
            type=kind,
            sandbox_id=sandbox_id,
            generation=generation,
            time=self.now(),
            data=scrub(data),
        )
        self.hooks.event(event)
        return event

    def audit(
        self, action: AuditAction, sandbox_id: str, generation: int, data: Mapping[str, Any]
    ) -> None:
        """Tell the embedders' hooks what a caller did, without secrets (EV-2)."""
        self.hooks.audit(
            AuditRecord(
                id=self.ids.make("ev_"),
                action=action,
                sandbox_id=sandbox_id,
                generation=generation,
                time=self.now(),
                data=scrub(data),
            )
        )
