"""What keeps stores clean and idle sandboxes asleep: `gc` and `reap` (LC-7, LC-9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import attrs

from pinfold._register import Register
from pinfold.connections import redact
from pinfold.errors import PinfoldError, Unavailable
from pinfold.plugins import Loaded
from pinfold.provider import Context, InstanceRef, Owner, Provider
from pinfold.sandbox._durable import DurableLife
from pinfold.sandbox._ending import end_for_good
from pinfold.sandbox._record import Records
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import DesiredState, ObservedState
from pinfold.sandbox._store import Store

__all__ = ["Upkeep", "gc", "gc_ephemeral", "reap"]


@attrs.frozen(kw_only=True)
class Upkeep:
    """What was done.

    Attributes:
        done: what was ended, removed or paused: ids.
        failed: what could not be, and why.
    """

    done: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Upkeep) -> Upkeep:
        return Upkeep(done=self.done + other.done, failed=self.failed + other.failed)


def _context(runtime: Runtime, owner: Owner, connection_id: str | None) -> Context:
    return Context(
        owner=owner, connect=runtime.registered.resolve, connection_id=connection_id, generation=0
    )


async def gc_ephemeral(runtime: Runtime | None = None) -> Upkeep:
    """End what ephemeral sandboxes left whose controllers are gone (LC-9).

    Instances are found by the register, and by their labels: an engine may go on with a create
    after its controller was killed, and be done only after the register's entry was acted on.
    """
    runtime = runtime or Runtime()
    register = Register(runtime.register)
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    for claim in register.abandoned():
        try:
            for ref in reversed(claim.refs):
                await _destroy(runtime, ref, register.store)
        except Exception as exc:  # noqa: BLE001 - one that can't be ended hides no other
            failed.append((claim.sandbox, redact(str(exc))))
            claim.close()
        else:
            claim.release()
            done.append(claim.sandbox)

    async def strays(refs: Sequence[InstanceRef]) -> list[InstanceRef]:
        held = set(register.held())
        return [ref for ref in refs if ref.sandbox not in held]

    swept = await _sweep(runtime, Owner(store=register.store), frozenset(), strays)
    return Upkeep(done=tuple(done), failed=tuple(failed)) + swept


async def _destroy(runtime: Runtime, ref: InstanceRef, store: str) -> None:
    found = runtime.catalog.find(ref.provider)
    if not isinstance(found, Loaded):
        raise Unavailable(f"provider {ref.provider} can't be used: {found or 'not installed'}")
    provider: Provider = found.value
    connection = ref.data.get("connection_id")
    owner = Owner(store=store, sandbox=ref.sandbox)
    ctx = _context(runtime, owner, connection if isinstance(connection, str) else None)
    await provider.destroy(ref, ctx)


async def gc(store: Store, runtime: Runtime | None = None) -> Upkeep:
    """Remove instances without a live sandbox in this store, and contents that nothing needs.

    Nothing else is touched: instances are found by the labels of this store alone (LC-9).
    """
    runtime = await (runtime or Runtime()).ready()
    records = Records(store.state, runtime)
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    for stored in await records.all():
        record = stored.record
        if record.desired is DesiredState.DELETED and record.observed is not ObservedState.DELETED:
            try:
                await end_for_good(stored, store, runtime)
                done.append(record.id)
            except PinfoldError as exc:
                failed.append((record.id, str(exc)))
    owner = Owner(store=await store.state.identity())
    connections: set[tuple[str, str | None]] = set()
    for stored in await records.all():
        target = stored.record.pinned.spec.target
        if target is not None:
            connections.add((target.provider, target.connection_id))

    async def strays(refs: Sequence[InstanceRef]) -> list[InstanceRef]:
        return await _strays(records, refs, runtime)

    swept = await _sweep(runtime, owner, connections, strays)
    try:
        await store.checkpoints.collect()
    except PinfoldError as exc:  # it hides nothing of the rest
        failed.append(("the store", str(exc)))
    done = [*dict.fromkeys([*done, *swept.done])]
    return Upkeep(done=tuple(done), failed=(*failed, *swept.failed))


async def _sweep(
    runtime: Runtime,
    owner: Owner,
    connections: AbstractSet[tuple[str, str | None]],
    strays: Callable[[Sequence[InstanceRef]], Awaitable[Sequence[InstanceRef]]],
) -> Upkeep:
    """Destroy those of a store's instances that are strays, on all targets that can be asked.

    Args:
        runtime: whose providers are asked.
        owner: the store.
        connections: providers and connections that are known to be in use: one of these that is
            away is a failure.
        strays: picks from a listing; asked after it, so an instance that is listed was claimed
            before.
    """
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    for item in runtime.catalog.describe():
        if not isinstance(item, Loaded):
            continue
        provider: Provider = item.value
        for connection_id in {c for name, c in connections if name == item.name} | {None}:
            ctx = _context(runtime, owner, connection_id)
            try:
                refs = await provider.list(owner, ctx)
            except Exception as exc:  # noqa: BLE001 - one that is away hides no other
                if (item.name, connection_id) in connections:
                    failed.append((item.name, redact(str(exc))))
                continue
            for ref in await strays(refs):
                try:
                    await provider.destroy(ref, ctx)
                    done.append(ref.id)
                except Exception as exc:  # noqa: BLE001
                    failed.append((ref.id, redact(str(exc))))
    return Upkeep(done=tuple(done), failed=tuple(failed))


async def _strays(
    records: Records, refs: Sequence[InstanceRef], runtime: Runtime
) -> list[InstanceRef]:
    alive = {stored.record.id: stored.record for stored in await records.all()}
    strays = []
    now = runtime.clock.now_us()
    for ref in refs:
        record = alive.get(ref.sandbox or "")
        if record is None or record.observed is ObservedState.DELETED:
            strays.append(ref)
        elif record.claim is not None and record.claim.expires_us > now:
            continue  # somebody is making it right now
        elif record.ref is None or record.ref.id != ref.id:
            strays.append(ref)
    return strays


async def reap(
    store: Store,
    runtime: Runtime | None = None,
    *,
    told: Callable[[str], object] = lambda _: None,
) -> Upkeep:
    """Do what is overdue for idle sandboxes, whoever holds them or nobody (LC-7)."""
    runtime = await (runtime or Runtime()).ready()
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    now = runtime.clock.now_us()
    for stored in await Records(store.state, runtime).all():
        record = stored.record
        deadline = record.idle_deadline_us
        if deadline is None or deadline > now or record.observed is not ObservedState.READY:
            continue
        life = DurableLife(record, store, runtime)
        try:
            if await life.act_on_idle():
                done.append(record.id)
                told(record.id)
        except PinfoldError as exc:
            failed.append((record.id, str(exc)))
        finally:
            with suppress(PinfoldError):
                await life.close()
    return Upkeep(done=tuple(done), failed=tuple(failed))
