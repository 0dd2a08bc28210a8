"""The specification as data: what an author writes, and what resolution makes of it (SP-0).

`Spec` and its parts are what someone asks for: a part left out is no opinion. `ResolvedSpec` and
its parts have every field decided (RS-1). Both are frozen, have the wire format's names, and are
read and written by the one converter of `pinfold.spec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NewType, TypeVar, cast

import attrs

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault, pointer, suggest
from pinfold.spec._constraints import (
    BOOTSTRAP_COMMAND,
    HOST_PATTERN,
    NAME,
    WRITABLE_ROOT,
    Constraint,
    Count,
    Range,
)
from pinfold.spec._json import JsonObject, freeze, options_faults
from pinfold.spec._values import (
    UNSET,
    Durability,
    Escalation,
    IdleAction,
    Kind,
    Level,
    NetworkMode,
    Unset,
)

__all__ = [
    "ITEM_CONSTRAINTS",
    "Bootstrap",
    "BootstrapCommand",
    "Containment",
    "Faulty",
    "Filesystem",
    "HostPattern",
    "Lifecycle",
    "Network",
    "ResolvedContainment",
    "ResolvedLifecycle",
    "ResolvedSpec",
    "ResolvedTarget",
    "Spec",
    "Target",
    "WritableRoot",
]

HostPattern = NewType("HostPattern", str)
WritableRoot = NewType("WritableRoot", str)
BootstrapCommand = NewType("BootstrapCommand", str)

#: What an entry of each list must be; used for entries as Range and Count are for fields.
ITEM_CONSTRAINTS: dict[Any, Constraint] = {
    HostPattern: HOST_PATTERN,
    WritableRoot: WRITABLE_ROOT,
    BootstrapCommand: BOOTSTRAP_COMMAND,
}


class Faulty(SpecInvalid, ValueError):
    """Values that can't make an instance; the faults' pointers are relative to it."""


E = TypeVar("E", bound=StrEnum)


def _word(kind: type[E], name: str, value: E | str) -> E:
    if type(value) is kind:
        return value
    try:
        return kind(value)
    except ValueError:
        raise Faulty([not_a_word(kind, value).under(pointer(name))]) from None


def _kind(value: Kind | str | None) -> Kind | None:
    return None if value is None else _word(Kind, "kind", value)


def _mode(value: NetworkMode | str) -> NetworkMode:
    return _word(NetworkMode, "mode", value)


def _level(value: Level | str | None) -> Level | None:
    return None if value is None else _word(Level, "level", value)


def _escalation(value: Escalation | str | None) -> Escalation | None:
    return None if value is None else _word(Escalation, "escalation", value)


def _idle_action(value: IdleAction | str | None) -> IdleAction | None:
    return None if value is None else _word(IdleAction, "idle_action", value)


def _durability(value: Durability | str | None) -> Durability | None:
    return None if value is None else _word(Durability, "durability", value)


def _items(value: Any) -> Any:
    # What is no list is left as it is, for the validator to say so.
    listed = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    return tuple(value) if listed else value


def _hosts(value: Iterable[HostPattern] | None) -> tuple[HostPattern, ...] | None:
    hosts: tuple[HostPattern, ...] | None = _items(value)
    return hosts


def _roots(value: Iterable[WritableRoot] | None) -> tuple[WritableRoot, ...] | None:
    roots: tuple[WritableRoot, ...] | None = _items(value)
    return roots


def _commands(value: Iterable[BootstrapCommand] | None) -> tuple[BootstrapCommand, ...] | None:
    commands: tuple[BootstrapCommand, ...] | None = _items(value)
    return commands


def not_a_word(kind: type[StrEnum], value: object) -> Fault:
    """Return the fault of a word that is not of `kind`. The value is not repeated (SP-2)."""
    words = tuple(str(member) for member in kind)
    if not isinstance(value, str):
        return Fault(
            pointer="",
            code="wrong_type",
            message=f"expected a string, found {json_type(value)}",
            allowed=words,
        )
    return Fault(
        pointer="",
        code="not_allowed",
        message="this is none of the allowed words",
        allowed=words,
        suggestion=suggest(value, words),
    )


def json_type(value: object) -> str:
    """Name the JSON type of a value, for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "an array"
    return type(value).__name__


