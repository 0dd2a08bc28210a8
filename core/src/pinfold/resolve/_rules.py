"""The cross-field rules (RS-9), as a table that reads like the contract's.

A rule is checked when the fields it reads are sound, so that one mistake is one fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from pinfold.faults import Fault
from pinfold.provider import Capabilities, Descriptor, Supports
from pinfold.resolve._layers import Merged
from pinfold.spec import (
    Durability,
    Escalation,
    IdleAction,
    Kind,
    Level,
    NetworkMode,
    ResolvedSpec,
    ResolvedTarget,
)

__all__ = ["RULES", "Case", "check_rules"]


@attrs.frozen(kw_only=True)
class Case:
    """A spec under judgement, with what its provider says of it."""

    spec: ResolvedSpec
    target: ResolvedTarget
    descriptor: Descriptor
    capabilities: Capabilities

    @property
    def rows(self) -> tuple[Supports, ...]:
        """What counts: the level's own row, or all where the level itself is at fault."""
        row = self.descriptor.supports(self.spec.containment.level)
        return self.descriptor.containment if row is None else (row,)

    @property
    def networks(self) -> frozenset[NetworkMode]:
        return frozenset[NetworkMode]().union(*(row.networks for row in self.rows))

    @property
    def escalations(self) -> frozenset[Escalation]:
        return frozenset[Escalation]().union(*(row.escalations for row in self.rows))

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.spec.containment.network.allowed_hosts or ()

    @property
    def roots(self) -> tuple[str, ...]:
        return self.spec.containment.filesystem.writable_roots


@attrs.frozen
class Rule:
    """One row: where the fault is shown, what breaks the rule, and what to say."""

    clause: str
    at: str
    reads: tuple[str, ...]
    broken: Callable[[Case], bool]
    message: str
    allowed: Callable[[Case], tuple[str, ...]] = lambda _: ()
    hint: str = ""


_LEVEL, _NETWORK = "/containment/level", "/containment/network/mode"
_HOSTS, _ROOTS = "/containment/network/allowed_hosts", "/containment/filesystem/writable_roots"
_DURABILITY, _IDLE = "/durability", "/lifecycle/idle_action"
_CONNECTION, _KIND = "/target/connection_id", "/target/kind"

