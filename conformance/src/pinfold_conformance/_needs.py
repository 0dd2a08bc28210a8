"""What stands between a check and a target: claims, hooks, permission, limits."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import attrs

from pinfold.provider import Capabilities, Features
from pinfold.spec import Kind
from pinfold_conformance._case import Site

__all__ = ["Need", "claimed_by", "claims", "judge"]

#: A limit beyond this is not tried out: it would take too long for everybody.
LARGEST_TRIED: Final = 256 * 1024 * 1024


class Need(Enum):
    """How a need stands."""

    MET = "met"
    OMIT = "omit"  # the question does not arise here
    MISSING = "missing"  # can't be found out: inconclusive
    DENIED = "denied"  # the target denies the claim


def claims() -> tuple[str, ...]:
    """Return the names of all claims: features, capabilities (`cap:`), `exec`."""
    features = tuple(field.name for field in attrs.fields(Features))
    capabilities = tuple(f"cap:{field.name}" for field in attrs.fields(Capabilities))
    return ("exec", *features, *capabilities)


def claimed_by(name: str, site: Site, facts: Mapping[str, Any]) -> bool:
    """Say whether the target claims a feature, a capability (`cap:`), or `exec`."""
    if name == "exec":
        return site.pinned.spec.target is not None
    if name.startswith("cap:"):
        if name == "cap:portable_checkpoint" and site.pinned.spec.target is None:
            return True  # without compute the contract itself claims it (section 1)
        capabilities = site.provider.descriptor.capabilities(site.pinned.spec)
        return bool(getattr(capabilities, name.removeprefix("cap:")))
    return bool(getattr(facts["instance"].features, name))


def judge(need: str, site: Site, facts: Mapping[str, Any], *, attacks: bool) -> Any:
    """Say how a need stands: `Need.MET`, `Need.DENIED`, or a pair with the reason."""
    kind, _, rest = need.partition(":")
    if need.startswith("!"):
        claimed = claimed_by(need[1:], site, facts)
        return (Need.OMIT, f"{need[1:]} is claimed and proved instead") if claimed else Need.MET
    if need == "hook:other":
        return Need.MET if site.other is not None else (Need.OMIT, "no second target is given")
    if kind == "hook":
        instance = facts["instance"].inner
        there = {
            "witness": lambda: site.lane.witness(instance) is not None,
            "listener": lambda: site.lane.listener_address(instance) is not None,
        }[rest]()
        return Need.MET if there else (Need.MISSING, f"the lane has no {rest}")
    if kind == "network":
        mode = site.pinned.spec.containment.network.mode
        return Need.MET if mode == rest else (Need.OMIT, f"the network mode is {mode}")
    if kind == "level":
        level = site.pinned.spec.containment.level
        return Need.MET if level == rest else (Need.OMIT, f"the level is {level}")
    if kind == "durability":
        if rest in site.provider.descriptor.durabilities:
            return Need.MET
        return Need.OMIT, f"durability {rest} is not among the descriptor's"
    if kind == "keeps":
        durability = site.pinned.spec.durability
        return Need.MET if durability == rest else (Need.OMIT, f"the durability is {durability}")
    if kind == "limit":
        value = getattr(site.provider.descriptor.limits(site.pinned.spec), rest)
        if value is None or value > LARGEST_TRIED:
            return Need.OMIT, f"no limit {rest} that could be tried"
        return Need.MET
    if need == "connection":
        target = site.pinned.spec.target
        local = target is None or target.kind in (Kind.HOST, Kind.VFS)
        return (Need.OMIT, "the target is in this process's reach") if local else Need.MET
    if need == "attack":
        allowed = attacks and site.lane.allow_attacks
        return Need.MET if allowed else (Need.MISSING, "attacks are not allowed")
    if need == "unprivileged":
        root = facts.get("uid") == "0"
        return (Need.OMIT, "root is denied nothing") if root else Need.MET
    return Need.MET if claimed_by(need, site, facts) else Need.DENIED
