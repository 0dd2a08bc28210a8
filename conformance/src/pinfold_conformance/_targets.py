"""Finding the lanes that a target's name means (group `pinfold.lanes`)."""

from __future__ import annotations

from importlib import import_module

import attrs

from pinfold.faults import suggest
from pinfold.plugins import Entries, Loaded
from pinfold.testing import Lane

__all__ = ["Found", "NoSuchTarget", "find_lanes", "lane_names"]


class NoSuchTarget(LookupError):
    """No lane has that name; the message says which there are."""


@attrs.frozen(kw_only=True)
class Found:
    """A lane, or why it can't be loaded.

    Attributes:
        name: as it was asked for.
        lane: the lane; None when it can't be loaded.
        problem: why not.
        dist: the distribution that it comes from.
        version: of that distribution.
    """

    name: str
    lane: Lane | None = None
    problem: str = ""
    dist: str = ""
    version: str = ""


def lane_names() -> tuple[str, ...]:
    """Return the names of all installed lanes; nothing is imported for it."""
    return Entries("pinfold.lanes").names


def find_lanes(target: str) -> list[Found]:
    """Return the lanes of a target: one of that name, all of a provider, or `module:attribute`.

    Raises:
        NoSuchTarget: there is none.
    """
    if ":" in target:
        return [_imported(target)]
    entries = Entries("pinfold.lanes")
    if target in entries.names:
        names = [target]
    else:
        names = [name for name in entries.names if name.startswith(f"{target}-")]
    if not names:
        near = suggest(target, entries.names)
        hint = f"did you mean {near!r}?" if near else "a provider ships its lanes; is it installed?"
        known = ", ".join(entries.names) or "none"
        raise NoSuchTarget(f"no lane is named {target!r}; {hint} Installed lanes: {known}")
    return [_loaded(entries, name) for name in names]


def _loaded(entries: Entries, name: str) -> Found:
    found = entries.load(name)
    if not isinstance(found, Loaded):
        return Found(name=name, problem=str(found))
    if not isinstance(found.value, Lane):
        kind = type(found.value).__name__
        problem = f"the entry point gives {kind}, not a pinfold.testing.Lane"
        return Found(name=name, problem=problem, dist=found.dist)
    return Found(name=name, lane=found.value, dist=found.dist, version=found.version)


def _imported(target: str) -> Found:
    module, _, attribute = target.partition(":")
    try:
        value = getattr(import_module(module), attribute)
    except Exception as exc:  # noqa: BLE001 - a module may raise anything
        return Found(name=target, problem=f"{target} can't be loaded: {type(exc).__name__}: {exc}")
    if isinstance(value, type) and issubclass(value, Lane):
        value = value()
    if not isinstance(value, Lane):
        problem = f"{target} is {type(value).__name__}, not a pinfold.testing.Lane"
        return Found(name=target, problem=problem)
    return Found(name=target, lane=value)
