"""One try of one check: it ends at its deadline, and whatever it raises is a verdict."""

from __future__ import annotations

import anyio
import attrs

from pinfold_conformance._blame import classify
from pinfold_conformance._case import Case
from pinfold_conformance._verdicts import Verdict

__all__ = ["Attempt", "attempt"]


@attrs.frozen
class Attempt:
    """What a try came to.

    Attributes:
        verdict: what it came to.
        reason: why.
        overran: it was ended at its deadline.
    """

    verdict: Verdict
    reason: str = ""
    overran: bool = False


async def attempt(case: Case, deadline_s: float) -> Attempt:
    """Run a case's check; raises nothing but the caller's own cancellation."""
    try:
        with anyio.move_on_after(deadline_s) as scope:
            await case.check.run(case)
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as exc:  # noqa: BLE001 - also what no adapter should raise
        return Attempt(*classify(exc))
    if scope.cancelled_caught:
        return Attempt(Verdict.FAIL, f"it did not end within {deadline_s:g} s", overran=True)
    return Attempt(Verdict.PASS)
