"""The conformance suite of pinfold: every clause of the contract as checks for any adapter.

Write a `pinfold.testing.Lane` for your target, then `pinfold conform TARGET`, or
`pytest --pyargs pinfold_conformance.suite --pinfold-target TARGET`, or `await run_checks(lane)`.
"""

from __future__ import annotations

from pinfold_conformance._case import Case as Case
from pinfold_conformance._expect import equal as equal
from pinfold_conformance._expect import expect_raises as expect_raises
from pinfold_conformance._expect import require as require
from pinfold_conformance._options import Options as Options
from pinfold_conformance._profiles import PROFILES as PROFILES
from pinfold_conformance._profiles import Profile as Profile
from pinfold_conformance._registry import Check as Check
from pinfold_conformance._registry import Kind as Kind
from pinfold_conformance._registry import Place as Place
from pinfold_conformance._registry import all_checks as all_checks
from pinfold_conformance._registry import check as check
from pinfold_conformance._run import run as run
from pinfold_conformance._run import run_checks as run_checks
from pinfold_conformance._session import Session as Session
from pinfold_conformance._verdicts import Level as Level
from pinfold_conformance._verdicts import Outcome as Outcome
from pinfold_conformance._verdicts import Report as Report
from pinfold_conformance._verdicts import Result as Result
from pinfold_conformance._verdicts import Verdict as Verdict

__all__ = [
    "PROFILES",
    "Case",
    "Check",
    "Kind",
    "Level",
    "Options",
    "Outcome",
    "Place",
    "Profile",
    "Report",
    "Result",
    "Session",
    "Verdict",
    "all_checks",
    "check",
    "equal",
    "expect_raises",
    "require",
    "run",
    "run_checks",
]
