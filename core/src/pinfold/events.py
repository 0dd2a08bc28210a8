"""Events and audit records: what happened to a sandbox, and what was done in it (section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

__all__ = ["AuditAction", "AuditRecord", "Event", "EventType"]


class EventType(StrEnum):
    """What the journal tells (EV-1)."""

    CREATED = "sandbox.created"
    READY = "sandbox.ready"
    PAUSED = "sandbox.paused"
    RESUMED = "sandbox.resumed"
    INSTANCE_LOST = "sandbox.instance_lost"
    RECOVERED = "sandbox.recovered"
    FAILED = "sandbox.failed"
    DRAINING = "sandbox.draining"
    FORKED = "sandbox.forked"
    DELETED = "sandbox.deleted"
    CHECKPOINT_CREATED = "checkpoint.created"
    CHECKPOINT_RESTORED = "checkpoint.restored"


@attrs.frozen(kw_only=True)
class Event:
    """One entry of a sandbox's journal.

    Attributes:
        id: `ev_` + 32 hex digits; ids of one journal sort in the order of events.
        type: what happened.
        sandbox_id: to which sandbox.
        generation: the instance's number when it happened.
        time: RFC 3339, UTC, milliseconds.
        data: JSON-able facts of that type of event; never a secret (PR-5).
    """

    id: str
    type: EventType
    sandbox_id: str
    generation: int
    time: str
    data: Mapping[str, Any] = attrs.field(factory=dict)


class AuditAction(StrEnum):
    """What is audited (EV-2)."""

    EXEC = "session.exec"
    FILE_READ = "session.file_read"
    FILE_WRITE = "session.file_write"
    ATTACH = "session.attach"
    DETACH = "session.detach"


@attrs.frozen(kw_only=True)
class AuditRecord:
    """One thing that a caller did in a sandbox (EV-2).

    Attributes:
        id: as of events.
        action: what was done.
        sandbox_id: in which sandbox.
        generation: of the instance.
        time: RFC 3339, UTC, milliseconds.
        data: exec: argv or shell, cwd, env_names, exit_code, timed_out; files: path and size.
            Never a variable's value, never content.
    """

    id: str
    action: AuditAction
    sandbox_id: str
    generation: int
    time: str
    data: Mapping[str, Any] = attrs.field(factory=dict)
