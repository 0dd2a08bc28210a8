"""The importable front end: run checks on a lane, no test framework needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio.to_thread

from pinfold.testing import Lane
from pinfold_conformance._options import Options
from pinfold_conformance._profiles import PROFILES
from pinfold_conformance._session import Session
from pinfold_conformance._verdicts import Outcome, Report

__all__ = ["run", "run_checks"]


def run(
    lane: Lane, options: Options | None = None, told: Callable[[Outcome], None] | None = None
) -> Report:
    """Run checks on a lane and return what they came to; never raises for what a target does.

    Args:
        lane: the target.
        options: how.
        told: is called with each outcome as it comes.
    """
    with Session(lane, options) as session:
        for planned in session.plan():
            before = len(session.outcomes)
            session.run(planned)
            for outcome in session.outcomes[before:]:  # more than one, where a claim is denied
                if told is not None:
                    told(outcome)
        last = session.finish()
        if told is not None and last is not None:
            told(last)
        return session.report()


async def run_checks(lane: Lane, profile: str = "ci", options: Options | None = None) -> Report:
    """Run checks on a lane, from any event loop; the target lives in a loop of its own.

    Args:
        lane: the target.
        profile: smoke, remote, ci or nightly; where `options` are given, they decide.
        options: everything else.
    """
    chosen = options or Options(profile=PROFILES[profile])
    return await anyio.to_thread.run_sync(partial(run, lane, chosen), abandon_on_cancel=True)
