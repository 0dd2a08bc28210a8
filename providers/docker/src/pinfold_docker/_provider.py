"""The docker provider, cheap to import: what it does is loaded when it is asked to do it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pinfold.faults import Fault
from pinfold.provider import Availability, Context, InstanceRef, Owner, Pins, Provider
from pinfold.spec import PinnedSpec, ResolvedSpec
from pinfold_docker._descriptor import DESCRIPTOR, spec_faults

if TYPE_CHECKING:
    from pinfold_docker._instance import DockerInstance
    from pinfold_docker._maker import Maker

__all__ = ["DockerProvider"]


class DockerProvider(Provider):
    """Makes hardened containers on a Docker engine."""

    descriptor = DESCRIPTOR

    @cached_property
    def _maker(self) -> Maker:
        from pinfold_docker._maker import Maker

        return Maker()

    def check(self, spec: ResolvedSpec) -> Iterable[Fault]:
        return spec_faults(spec)

    async def probe(self) -> Availability:
        return await self._maker.probe()

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        return await self._maker.pin(spec, ctx)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> DockerInstance:
        return await self._maker.create(pinned, ctx)

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> DockerInstance:
        return await self._maker.attach(ref, pinned, ctx)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return await self._maker.list(owner, ctx)

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        await self._maker.destroy(ref, ctx)
