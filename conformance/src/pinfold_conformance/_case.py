"""What a check is given: one target, and the tools to examine it."""

from __future__ import annotations

import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar

import anyio
import attrs

from pinfold.provider import (
    Capabilities,
    Context,
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    Owner,
    Provider,
    Sink,
)
from pinfold.spec import WORKSPACE, Limits, PinnedSpec
from pinfold.testing import Lane, Witness
from pinfold_conformance._expect import CheckFailed, Inconclusive
from pinfold_conformance._guard import GuardedInstance, Meter, guarded
from pinfold_conformance._ledger import Ledger
from pinfold_conformance._profiles import Profile
from pinfold_conformance._registry import Check
from pinfold_conformance.dialects import Dialect

__all__ = ["Case", "Site"]

T = TypeVar("T")


@attrs.define(kw_only=True, eq=False)
class Site:
    """One spec of a lane under test, for all checks of a run."""

    lane: Lane
    pinned: PinnedSpec
    label: str
    profile: Profile
    meter: Meter
    ledger: Ledger
    connect: Any
    strict: bool = False
    scale: float = 1.0
    cleanup_s: float = 15.0
    dialect: Dialect
    other: Site | None = None
    seed: int = 0

    @property
    def provider(self) -> Provider:
        """The provider under test."""
        return self.lane.provider

    def context(self, sandbox: str | None = None, generation: int = 1) -> Context:
        """Return a context for an instance of a sandbox of its own."""
        owner = Owner(store=self.ledger.run, sandbox=sandbox or f"sbx_{uuid.uuid4().hex}")
        return Context(
            owner=owner,
            generation=generation,
            register=self.ledger.register,
            connect=self.connect,
        )

    async def make(self, *, generation: int = 1) -> GuardedInstance:
        """Make a fresh instance.

        Raises:
            CheckFailed: it was not registered before it came to be.
        """
        with self.meter.call("create"):
            inner = await self.lane.make(self.pinned, self.context(generation=generation))
        instance = guarded(inner, self.meter)
        if not self.ledger.knows(instance.ref):
            await self.ledger.register(instance.ref)
            raise CheckFailed("create returned an instance whose ref it had not registered (LC-9)")
        return instance

    async def destroy(self, instance: GuardedInstance) -> None:
        """Destroy an instance and strike it out."""
        await instance.destroy()
        self.ledger.forget(instance.ref)

    def ending(self) -> anyio.CancelScope:
        """Return a scope to clean up in: cancellation waits for it, and it does not last for ever.

        What is not cleaned up in it is still in the ledger, and is told at the end of the run.
        """
        return anyio.move_on_after(self.cleanup_s, shield=True)

    @asynccontextmanager
    async def lent(self, *, generation: int = 1) -> AsyncIterator[GuardedInstance]:
        """Make an instance, and destroy it at the end.

        Raises:
            CheckFailed: it was not registered before it came to be, or its destroy hangs.
        """
        instance = await self.make(generation=generation)
        try:
            yield instance
        except BaseException:
            with self.ending():
                await self.destroy(instance)
            raise
        with self.ending() as scope:
            await self.destroy(instance)
        if scope.cancelled_caught:
            raise CheckFailed(f"destroy did not end within {self.cleanup_s:g} s")


