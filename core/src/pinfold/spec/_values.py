"""The closed word lists of a specification, spelled as on the wire (SP-0)."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

__all__ = [
    "UNSET",
    "Durability",
    "Escalation",
    "IdleAction",
    "Kind",
    "Level",
    "NetworkMode",
    "TreeKill",
    "Unset",
]


class Unset(Enum):
    """The type of `UNSET`: no opinion, where null is an opinion."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class _Ranked(StrEnum):
    """Words in order, weakest first; compare with `at_least`, not with `<` (they are strings)."""

    @property
    def rank(self) -> int:
        return list(type(self)).index(self)

    def at_least(self, other: _Ranked) -> bool:
        return self.rank >= type(self)(other).rank


class Kind(StrEnum):
    """The shape of a target."""

    HOST = "host"
    MACHINE = "machine"
    VFS = "vfs"
    CONTAINER = "container"
    MANAGED = "managed"


class Level(_Ranked):
    """How strongly commands are contained; none < native < isolated (contract section 0)."""

    NONE = "none"
    NATIVE = "native"
    ISOLATED = "isolated"


class NetworkMode(StrEnum):
    """The outbound network policy."""

    DENY = "deny"
    ALLOWLIST = "allowlist"
    ALLOW = "allow"


class Escalation(StrEnum):
    """Whether containment may be widened after creation."""

    NEVER = "never"
    APPROVAL = "approval"
    AUTO = "auto"


class Durability(StrEnum):
    """What survives: loss of compute, the provider's own stop and start, nothing (LC-3, LC-4)."""

    CHECKPOINTED = "checkpointed"
    PROVIDER_SNAPSHOT = "provider_snapshot"
    NONE = "none"


class IdleAction(StrEnum):
    """What happens after `idle_after_seconds` without activity (LC-7)."""

    CHECKPOINT_AND_STOP = "checkpoint_and_stop"
    STOP = "stop"
    KEEP_RUNNING = "keep_running"


class TreeKill(_Ranked):
    """What provably dies on a timeout, weakest first (PR-7, EX-4)."""

    GROUP = "group"
    COOKIE = "cookie"
    SUBREAPER = "subreaper"
    NAMESPACE = "namespace"
