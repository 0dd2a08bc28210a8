"""What comes before all checks: is the target there, and do its specs resolve and pin?"""

from __future__ import annotations

from typing import Any

import attrs

from pinfold.plugins import Catalog
from pinfold.provider import Context, Owner
from pinfold.resolve import pin, resolve
from pinfold.spec import PinnedSpec, Spec
from pinfold.testing import Lane
from pinfold_conformance._case import Site
from pinfold_conformance._expect import Inconclusive
from pinfold_conformance._guard import Meter
from pinfold_conformance._guard_lane import unguarded
from pinfold_conformance._ledger import Ledger
from pinfold_conformance._options import Options
from pinfold_conformance.dialects import DIALECTS

__all__ = ["available", "sites_of"]


async def available(lane: Lane) -> dict[str, Any]:
    """Return what a target's probe tells (PR-4).

    Raises:
        Inconclusive: the target is not available here.
    """
    reason = await lane.unavailable()
    if reason is not None:
        raise Inconclusive(f"the target is unavailable: {reason}")
    probe = await lane.provider.probe()
    if not probe.available:
        raise Inconclusive(f"the target is unavailable: {probe.reason}")
    return {"available": probe.available, **probe.details}


async def sites_of(lane: Lane, options: Options, ledger: Ledger, meter: Meter) -> list[Site]:
    """Resolve and pin a lane's specs, and the first of the second lane where there is one.

    Raises:
        Inconclusive: the second lane is not available here.
        ValueError: there are no specs.
    """

    async def site(lane: Lane, spec: Spec) -> Site:
        catalog = options.catalog or Catalog([lane.provider])
        # Core names what a provider's own functions raise, so they are asked without our guard.
        judging = options.catalog or Catalog([unguarded(lane.provider)])
        resolved = resolve(spec, judging)
        ctx = Context(owner=Owner(store=ledger.run), connect=options.connect)
        pinned: PinnedSpec = await pin(resolved, catalog, ctx)
        contained = resolved.containment
        return Site(
            lane=lane,
            pinned=pinned,
            label=f"{contained.level}/{contained.network.mode}/{resolved.durability}",
            profile=options.profile,
            meter=meter,
            ledger=ledger,
            connect=options.connect,
            strict=options.strict,
            scale=options.scale,
            cleanup_s=options.cleanup_s,
            dialect=options.dialect or DIALECTS[0],
            seed=options.seed,
        )

    sites = [await site(lane, spec) for spec in lane.specs]
    if not sites:
        raise ValueError("the lane has no specs")
    other = options.other
    if other is not None:
        reason = await other.unavailable()
        if reason is not None:
            raise Inconclusive(f"the other target is unavailable: {reason}")
        second = await site(other, other.specs[0])
        sites = [attrs.evolve(one, other=second) for one in sites]
    return sites
