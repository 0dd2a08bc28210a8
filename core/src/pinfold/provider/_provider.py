"""The plugin contract: a provider and its descriptor (contract section 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import attrs

from pinfold.faults import Fault
from pinfold.provider._capabilities import Capabilities, Features
from pinfold.provider._instance import Context, Instance, InstanceRef, Owner
from pinfold.spec import (
    Durability,
    Escalation,
    JsonObject,
    Kind,
    Level,
    Limits,
    NetworkMode,
    PinnedSpec,
    ResolvedSpec,
    freeze,
)

__all__ = ["Availability", "Descriptor", "NoOptions", "Pins", "Provider", "Supports", "roots_of"]


def _networks(modes: Iterable[NetworkMode | str]) -> frozenset[NetworkMode]:
    return frozenset(NetworkMode(mode) for mode in modes)


def _kinds(kinds: Iterable[Kind | str]) -> tuple[Kind, ...]:
    return tuple(Kind(kind) for kind in kinds)


def _durabilities(modes: Iterable[Durability | str]) -> frozenset[Durability]:
    return frozenset(Durability(mode) for mode in modes)


@attrs.frozen(kw_only=True)
class NoOptions:
    """The option class of a provider that takes none."""


@attrs.frozen(kw_only=True)
class Supports:
    """One containment level that a provider enforces, and what it can enforce with it.

    Attributes:
        level: the level.
        networks: the network modes.
        wildcards: an allowlist may have `*.` patterns (SP-1).
        writable_roots: roots besides the workspace can be granted (SP-4).
        escalations: what `containment.escalation` may be.
    """

    level: Level = attrs.field(converter=Level)
    networks: frozenset[NetworkMode] = attrs.field(converter=_networks)
    wildcards: bool = False
    writable_roots: bool = False
    escalations: frozenset[Escalation] = frozenset({Escalation.NEVER})


@attrs.frozen(kw_only=True)
class Descriptor:
    """What a provider is, as data; cheap to have, imports no vendor SDK (PR-1, PR-3).

    Attributes:
        name: the provider's name, equal to its entry point's.
        display_name: for people.
        kinds: the target kinds that it makes.
        contract: the contract versions it was built for, as a version specifier (PR-6).
        containment: the levels, weakest first.
        durabilities: the durability modes.
        capabilities: the six facts for a resolved spec; pure, no I/O (RS-7).
        features: the features promised for a resolved spec; pure, no I/O (PR-7).
        limits: what the target accepts, for a resolved spec; pure, no I/O.
        options: the attrs class of `target.options`; every field typed, unknown keys refused.
        example: options that would do, where the class requires some; for listings and docs.
        requires_connection: a connection must be named (besides kind machine, where it always is).
        dist: the distribution to install for it, for hints.
    """

    name: str
    display_name: str
    kinds: tuple[Kind, ...] = attrs.field(converter=_kinds)
    contract: str
    containment: tuple[Supports, ...]
    durabilities: frozenset[Durability] = attrs.field(converter=_durabilities)
    capabilities: Callable[[ResolvedSpec], Capabilities] = attrs.field(repr=False)
    features: Callable[[ResolvedSpec], Features] = attrs.field(repr=False)
    limits: Callable[[ResolvedSpec], Limits] = attrs.field(default=lambda _: Limits(), repr=False)
    options: type[Any] = NoOptions
    example: JsonObject = attrs.field(factory=lambda: freeze({}), converter=freeze)
    requires_connection: bool = False
    dist: str = ""

    def supports(self, level: Level) -> Supports | None:
        """Return what can be enforced at a level, or None."""
        return next((row for row in self.containment if row.level is level), None)


@attrs.frozen(kw_only=True)
class Availability:
    """Whether a create would be accepted now (RS-6, PR-4).

    Attributes:
        available: it would.
        reason: why not, for people; empty when available.
        hint: what to do; empty when available.
        levels: the levels that are available now; null means all that the descriptor lists.
        details: facts found on the way (engine version, what it lacks), JSON-able, no secret.
    """

    available: bool
    reason: str = ""
    hint: str = ""
    levels: tuple[Level, ...] | None = None
    details: JsonObject = attrs.field(factory=lambda: freeze({}), converter=freeze)


@attrs.frozen(kw_only=True)
class Pins:
    """A provider's answers when a spec is pinned (RS-3).

    Attributes:
        pins: name to what it was pinned to.
        unpinned: what could not be pinned, and why.
    """

    pins: Mapping[str, str] = attrs.field(factory=dict)
    unpinned: Mapping[str, str] = attrs.field(factory=dict)


class Provider(ABC):
    """A plugin that makes instances of one or more target kinds; one object, cheap to import.

    Attributes:
        descriptor: what it is (PR-3).
    """

    descriptor: Descriptor

    def check(self, spec: ResolvedSpec) -> Iterable[Fault]:
        """Yield faults that the descriptor's tables can't express; pure, no I/O (RS-2).

        Pointers are those of the spec: `/target/options/image`.
        """
        return ()

    @abstractmethod
    async def probe(self) -> Availability:
        """Find out, for real, whether a create would be accepted now (PR-4).

        Runs under a deadline. An exception is shown as the reason.
        """

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        """Pin what can be pinned; the only I/O of resolution, once per sandbox (RS-2, RS-3).

        Raises:
            NotFound: what is to be pinned isn't there.
            Unavailable, Unauthorized: the provider can't be asked now.
        """
        return Pins()

    @abstractmethod
    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        """Make an instance with an empty workspace, ready for its first exec.

        `await ctx.register(ref)` comes before the effect that the ref names. A create that fails
        or is cancelled leaves nothing behind, or only what `list` finds by its labels.

        Raises:
            Unavailable, Unauthorized, RateLimited: it can't be made now.
            NotFound: something that it is made from is gone.
            NoSpace: there is no room.
        """

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        """Take up an instance that another process made; feature `attach`.

        Raises:
            Lost: it is definitely gone.
            Unreachable: it may be there.
            Unimplemented: the feature is absent.
        """
        from pinfold.errors import Unimplemented

        raise Unimplemented(f"provider {self.descriptor.name} can't take an instance up again")

    @abstractmethod
    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        """Return what carries the labels of an owner, running or not (LC-9).

        Args:
            owner: a store, or one sandbox in it.
            ctx: how to connect, where `ctx.connection_id` names a connection; None for a provider
                that needs none.

        Raises:
            Unavailable: the provider can't be asked now.
        """

    @abstractmethod
    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        """End an instance by its ref; idempotent, also for one that never came to be.

        Args:
            ref: of the instance.
            ctx: how to connect, as for `list`.

        Raises:
            Unavailable: it may still be there.
        """


def roots_of(spec: ResolvedSpec) -> tuple[PurePosixPath, ...]:
    """Return the writable roots besides the workspace, as guest paths."""
    return tuple(PurePosixPath(root) for root in spec.containment.filesystem.writable_roots)
