"""Bugs of what is claimed: descriptors, pins, capabilities, networks, levels (PR, RS, TR)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import anyio
import attrs

from pinfold.provider import (
    Availability,
    Capabilities,
    Context,
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    Pausable,
    Pins,
    Ports,
    Sink,
    Terminals,
)
from pinfold.spec import Durability, Limits, PinnedSpec, ResolvedSpec, Spec
from pinfold.testing import Lane
from pinfold_conformance.mutants._base import (
    BugInstance,
    BugLane,
    BugProvider,
    BugToy,
    mutant,
)


@mutant("LC-1.pause-absent", strict=True)
class PausesUnclaimed(BugProvider):
    """The instance is Pausable though pause is denied."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        made.__class__ = type(
            "Both", (type(made), Pausable), {"pause": _nothing, "resume": _nothing}
        )
        return made


async def _nothing(self: Any) -> bool:
    return False


class _Describes(BugProvider):
    """A bug of the descriptor."""

    def capabilities(self, spec: ResolvedSpec) -> Capabilities:
        return self.inner.descriptor.capabilities(spec)

    def features(self, spec: ResolvedSpec) -> Features:
        return self.inner.descriptor.features(spec)

    def limits(self, spec: ResolvedSpec) -> Limits:
        return self.inner.descriptor.limits(spec)

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.descriptor = attrs.evolve(
            inner.descriptor,
            capabilities=self.capabilities,
            features=self.features,
            limits=self.limits,
        )


@mutant("PR-3.descriptor")
class ChangesItsMind(_Describes):
    """Each time the descriptor is asked it says something else."""

    asked = 0

    def limits(self, spec: ResolvedSpec) -> Limits:
        self.asked += 1
        return attrs.evolve(super().limits(spec), read_bytes=1_000_000 + self.asked)


@mutant("PR-3.limits")
class RaisesLimits(_Describes):
    """A limit is higher than the contract's."""

    def limits(self, spec: ResolvedSpec) -> Limits:
        return attrs.evolve(super().limits(spec), argv_element_bytes=1 << 30)


@mutant("PR-4.probe")
class SlowProbe(BugProvider):
    """probe takes longer than its deadline."""

    async def probe(self) -> Availability:
        await anyio.sleep(2.2)
        return await self.inner.probe()


@mutant("PR-7.in-force")
class PromisesTooMuch(_Describes):
    """A feature is promised that is not in force."""

    def features(self, spec: ResolvedSpec) -> Features:
        return attrs.evolve(super().features(spec), pty=True)


@mutant("RS-3.pins")
class PinsTheMoment(BugProvider):
    """A pin is another one each time."""

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        return Pins(pins={"image": uuid.uuid4().hex})


@mutant("RS-2.pure")
class RandomFaults(BugProvider):
    """check finds a fault in what it found sound before."""

    made = False

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        self.made = True
        return await self.inner.create(pinned, ctx)

    def check(self, spec: ResolvedSpec) -> Any:
        from pinfold.faults import Fault

        return [Fault(pointer="/target", code="odd", message="odd")] if self.made else []


@mutant("SP-4.roots")
class RootsInTheTree(BugProvider):
    """Writable roots are part of the workspace's tree."""

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        world = getattr(made, "body").world  # noqa: B009 - of the reference
        for root in world.roots[1:]:
            world.workspace.children[root.name] = world.find(root).node
        return made


class _Claims(_Describes):
    """A capability that is claimed."""

    name = ""

    def capabilities(self, spec: ResolvedSpec) -> Capabilities:
        return attrs.evolve(super().capabilities(spec), **{self.name: True})


@mutant("TR-1.native-processes")
class ClaimsProcesses(_Claims):
    """native_processes is claimed; nothing native runs."""

    name = "native_processes"


@mutant("TR-1.packages")
class ClaimsPackages(_Claims):
    """packages is claimed; nothing can be installed."""

    name = "packages"


@mutant("TR-1.ports")
class ClaimsPorts(_Claims):
    """ports is claimed; nothing can be exposed."""

    name = "ports"


@mutant("TR-1.pty")
class ClaimsTerminals(_Claims):
    """pty is claimed; no terminal can be opened."""

    name = "pty"

    def features(self, spec: ResolvedSpec) -> Features:
        return attrs.evolve(super().features(spec), pty=True)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        made.features = attrs.evolve(made.features, pty=True)
        return made