@attrs.define(kw_only=True, eq=False)
class Case:
    """One check on one target.

    Attributes:
        check: the check.
        site: the spec under test.
        target: the instance, under guard; None for a check that needs none.
        random: seeded by the run's seed and the check's id.
        evidence: what the check wants in the report.
        warnings: what is wrong but does not count.
    """

    check: Check
    site: Site
    target: GuardedInstance | None
    random: random.Random
    evidence: dict[str, Any] = attrs.field(factory=dict)
    warnings: list[str] = attrs.field(factory=list)
    trace: Any = None
    _scratch: PurePosixPath | None = None

    @property
    def instance(self) -> GuardedInstance:
        """The instance under test."""
        if self.target is None:
            raise TypeError(f"{self.check.id} has no instance")
        return self.target

    @property
    def inner(self) -> Instance:
        """The adapter's own object, for its optional powers."""
        return self.instance.inner

    @property
    def provider(self) -> Provider:
        """The provider under test."""
        return self.site.provider

    @property
    def pinned(self) -> PinnedSpec:
        """The spec under test."""
        return self.site.pinned

    @property
    def profile(self) -> Profile:
        """How much to try."""
        return self.site.profile

    @property
    def dialect(self) -> Dialect:
        """How to speak to the guest's shell."""
        return self.site.dialect

    @property
    def features(self) -> Features:
        """In force."""
        return self.instance.features

    @property
    def limits(self) -> Limits:
        """Of the target."""
        return self.provider.descriptor.limits(self.pinned.spec)

    @property
    def capabilities(self) -> Capabilities:
        """The six facts that the descriptor states."""
        return self.provider.descriptor.capabilities(self.pinned.spec)

    @property
    def files(self) -> Any:
        """The instance's files, under guard."""
        return self.instance.files

    @property
    def witness(self) -> Witness:
        """The second way in.

        Raises:
            Inconclusive: the lane has none.
        """
        witness = self.site.lane.witness(self.inner)
        if witness is None:
            raise Inconclusive("the lane has no witness")
        return witness

    async def scratch(self) -> PurePosixPath:
        """Return a directory of the check's own in the workspace."""
        if self._scratch is None:
            self._scratch = WORKSPACE / self.name("w")
            await self.files.make_directory(self._scratch)
        return self._scratch

    async def tidy(self) -> None:
        """Remove the scratch directory, if there was one."""
        if self._scratch is not None and self.target is not None:
            await self.files.remove(self._scratch, recursive=True)

    def name(self, prefix: str = "n") -> str:
        """Return a name that nothing has: another one in every run."""
        return f"{prefix}{secrets.token_hex(6)}"

    async def sh(
        self, *scripts: str, sink: Sink | None = None, timeout: float | None = 20.0, **request: Any
    ) -> ExecResult:
        """Run scripts of the dialect, one after the other, in one exec."""
        return await self.instance.exec(
            ExecRequest(shell=self.dialect.seq(*scripts), timeout_seconds=timeout, **request), sink
        )

    async def run(
        self, *argv: str, sink: Sink | None = None, timeout: float | None = 20.0, **request: Any
    ) -> ExecResult:
        """Run an argv."""
        return await self.instance.exec(
            ExecRequest(argv=argv, timeout_seconds=timeout, **request), sink
        )

    def another(self) -> AbstractAsyncContextManager[GuardedInstance]:
        """Return a context that makes an instance more and destroys it."""
        return self.site.lent()

    async def until(
        self, happens: Callable[[], Awaitable[T]], what: str, *, within: float = 10.0
    ) -> T:
        """Ask again and again until something is so, and return it.

        Raises:
            CheckFailed: it never was.
        """
        end = time.monotonic() + within
        while True:
            value = await happens()
            if value:
                return value
            if time.monotonic() >= end:
                raise CheckFailed(f"{what}: not within {within:g} s")
            await anyio.sleep(0.03)

    async def exists(self, path: PurePosixPath) -> bool:
        """Say whether there is such a name, by the adapter's own stat."""
        from pinfold.errors import NotADirectory, NotFound

        try:
            await self.files.stat(path)
        except (NotFound, NotADirectory):
            return False
        return True

    async def beats(self, path: PurePosixPath) -> bool:
        """Say whether a heartbeat file grows: by the witness, else by the adapter's own reads."""
        witness = self.site.lane.witness(self.inner)
        if witness is not None:
            self.evidence["route"] = "witness"
            try:
                return await witness.is_alive(path)
            except FileNotFoundError:
                return False
        self.evidence["route"] = "in band"
        if not await self.exists(path):
            return False
        before = (await self.files.stat(path)).size
        with anyio.move_on_after(0.6):
            while True:
                await anyio.sleep(0.05)
                if (await self.files.stat(path)).size != before:
                    return True
        return False

    async def lives(self, beat: PurePosixPath, what: str) -> None:
        """Wait until a heartbeat is there and grows; a busy machine may take its time.

        Raises:
            CheckFailed: it never did.
        """

        async def grows() -> bool:
            return await self.exists(beat) and await self.beats(beat)

        await self.until(grows, what)

    def sample(self, values: Iterable[T], count: int, always: Sequence[T] = ()) -> list[T]:
        """Return some of many values, those named always among them."""
        pool = [value for value in values if value not in always]
        return [*always, *self.random.sample(pool, min(count, len(pool)))]

    def bytes(self, count: int) -> bytes:
        """Return random bytes."""
        return self.random.randbytes(count)

    def underclaimed(self, what: str) -> None:
        """Note that the target does what it denies; under --strict that is a failure.

        Raises:
            CheckFailed: the run is strict.
        """
        if self.site.strict:
            raise CheckFailed(f"underclaimed: {what} (TR-1)")
        self.warnings.append(f"underclaimed: {what}")
