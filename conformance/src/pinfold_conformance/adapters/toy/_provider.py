"""The reference provider and its lane."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import anyio
import attrs

from pinfold.errors import Lost, Unimplemented
from pinfold.provider import (
    Availability,
    Capabilities,
    Context,
    Descriptor,
    Features,
    Instance,
    InstanceRef,
    Owner,
    Provider,
    Supports,
    roots_of,
)
from pinfold.spec import (
    Containment,
    Durability,
    Kind,
    Level,
    Limits,
    Network,
    NetworkMode,
    PinnedSpec,
    Spec,
    Target,
    TreeKill,
)
from pinfold.testing import Lane, Witness
from pinfold_conformance.adapters.toy._instance import Body, PausableToy, ToyInstance
from pinfold_conformance.adapters.toy._kernel import Kernel
from pinfold_conformance.adapters.toy._language import HOST
from pinfold_conformance.adapters.toy._world import Dir, File, Link, World, put

__all__ = ["EVERYTHING", "NOTHING", "ToyLane", "ToyProvider", "ToyWitness"]

MIB: Final = 1024 * 1024

EVERYTHING: Final = Features(
    background=True,
    concurrent_exec=True,
    signals=True,
    attach=True,
    pause=True,
    modes=True,
    symlinks=True,
    non_utf8_names=True,
    argv_bytes=True,
    special_files=True,
    tree_kill=TreeKill.NAMESPACE,
)
NOTHING: Final = Features()


class ToyProvider(Provider):
    """A provider whose instances live in this process, as plain objects.

    Args:
        name: of the provider.
        kind: of its targets.
        features: what it promises; all of it can be switched off.
        limits: what it accepts.
    """

    def __init__(
        self,
        name: str = "reference",
        *,
        kind: Kind = Kind.CONTAINER,
        features: Features = EVERYTHING,
        limits: Limits | None = None,
    ) -> None:
        self.features = features
        self.limits = limits or Limits(file_bytes=24 * MIB, workspace_bytes=96 * MIB)
        self.bodies: dict[str, tuple[Owner, Body]] = {}
        self.descriptor = Descriptor(
            name=name,
            display_name="Reference",
            kinds=(kind,),
            contract=">=1.0,<2",
            containment=(
                Supports(
                    level=Level.ISOLATED,
                    networks=frozenset({NetworkMode.DENY, NetworkMode.ALLOW}),
                    writable_roots=True,
                ),
            ),
            durabilities=self._durabilities(),
            capabilities=lambda _: self.capabilities(),
            features=lambda _: self.features,
            limits=lambda _: self.limits,
            dist="pinfold-conformance",
        )

    def _durabilities(self) -> frozenset[Durability]:
        kept = {Durability.PROVIDER_SNAPSHOT} if self.features.pause else set()
        return frozenset({Durability.CHECKPOINTED, Durability.NONE, *kept})

    def capabilities(self) -> Capabilities:
        """Return the six facts."""
        return Capabilities(
            native_processes=False,
            network_enforced=True,
            packages=False,
            portable_checkpoint=True,
            ports=False,
            pty=False,
        )

    async def probe(self) -> Availability:
        return Availability(available=True)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        ref = InstanceRef(
            provider=self.descriptor.name, id=uuid.uuid4().hex, sandbox=ctx.owner.sandbox
        )
        await ctx.register(ref)
        network = pinned.spec.containment.network.mode is NetworkMode.ALLOW
        body = Body(world=World(roots_of(pinned.spec)), kernel=Kernel(), network=network)
        self.bodies[ref.id] = ctx.owner, body
        return self.instance(body, ref, ctx)

    def instance(self, body: Body, ref: InstanceRef, ctx: Context) -> Instance:
        """Return a handle on a body."""
        kind = PausableToy if self.features.pause else ToyInstance
        return kind(
            body,
            ref=ref,
            features=self.features,
            limits=self.limits,
            generation=ctx.generation,
        )

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        if not self.features.attach:
            raise Unimplemented("instances can't be taken up again")
        _, body = self.bodies.get(ref.id, (None, None))
        if body is None or not body.alive:
            raise Lost("there is no such instance")
        return self.instance(body, ref, ctx)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return [
            InstanceRef(provider=self.descriptor.name, id=key, sandbox=whose.sandbox)
            for key, (whose, body) in self.bodies.items()
            if body.alive and whose.store == owner.store and owner.sandbox in (None, whose.sandbox)
        ]

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        found = self.bodies.pop(ref.id, None)
        if found is not None:
            found[1].kernel.processes.clear()
            found[1].alive = False


class ToyWitness(Witness):
    """Looks at the objects themselves."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def _world(self) -> World:
        self._body.kernel.advance()
        return self._body.world

    async def read(self, path: PurePosixPath) -> bytes:
        node = self._world().find(path).node
        if not isinstance(node, File):
            raise FileNotFoundError(str(path))
        return bytes(node.data)

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        place = self._world().find(path, make=True)
        put(place.parent, place.name, File(data=bytearray(data)))

    async def list(self, path: PurePosixPath) -> Sequence[str]:
        node = self._world().find(path).node
        if not isinstance(node, Dir):
            raise FileNotFoundError(str(path))
        return sorted(node.children, key=os.fsencode)

    async def link(self, path: PurePosixPath, target: str) -> None:
        place = self._world().find(path, follow=False, make=True)
        put(place.parent, place.name, Link(text=target))

    async def is_alive(self, heartbeat: PurePosixPath) -> bool:
        before = len(await self.read(heartbeat))
        with anyio.move_on_after(0.3):
            while True:
                await anyio.sleep(0.02)
                if len(await self.read(heartbeat)) != before:
                    return True
        return False


@attrs.define(eq=False)
class ToyLane(Lane):
    """How the reference, or something made from it, is tested."""

    name: str = "reference"
    provider: Provider = attrs.field(factory=ToyProvider)

    @property
    def specs(self) -> Sequence[Spec]:  # type: ignore[override]
        (kind,) = self.provider.descriptor.kinds
        target = Target(kind=kind, provider=self.provider.descriptor.name)
        wanted = [
            (NetworkMode.DENY, Durability.CHECKPOINTED),
            (NetworkMode.ALLOW, Durability.NONE),
            (NetworkMode.DENY, Durability.PROVIDER_SNAPSHOT),
        ]
        return [
            Spec(
                target=target,
                containment=Containment(network=Network(mode=mode)),
                durability=durability,
            )
            for mode, durability in wanted
            if durability in self.provider.descriptor.durabilities
        ]

    async def unavailable(self) -> str | None:
        return None

    def body(self, instance_id: str) -> Body | None:
        """Return what an instance is made of."""
        bodies: dict[str, tuple[Owner, Body]] = getattr(self.provider, "bodies", {})
        return bodies.get(instance_id, (None, None))[1]

    async def reset(self, instance: Instance) -> None:
        body = self.body(instance.ref.id)
        if body is not None:
            body.kernel.processes.clear()
            fresh = World(body.world.roots[1:])
            body.world.root.children = fresh.root.children

    def witness(self, instance: Instance) -> Witness | None:
        body = self.body(instance.ref.id)
        return None if body is None else ToyWitness(body)

    def listener_address(self, instance: Instance) -> str | None:
        return HOST.decode()

    async def lose(self, ref: InstanceRef) -> bool:
        body = self.body(ref.id)
        if body is not None:
            body.kernel.processes.clear()
            body.alive = False
        return body is not None

    async def cut(self, ref: InstanceRef) -> bool:
        body = self.body(ref.id)
        if body is not None:
            body.cuts += 1
        return body is not None
