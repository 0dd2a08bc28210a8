"""Layers of opinion, weakest first, laid over one another (contract section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from pinfold.faults import Fault
from pinfold.plugins import TemplateRevision
from pinfold.spec import (
    UNSET,
    Bootstrap,
    Containment,
    Filesystem,
    Lifecycle,
    ResolvedSpec,
    Spec,
    Target,
    from_json,
    read,
    to_json,
)

__all__ = ["Layer", "Merged", "merge"]


@attrs.frozen
class Layer:
    """One layer: what it says and what to call it in a fault.

    Attributes:
        spec: a document, a `Spec`, or a `ResolvedSpec` (which resolves to itself).
        name: deployment, template, profile, session or whatever it is to its author.
        revision_id: of the template revision that it is; null for every other layer.
    """

    spec: Mapping[str, Any] | Spec | ResolvedSpec
    name: str = "session"
    revision_id: str | None = None

    @classmethod
    def of_template(cls, revision: TemplateRevision) -> Layer:
        """Return the layer that a template's revision makes."""
        return cls(revision.spec, "template", revision.revision_id)


@attrs.frozen(kw_only=True)
class Merged:
    """What the layers say together.

    Attributes:
        spec: every sound opinion, the strongest of each.
        revision_id: of the template among them.
        faults: what is wrong in single layers.
        cut: pointers of places at fault: what they hold is unknown, not absent.
        layers: the sound part of each layer, weakest first, to tell where a value came from.
    """

    spec: Spec
    revision_id: str | None
    faults: tuple[Fault, ...]
    cut: frozenset[str]
    layers: tuple[tuple[str, Spec], ...]

    def source(self, at: str) -> str | None:
        """Name the strongest layer that says something at a pointer."""
        keys = at.split("/")[1:]
        for name, spec in reversed(self.layers):
            value: Any = to_json(spec)
            for key in keys:
                if not isinstance(value, Mapping) or key not in value:
                    break
                value = value[key]
            else:
                return name
        return None

    def is_cut(self, at: str) -> bool:
        """Say whether a place, one above it or one in it was at fault."""
        return any(
            place == at or at.startswith(place + "/") or place.startswith(at + "/")
            for place in self.cut
        )


def merge(layers: Iterable[Layer]) -> Merged:
    """Lay layers over one another, weakest first; the sound parts of a faulty layer count."""
    faults: list[Fault] = []
    cut: set[str] = set()
    sound: list[tuple[str, Spec]] = []
    revision_id: str | None = None
    for layer in layers:
        spec, found, places = _read(layer)
        faults += [attrs.evolve(fault, layer=layer.name) for fault in found]
        cut |= places
        if spec is None:
            continue
        sound.append((layer.name, spec))
        if isinstance(layer.spec, ResolvedSpec):
            revision_id = layer.spec.template_revision_id
        elif spec.template_revision_id is not None:
            faults.append(
                Fault(
                    pointer="/template_revision_id",
                    code="not_allowed",
                    message="the resolver sets this key, no author does",
                    hint="leave it out",
                    layer=layer.name,
                )
            )
        revision_id = layer.revision_id or revision_id
    return Merged(
        spec=_fold(spec for _, spec in sound),
        revision_id=revision_id,
        faults=tuple(faults),
        cut=frozenset(cut),
        layers=tuple(sound),
    )


def _read(layer: Layer) -> tuple[Spec | None, tuple[Fault, ...], frozenset[str]]:
    if isinstance(layer.spec, Spec):  # made in Python, where nothing holds a field to its type
        return read(to_json(layer.spec), Spec)
    if isinstance(layer.spec, ResolvedSpec):
        return from_json(to_json(layer.spec), Spec), (), frozenset()
    return read(layer.spec, Spec)


def _fold(specs: Iterable[Spec]) -> Spec:
    target: Any = UNSET
    level = network = escalation = roots = None
    durability = idle_action = commands = None
    idle_after: Any = UNSET
    for spec in specs:
        if spec.target is not UNSET:
            target = _over(target, spec.target)
        if spec.containment is not None:
            contained = spec.containment
            level = contained.level or level
            network = contained.network or network
            escalation = contained.escalation or escalation
            if contained.filesystem is not None and contained.filesystem.writable_roots is not None:
                roots = contained.filesystem.writable_roots
        durability = spec.durability or durability
        if spec.lifecycle is not None:
            idle_action = spec.lifecycle.idle_action or idle_action
            if spec.lifecycle.idle_after_seconds is not UNSET:
                idle_after = spec.lifecycle.idle_after_seconds
        if spec.bootstrap is not None and spec.bootstrap.commands is not None:
            commands = spec.bootstrap.commands
    return Spec(
        target=target,
        containment=Containment(
            level=level,
            network=network,
            filesystem=Filesystem(writable_roots=roots),
            escalation=escalation,
        ),
        durability=durability,
        lifecycle=Lifecycle(idle_after_seconds=idle_after, idle_action=idle_action),
        bootstrap=Bootstrap(commands=commands),
    )


def _over(below: Any, above: Target | None) -> Target | None:
    """Lay one target over another: a kind or a provider replaces the whole."""
    if above is None or not isinstance(below, Target):
        return above
    if above.kind is not None or above.provider is not None:
        return above
    return attrs.evolve(
        below,
        connection_id=above.connection_id or below.connection_id,
        options=below.options if above.options is None else above.options,
    )
