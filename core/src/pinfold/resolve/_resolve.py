"""Resolution: layers and installed providers to a complete spec, or to every fault (RS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault, suggest
from pinfold.plugins import KNOWN_DISTS, Catalog, Loaded, Problem, installed
from pinfold.provider import Capabilities, Descriptor, Provider
from pinfold.resolve._layers import Layer, Merged, merge
from pinfold.resolve._rules import Case, check_no_compute, check_rules
from pinfold.spec import (
    IDLE_AFTER_SECONDS,
    UNSET,
    Containment,
    Durability,
    Escalation,
    HostPattern,
    IdleAction,
    JsonObject,
    Kind,
    Level,
    Lifecycle,
    Network,
    NetworkMode,
    ResolvedBootstrap,
    ResolvedContainment,
    ResolvedFilesystem,
    ResolvedLifecycle,
    ResolvedSpec,
    ResolvedTarget,
    Spec,
    Target,
    freeze,
    read,
    to_json,
)

__all__ = ["AnyLayer", "default_spec", "resolve"]

AnyLayer = Layer | Spec | ResolvedSpec | Mapping[str, Any]


@attrs.frozen
class _Builtin:
    """The weakest layer: defaults by kind (contract section 1)."""

    level: Level
    network: NetworkMode
    durability: Durability


_BUILTIN: dict[Kind | None, _Builtin] = {
    Kind.HOST: _Builtin(Level.NONE, NetworkMode.ALLOW, Durability.NONE),
    Kind.MACHINE: _Builtin(Level.NONE, NetworkMode.ALLOW, Durability.NONE),
    Kind.VFS: _Builtin(Level.ISOLATED, NetworkMode.DENY, Durability.CHECKPOINTED),
    Kind.CONTAINER: _Builtin(Level.ISOLATED, NetworkMode.DENY, Durability.CHECKPOINTED),
    Kind.MANAGED: _Builtin(Level.ISOLATED, NetworkMode.ALLOW, Durability.PROVIDER_SNAPSHOT),
    None: _Builtin(Level.NONE, NetworkMode.DENY, Durability.CHECKPOINTED),  # no compute
}


def resolve(
    layers: AnyLayer | Iterable[AnyLayer],
    catalog: Catalog | None = None,
    *,
    ephemeral: bool = False,
) -> ResolvedSpec:
    """Decide every field, by pure computation (RS-1, RS-2).

    Args:
        layers: what is asked for, weakest first; one layer may stand alone.
        catalog: the providers that there are; by default those installed.
        ephemeral: the sandbox is opened without a store: nothing of it outlives its handle, so
            durability is none, and a layer that asks for more is at fault.

    Raises:
        SpecInvalid: with all faults at once (RS-5).
    """
    each: Any = layers
    if isinstance(each, (Mapping, str, bytes)) or not isinstance(each, Iterable):
        each = (each,)  # what is no layer is a fault of its own
    merged = merge(item if isinstance(item, Layer) else Layer(item) for item in each)
    return _Resolution(merged, catalog or installed(), ephemeral=ephemeral).run()


class _Resolution:
    """One resolution under way: collects faults as it goes, and stops at none."""

    def __init__(self, merged: Merged, catalog: Catalog, *, ephemeral: bool) -> None:
        self.merged = merged
        self.catalog = catalog
        self.ephemeral = ephemeral
        self.faults = list(merged.faults)

    def fault(self, at: str, code: str, message: str, **more: Any) -> None:
        """Note a fault, unless it only follows from one that is noted already."""
        if not self.merged.is_cut(at):
            self.faults.append(
                Fault(pointer=at, code=code, message=message, layer=self.merged.source(at), **more)
            )

    def run(self) -> ResolvedSpec:
        target = self.merged.spec.target
        spec: ResolvedSpec | None = None
        if target is None:
            spec = self.build(None)
            self.faults += check_no_compute(spec, self.merged)
        elif isinstance(target, Target):
            kind, loaded = self.choose(target)
            if kind is not None:
                spec = self.judge(target, kind, loaded)
        else:
            self.fault(
                "/target",
                "required",
                "no layer says where work runs",
                allowed=("an object", "null"),
                hint="null is no compute at all: files and checkpoints only",
            )
        if self.ephemeral:
            self.check_ephemeral()
        if self.faults or spec is None:
            raise SpecInvalid(self.faults)
        return spec

    def choose(self, target: Target) -> tuple[Kind | None, Loaded | None]:
        """Find the kind and the provider; note what is wrong with either."""
        kind, name = target.kind, target.provider
        if kind is None:
            self.fault(
                "/target/kind",
                "required",
                "a target has a kind",
                allowed=tuple(Kind),
            )
        if name is None:
            return kind, self.imply(kind) if kind else None
        found = self.catalog.find(name)
        if isinstance(found, Loaded):
            if kind is not None and kind not in found.value.descriptor.kinds:
                self.fault(
                    "/target/kind",
                    "conflict",
                    f"provider {name} does not make this kind",
                    allowed=found.value.descriptor.kinds,
                )
                return None, found
            return kind, found
        self.no_provider(name, found)
        return kind, None

    def imply(self, kind: Kind) -> Loaded | None:
        if self.merged.is_cut("/target/provider"):
            return None
        names = self.catalog.of_kind(kind)
        if len(names) == 1:
            found = self.catalog.find(names[0])
            return found if isinstance(found, Loaded) else None
        if names:
            self.fault(
                "/target/provider",
                "required",
                f"several providers make kind {kind}",
                allowed=names,
            )
            return None
        usual = _OF_KIND[kind]
        problem = self.catalog.find(usual)
        if isinstance(problem, Problem):
            self.no_provider(usual, problem)
        else:
            self.fault(
                "/target/provider",
                "not_installed",
                f"no installed provider makes kind {kind}",
                hint=_install(KNOWN_DISTS[usual]),
            )
        return None

    def no_provider(self, name: str, problem: Problem | None) -> None:
        if problem is not None:
            self.fault(
                "/target/provider",
                f"provider_{problem.code}",
                f"provider {name} can't be used: {problem.message}",
                hint=problem.hint,
            )
            return
        near = suggest(name, (*self.catalog.names, *KNOWN_DISTS))
        self.fault(
            "/target/provider",
            "not_installed",
            "no provider of this name is installed",
            allowed=self.catalog.names,
            suggestion=None if name in KNOWN_DISTS else near,
            hint=_install(KNOWN_DISTS.get(name)),
        )

    def judge(self, target: Target, kind: Kind, loaded: Loaded | None) -> ResolvedSpec:
        """Build the spec and hold it to the rules, as far as its provider is known."""
        if loaded is None:
            return self.build(ResolvedTarget(kind=kind, provider=target.provider or ""))
        provider: Provider = loaded.value
        descriptor = provider.descriptor
        options = self.options(target, descriptor)
        resolved = ResolvedTarget(
            kind=kind,
            provider=descriptor.name,
            connection_id=target.connection_id,
            options=_default_options(descriptor) if options is None else options,
        )
        spec = self.build(resolved)
        try:
            case = Case(
                spec=spec,
                target=resolved,
                descriptor=descriptor,
                capabilities=_CAPABLE
                if options is None and not resolved.options
                else descriptor.capabilities(spec),
            )
            self.faults += check_rules(case, self.merged)
            if options is not None:
                self.faults += [
                    attrs.evolve(fault, layer=fault.layer or self.merged.source(fault.pointer))
                    for fault in provider.check(spec)
                    if not self.merged.is_cut(fault.pointer)
                ]
        except Exception as exc:  # noqa: BLE001 - a provider's bug is shown as its own (PR-2)
            self.fault(
                "/target/provider",
                "provider_broken",
                f"provider {descriptor.name} failed to judge the spec: {type(exc).__name__}",
                hint="this is a bug of the provider",
            )
        return spec

    def options(self, target: Target, descriptor: Descriptor) -> Mapping[str, Any] | None:
        """Read the provider's own options and fill in its defaults; None when they are at fault."""
        at = "/target/options"
        value, faults, _ = read(target.options or {}, descriptor.options)
        layer = self.merged.source(at)
        self.faults += [
            attrs.evolve(fault.under(at), layer=layer)
            for fault in faults
            if not self.merged.is_cut(at + fault.pointer)
        ]
        if value is None or faults or self.merged.is_cut(at):
            return None
        form: Mapping[str, Any] = to_json(value)
        return freeze(form)

    def build(self, target: ResolvedTarget | None) -> ResolvedSpec:
        """Fill in what no layer decided."""
        asked, builtin = self.merged.spec, _BUILTIN[target.kind if target else None]
        contained = asked.containment or Containment()
        lifecycle = asked.lifecycle or Lifecycle()
        roots = contained.filesystem.writable_roots if contained.filesystem else None
        commands = asked.bootstrap.commands if asked.bootstrap else None
        durability = asked.durability or (Durability.NONE if self.ephemeral else builtin.durability)
        checkpointed = durability is Durability.CHECKPOINTED
        idle = lifecycle.idle_after_seconds
        return ResolvedSpec(
            target=target,
            containment=ResolvedContainment(
                level=contained.level or builtin.level,
                network=contained.network or Network(mode=builtin.network),
                filesystem=ResolvedFilesystem(writable_roots=roots or ()),
                escalation=contained.escalation or Escalation.NEVER,
            ),
            durability=durability,
            lifecycle=ResolvedLifecycle(
                idle_after_seconds=IDLE_AFTER_SECONDS if idle is UNSET else idle,
                idle_action=lifecycle.idle_action
                or (IdleAction.CHECKPOINT_AND_STOP if checkpointed else IdleAction.STOP),
            ),
            bootstrap=ResolvedBootstrap(commands=commands or ()),
            template_revision_id=self.merged.revision_id,
        )

    def check_ephemeral(self) -> None:
        if self.merged.spec.durability not in (None, Durability.NONE):
            self.fault(
                "/durability",
                "ephemeral",
                "without a store nothing outlives the sandbox's handle",
                allowed=("none",),
                hint="open it with a store, or leave durability out",
            )