RULES: tuple[Rule, ...] = (
    # --- what needs what ---
    Rule(
        "RS-9",
        _IDLE,
        (_DURABILITY,),
        lambda c: (
            c.spec.lifecycle.idle_action is IdleAction.CHECKPOINT_AND_STOP
            and c.spec.durability is not Durability.CHECKPOINTED
        ),
        "checkpoint_and_stop needs durability checkpointed",
        lambda _: ("stop", "keep_running"),
    ),
    Rule(
        "RS-9",
        _DURABILITY,
        (),
        lambda c: (
            c.spec.durability is Durability.CHECKPOINTED and not c.capabilities.portable_checkpoint
        ),
        "checkpointed needs the capability portable_checkpoint, which this target lacks",
    ),
    Rule(
        "RS-9",
        _NETWORK,
        (_LEVEL,),
        lambda c: (
            c.spec.containment.network.mode is not NetworkMode.ALLOW
            and not c.capabilities.network_enforced
        ),
        "any network mode but allow needs a target that enforces it, and this one does not",
        lambda _: ("allow",),
        "say network allow, or choose a target or level that enforces more",
    ),
    Rule(
        "RS-9",
        "/bootstrap/commands",
        (),
        lambda c: bool(c.spec.bootstrap.commands) and not c.capabilities.native_processes,
        "bootstrap needs the capability native_processes, which this target lacks",
        hint="leave the commands out, or run them yourself",
    ),
    Rule(
        "SP-0",
        "/lifecycle/idle_after_seconds",
        (_IDLE,),
        lambda c: (
            c.spec.lifecycle.idle_after_seconds is None
            and c.spec.lifecycle.idle_action is not IdleAction.KEEP_RUNNING
        ),
        "null, which is never, needs idle_action keep_running",
        lambda _: ("1..86400",),
    ),
    Rule(
        "SP-0",
        _CONNECTION,
        (_KIND,),
        lambda c: (
            c.target.connection_id is None
            and (c.target.kind is Kind.MACHINE or c.descriptor.requires_connection)
        ),
        "this target needs a connection",
        hint="register one as [connections.NAME] and name it here",
    ),
    Rule(
        "SP-0",
        _CONNECTION,
        (_KIND,),
        lambda c: c.target.connection_id is not None and c.target.kind in (Kind.HOST, Kind.VFS),
        "kinds host and vfs take no connection",
        hint="leave it out",
    ),
    # --- what the descriptor lists ---
    Rule(
        "RS-9",
        _LEVEL,
        (_KIND,),
        lambda c: c.descriptor.supports(c.spec.containment.level) is None,
        "the provider does not enforce this level",
        lambda c: tuple(str(row.level) for row in c.descriptor.containment),
    ),
    Rule(
        "RS-9",
        _NETWORK,
        (_LEVEL,),
        lambda c: c.spec.containment.network.mode not in c.networks,
        "the provider does not enforce this network mode at this level",
        lambda c: tuple(sorted(c.networks)),
    ),
    Rule(
        "SP-1",
        _HOSTS,
        (_NETWORK,),
        lambda c: (
            any(host.startswith("*.") for host in c.hosts)
            and not any(row.wildcards for row in c.rows)
        ),
        "the provider can't enforce wildcards",
        hint="name each host",
    ),
    Rule(
        "SP-4",
        _ROOTS,
        (_LEVEL,),
        lambda c: bool(c.roots) and not any(row.writable_roots for row in c.rows),
        "the provider can't bound writes at this level, so it can't grant roots either",
        hint="leave the roots out; the workspace is always writable",
    ),
    Rule(
        "RS-9",
        "/containment/escalation",
        (_LEVEL,),
        lambda c: c.spec.containment.escalation not in c.escalations,
        "the provider does not offer this escalation",
        lambda c: tuple(sorted(c.escalations)),
    ),
    Rule(
        "RS-9",
        _DURABILITY,
        (),
        lambda c: c.spec.durability not in c.descriptor.durabilities,
        "the provider does not offer this durability",
        lambda c: tuple(sorted(c.descriptor.durabilities)),
    ),
)

#: Without compute the containment is what it is, and RS-9 does not apply (SP-0).
NO_COMPUTE: tuple[tuple[str, Callable[[ResolvedSpec], bool], str, tuple[str, ...]], ...] = (
    (_LEVEL, lambda s: s.containment.level is not Level.NONE, "level none", ("none",)),
    (
        _NETWORK,
        lambda s: s.containment.network.mode is not NetworkMode.DENY,
        "network deny",
        ("deny",),
    ),
    (
        _ROOTS,
        lambda s: bool(s.containment.filesystem.writable_roots),
        "no root but the workspace",
        (),
    ),
    (
        "/containment/escalation",
        lambda s: s.containment.escalation is not Escalation.NEVER,
        "escalation never",
        ("never",),
    ),
    (
        _DURABILITY,
        lambda s: s.durability is Durability.PROVIDER_SNAPSHOT,
        "durability checkpointed or none",
        ("checkpointed", "none"),
    ),
    ("/bootstrap/commands", lambda s: bool(s.bootstrap.commands), "no bootstrap", ()),
)


def check_rules(case: Case, merged: Merged) -> Iterator[Fault]:
    """Yield the faults of the table."""
    shown: set[str] = set()
    for rule in RULES:
        if rule.at in shown or merged.is_cut(rule.at) or any(map(merged.is_cut, rule.reads)):
            continue
        if rule.broken(case):
            shown.add(rule.at)
            yield Fault(
                pointer=rule.at,
                code="unsupported" if rule.allowed(case) or not rule.hint else "conflict",
                message=f"{rule.message} [{rule.clause}]",
                allowed=rule.allowed(case),
                hint=rule.hint,
                layer=merged.source(rule.at),
            )


def check_no_compute(spec: ResolvedSpec, merged: Merged) -> Iterator[Fault]:
    """Yield what is asked of a target that is null and can't be had there."""
    for at, broken, only, allowed in NO_COMPUTE:
        if not merged.is_cut(at) and broken(spec):
            yield Fault(
                pointer=at,
                code="unsupported",
                message=f"without a target there is {only} [SP-0]",
                allowed=allowed,
                hint="leave it out, or name a target",
                layer=merged.source(at),
            )
