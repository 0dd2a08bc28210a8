"""A durable sandbox of core's over the provider under test, with stores of its own (LC)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs

from pinfold.checkpoint import CheckpointStore
from pinfold.plugins import Catalog
from pinfold.provider import (
    Availability,
    Blob,
    Context,
    Entry,
    Instance,
    InstanceRef,
    Owner,
    Pins,
    Provider,
)
from pinfold.resolve import resolve
from pinfold.sandbox import DurableSandbox, Runtime, Store
from pinfold.sandbox import open as open_sandbox
from pinfold.spec import PinnedSpec, ResolvedSpec
from pinfold.state import MemoryStateStore
from pinfold_conformance._case import Case, Site
from pinfold_conformance._guard import GuardedInstance, GuardedTree, Meter, guarded

__all__ = ["Durable", "durable"]


class _Tree(GuardedTree):
    """A tree under guard that counts the bytes it gives."""

    given = 0

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        async for blob in super().read(entries):
            self.given += len(blob.data)
            yield blob


def _guarded(inner: Any, meter: Meter) -> GuardedInstance:
    made = guarded(inner, meter)
    made.tree = _Tree(inner.tree, meter)
    return made


class _Watched(Provider):
    """The provider under test as core is given it: instances under guard, refs in the ledger."""

    def __init__(self, site: Site) -> None:
        self.descriptor = site.provider.descriptor
        self.instances: list[GuardedInstance] = []
        self.refs: list[InstanceRef] = []
        self._site = site

    def _context(self, ctx: Context) -> Context:
        async def register(ref: InstanceRef) -> None:
            self.refs.append(ref)
            await self._site.ledger.register(ref)
            await ctx.register(ref)

        return attrs.evolve(ctx, register=register, connect=self._site.connect)

    def _kept(self, inner: Instance) -> Instance:
        self.instances.append(_guarded(inner, self._site.meter))
        return self.instances[-1]

    def check(self, spec: ResolvedSpec) -> Iterable[Any]:
        return self._site.provider.check(spec)

    async def probe(self) -> Availability:
        return await self._site.provider.probe()

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        return await self._site.provider.pin(spec, self._context(ctx))

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        with self._site.meter.call("create"):
            return self._kept(await self._site.lane.make(pinned, self._context(ctx)))

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        return self._kept(await self._site.provider.attach(ref, pinned, self._context(ctx)))

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return await self._site.provider.list(owner, ctx and self._context(ctx))

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        await self._site.provider.destroy(ref, ctx and self._context(ctx))


@attrs.define(kw_only=True, eq=False)
class Durable:
    """What a check of durable sandboxes works with.

    Attributes:
        box: the sandbox.
        store: where it is kept.
        runtime: its surroundings.
        provider: the one under test, watched.
    """

    box: DurableSandbox
    store: Store
    runtime: Runtime
    provider: _Watched
    _ahead: list[int]

    @property
    def instance(self) -> GuardedInstance:
        """The instance that was made or taken up last."""
        return self.provider.instances[-1]

    @property
    def bytes_read(self) -> int:
        """Bytes of files that all captures so far have read."""
        trees = [instance.tree for instance in self.provider.instances]
        return sum(tree.given for tree in trees if isinstance(tree, _Tree))

    def later(self, seconds: int) -> None:
        """Let time pass, by the clock that core looks at."""
        self._ahead[0] += seconds * 1_000_000_000


@asynccontextmanager
async def durable(case: Case, **fields: Any) -> AsyncIterator[Durable]:
    """Open a durable sandbox of the spec under test, and delete whatever was made of it.

    Args:
        case: the check.
        fields: of the spec, in its JSON form.
    """
    from pinfold._ids import Clock

    provider, ahead = _Watched(case.site), [0]
    catalog = Catalog([provider])
    runtime = Runtime(catalog=catalog, clock=Clock(now_ns=lambda: time.time_ns() + ahead[0]))
    layer = {"durability": "checkpointed", **fields}
    spec = resolve([case.pinned.spec, layer], catalog)
    with tempfile.TemporaryDirectory(prefix="pinfold-conformance-") as folder:
        store = Store(CheckpointStore(folder, fsync=False), MemoryStateStore())
        box = await open_sandbox(spec, store=store, runtime=runtime)
        try:
            yield Durable(box=box, store=store, runtime=runtime, provider=provider, ahead=ahead)
        finally:
            with case.site.ending():
                await box.delete()
                await box.close()
                for ref in provider.refs:
                    await case.provider.destroy(ref, case.site.context())
                    case.site.ledger.forget(ref)