@mutant("TR-1.portable-checkpoint")
class ScansNothing(BugInstance):
    """portable_checkpoint is claimed; a scan tells of nothing."""

    def __init__(self, inner: Instance) -> None:
        from pinfold.memory import MemoryTree, Store

        super().__init__(inner)
        self.tree = MemoryTree(Store())


class _WithoutCheckpoints(_Describes):
    def capabilities(self, spec: ResolvedSpec) -> Capabilities:
        return attrs.evolve(super().capabilities(spec), portable_checkpoint=False)


@mutant("TR-1.portable-checkpoint-absent")
class DeniesCheckpoints(BugLane):
    """portable_checkpoint is denied; a scan works all the same."""

    def __init__(self, inner: Lane) -> None:
        super().__init__(inner, provider=_WithoutCheckpoints(inner.provider))

    @property
    def specs(self) -> Sequence[Spec]:  # type: ignore[override]
        return [attrs.evolve(spec, durability=Durability.NONE) for spec in self.inner.specs]


@mutant("TR-1.network-deny")
class LetsThrough(BugToy):
    """deny lets everything through."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.body.network = True
        return await super().exec(request, sink)


@mutant("TR-1.network-deny-udp")
class LetsQuestionsOut(BugToy):
    """deny lets a datagram through."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.body.network = request.shell is not None and request.shell.endswith(" udp")
        return await super().exec(request, sink)


def _reached(result: ExecResult) -> ExecResult:
    if result.stdout != b"refused\n":
        return result
    return attrs.evolve(result, stdout=b"reached\n", stdout_total=8)


@mutant("TR-1.network-deny-ipv6")
class ForgetsSix(BugInstance):
    """deny is kept for IPv4 alone."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return _reached(result) if "::1" in (request.shell or "") else result


@mutant("TR-1.network-deny-unix")
class SharesAbstractNames(BugInstance):
    """The host's Unix sockets with names in the kernel are reached."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return _reached(result) if "@abstract-" in (request.shell or "") else result


@mutant("TR-1.network-allow")
class HoldsBack(BugToy):
    """allow lets nothing through."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        self.body.network = False
        return await super().exec(request, sink)


@mutant("TR-1.level-isolated")
class SeesTheHost(BugInstance):
    """Commands read the host's files."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        result = await self.inner.exec(request, sink)
        script = request.shell or ""
        if script.startswith("load /"):
            path = anyio.Path(script.removeprefix("load "))
            if await path.is_file():
                data = (await path.read_bytes())[: request.stdout_cap]
                return attrs.evolve(result, exit_code=0, stdout=data, stdout_total=len(data))
        return result


class _Powers(BugProvider):
    """An instance with a power that nobody claimed."""

    power: type[Any]
    members: ClassVar[Mapping[str, Any]] = {}

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.inner.create(pinned, ctx)
        made.__class__ = type("Both", (type(made), self.power), dict(self.members))
        return made


@mutant("TR-1.ports-absent")
class PortsUnclaimed(_Powers):
    """The instance has expose though ports is denied."""

    power = Ports
    members: ClassVar[Mapping[str, Any]] = {"expose": _nothing}


@mutant("TR-1.pty-absent")
class TerminalsUnclaimed(_Powers):
    """The instance has open_terminal though pty is denied."""

    power = Terminals
    members: ClassVar[Mapping[str, Any]] = {"open_terminal": _nothing}


@mutant("TR-1.native-processes-absent")
class ProcessesUnclaimed(BugInstance):
    """Native programs run though native_processes is denied (fails under --strict)."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if request.argv and request.argv[0].startswith("./probe-"):
            return attrs.evolve(
                result, exit_code=0, stdout=b"native\n", stdout_total=7, stdout_truncated=False
            )
        return result


@mutant("TR-1.packages-absent")
class PackagesUnclaimed(BugInstance):
    """Packages could be installed though packages is denied (fails under --strict)."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.stdout == b"no":
            return attrs.evolve(result, stdout=b"yes", stdout_total=3)
        return result


@mutant("FS-5.special-absent", strict=True)
class SpecialUnclaimed(BugToy):
    """FIFOs can be made though special_files is denied (fails under --strict)."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        kept, self.features = self.features, attrs.evolve(self.features, special_files=True)
        try:
            return await super().exec(request, sink)
        finally:
            self.features = kept
