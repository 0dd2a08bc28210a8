"""Small lanes for tests of the engine."""

from collections.abc import Callable, Sequence
from typing import Any

from pinfold.provider import ExecRequest, ExecResult, Instance, Sink
from pinfold_conformance import PROFILES, Case, Check, Kind, Level, Options, Place, Session
from pinfold_conformance._session import Planned
from pinfold_conformance.adapters.toy import ToyLane
from pinfold_conformance.mutants._base import BugInstance, BugLane

REMOTE = PROFILES["remote"]


def make_check(run: Callable[[Case], Any], **changes: Any) -> Check:
    """A check that is in no registry."""
    facts: dict[str, Any] = {
        "id": "EX-1.probe", "clauses": ("EX-1",), "level": Level.MUST, "kind": Kind.LAW,
        "needs": frozenset(), "place": Place.SHARED, "each_spec": False, "profile": "remote",
        "deadline_s": 5.0, "title": "a probe", "run": run,
    }  # fmt: skip
    return Check(**{**facts, **changes})


def outcome_of(run: Callable[[Case], Any], lane: Any = None, options: Any = None, **changes: Any):
    """What one check comes to."""
    with Session(lane or ToyLane(), options or Options(profile=REMOTE)) as session:
        assert session.problem is None, session.problem
        outcome = session.run(Planned(make_check(run, **changes), 0))
        session.finish()
    return outcome


def with_exec(exec_: Callable[..., Any]) -> BugLane:
    """The reference, with another exec."""

    class Changed(BugInstance):
        async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
            result: ExecResult = await exec_(self.inner, request, sink)
            return result

    return BugLane(ToyLane(), wrap=Changed)


class LaneWith(BugLane):
    """The reference's lane, with methods replaced."""

    def __init__(self, **methods: Any) -> None:
        super().__init__(ToyLane())
        for name, method in methods.items():
            setattr(self, name, method)


def ids(outcomes: Sequence[Any]) -> list[str]:
    return [one.check for one in outcomes]


async def nothing(case: Case) -> None:
    """Passes."""


def instance_of(case: Case) -> Instance:
    return case.inner
