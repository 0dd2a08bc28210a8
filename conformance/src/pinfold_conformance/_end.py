"""The end of a run: everything is destroyed, last in first out, and nothing is left (LC-9)."""

from __future__ import annotations

import anyio

from pinfold.provider import Context, InstanceStatus, Owner
from pinfold.testing import Lane
from pinfold_conformance._blame import told_of
from pinfold_conformance._instances import Instances
from pinfold_conformance._ledger import Ledger
from pinfold_conformance._options import Options
from pinfold_conformance._verdicts import Verdict

__all__ = ["clean_up"]


async def clean_up(
    lane: Lane, options: Options, ledger: Ledger, instances: Instances
) -> tuple[Verdict, str]:
    """End what is shared and what the ledger still names, and ask the provider for strays."""
    limit = options.cleanup_s
    ctx = Context(owner=Owner(store=ledger.run), connect=options.connect)
    problem: str | None = f"clean-up did not end within {limit:g} s"
    with anyio.move_on_after(limit):
        problem = await _end_shared(lane, ctx, ledger, instances)
    if problem is not None:
        return Verdict.FAIL, problem
    failures = []
    with anyio.move_on_after(limit) as scope:
        for ref in reversed(list(ledger.refs)):
            other = options.other
            theirs = other is not None and ref.provider == other.provider.descriptor.name
            provider = other.provider if other and theirs else lane.provider
            try:
                await provider.destroy(ref, ctx)
                ledger.forget(ref)
            except Exception as exc:  # noqa: BLE001 - told in the report
                failures.append(f"{ref.id}: {told_of(exc)}")
        strays = [ref.id for ref in await lane.provider.list(ctx.owner, ctx)]
    if scope.cancelled_caught:
        return Verdict.FAIL, f"clean-up did not end within {limit:g} s"
    if failures:
        return Verdict.FAIL, f"could not be destroyed: {'; '.join(failures)}"
    if strays:
        return Verdict.FAIL, f"{len(strays)} strays are left: {', '.join(strays)}"
    return Verdict.PASS, ""


async def _end_shared(lane: Lane, ctx: Context, ledger: Ledger, instances: Instances) -> str | None:
    """Destroy what checks shared; return what was wrong, first with seeing it, then with it."""
    shared = instances.living or [await instances.make(0)]
    listed = {ref.id for ref in await lane.provider.list(ctx.owner, ctx)}
    problem = None
    for instance in reversed(shared):
        await instance.destroy()
        ledger.forget(instance.ref)
        if await instance.status() is not InstanceStatus.ABSENT:
            problem = "a destroyed instance is not absent (LC-5)"
        elif instance.features.attach and instance.ref.id not in listed:
            problem = "list does not tell of an instance that is there (LC-9)"
    return problem