def _check(constraint: Constraint, items: Constraint | None = None) -> Any:
    """Return field metadata and validator that hold a field to its constraints."""

    def validate(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if value is None or value is UNSET:
            return
        at = pointer(field.name)
        faults = [fault.under(at) for fault in constraint.faults(value)]
        for index, item in enumerate(value if items and type(value) is tuple else ()):
            faults += [f.under(f"{at}/{index}") for f in cast(Constraint, items).faults(item)]
        if faults:
            raise Faulty(faults)

    return {"validator": validate, "metadata": {"constraint": constraint}}


#: Null is a choice here, so it is written where other nulls are left out.
EXPLICIT_NULL = {"explicit_null": True}

_CHECK_NAME = _check(NAME)
_CHECK_ROOTS = _check(Count(0, 32), WRITABLE_ROOT)
_CHECK_COMMANDS = _check(Count(0, 32, unique=False), BOOTSTRAP_COMMAND)
_CHECK_IDLE = _check(Range(1, 86_400))
_CHECK_HOSTS = _check(Count(1, 128, hint="mode deny is how to allow nothing"), HOST_PATTERN)


def _options(value: Any) -> JsonObject | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        faults = [fault.under("/options") for fault in options_faults(value)]
    else:
        faults = [Fault(pointer="/options", code="wrong_type", message="expected an object")]
    if faults:
        raise Faulty(faults)
    return freeze(value)


# --- what an author writes -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Target:
    """Where work runs, as asked for.

    Attributes:
        kind: the shape of the target.
        provider: the installed provider's name; implied where the kind has just one.
        connection_id: a registered connection; required for machine, refused for host and vfs.
        options: the provider's own, typed by it, never a secret; at most 32 KiB as JSON.
    """

    kind: Kind | None = attrs.field(default=None, converter=_kind)
    provider: str | None = attrs.field(default=None, **_CHECK_NAME)
    connection_id: str | None = attrs.field(default=None, **_CHECK_NAME)
    options: Mapping[str, Any] | None = attrs.field(default=None, converter=_options)


@attrs.frozen(kw_only=True)
class Network:
    """The outbound network policy, replaced as a whole by a stronger layer.

    Attributes:
        mode: deny, allowlist or allow.
        allowed_hosts: host patterns, TCP ports 80 and 443 (SP-1); with allowlist only.
    """

    mode: NetworkMode = attrs.field(converter=_mode)
    allowed_hosts: tuple[HostPattern, ...] | None = attrs.field(
        default=None, converter=_hosts, **_CHECK_HOSTS
    )

    def __attrs_post_init__(self) -> None:
        if (self.allowed_hosts is not None) == (self.mode is NetworkMode.ALLOWLIST):
            return
        if self.allowed_hosts is None:
            fault = Fault(
                pointer="/allowed_hosts",
                code="required",
                message="an allowlist needs allowed_hosts",
                allowed=("1..128 host patterns",),
                hint="mode deny is how to allow nothing",
            )
        else:
            fault = Fault(
                pointer="/allowed_hosts",
                code="conflict",
                message=f"mode {self.mode} takes no allowed_hosts",
                hint="use mode allowlist, or leave the hosts out",
            )
        raise Faulty([fault])


@attrs.frozen(kw_only=True)
class Filesystem:
    """What may be written besides the workspace.

    Attributes:
        writable_roots: absolute paths in the target's own terms; scratch, no checkpoint (SP-4).
    """

    writable_roots: tuple[WritableRoot, ...] | None = attrs.field(
        default=None, converter=_roots, **_CHECK_ROOTS
    )


@attrs.frozen(kw_only=True)
class Containment:
    """What commands may touch and who enforces it, as asked for."""

    level: Level | None = attrs.field(default=None, converter=_level)
    network: Network | None = None
    filesystem: Filesystem | None = None
    escalation: Escalation | None = attrs.field(default=None, converter=_escalation)


@attrs.frozen(kw_only=True)
class Lifecycle:
    """What happens when nobody works, as asked for.

    Attributes:
        idle_after_seconds: seconds without activity; null (never) only with keep_running.
        idle_action: what is done then.
    """

    idle_after_seconds: int | Unset | None = attrs.field(
        default=UNSET,
        validator=_CHECK_IDLE["validator"],
        metadata=_CHECK_IDLE["metadata"] | EXPLICIT_NULL,
    )
    idle_action: IdleAction | None = attrs.field(default=None, converter=_idle_action)


@attrs.frozen(kw_only=True)
class Bootstrap:
    """Commands that are run, in order, whenever compute is made anew (LC-5)."""

    commands: tuple[BootstrapCommand, ...] | None = attrs.field(
        default=None, converter=_commands, **_CHECK_COMMANDS
    )


@attrs.frozen(kw_only=True)
class Spec:
    """What someone asks for; a field left out is no opinion (section 2 says who decides then).

    Attributes:
        target: where work runs; null is a choice: no compute, files and checkpoints only.
    """

    target: Target | Unset | None = attrs.field(default=UNSET, metadata=EXPLICIT_NULL)
    containment: Containment | None = None
    durability: Durability | None = attrs.field(default=None, converter=_durability)
    lifecycle: Lifecycle | None = None
    bootstrap: Bootstrap | None = None
    template_revision_id: str | None = None


# --- what resolution makes of it -----------------------------------------------------------


@attrs.frozen(kw_only=True)
class ResolvedTarget:
    """Where work runs; `options` is complete, with the provider's defaults filled in."""

    kind: Kind
    provider: str
    connection_id: str | None = None
    options: JsonObject = attrs.field(factory=lambda: freeze({}), converter=freeze)


@attrs.frozen(kw_only=True)
class ResolvedFilesystem:
    """What may be written besides the workspace."""

    writable_roots: tuple[WritableRoot, ...] = ()


@attrs.frozen(kw_only=True)
class ResolvedContainment:
    """What commands may touch and who enforces it."""

    level: Level
    network: Network
    filesystem: ResolvedFilesystem = ResolvedFilesystem()
    escalation: Escalation


@attrs.frozen(kw_only=True)
class ResolvedLifecycle:
    """What happens when nobody works; `idle_after_seconds` null is never."""

    idle_after_seconds: int | None = attrs.field(default=None, metadata=EXPLICIT_NULL)
    idle_action: IdleAction


@attrs.frozen(kw_only=True)
class ResolvedBootstrap:
    """Commands that are run, in order, whenever compute is made anew."""

    commands: tuple[BootstrapCommand, ...] = ()


@attrs.frozen(kw_only=True)
class ResolvedSpec:
    """Every field decided (RS-1); `target` null is no compute at all."""

    target: ResolvedTarget | None = attrs.field(default=None, metadata=EXPLICIT_NULL)
    containment: ResolvedContainment
    durability: Durability
    lifecycle: ResolvedLifecycle
    bootstrap: ResolvedBootstrap = ResolvedBootstrap()
    template_revision_id: str | None = None
