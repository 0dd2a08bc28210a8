"""What a sandbox is meant to be, and what it is seen to be (section 7)."""

from __future__ import annotations

from enum import StrEnum

import attrs

from pinfold.provider import Details, Features

__all__ = ["DesiredState", "LiveState", "ObservedState"]


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


@attrs.frozen(kw_only=True)
class LiveState:
    """The part of a sandbox that changes, at one moment.

    Attributes:
        desired: what is wanted.
        observed: what was seen last.
        generation: of the physical incarnation (LC-1).
        last_activity_at: RFC 3339, UTC.
        current_checkpoint_id: what recovery would restore; null without one.
        idle_deadline: RFC 3339, UTC; when the idle action is due; null for never (LC-7).
        overdue: the deadline is past, and nobody acted.
        features: in force, where an instance is at hand.
        details: of the instance, where one is at hand.
    """

    desired: DesiredState
    observed: ObservedState
    generation: int
    last_activity_at: str | None = None
    current_checkpoint_id: str | None = None
    idle_deadline: str | None = None
    overdue: bool = False
    features: Features | None = None
    details: Details | None = None
