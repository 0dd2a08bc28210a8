"""Known failures: failures that are expected, each with a reason, an issue, an expiry, a signature.

::

    [[failure]]
    check = "EX-9.unread"
    target = "acme"                      # lane; left out: every lane
    reason = "the transport closes stdin late"
    issue = "acme-17"
    expires = 2030-01-31
    match = "hangs|did not return"       # a regular expression on the failure's reason

What is listed and passes, has expired, fails in another way or names no check fails the run.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from pinfold_conformance._verdicts import Outcome, Verdict

__all__ = ["KnownFailure", "KnownFailuresInvalid", "apply", "load"]


class KnownFailuresInvalid(ValueError):
    """The file is no list of known failures; the message says where and why."""


@attrs.frozen(kw_only=True)
class KnownFailure:
    """One entry of the file."""

    check: str
    reason: str
    issue: str
    expires: dt.date
    match: str
    target: str | None = None


def load(path: Path, checks: Iterable[str]) -> tuple[KnownFailure, ...]:
    """Read a file of known failures.

    Raises:
        KnownFailuresInvalid: it can't be read, or an entry lacks something or names no check.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise KnownFailuresInvalid(f"{path}: {exc}") from exc
    if set(document) - {"failure"} or not isinstance(document.get("failure", []), list):
        raise KnownFailuresInvalid(f"{path}: the file holds [[failure]] tables and nothing else")
    ids = set(checks)
    return tuple(
        _entry(entry, f"{path}: failure {number}", ids)
        for number, entry in enumerate(document.get("failure", []), 1)
    )


def _entry(entry: Any, where: str, ids: set[str]) -> KnownFailure:
    names = {field.name for field in attrs.fields(KnownFailure)}
    if not isinstance(entry, dict) or set(entry) - names:
        raise KnownFailuresInvalid(f"{where}: the keys are {', '.join(sorted(names))}")
    for name in sorted(names - {"target"}):
        if not entry.get(name):
            raise KnownFailuresInvalid(f"{where}: {name} is missing")
    for name in sorted(names - {"expires"}):
        if not isinstance(entry.get(name, ""), str):
            raise KnownFailuresInvalid(f"{where}: {name} is a string")
    if type(entry["expires"]) is not dt.date:
        raise KnownFailuresInvalid(f"{where}: expires is a date, as 2030-01-31, without quotes")
    if entry["check"] not in ids:
        raise KnownFailuresInvalid(f"{where}: there is no check {entry['check']!r}")
    try:
        re.compile(entry["match"])
    except re.error as exc:
        raise KnownFailuresInvalid(f"{where}: match is no regular expression: {exc}") from exc
    return KnownFailure(**entry)


def apply(outcome: Outcome, known: Sequence[KnownFailure], target: str, today: dt.date) -> Outcome:
    """Return an outcome as the known failures make it."""
    mine = [one for one in known if one.check == outcome.check and one.target in (None, target)]
    if not mine:
        return outcome
    entry = mine[0]
    if outcome.verdict is Verdict.PASS:
        return attrs.evolve(
            outcome,
            verdict=Verdict.FAIL,
            reason=f"it passes, but is a known failure ({entry.issue}): strike it from the list",
        )
    if outcome.verdict is not Verdict.FAIL:
        return outcome
    if today > entry.expires:
        return attrs.evolve(
            outcome,
            reason=f"the known failure {entry.issue} expired on {entry.expires}: {outcome.reason}",
        )
    if not re.search(entry.match, outcome.reason):
        return attrs.evolve(
            outcome, reason=f"not as the known failure {entry.issue} has it: {outcome.reason}"
        )
    return attrs.evolve(
        outcome,
        verdict=Verdict.KNOWN_FAILURE,
        reason=f"{entry.reason}: {outcome.reason}",
        issue=entry.issue,
    )
