"""An instance, whoever made it: found, woken, or replaced by one controller (LC-1, LC-2, LC-5)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pinfold._tasks import background
from pinfold.checkpoint import CheckpointRecord
from pinfold.connections import provider_failure, scrub_error
from pinfold.errors import Conflict, Lost, PinfoldError, StaleGeneration, Unavailable, Unreachable
from pinfold.events import EventType
from pinfold.provider import Instance, InstanceStatus, Pausable, ScanState
from pinfold.sandbox._committing import Committing
from pinfold.sandbox._provision import END_TIMEOUT_SECONDS, bootstrap, typed_errors
from pinfold.sandbox._record import Claim, SandboxRecord, Stored
from pinfold.sandbox._states import DesiredState, ObservedState

__all__ = ["Replacing"]

#: How long a claim is believed without being renewed; it is renewed three times as often.
LEASE_SECONDS: Final = 30.0

_POLL_SECONDS: Final = 0.05


class Replacing(Committing):
    """Takes up the current instance, or claims the next generation and makes it (LC-2, LC-5)."""

    #: Another's claim, and since when it is as it is, by the monotonic clock.
    _waited_for: tuple[Claim, float] | None = None

    async def start(self) -> None:
        """Have compute ready now, not at the first operation."""
        await self._ensure()

    async def _ensure(self) -> Instance:
        """Return the instance, made or found or replaced as needed; one at a time (LC-5)."""
        async with self._gate:
            while True:
                stored = await self._records.load(self._id)
                self._adopt(stored)
                self._refuse(stored.record)
                instance = await self._step(stored)
                if instance is not None:
                    self._suspect = False
                    return instance

    def _refuse(self, record: SandboxRecord) -> None:
        if self._closed:
            raise Conflict("this handle is closed", hint="reopen the sandbox")
        if record.desired is DesiredState.DELETED:
            raise Conflict(f"sandbox {record.name!r} is deleted", hint="open another one")
        if record.observed is ObservedState.DRAINING:
            raise Conflict(
                f"sandbox {record.name!r} is draining and takes no new work",
                hint="use the sandbox that took its place, or fork it",
            )
        if self._generation is not None and record.generation != self._generation:
            raise StaleGeneration(carried=self._generation, current=record.generation)

    async def _step(self, stored: Stored) -> Instance | None:
        """Come one step nearer to an instance; None means: look again."""
        record = stored.record
        if record.claim is not None:
            if self._is_alive(record.claim):
                await anyio.sleep(_POLL_SECONDS)
                return None
            return await self._replace(stored, "takeover")
        if record.observed is ObservedState.READY:
            return await self._ready(stored)
        if record.observed is ObservedState.PAUSED:
            return await self._resume(stored)
        if record.observed is ObservedState.LOST and not self._checkpointed:
            raise _lost(record)
        reason = "lost" if record.observed is ObservedState.LOST else "first"
        return await self._replace(stored, reason)

    def _is_alive(self, claim: Claim) -> bool:
        """Say whether somebody is still making the generation that they claimed (LC-2).

        A claim is renewed while its owner lives. One that stays as it is for a whole lease is
        dead, though it was made when some clock was far ahead.
        """
        clock = self._runtime.clock
        seen, since = self._waited_for or (None, 0.0)
        if seen != claim:
            since = clock.monotonic()
            self._waited_for = claim, since
        return claim.expires_us > clock.now_us() and clock.monotonic() - since < LEASE_SECONDS

    async def _ready(self, stored: Stored) -> Instance | None:
        record = stored.record
        instance = self._instance
        if instance is None:
            return await self._attach(stored)
        if self._suspect:
            status = await _status(instance)
            if status is InstanceStatus.ABSENT:
                return await self._lose(stored)
            if status is InstanceStatus.UNREACHABLE:
                raise Unreachable(
                    f"sandbox {record.name!r} does not answer; it may well be there",
                    hint="try again; it is replaced only when it is definitely gone",
                )
            if status is InstanceStatus.PAUSED:
                return await self._resume(stored)
        if record.restoring is not None:
            await self._finish_restore(instance, record.restoring)
        return instance

    async def _attach(self, stored: Stored) -> Instance | None:
        """Take up the instance that another controller, or an earlier one, made."""
        record = stored.record
        maker = await self._maker()
        provider = maker.provider
        if provider is None or record.ref is None or not maker.promised.attach:
            # The end of its controlling process was a pause (LC-1).
            return await self._resume(stored)
        ctx = maker.context(record.generation)
        try:
            with typed_errors():
                instance = await provider.attach(record.ref, record.pinned, ctx)
                missing = instance.features.missing(
                    provider.descriptor.features(record.pinned.spec)
                )
                if missing:
                    raise Unavailable(
                        f"the instance of {record.name!r} lacks {', '.join(missing)} by now",
                        hint="mend the target",
                        retryable=False,
                    )
                await instance.tree.recover()
        except Lost:
            return await self._lose(stored)
        state = await self._scan_state(record)
        self._hold(instance, record, state)
        return None if record.restoring is None else await self._ready(stored)

    def _hold(
        self,
        instance: Instance,
        record: SandboxRecord,
        scanned: tuple[CheckpointRecord, ScanState] | None,
    ) -> None:
        self._instance = instance
        self._generation = record.generation
        self._commits.base, self._commits.state = scanned or (None, None)

    async def _lose(self, stored: Stored) -> Instance | None:
        """Note a definite absence, and replace what was lost if it can be (LC-4, LC-5)."""
        if self._checkpointed:
            return await self._replace(stored, "lost")
        record = attrs.evolve(stored.record, observed=ObservedState.LOST)
        event = (EventType.INSTANCE_LOST, _instance_facts(stored.record))
        with suppress(Conflict):
            await self._records.replace(stored, record, event)
        raise _lost(record)

    async def _resume(self, stored: Stored) -> Instance | None:
        """Wake a paused sandbox: the same instance where it can be, else the next generation."""
        record = stored.record
        maker = await self._maker()
        instance = self._instance
        if not maker.promised.attach and instance is None:
            if record.generation and not self._checkpointed:
                return await self._lose(stored)
            return await self._replace(stored, "resumed")
        if instance is None:
            if record.ref is None:
                return await self._replace(stored, "resumed")
            provider = maker.provider
            assert provider is not None  # noqa: S101 - core's own instance has no `attach`
            try:
                with typed_errors():
                    ctx = maker.context(record.generation)
                    instance = await provider.attach(record.ref, record.pinned, ctx)
            except Lost:
                return await self._lose(stored)
        processes_lost = False
        try:
            with typed_errors():
                if isinstance(instance, Pausable):
                    processes_lost = await instance.resume()
                await instance.tree.recover()
        except Lost:
            return await self._lose(stored)
        changed = attrs.evolve(
            self._active(record), observed=ObservedState.READY, desired=DesiredState.READY
        )
        event = (EventType.RESUMED, {"process_state_lost": processes_lost})
        try:
            stored = await self._records.replace(stored, changed, event)
        except Conflict:
            return None
        self._adopt(stored)
        if self._instance is None:
            self._hold(instance, stored.record, await self._scan_state(stored.record))
        return instance

    # --- making the next generation ---------------------------------------------------------------

    async def _replace(self, stored: Stored, reason: str) -> Instance | None:
        """Claim the next generation and make it (LC-2, LC-5); None when somebody was quicker."""
        before = stored.record
        claimed = attrs.evolve(
            before,
            generation=before.generation + 1,
            observed=ObservedState.RECOVERING if before.generation else ObservedState.PROVISIONING,
            desired=DesiredState.READY,
            ref=None,
            claim=self._claim(),
            failure=None,
        )
        lost = (EventType.INSTANCE_LOST, _instance_facts(before))
        events = (lost,) if reason == "lost" and before.observed is not ObservedState.LOST else ()
        try:
            stored = await self._records.replace(stored, claimed, *events)
        except Conflict:
            return None  # the next look tells who was quicker, and whether this handle is stale
        self._adopt(stored)
        gone, self._instance, self._generation = self._instance, None, claimed.generation
        try:
            if gone is not None:
                await _let_go(gone)
            async with background(self._renew):
                instance = await self._make(before, reason)
        except BaseException as exc:
            with anyio.CancelScope(shield=True):
                await self._give_up(before, exc)
            raise
        return instance

    def _claim(self) -> Claim:
        lease = int(LEASE_SECONDS * 1_000_000)
        return Claim(owner=self._controller, expires_us=self._runtime.clock.now_us() + lease)

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(LEASE_SECONDS / 3)
            with suppress(PinfoldError):  # a lost claim shows at the end, when it is to be honoured
                await self._update(
                    lambda r: r if r.claim is None else attrs.evolve(r, claim=self._claim())
                )

    async def _make(self, before: SandboxRecord, reason: str) -> Instance:
        maker = await self._maker()
        pinned, generation = before.pinned, before.generation + 1
        ctx = maker.context(generation)
        provider = maker.provider
        if provider is not None and (before.generation or reason == "takeover"):
            with typed_errors():
                # What an earlier incarnation, or a dead claimant, left behind (LC-2).
                refs = [
                    *([before.ref] if before.ref else []),
                    *await provider.list(maker.owner, ctx),
                ]
                for ref in dict.fromkeys(refs):
                    await provider.destroy(ref, ctx)
        instance = await maker.create(pinned, generation)
        try:
            with typed_errors():
                await bootstrap(instance, pinned)
                scanned = await self._fill(instance, before)
            kind = EventType.READY
            facts: dict[str, Any] = {}
            if before.generation:
                kind = EventType.RESUMED if reason == "resumed" else EventType.RECOVERED
                facts = {
                    **_instance_facts(before),
                    "current_instance_id": instance.ref.id,
                    "checkpoint_id": before.checkpoint_id,
                }
            await self._update(
                lambda r: attrs.evolve(
                    self._active(r),
                    observed=ObservedState.READY,
                    ref=instance.ref,
                    claim=None,
                    restoring=None,
                    checkpoint_id=r.restoring or r.checkpoint_id,
                ),
                (kind, facts),
            )
        except BaseException:
            await maker.discard(instance)
            raise
        self._hold(instance, self._record, scanned)
        return instance

    async def _give_up(self, before: SandboxRecord, exc: BaseException) -> None:
        """Let the claim go, so that the next operation may try at once (LC-6)."""
        failed = isinstance(exc, PinfoldError) and "exit_code" in exc.details
        observed = ObservedState.FAILED if failed or not before.generation else ObservedState.LOST
        failure = scrub_error(exc).to_dict() if isinstance(exc, PinfoldError) else None
        events = ((EventType.FAILED, failure or {}),) if failed else ()
        with anyio.move_on_after(END_TIMEOUT_SECONDS), suppress(PinfoldError):
            await self._update(
                lambda r: attrs.evolve(r, observed=observed, claim=None, failure=failure), *events
            )
        # Nobody else moved on: the next operation of this very handle may try again.
        self._generation = None


async def _status(instance: Instance) -> InstanceStatus:
    try:
        return await instance.status()
    except PinfoldError:
        return InstanceStatus.UNREACHABLE
    except Exception as exc:  # noqa: BLE001 - a provider's bug is no proof of absence
        raise provider_failure(exc) from None


async def _let_go(instance: Instance) -> None:
    """Free what we still hold of an instance that is gone: descriptors, processes, connections."""
    deadline = anyio.move_on_after(END_TIMEOUT_SECONDS, shield=True)
    with suppress(PinfoldError), deadline, typed_errors():
        await instance.detach()


def _lost(record: SandboxRecord) -> Lost:
    return Lost(
        f"the compute of {record.name!r} is gone, and durability {record.pinned.spec.durability}"
        " keeps no copy of its files",
        hint="open another one; durability checkpointed would have brought it back",
        details={"sandbox_id": record.id, "generation": record.generation},
    )


def _instance_facts(record: SandboxRecord) -> dict[str, Any]:
    return {
        "provider": record.pinned.provider,
        "previous_instance_id": record.ref.id if record.ref is not None else None,
        "process_state_lost": True,
    }
