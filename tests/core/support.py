"""A provider for tests of core: it runs no commands, and what it says is what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from pinfold.memory import MemoryFiles, MemoryTree, Store
from pinfold.plugins import Catalog
from pinfold.provider import (
    Availability,
    Capabilities,
    Context,
    Descriptor,
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Pins,
    Provider,
    Sink,
    Supports,
    check_exec,
)
from pinfold.spec import Kind, Limits, PinnedSpec, ResolvedSpec

ALL_TRUE = Capabilities(
    native_processes=True,
    network_enforced=True,
    packages=True,
    portable_checkpoint=True,
    ports=True,
    pty=True,
)
VFS = Capabilities(
    native_processes=False,
    network_enforced=True,
    packages=False,
    portable_checkpoint=True,
    ports=False,
    pty=False,
)


@attrs.frozen(kw_only=True)
class ToyOptions:
    """Options of every type."""

    cpus: float = 1.0
    max_tokens: int = 10
    labels: dict[str, Any] = attrs.field(factory=dict)
    fast: bool = False
    image: str | None = None


Run = Callable[[ExecRequest, Sink | None], Any]


class ToyInstance(Instance):
    def __init__(self, provider: ToyProvider, ref: InstanceRef) -> None:
        self._provider = provider
        self.ref = ref
        self.features = provider.features_in_force
        store = Store()
        self.files = MemoryFiles(store, Limits())
        self.tree = MemoryTree(store)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        check_exec(request, Limits())
        return await self._provider.run(request, sink)

    async def status(self) -> InstanceStatus:
        alive = self.ref.id in self._provider.alive
        return InstanceStatus.RUNNING if alive else InstanceStatus.ABSENT

    async def destroy(self) -> None:
        await self._provider.destroy(self.ref)


async def _echo(request: ExecRequest, sink: Sink | None) -> ExecResult:
    text = " ".join(request.argv or (request.shell or "",)).encode()
    if sink is not None:
        await sink("stdout", text)
        return ExecResult(exit_code=0, stdout_total=len(text))
    return ExecResult(exit_code=0, stdout=text, stdout_total=len(text))


class ToyProvider(Provider):
    """A provider whose every answer can be set."""

    def __init__(
        self,
        name: str = "toy",
        kinds: Sequence[Kind | str] = ("container",),
        *,
        capabilities: Capabilities = ALL_TRUE,
        containment: Sequence[Supports] = (
            Supports(
                level="isolated",
                networks=("deny", "allowlist", "allow"),
                wildcards=True,
                writable_roots=True,
            ),
        ),
        durabilities: Sequence[str] = ("checkpointed", "provider_snapshot", "none"),
        options: type[Any] = ToyOptions,
        contract: str = ">=1.0,<2",
        features: Features | None = None,
        run: Run = _echo,
        **more: Any,
    ) -> None:
        promised = features or Features()
        self.descriptor = Descriptor(
            name=name,
            display_name=name.title(),
            kinds=kinds,
            contract=contract,
            containment=tuple(containment),
            durabilities=durabilities,
            capabilities=lambda _: capabilities,
            features=lambda _: promised,
            options=options,
            dist=f"pinfold-{name}",
            **more,
        )
        self.features_in_force = promised
        self.run = run
        self.alive: dict[str, InstanceRef] = {}
        self.registered_first = True
        self.pins = Pins()
        self.seen: list[Context] = []

    async def probe(self) -> Availability:
        return Availability(available=True)

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        return self.pins

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        ref = InstanceRef(
            provider=self.descriptor.name, id=f"toy-{len(self.seen)}", sandbox=ctx.owner.sandbox
        )
        self.seen.append(ctx)
        await ctx.register(ref)
        self.alive[ref.id] = ref
        return ToyInstance(self, ref)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return [ref for ref in self.alive.values() if owner.sandbox in (None, ref.sandbox)]

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        self.alive.pop(ref.id, None)


def vfs_provider(**more: Any) -> ToyProvider:
    """Return a provider that is described as the embedded one is."""
    return ToyProvider(
        "bashkit",
        ("vfs",),
        capabilities=VFS,
        containment=(Supports(level="isolated", networks=("deny", "allowlist")),),
        durabilities=("checkpointed", "none"),
        **more,
    )


def host_provider() -> ToyProvider:
    """Return a provider that enforces nothing."""
    return ToyProvider(
        "host",
        ("host",),
        capabilities=attrs.evolve(ALL_TRUE, network_enforced=False),
        containment=(Supports(level="none", networks=("allow",)),),
        durabilities=("checkpointed", "none"),
    )


def catalog(*providers: Provider) -> Catalog:
    """Return a catalog of these, or of a container, a vfs and a host provider."""
    return Catalog(providers or (ToyProvider(), vfs_provider(), host_provider()))
