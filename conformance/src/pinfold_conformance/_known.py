"""Known failures: failures that are expected, each with a reason, an issue, an expiry, a signature.

::

    [[failure]]
    check = "EX-9.unread"
    target = "acme"                      # lane; left out: every lane
    profile = "ci"                       # smallest profile that meets it; left out: every profile
    reason = "the transport closes stdin late"
    issue = "acme-17"
    expires = 2030-01-31
    match = "hangs|did not return"       # a regular expression on the failure's reason

What is listed and passes, has expired, fails in another way or names no check fails the run. A
smaller profile tries less: of a failure that only more tries show, `profile` says from where on it
shows, and in a smaller one the entry does not apply at all.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from pinfold_conformance._profiles import PROFILES, Profile
from pinfold_conformance._registry import all_checks
from pinfold_conformance._verdicts import STRAYS, Outcome, Verdict

__all__ = ["KnownFailure", "KnownFailuresInvalid", "apply", "load"]


class KnownFailuresInvalid(ValueError):
    """The file is no list of known failures; the message says where and why."""


@attrs.frozen(kw_only=True)
class KnownFailure:
    """One entry of the file.

    Attributes:
        check: the check's id.
        reason: why it fails, for people.
        issue: where it is followed.
        expires: the last day on which it is expected.
        match: a regular expression that is found in the failure's reason.
        target: the lane that it is a failure of; None is every lane.
        profile: the smallest profile that meets it; None is every profile.
    """

    check: str
    reason: str
    issue: str
    expires: dt.date
    match: str
    target: str | None = None
    profile: str | None = None

    def applies(self, check: str, target: str, profile: Profile) -> bool:
        """Say whether a check on a lane, in a profile, is expected to fail."""
        return (
            check == self.check
            and self.target in (None, target)
            and (self.profile is None or PROFILES[self.profile].rank <= profile.rank)
        )


def load(path: Path) -> tuple[KnownFailure, ...]:
    """Read a file of known failures.

    Raises:
        KnownFailuresInvalid: it can't be read, or an entry lacks something or names no check or
            no profile.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise KnownFailuresInvalid(f"{path}: {exc}") from exc
    if set(document) - {"failure"} or not isinstance(document.get("failure", []), list):
        raise KnownFailuresInvalid(f"{path}: the file holds [[failure]] tables and nothing else")
    ids = {STRAYS, *(one.id for one in all_checks())}
    return tuple(
        _entry(entry, f"{path}: failure {number}", ids)
        for number, entry in enumerate(document.get("failure", []), 1)
    )


def _entry(entry: Any, where: str, ids: set[str]) -> KnownFailure:
    names = {field.name for field in attrs.fields(KnownFailure)}
    if not isinstance(entry, dict) or set(entry) - names:
        raise KnownFailuresInvalid(f"{where}: the keys are {', '.join(sorted(names))}")
    for name in sorted(names - {"target", "profile"} | set(entry)):
        if not entry.get(name):
            raise KnownFailuresInvalid(f"{where}: {name} is missing or empty")
    for name in sorted(names - {"expires"}):
        if not isinstance(entry.get(name, ""), str):
            raise KnownFailuresInvalid(f"{where}: {name} is a string")
    if type(entry["expires"]) is not dt.date:
        raise KnownFailuresInvalid(f"{where}: expires is a date, as 2030-01-31, without quotes")
    if entry["check"] not in ids:
        raise KnownFailuresInvalid(f"{where}: there is no check {entry['check']!r}")
    if entry.get("profile", "smoke") not in PROFILES:
        raise KnownFailuresInvalid(
            f"{where}: there is no profile {entry['profile']!r}; it is {', '.join(PROFILES)}"
        )
    try:
        re.compile(entry["match"])
    except re.error as exc:
        raise KnownFailuresInvalid(f"{where}: match is no regular expression: {exc}") from exc
    return KnownFailure(**entry)


def apply(
    outcome: Outcome,
    known: Sequence[KnownFailure],
    *,
    target: str,
    profile: Profile,
    today: dt.date,
) -> Outcome:
    """Return an outcome as the known failures make it."""
    mine = [one for one in known if one.applies(outcome.check, target, profile)]
    if not mine:
        return outcome
    if outcome.verdict is Verdict.PASS:
        issues = ", ".join(one.issue for one in mine)
        return attrs.evolve(
            outcome,
            verdict=Verdict.FAIL,
            reason=f"it passes, but is a known failure ({issues}): strike it from the list",
        )
    if outcome.verdict is not Verdict.FAIL:
        return outcome
    entry = next((one for one in mine if re.search(one.match, outcome.reason)), None)
    if entry is None:
        issues = ", ".join(one.issue for one in mine)
        return attrs.evolve(
            outcome, reason=f"not as the known failure {issues} has it: {outcome.reason}"
        )
    if today > entry.expires:
        return attrs.evolve(
            outcome,
            reason=f"the known failure {entry.issue} expired on {entry.expires}: {outcome.reason}",
        )
    return attrs.evolve(
        outcome,
        verdict=Verdict.KNOWN_FAILURE,
        reason=f"{entry.reason}: {outcome.reason}",
        issue=entry.issue,
    )
