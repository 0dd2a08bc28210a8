"""The end of a durable sandbox, whoever brings it about (LC-9)."""

from __future__ import annotations

import attrs

from pinfold.events import EventType
from pinfold.provider import Context, Instance, Owner, Provider
from pinfold.sandbox._provision import Maker, typed_errors
from pinfold.sandbox._record import Records, SandboxRecord, Stored
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._states import ObservedState
from pinfold.sandbox._store import Store

__all__ = ["end_for_good"]


async def end_for_good(
    stored: Stored, store: Store, runtime: Runtime, instance: Instance | None = None
) -> None:
    """End all compute of a sandbox that is desired to be deleted, then say that it is."""
    record = stored.record
    owner = Owner(store=await store.state.identity(), sandbox=record.id)
    maker = Maker(runtime=runtime, spec=record.pinned.spec, owner=owner)
    with typed_errors():
        if instance is not None:
            await instance.destroy()
        provider = maker.provider
        if provider is not None:
            ctx = maker.context(record.generation)
            await _clear(provider, record, owner, ctx)
    await store.checkpoints.forget(record.id)
    await Records(store.state, runtime).update(
        record.id,
        lambda r: attrs.evolve(
            r,
            observed=ObservedState.DELETED,
            ref=None,
            checkpoint_id=None,
            idle_deadline_us=None,
        ),
        (EventType.DELETED, {}),
        free_name=True,
    )


async def _clear(provider: Provider, record: SandboxRecord, owner: Owner, ctx: Context) -> None:
    """End everything that carries a sandbox's labels, and what its record names."""
    refs = [record.ref] if record.ref is not None else []
    for ref in dict.fromkeys([*refs, *await provider.list(owner, ctx)]):
        await provider.destroy(ref, ctx)
