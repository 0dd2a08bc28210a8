"""Bugs of providers in the life of their instances: refs, labels, loss, pauses (LC, PR-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import attrs

from pinfold.errors import Conflict, NotFound, Unavailable
from pinfold.provider import (
    Context,
    ExecRequest,
    ExecResult,
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Sink,
)
from pinfold.spec import PinnedSpec
from pinfold_conformance.mutants._base import (
    BugInstance,
    BugLane,
    BugProvider,
    BugToy,
    mutant,
)


@mutant("LC-9.register-first")
class RegistersAfterwards(BugProvider):
    """The ref is registered when the instance is already there."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        refs: list[InstanceRef] = []

        async def later(ref: InstanceRef) -> None:
            refs.append(ref)

        instance = await self.inner.create(pinned, attrs.evolve(ctx, register=later))
        for ref in refs:
            await ctx.register(ref)
        return instance


@mutant("LC-9.cancelled-create")
class LeaksOnCancel(BugProvider):
    """A create that is cancelled early leaves an instance that nobody knows."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        async def nowhere(_: InstanceRef) -> None:
            return

        spare = await self.inner.create(pinned, attrs.evolve(ctx, register=nowhere))
        await anyio.sleep(0.05)
        await self.inner.destroy(spare.ref, ctx)
        return await self.inner.create(pinned, ctx)


@mutant("LC-9.labels")
class ListsEverybody(BugProvider):
    """list tells of everybody's instances."""

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        bodies: dict[str, Any] = getattr(self.inner, "bodies", {})
        return [InstanceRef(provider=self.descriptor.name, id=key) for key in bodies]


@mutant("LC-9.destroy")
class DestroysOnce(BugInstance):
    """A second destroy raises."""

    gone = False

    async def destroy(self) -> None:
        if self.gone:
            raise NotFound("there is no such instance")
        self.gone = True
        await self.inner.destroy()


@mutant("LC-2.apart")
class SharesWorkspaces(BugProvider):
    """All instances share one workspace."""

    first: Instance | None = None

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        world = getattr(made, "body").world  # noqa: B009 - of the reference
        self.first = self.first or made
        world.root.children = getattr(self.first, "body").world.root.children  # noqa: B009
        return made


@mutant("LC-1.generation")
class ForgetsGeneration(BugInstance):
    """Results are always of generation 1."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, generation=1)


@mutant("LC-5.empty")
class LeavesReadme(BugProvider):
    """A new workspace has a file of the adapter's."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        await made.files.write("/workspace/README", b"welcome")
        return made


@mutant("LC-5.not-lost")
class DeathIsLoss(BugInstance):
    """A command that dies takes its instance with it."""

    dead = False

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        self.dead = self.dead or result.exit_code == 137
        return result

    async def status(self) -> InstanceStatus:
        return InstanceStatus.ABSENT if self.dead else await self.inner.status()


@mutant("LC-5.lane-reset")
class ResetsNothing(BugLane):
    """The lane's reset does nothing."""

    async def reset(self, instance: Instance) -> None:
        return


@mutant("PR-5.ref")
class RefWithSecret(BugProvider):
    """A ref holds a credential."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        made.ref = attrs.evolve(made.ref, data={"auth": "ghp_" + "a" * 36})
        return made


@mutant("LC-1.attach")
class AttachMakesAnew(BugProvider):
    """attach makes a fresh instance."""

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        await self.inner.attach(ref, pinned, ctx)
        return await self.inner.create(pinned, ctx)


@mutant("LC-1.attach-absent", strict=True)
class AttachesSilently(BugProvider):
    """attach gives a fresh instance where there is no attaching."""

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        return await self.inner.create(pinned, ctx)


@mutant("LC-1.pause")
class PauseForgets(BugToy):
    """Files are gone after a pause."""

    async def pause(self) -> None:
        self.body.kernel.pause()
        self.body.paused = True
        self.body.world.workspace.children.clear()


@mutant("LC-5.paused")
class PausedIsAllItKnows(BugToy):
    """What it has paused it takes for stopped, whatever has become of it."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if self.body.paused:
            raise Unavailable("it is stopped")
        return await super().exec(request, sink)


@mutant("script.life")
class RunsAfterDestroy(BugInstance):
    """A destroyed instance still answers."""

    kept: bytes | None = None

    def __init__(self, inner: Instance) -> None:
        super().__init__(inner)
        self._real = inner.files

    async def destroy(self) -> None:
        from pinfold.memory import NoCompute

        await self.inner.destroy()
        self.files = NoCompute("sbx_0").files


@mutant("script.exec")
class ForgetsConcurrency(BugInstance):
    """Eight calls at once are one too many."""

    running = 0

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.running += 1
        try:
            if self.running >= 8:
                raise Conflict("too busy")
            return await self.inner.exec(request, sink)
        finally:
            self.running -= 1


@mutant("machine.life")
class LosesAreForgiven(BugInstance):
    """Status says running for ever."""

    async def status(self) -> InstanceStatus:
        return InstanceStatus.RUNNING


@mutant("LC-9.strays")
class LeavesStrays(BugProvider):
    """Each create leaves a second instance, with the same labels."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        async def nowhere(_: InstanceRef) -> None:
            return

        await self.inner.create(pinned, attrs.evolve(ctx, register=nowhere))
        return await self.inner.create(pinned, ctx)
