"""Leases and collections: how a writer and a collector stay out of each other's way (CP-10).

There is no lock; object stores have none. Instead:

A **writer** puts a lease before it trusts that any object exists, puts its record last, and then
looks whether its lease is still there; only then it has committed. A **collector** publishes the
list of what it is about to set aside, moves those objects to `fossils/`, and only then looks which
leases there are. It deletes a fossil when each of these is gone and no record needs it, and moves
it back when one does.

So a writer has either been seen by the collector, which then waits for its record; or it started
later, has read the list, and asks for each object on it by name. What it finds by name after it
took its lease stays in reach; what it knows from its base checkpoint, without asking, stays in
reach unless it is on a list. A reader that misses an object looks among the fossils.

A lease that is older than `lease_seconds`, by the store's own clock, is a dead writer's: a
collector removes it, then reads the records. A writer that was only slow finds its lease gone,
takes its record back and fails. No clock needs to be right for any of this to be safe.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import attrs

from pinfold.checkpoint._codec import unpack
from pinfold.checkpoint._io import Io
from pinfold.checkpoint._keys import FOSSILS, LEASES
from pinfold.checkpoint._manifest import Damaged
from pinfold.checkpoint._objects import ObjectInfo
from pinfold.checkpoint._tasks import CLEAN_UP_SECONDS
from pinfold.errors import Forbidden, NoSpace, PinfoldError, Unavailable

__all__ = ["LIST", "LIST_BYTES", "SEEN", "Leases", "expired", "suspects"]

#: In a collection's folder: what it sets aside, and the leases that it saw afterwards.
LIST: Final = "list"
SEEN: Final = "leases"
LIST_BYTES: Final = 2**30


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
    """Return the keys that collections under way set aside, or are about to."""
    keys: set[str] = set()
    lists: list[str] = []
    for info in await io.list(FOSSILS):
        _, _, key = info.key.removeprefix(f"{FOSSILS}/").partition("/")
        if key == LIST:
            lists.append(info.key)
        elif key != SEEN:
            keys.add(key)
    for data in (await io.find(lists)).values():
        keys |= listed(data)
    return keys


def listed(data: bytes) -> frozenset[str]:
    """Return the keys of a collection's list.

    Raises:
        Unavailable: it can't be read, so that nothing can be taken for granted.
    """
    try:
        return frozenset(unpack(data, LIST_BYTES).decode("ascii").split("\n")) - {""}
    except (Damaged, UnicodeDecodeError) as exc:
        raise Unavailable(
            f"a collection's list is damaged: {exc}", hint="remove it from fossils/ by hand"
        ) from exc
