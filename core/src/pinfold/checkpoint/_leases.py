"""Leases and collections: how a writer and a collector stay out of each other's way (CP-10).

There is no lock; object stores have none. Instead:

A **writer** puts a lease before it trusts that any object exists, puts its record last, and then
looks whether its lease is still there; only then it has committed. A **collector** moves what no
record needs to `fossils/`, lists what is there and no longer at its own place, only then lists the
leases, and notes which of these it saw beside which fossils. A fossil is deleted once every lease
that was noted for it is gone and no record needs it, and moved back when one does.

So a writer has either been noted, and its record is waited for; or it began after the move, and
sees the fossil. What it finds by name after it took its lease stays in reach; what it knows from
its base checkpoint, without asking, stays in reach unless it is among the fossils, and is then
asked for by name. A reader that misses an object looks among the fossils.

A lease that is older than `lease_seconds`, by the store's own clock, is a dead writer's: a
collector removes it, then reads the records. A writer that was only slow finds its lease gone,
takes its record back and fails. (Killed in just that moment it leaves a record that it never
reported, and that may lack objects; `verify` names it.) No clock needs to be right for what was
reported to be safe.

Any number of collectors may be at work. Each moves into a folder of its own, once, so that a note
about a fossil is about this one and no later one of the same name; any of them may finish what
another began. Where a move is a copy and a deletion, a fossil whose original is there is left alone
until its collector has noted it, or the original is garbage again: half a move looks like that.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import attrs

from pinfold.checkpoint._io import Io
from pinfold.checkpoint._keys import LEASES, fossil_of
from pinfold.checkpoint._objects import ObjectInfo
from pinfold.checkpoint._tasks import CLEAN_UP_SECONDS
from pinfold.errors import Forbidden, NoSpace, PinfoldError, Unavailable

__all__ = ["Leases", "expired", "suspects"]


@attrs.frozen
class Leases:
    """Puts and removes this process's leases.

    Attributes:
        io: the store.
        token: gives random hex digits.
    """

    io: Io
    token: Callable[[], str]

    @asynccontextmanager
    async def hold(self, why: str, *, needed: bool = True) -> AsyncIterator[str]:
        """Hold a lease; it is given back also after a cancellation.

        Args:
            why: for people who look into the store.
            needed: false for a reader, which can do without where nothing may be written.
        """
        key = f"{LEASES}/{self.token()}"
        try:
            await self.io.put({key: json.dumps({"version": 1, "for": why}).encode("ascii")})
        except (Forbidden, NoSpace):
            if needed:
                raise
            yield ""
            return
        try:
            yield key
        finally:
            # One that can't be given back now is found to be dead by a later collection.
            with (
                anyio.move_on_after(CLEAN_UP_SECONDS, shield=True),
                suppress(PinfoldError),
            ):
                await self.io.delete([key])

    async def check(self, key: str) -> None:
        """Make sure that no collector took this lease's holder for dead.

        Raises:
            Unavailable: one did.
        """
        if not await self.io.exists([key]):
            raise Unavailable(
                "the checkpoint took longer than its lease, and a collection went on without it",
                hint="make it again; what was stored is not stored twice",
            )


def expired(lease: ObjectInfo, now: float, seconds: float) -> bool:
    """Say whether a lease is a dead writer's; one from far ahead is too, after a clock's jump."""
    return abs(now - lease.modified) >= seconds


async def suspects(io: Io) -> set[str]:
    """Return the keys that collections under way have set aside."""
    return {key for _, key in map(fossil_of, await io.fossils())}
