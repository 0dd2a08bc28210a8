"""Removing what crashed runs left behind, by their ledgers and by their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio

from pinfold.provider import Context, Owner
from pinfold.testing import Lane
from pinfold_conformance._ledger import Ledger, left_behind
from pinfold_conformance._targets import NoSuchTarget, find_lanes

__all__ = ["sweep"]

DEADLINE_S = 120.0


def sweep(
    folder: Path,
    connect: Callable[[str], Any],
    lane_of: Callable[[str], Lane | None] | None = None,
) -> Iterator[tuple[str, bool]]:
    """Remove what is left of each crashed run; yield what was done, and whether it succeeded.

    Args:
        folder: of the ledgers.
        connect: resolves connections.
        lane_of: a lane by its name; where it knows none, the installed ones.
    """
    count = 0
    for ledger in left_behind(folder):
        count += 1
        if isinstance(ledger, Path):
            yield f"{ledger}: damaged: what that run left is not known; the file stays", False
            continue
        lane = (lane_of and lane_of(ledger.target)) or _installed(ledger.target)
        if lane is None:
            yield (
                (
                    f"{ledger.run}: the lane {ledger.target!r} is not installed: nothing done "
                    "(one that is given as module:attribute is named beside --sweep)"
                ),
                False,
            )
            continue
        try:
            removed = anyio.run(_remove, ledger, lane, connect)
        except Exception as exc:  # noqa: BLE001 - whatever a provider raises
            yield f"{ledger.run} on {ledger.target}: {type(exc).__name__}: {exc}", False
            continue
        ledger.close()
        yield f"{ledger.run} on {ledger.target}: {removed} removed", True
    if not count:
        yield "nothing is left behind", True


def _installed(name: str) -> Lane | None:
    try:
        (found,) = find_lanes(name)
    except (NoSuchTarget, ValueError):
        return None
    return found.lane


async def _remove(ledger: Ledger, lane: Lane, connect: Callable[[str], Any]) -> int:
    owner, removed = Owner(store=ledger.run), 0
    ctx = Context(owner=owner, connect=connect)
    with anyio.fail_after(DEADLINE_S):
        for ref in reversed(list(ledger.refs)):
            await lane.provider.destroy(ref, ctx)
            ledger.forget(ref)
            removed += 1
        for ref in await lane.provider.list(owner, ctx):
            await lane.provider.destroy(ref, ctx)
            removed += 1
    return removed