def default_spec(descriptor: Descriptor, kind: Kind) -> ResolvedSpec:
    """Return the spec that a provider's kind has when nobody says anything.

    It shows what a target can do and is not for making one: required options are the descriptor's
    example. The weakest level that the provider has stands in for a default it lacks.
    """
    builtin = _BUILTIN[kind]
    row = descriptor.supports(builtin.level) or descriptor.containment[0]
    network = builtin.network if builtin.network in row.networks else min(row.networks)
    durability = (
        builtin.durability
        if builtin.durability in descriptor.durabilities
        else min(descriptor.durabilities)
    )
    return ResolvedSpec(
        target=ResolvedTarget(
            kind=kind, provider=descriptor.name, options=_default_options(descriptor)
        ),
        containment=ResolvedContainment(
            level=row.level,
            network=Network(
                mode=network,
                allowed_hosts=(HostPattern("example.com"),)
                if network is NetworkMode.ALLOWLIST
                else None,
            ),
            escalation=Escalation.NEVER,
        ),
        durability=durability,
        lifecycle=ResolvedLifecycle(
            idle_after_seconds=IDLE_AFTER_SECONDS, idle_action=IdleAction.STOP
        ),
    )


def _default_options(descriptor: Descriptor) -> JsonObject:
    value, faults, _ = read(descriptor.example, descriptor.options)
    return freeze({} if value is None or faults else to_json(value))


#: The usual provider of a kind, to be suggested where none is installed.
_OF_KIND = {
    Kind.HOST: "host",
    Kind.VFS: "bashkit",
    Kind.CONTAINER: "docker",
    Kind.MACHINE: "ssh_machine",
    Kind.MANAGED: "daytona",
}

# What is assumed of a target whose options are at fault: that they are the only fault.
_CAPABLE = Capabilities(
    native_processes=True,
    network_enforced=True,
    packages=True,
    portable_checkpoint=True,
    ports=True,
    pty=True,
)


def _install(dist: str | None) -> str:
    return f"pip install {dist}" if dist else "install the package that provides it"
