"""The views that a caller is shown, with the seed documents' field names (TR-2).

`EnvironmentView` is seed 000's, `SandboxView` seed 001's. Both also read and write the seeds' own
examples. `details` is ours, and left out when null.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

from pinfold.provider import NO_CAPABILITIES, Capabilities, Descriptor
from pinfold.provider import Details as InstanceDetails
from pinfold.provider import Features as InstanceFeatures
from pinfold.spec import Kind, ResolvedSpec, to_json

__all__ = [
    "EnvironmentView",
    "ResolvedFrom",
    "SandboxView",
    "ViewContainment",
    "ViewTarget",
    "details_of",
    "environment_view",
]


class ResolvedFrom(StrEnum):
    """How a view came to be; `capabilities` is the seeds' own legacy way, never ours."""

    SPEC = "spec"
    PROFILE = "profile"
    CAPABILITIES = "capabilities"


@attrs.frozen(kw_only=True)
class ViewContainment:
    """What commands may touch and who enforces it; the network as one word."""

    level: str
    network: str


@attrs.frozen(kw_only=True)
class ViewTarget:
    """Where work runs."""

    kind: Kind
    provider: str | None = None
    connection_id: str | None = None


@attrs.frozen(kw_only=True)
class EnvironmentView:
    """Target, containment, and what the place can really do (seed 000).

    Attributes:
        capabilities: six facts; read them before assuming that a shell behaves like Linux.
        containment: level and network.
        durability: checkpointed, provider_snapshot or none.
        resolved_from: spec or profile; capabilities in the seeds' examples.
        source_capability: the seeds' own; never set by us.
        target: null when there is no compute at all.
        details: features, limits, helper, what the target lacks, what is unpinned.
    """

    capabilities: Capabilities
    containment: ViewContainment
    durability: str
    resolved_from: ResolvedFrom
    source_capability: str | None = None
    target: ViewTarget | None = None
    details: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; null keys are left out."""
        form: dict[str, Any] = to_json(self)
        return form


@attrs.frozen(kw_only=True)
class SandboxView:
    """A sandbox, from its pinned spec and live state alone (seed 001).

    Attributes:
        sandbox_id: `sbx_` and 32 hex digits.
        name: the profile's or the sandbox's name; `inline` for a spec without one.
        role: `primary`.
        generation: of the physical incarnation (LC-1).
        desired_state: ready, paused or deleted.
        observed_state: absent, provisioning, ready, paused, draining, lost, recovering, failed,
            deleted.
        current_checkpoint_id: what recovery would restore.
        last_activity_at: RFC 3339, UTC.
        sandbox_template_revision_id: the template revision that is pinned.
        spec: the resolved spec that is pinned.
    """

    capabilities: Capabilities
    containment: ViewContainment
    durability: str
    resolved_from: ResolvedFrom
    sandbox_id: str | None = None
    name: str | None = None
    role: str | None = None
    generation: int | None = None
    desired_state: str | None = None
    observed_state: str | None = None
    current_checkpoint_id: str | None = None
    last_activity_at: str | None = None
    sandbox_template_revision_id: str | None = None
    source_capability: str | None = None
    spec: ResolvedSpec | None = None
    target: ViewTarget | None = None
    details: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; null keys are left out."""
        form: dict[str, Any] = to_json(self)
        return form


def view_target(spec: ResolvedSpec) -> ViewTarget | None:
    """Return the target as views show it."""
    target = spec.target
    if target is None:
        return None
    return ViewTarget(
        kind=target.kind, provider=target.provider, connection_id=target.connection_id
    )


def view_containment(spec: ResolvedSpec) -> ViewContainment:
    """Return the containment as views show it."""
    return ViewContainment(
        level=str(spec.containment.level), network=str(spec.containment.network.mode)
    )


def details_of(
    spec: ResolvedSpec,
    descriptor: Descriptor | None,
    *,
    features: InstanceFeatures | None = None,
    instance: InstanceDetails | None = None,
    unpinned: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return `details`: what is in force where there is an instance, else what is promised."""
    details: dict[str, Any] = {}
    if features is None and descriptor is not None:
        features = descriptor.features(spec)
    if features is not None:
        details["features"] = to_json(features)
    if descriptor is not None:
        details["limits"] = to_json(descriptor.limits(spec))
    if instance is not None and instance.helper:
        details["helper"] = instance.helper
    if instance is not None and instance.lacks:
        details["lacks"] = list(instance.lacks)
    if unpinned:
        details["unpinned"] = dict(unpinned)
    hosts = spec.containment.network.allowed_hosts
    if hosts:
        details["allowed_hosts"] = list(hosts)
    return details or None


def environment_view(
    spec: ResolvedSpec, descriptor: Descriptor | None, resolved_from: ResolvedFrom
) -> EnvironmentView:
    """Return the view of a spec that nothing was made from yet (RS-7).

    Args:
        spec: resolved.
        descriptor: of its provider; None without compute.
        resolved_from: spec or profile.
    """
    return EnvironmentView(
        capabilities=NO_CAPABILITIES if descriptor is None else descriptor.capabilities(spec),
        containment=view_containment(spec),
        durability=str(spec.durability),
        resolved_from=resolved_from,
        target=view_target(spec),
        details=details_of(spec, descriptor),
    )
