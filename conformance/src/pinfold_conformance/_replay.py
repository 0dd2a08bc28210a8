"""Doing a recorded trace again, on any target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pinfold.testing import Lane
from pinfold_conformance import _registry
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed
from pinfold_conformance._options import Options
from pinfold_conformance._session import Planned, Session
from pinfold_conformance._trace import NotATrace, Trace, load
from pinfold_conformance._verdicts import Level, Outcome
from pinfold_conformance.machines import MACHINES
from pinfold_conformance.machines import replay as run_steps

__all__ = ["NotATrace", "load", "replay"]


def replay(trace: Trace, lane: Lane, *, connect: Callable[[str], Any] | None = None) -> Outcome:
    """Do a trace's steps on a lane and return what they come to.

    Raises:
        NotATrace: it names no machine that there is.
    """
    kind = MACHINES.get(trace.machine)
    if kind is None:
        raise NotATrace(f"there is no machine {trace.machine!r}; there are {', '.join(MACHINES)}")

    async def body(case: Case) -> None:
        machine = kind(case)
        try:
            reason = await run_steps(machine, trace.steps)
        finally:
            await machine.close()
        case.evidence["steps"] = len(trace.steps)
        if reason is not None:
            case.trace = trace.to_json()
            raise CheckFailed(reason)

    check = _registry.Check(
        id=f"machine.{trace.machine}",
        clauses=(),
        level=Level.MUST,
        kind=_registry.Kind.STOCHASTIC,
        needs=frozenset(),
        place=_registry.Place.OWN,
        each_spec=False,
        profile="remote",
        deadline_s=300,
        title="a recorded trace",
        run=body,
    )
    options = Options() if connect is None else Options(connect=connect)
    with Session(lane, options) as session:
        if session.problem is not None:
            return session.problem
        outcome = session.run(Planned(check, 0))
        session.finish()
    if outcome is None:
        raise TypeError("a check without needs is never omitted")
    return outcome
