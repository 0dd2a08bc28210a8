"""Bugs of what a lane proves, and of what instances leave behind (LC-4, LC-9, TR-1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import attrs

from pinfold.provider import Context, Instance, InstanceRef
from pinfold.spec import Durability, PinnedSpec, Spec
from pinfold.testing import FolderWitness, Lane, Witness
from pinfold_conformance.adapters.toy import EVERYTHING, ToyLane, ToyProvider
from pinfold_conformance.mutants._base import BugLane, BugProvider, BugToy, mutant


@mutant("LC-9.destroy")
class DestroysByInstanceAlone(BugProvider):
    """A destroy by ref does nothing."""

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        return


@mutant("LC-9.destroy-jobs")
class DestroyLeavesJobs(BugToy):
    """What commands left running outlives its instance."""

    async def destroy(self) -> None:
        self.body.alive = False


@mutant("LC-1.generation")
class AttachesTheFirst(BugProvider):
    """What is attached is always of generation 1."""

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        return await self.inner.attach(ref, pinned, attrs.evolve(ctx, generation=1))


class _Unpaused(BugLane):
    """A lane whose provider claims provider_snapshot and can't pause."""

    def __init__(self, inner: Lane) -> None:
        provider = ToyProvider(features=attrs.evolve(EVERYTHING, pause=False))
        kept = {*provider.descriptor.durabilities, Durability.PROVIDER_SNAPSHOT}
        provider.descriptor = attrs.evolve(provider.descriptor, durabilities=kept)
        super().__init__(ToyLane(provider=provider))


@mutant("LC-4.survives")
class SnapshotsOfNothing(_Unpaused):
    """provider_snapshot is claimed; there is neither a snapshot nor a pause."""


@mutant("TR-1.covered")
class TestsHalf(BugLane):
    """The descriptor claims allow; no spec of the lane has it."""

    @property
    def specs(self) -> Sequence[Spec]:  # type: ignore[override]
        return [spec for spec in self.inner.specs if spec.durability is not Durability.NONE]


class _ByTheAdapter(FolderWitness):
    """A witness that asks the adapter's own files."""

    def __init__(self, instance: Instance) -> None:
        self._files = instance.files

    async def read(self, path: PurePosixPath) -> bytes:
        return await self._files.read(path)

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        await self._files.write(path, data)

    async def list(self, path: PurePosixPath) -> Sequence[str]:
        return [entry.path.name for entry in await self._files.list(path)]


@mutant("FS-3.witness-apart")
class WitnessIsTheAdapter(BugLane):
    """The lane's witness goes through the adapter's own files."""

    def witness(self, instance: Instance) -> Witness | None:
        return _ByTheAdapter(instance)
