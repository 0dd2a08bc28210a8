"""Core's own instance without compute (`target: null`), as a lane: files and trees alone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath

from pinfold.memory import NoCompute
from pinfold.provider import (
    NO_CAPABILITIES,
    Availability,
    Context,
    Descriptor,
    Features,
    Instance,
    InstanceRef,
    Owner,
    Provider,
    Supports,
)
from pinfold.spec import Durability, Kind, Level, NetworkMode, PinnedSpec, Spec
from pinfold.testing import Lane, Witness

__all__ = ["NoComputeLane"]


class _Provider(Provider):
    descriptor = Descriptor(
        name="none",
        display_name="no compute",
        kinds=(Kind.VFS,),
        contract=">=1.0,<2",
        containment=(Supports(level=Level.NONE, networks=frozenset({NetworkMode.DENY})),),
        durabilities=frozenset({Durability.CHECKPOINTED, Durability.NONE}),
        capabilities=lambda _: NO_CAPABILITIES,
        features=lambda _: Features(modes=True, symlinks=True, non_utf8_names=True),
    )

    def __init__(self) -> None:
        self.made: dict[str, NoCompute] = {}

    async def probe(self) -> Availability:
        return Availability(available=True)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        instance = NoCompute(f"sbx_{uuid.uuid4().hex}")
        await ctx.register(instance.ref)
        self.made[instance.ref.id] = instance
        return instance

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return ()

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        instance = self.made.pop(ref.id, None)
        if instance is not None:
            await instance.destroy()


class NoComputeLane(Lane):
    """A sandbox that runs no commands is a real configuration, and keeps FS and CP."""

    name = "none"
    specs: Sequence[Spec] = (Spec(target=None),)

    def __init__(self) -> None:
        self.provider = _Provider()

    async def unavailable(self) -> str | None:
        return None

    async def reset(self, instance: Instance) -> None:
        for entry in await instance.files.list(PurePosixPath("/workspace")):
            await instance.files.remove(entry.path, recursive=True)

    def witness(self, instance: Instance) -> Witness | None:
        return None
