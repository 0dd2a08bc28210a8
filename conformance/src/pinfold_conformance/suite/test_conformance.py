"""Every check of the chosen profile as one test on each chosen target."""

from __future__ import annotations

from typing import Any

import pytest

from pinfold_conformance._verdicts import Outcome, Verdict

__all__ = ["test_conformance"]


def test_conformance(pinfold_check: Any, pinfold_running: Any, record_property: Any) -> None:
    """The target keeps the clause behind the check."""
    found, planned = pinfold_check
    if found.lane is None:
        pytest.fail(found.problem, pytrace=False)
    session = pinfold_running.session(found.name, found.lane)
    if session.problem is not None:
        outcome = session.problem
    elif planned is None:
        outcome = session.finish()
    else:
        outcome = session.run(planned)
    if outcome is None:
        record_property("verdict", "does not apply")
        return
    record_property("verdict", str(outcome.verdict))
    record_property("clauses", " ".join(outcome.clauses))
    _tell(outcome)


def _tell(outcome: Outcome) -> None:
    match outcome.verdict:
        case Verdict.FAIL | Verdict.ENGINE_ERROR:
            pytest.fail(f"{outcome.verdict}: {outcome.reason}", pytrace=False)
        case Verdict.INCONCLUSIVE:
            pytest.skip(outcome.reason)
        case Verdict.KNOWN_FAILURE:
            pytest.xfail(outcome.reason)
        case _:
            return
