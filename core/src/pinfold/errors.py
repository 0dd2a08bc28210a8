"""Every error that pinfold raises (contract section 8).

::

    PinfoldError
    ├── InvalidArgument          invalid_argument
    │   ├── SpecInvalid          spec_invalid          all faults at once (RS-5)
    │   ├── OutsideWorkspace     outside_workspace
    │   ├── TooLarge             too_large
    │   ├── IsADirectory         is_a_directory
    │   ├── NotADirectory        not_a_directory
    │   └── NotRegular           not_regular
    ├── NotFound                 not_found
    ├── Conflict                 conflict
    │   ├── AlreadyExists        already_exists
    │   ├── StaleGeneration      stale_generation
    │   └── Locked               locked
    ├── Forbidden                forbidden
    │   └── PermissionDenied     permission_denied
    ├── Unauthorized             unauthorized
    ├── RateLimited              rate_limited          retryable
    ├── Unavailable              unavailable           retryable
    │   ├── OutcomeUnknown       outcome_unknown       not retryable, effect unknown
    │   ├── Lost                 lost                  not retryable
    │   └── Unreachable          unreachable           retryable
    ├── Unimplemented            unimplemented         what the descriptor says is absent (ER-3)
    ├── CheckpointCorrupt        checkpoint_corrupt
    ├── NoSpace                  no_space
    └── Internal                 internal

A command that ran is never an error, whatever its exit code (EX-1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pinfold.faults import Fault

__all__ = [
    "AlreadyExists",
    "CheckpointCorrupt",
    "Conflict",
    "Effect",
    "Forbidden",
    "Internal",
    "InvalidArgument",
    "IsADirectory",
    "Locked",
    "Lost",
    "NoSpace",
    "NotADirectory",
    "NotFound",
    "NotRegular",
    "OutcomeUnknown",
    "OutsideWorkspace",
    "PermissionDenied",
    "PinfoldError",
    "RateLimited",
    "SpecInvalid",
    "StaleGeneration",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unimplemented",
    "Unreachable",
    "error_classes",
]


class Effect(StrEnum):
    """What may have happened in the target when an error was raised (EX-1)."""

    NONE = "none"
    UNKNOWN = "unknown"
    DONE = "done"


class PinfoldError(Exception):
    """The root of the tree.

    Attributes:
        code: stable, lower-case identifier for programs (ER-2).
        message: one line for people: what is wrong, and where.
        hint: what to do next; may be empty.
        details: JSON-able facts for programs; never a secret (PR-5).
        retryable: whether the same call may be sent again as it is.
        effect: what may have happened in the target (ER-1).
    """

    code: ClassVar[str] = "internal"
    default_retryable: ClassVar[bool] = False
    default_effect: ClassVar[Effect] = Effect.NONE

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
        effect: Effect | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})
        self.retryable = self.default_retryable if retryable is None else retryable
        self.effect = self.default_effect if effect is None else effect

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: code, message, hint, details, retryable, effect."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "details": self.details,
            "retryable": self.retryable,
            "effect": str(self.effect),
        }


class InvalidArgument(PinfoldError):
    """The call itself is wrong; nothing was run."""

    code = "invalid_argument"


class SpecInvalid(InvalidArgument):
    """A specification has faults; `faults` holds all of them (RS-5)."""

    code = "spec_invalid"

    def __init__(self, faults: Sequence[Fault], *, hint: str = "") -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        super().__init__(
            f"the spec has {count} fault{'s' if count != 1 else ''}:{lines}",
            hint=hint,
            details={"faults": [fault.to_dict() for fault in self.faults]},
        )


class OutsideWorkspace(InvalidArgument):
    """A path leads out of the workspace and the writable roots (FS-1, FS-2)."""

    code = "outside_workspace"


class TooLarge(InvalidArgument):
    """Something exceeds a stated limit (section 1b, `Descriptor.limits`)."""

    code = "too_large"


class IsADirectory(InvalidArgument):
    """A file operation met a directory (FS-5)."""

    code = "is_a_directory"


class NotADirectory(InvalidArgument):
    """A directory operation, or a path's parent, met something else (FS-5)."""

    code = "not_a_directory"


class NotRegular(InvalidArgument):
    """A FIFO, socket or device where a regular file is needed (FS-5, FS-7)."""

    code = "not_regular"


class NotFound(PinfoldError):
    """There is no such file, cwd, profile, connection, sandbox or checkpoint."""

    code = "not_found"


class Conflict(PinfoldError):
    """The state is not the one that the call assumes."""

    code = "conflict"


class AlreadyExists(Conflict):
    """Something of that name is there already."""

    code = "already_exists"


class StaleGeneration(Conflict):
    """The handle belongs to an earlier incarnation (LC-2); `details` has both numbers."""

    code = "stale_generation"

    def __init__(self, *, carried: int, current: int) -> None:
        super().__init__(
            f"this handle is of generation {carried}; the sandbox is now at generation {current}",
            hint="reopen the sandbox to go on with its present instance",
            details={"carried": carried, "current": current},
        )


class Locked(Conflict):
    """Somebody else holds what the call needs."""

    code = "locked"
    default_retryable = True


class Forbidden(PinfoldError):
    """The caller may not do this."""

    code = "forbidden"


class PermissionDenied(Forbidden):
    """The target's own permissions refuse it (FS-5)."""

    code = "permission_denied"


class Unauthorized(PinfoldError):
    """A credential is missing, expired or wrong."""

    code = "unauthorized"


class RateLimited(PinfoldError):
    """The provider asks to slow down."""

    code = "rate_limited"
    default_retryable = True


class Unavailable(PinfoldError):
    """The target can't be used now."""

    code = "unavailable"
    default_retryable = True


class OutcomeUnknown(Unavailable):
    """The call may or may not have happened; it is never sent again by itself (EX-14)."""

    code = "outcome_unknown"
    default_retryable = False
    default_effect = Effect.UNKNOWN


class Lost(Unavailable):
    """The compute is definitely gone (LC-5)."""

    code = "lost"
    default_retryable = False


class Unreachable(Unavailable):
    """The target does not answer; it may well exist (LC-5)."""

    code = "unreachable"


class Unimplemented(PinfoldError):
    """The descriptor says that the target does not have this (ER-3)."""

    code = "unimplemented"


class CheckpointCorrupt(PinfoldError):
    """A stored object is missing or damaged; `details` names it (CP-8)."""

    code = "checkpoint_corrupt"


class NoSpace(PinfoldError):
    """The file system is full (FS-5)."""

    code = "no_space"


class Internal(PinfoldError):
    """A bug in pinfold or in a provider."""

    code = "internal"
    default_effect = Effect.UNKNOWN


def error_classes() -> Iterator[type[PinfoldError]]:
    """Yield every class of the tree drawn above, the root first."""
    pending: list[type[PinfoldError]] = [PinfoldError]
    while pending:
        cls = pending.pop()
        if cls.__module__ == __name__:
            yield cls
        pending.extend(cls.__subclasses__())
