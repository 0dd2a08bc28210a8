"""Between the suite and a lane, its provider and its witness: whose fault an error is.

A lane's hooks and a provider's methods are third-party code, run outside of any check as well: what
they raise, SystemExit too, and what they return in a wrong form is a failure of theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar

import attrs

from pinfold.faults import Fault
from pinfold.provider import (
    Availability,
    Capabilities,
    Context,
    Descriptor,
    Features,
    Instance,
    InstanceRef,
    Owner,
    Pins,
    Provider,
)
from pinfold.spec import Limits, PinnedSpec, ResolvedSpec, Spec
from pinfold.testing import Lane, Witness
from pinfold_conformance._expect import AdapterFault, CheckFailed
from pinfold_conformance._forms import check_refs, nothing, typed
from pinfold_conformance._guard import Meter, blamed

__all__ = ["GuardedLane", "name_of", "unguarded"]

T = TypeVar("T")


def _of(name: str, function: Callable[..., Any], kind: Callable[..., T]) -> Callable[..., T]:
    """Return a function of a descriptor under guard."""

    def called(spec: ResolvedSpec) -> T:
        with blamed(name):
            value = function(spec)
        return typed(name, value, kind)

    return called


class GuardedProvider(Provider):
    """A provider whose every answer is of the contract's form."""

    def __init__(self, inner: Provider, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    @property
    def descriptor(self) -> Descriptor:  # type: ignore[override]
        """What it says of itself; asked afresh each time."""
        with blamed("Provider.descriptor"):
            value = self.inner.descriptor
        found = typed("Provider.descriptor", value, Descriptor)
        return attrs.evolve(
            found,
            capabilities=_of("Descriptor.capabilities", found.capabilities, Capabilities),
            features=_of("Descriptor.features", found.features, Features),
            limits=_of("Descriptor.limits", found.limits, Limits),
        )

    def check(self, spec: ResolvedSpec) -> Iterable[Fault]:
        with blamed("Provider.check"):
            value: Any = self.inner.check(spec)
            faults = list(value)
        for fault in faults:
            typed("a fault of Provider.check", fault, Fault)
        return faults

    async def probe(self) -> Availability:
        with self.meter.call("probe"):
            value = await self.inner.probe()
        found = typed("the result of probe", value, Availability)
        typed("Availability.available", found.available, bool)
        typed("Availability.reason", found.reason, str)
        return found

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        with self.meter.call("pin"):
            value = await self.inner.pin(spec, ctx)
        return typed("the result of pin", value, Pins)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        with self.meter.call("create"):
            value = await self.inner.create(pinned, ctx)
        return typed("the result of create", value, Instance)

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        with self.meter.call("attach"):
            value = await self.inner.attach(ref, pinned, ctx)
        return typed("the result of attach", value, Instance)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        with self.meter.call("list_instances"):
            value = await self.inner.list(owner, ctx)
        return check_refs(value)

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        with self.meter.call("destroy"):
            value: object = await self.inner.destroy(ref, ctx)  # type: ignore[func-returns-value]
        nothing("Provider.destroy", value)


def unguarded(provider: Provider) -> Provider:
    """Return the provider behind a guard."""
    return provider.inner if isinstance(provider, GuardedProvider) else provider


class Unseen(FileNotFoundError, CheckFailed):
    """The witness sees no such file: the check fails, unless it asks for just that."""


@contextmanager
def _looking(path: PurePosixPath) -> Iterator[None]:
    with blamed("the lane's witness"):
        try:
            yield
        except FileNotFoundError as exc:
            raise Unseen(f"the witness sees no {path}") from exc


class GuardedWitness(Witness):
    """A witness whose every answer is of the right form."""

    def __init__(self, inner: Witness) -> None:
        self.inner = inner

    async def read(self, path: PurePosixPath) -> bytes:
        with _looking(path):
            value = await self.inner.read(path)
        return typed("the result of Witness.read", value, bytes)

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        with _looking(path):
            await self.inner.write(path, data)

    async def list(self, path: PurePosixPath) -> Sequence[str]:
        with _looking(path):
            value = list(await self.inner.list(path))
        for name in value:
            typed("a name of Witness.list", name, str)
        return value

    async def link(self, path: PurePosixPath, target: str) -> None:
        with _looking(path):
            await self.inner.link(path, target)

    async def is_alive(self, heartbeat: PurePosixPath) -> bool:
        with _looking(heartbeat):
            value = await self.inner.is_alive(heartbeat)
        return typed("the result of Witness.is_alive", value, bool)


def name_of(lane: Lane) -> str:
    """Return a lane's name, whatever its author made of it."""
    try:
        with blamed("Lane.name"):
            return typed("Lane.name", lane.name, str)
    except AdapterFault:
        return type(lane).__name__


class GuardedLane(Lane):
    """A lane whose hooks fail by their own fault.

    Raises:
        AdapterFault: it has not what a lane has.
    """

    def __init__(self, inner: Lane, meter: Meter) -> None:
        self.inner = inner
        with blamed("an attribute of the lane"):
            self.name = typed("Lane.name", inner.name, str)
            self.provider = GuardedProvider(typed("Lane.provider", inner.provider, Provider), meter)
            self.specs = tuple(inner.specs)
            self.allow_attacks = typed("Lane.allow_attacks", inner.allow_attacks, bool)
            for spec in self.specs:
                typed("a spec of the lane", spec, Spec)

    async def _hook(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        with blamed(f"the lane's {name}"):
            return await call()

    async def unavailable(self) -> str | None:
        reason: Any = await self._hook("unavailable", self.inner.unavailable)
        return None if reason is None else typed("the result of Lane.unavailable", reason, str)

    async def make(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        with blamed("create"):
            value = await self.inner.make(pinned, ctx)
        return typed("the result of create", value, Instance)

    async def reset(self, instance: Instance) -> None:
        await self._hook("reset", lambda: self.inner.reset(instance))

    def witness(self, instance: Instance) -> Witness | None:
        with blamed("the lane's witness"):
            value = self.inner.witness(instance)
        return None if value is None else GuardedWitness(typed("Lane.witness", value, Witness))

    def listener_address(self, instance: Instance) -> str | None:
        with blamed("the lane's listener_address"):
            value = self.inner.listener_address(instance)
        return None if value is None else typed("Lane.listener_address", value, str)

    async def lose(self, ref: InstanceRef) -> bool:
        return typed("Lane.lose", await self._hook("lose", lambda: self.inner.lose(ref)), bool)

    async def cut(self, ref: InstanceRef) -> bool:
        return typed("Lane.cut", await self._hook("cut", lambda: self.inner.cut(ref)), bool)
