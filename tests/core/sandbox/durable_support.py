"""A provider for durable sandboxes: instances live in one place, whoever controls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import attrs

from pinfold.checkpoint import CheckpointStore
from pinfold.errors import Lost, Unreachable
from pinfold.memory import MemoryFiles, MemoryTree
from pinfold.memory import Store as Files
from pinfold.plugins import Catalog, Hooks
from pinfold.provider import (
    Context,
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Pausable,
    Sink,
)
from pinfold.sandbox import Runtime, Store
from pinfold.spec import Limits, PinnedSpec
from pinfold.state import MemoryStateStore
from tests.core.support import ToyProvider

SPEC = {"target": {"kind": "container"}, "durability": "checkpointed"}
IDLE = {**SPEC, "lifecycle": {"idle_after_seconds": 1}}
FEATURES = Features(attach=True, pause=True, modes=True, symlinks=True)


@attrs.define(eq=False)
class Machine:
    """One instance, as the provider has it."""

    ref: InstanceRef
    owner: Owner
    files: Files = attrs.field(factory=Files)
    paused: bool = False


class CloudInstance(Instance, Pausable):
    features = FEATURES

    def __init__(self, cloud: Cloud, machine: Machine) -> None:
        self._cloud = cloud
        self._machine = machine
        self.ref = machine.ref
        self.files = _Guarded(machine.files, Limits())
        self.files.alive = self._alive
        self.tree = MemoryTree(machine.files)

    def _alive(self) -> None:
        if self._cloud.unreachable:
            raise Unreachable("no answer")
        if self.ref.id not in self._cloud.machines:
            raise Lost("it is gone")

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        await self._cloud.before_exec(self, request)
        self._alive()
        self._cloud.ran.append(" ".join(request.argv or ()))
        verb, *rest = request.argv or ("true",)
        if verb == "write":
            await self.files.write(f"/workspace/{rest[0]}", rest[1].encode())
        elif verb == "read":
            data = await self.files.read(f"/workspace/{rest[0]}")
            return ExecResult(exit_code=0, stdout=data, stdout_total=len(data))
        elif verb == "wait":
            await self._cloud.release.wait()
        elif verb == "fail":
            await self.files.write("/workspace/failed", b"x")
            return ExecResult(exit_code=7)
        return ExecResult(exit_code=0)

    async def status(self) -> InstanceStatus:
        if self._cloud.unreachable:
            return InstanceStatus.UNREACHABLE
        machine = self._cloud.machines.get(self.ref.id)
        if machine is None:
            return InstanceStatus.ABSENT
        return InstanceStatus.PAUSED if machine.paused else InstanceStatus.RUNNING

    async def pause(self) -> None:
        self._alive()
        self._machine.paused = True

    async def resume(self) -> bool:
        self._alive()
        was = self._machine.paused
        self._machine.paused = False
        return was

    async def destroy(self) -> None:
        await self._cloud.destroy(self.ref)


class _Guarded(MemoryFiles):
    alive: Any

    async def read(self, path, *, offset=0, length=None):
        self.alive()
        return await super().read(path, offset=offset, length=length)

    async def write(self, path, data, *, mode=None):
        self.alive()
        await super().write(path, data, mode=mode)


class Cloud(ToyProvider):
    """A provider whose instances any controller can take up, and anybody can take away."""

    def __init__(self, *, features: Features = FEATURES, **more: Any) -> None:
        super().__init__(features=features, **more)
        self.machines: dict[str, Machine] = {}
        self.made = 0
        self.ran: list[str] = []
        self.unreachable = False
        self.release = anyio.Event()
        self.fail_create: Exception | None = None
        self.slow_create: anyio.Event | None = None

    async def before_exec(self, instance: CloudInstance, request: ExecRequest) -> None:
        """Be overridden by tests that cut in here."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        self.made += 1
        ref = InstanceRef(provider="toy", id=f"m-{self.made}", sandbox=ctx.owner.sandbox)
        await ctx.register(ref)
        if self.slow_create is not None:
            await self.slow_create.wait()
        if self.fail_create is not None:
            raise self.fail_create
        machine = Machine(ref, ctx.owner)
        self.machines[ref.id] = machine
        return CloudInstance(self, machine)

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        if self.unreachable:
            raise Unreachable("no answer")
        machine = self.machines.get(ref.id)
        if machine is None:
            raise Lost("it is gone")
        return CloudInstance(self, machine)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return [
            machine.ref
            for machine in self.machines.values()
            if machine.owner.store == owner.store and owner.sandbox in (None, machine.owner.sandbox)
        ]

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        if self.unreachable:
            raise Unreachable("no answer")
        self.machines.pop(ref.id, None)

    def lose(self) -> None:
        """Take every instance away, behind everybody's back."""
        self.machines.clear()


def make_store(tmp_path, **more: Any) -> Store:
    return Store(CheckpointStore(tmp_path / "checkpoints", fsync=False), MemoryStateStore(), **more)


def make_runtime(provider, *plugins: object) -> Runtime:
    hooks = Hooks()
    for plugin in plugins:
        hooks.register(plugin)
    return Runtime(catalog=Catalog([provider]), hooks=hooks)


async def kinds(box, *, after=""):
    return [str(event.type) for event in await box.events(after=after)]


async def soon(condition, seconds=10.0):
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


async def write(box, name, text):
    return await box.exec(["write", name, text])


async def read(box, name):
    return (await box.exec(["read", name])).stdout


async def until(condition, seconds=10.0):
    with anyio.fail_after(seconds):
        while not await condition():
            await anyio.sleep(0.02)
