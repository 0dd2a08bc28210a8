"""What a check comes to, and what a run of them comes to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import attrs

__all__ = ["STRAYS", "Level", "Outcome", "Report", "Result", "Verdict", "signature_of"]

#: The check at the end of every run, which no profile leaves out: is anything left behind?
STRAYS: Final = "LC-9.strays"


class Level(StrEnum):
    """How binding the clause behind a check is (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class Verdict(StrEnum):
    """What one check came to, best first; the worst decides."""

    PASS = "pass"
    NOT_CLAIMED = "not-claimed"  # the target denies it, and the refutation held
    INCONCLUSIVE = "inconclusive"  # it could not be found out here: never a pass
    KNOWN_FAILURE = "known-failure"  # listed with reason, issue, expiry and signature
    FAIL = "fail"
    ENGINE_ERROR = "engine-error"  # the suite's own fault

    @property
    def rank(self) -> int:
        return list(type(self)).index(self)


class Result(StrEnum):
    """What a whole run came to."""

    CONFORMANT = "conformant"
    PARTIAL = "partial"
    NOT_CONFORMANT = "not conformant"
    ENGINE_ERROR = "engine error"

    @property
    def exit_code(self) -> int:
        """The exit code of `pinfold conform`; 2 is a usage error."""
        return {"conformant": 0, "not conformant": 1, "engine error": 3, "partial": 4}[self]


_VOLATILE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:\.\d+)?", re.IGNORECASE)


def signature_of(check: str, reason: str) -> str:
    """Return what stays the same when the same failure happens again."""
    head = reason.splitlines()[0] if reason else ""
    return f"{check}: {_VOLATILE.sub('N', head)[:200]}"


@attrs.frozen(kw_only=True)
class Outcome:
    """What one check came to on one spec of a target.

    Attributes:
        check: the check's id.
        spec: label of the spec that it ran on (`isolated/deny/checkpointed`).
        clauses: the clauses behind it.
        level: MUST or SHOULD.
        kind: script, law, claim, attack or stochastic.
        verdict: what it came to.
        reason: why, for people; empty for a plain pass.
        duration_ms: wall time, milliseconds.
        operations: calls of the adapter that it made.
        evidence: what it found out besides (attack tries, sizes, which proof), JSON-able.
        warnings: what is wrong but does not count (an underclaim without --strict).
        trace: the minimised steps that fail, JSON-able; null where there are none.
        issue: of a known failure.
    """

    check: str
    spec: str = ""
    clauses: tuple[str, ...] = ()
    level: Level = Level.MUST
    kind: str = "law"
    verdict: Verdict
    reason: str = ""
    duration_ms: float = 0.0
    operations: int = 0
    evidence: Mapping[str, Any] = attrs.field(factory=dict)
    warnings: tuple[str, ...] = ()
    trace: Any = None
    issue: str | None = None

    @property
    def signature(self) -> str:
        """What stays the same when the same failure happens again."""
        return signature_of(self.check, self.reason)


@attrs.frozen(kw_only=True)
class Report:
    """What a run came to.

    Attributes:
        target: the lane's name.
        outcomes: in the order of the run.
        facts: of the run: versions, profile, seed, specs, claims, timings; JSON-able.
    """

    target: str
    outcomes: Sequence[Outcome]
    facts: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def result(self) -> Result:
        """Conformant only when every MUST check passed or was refuted, and something ran."""
        musts = [one for one in self.outcomes if one.level is Level.MUST]
        verdicts = {one.verdict for one in musts}
        if any(one.verdict is Verdict.ENGINE_ERROR for one in self.outcomes):
            return Result.ENGINE_ERROR
        if Verdict.FAIL in verdicts:
            return Result.NOT_CONFORMANT
        # Leaving nothing behind is no proof of having done anything.
        ran = any(one.verdict is Verdict.PASS and one.check != STRAYS for one in musts)
        if not ran or verdicts & {
            Verdict.INCONCLUSIVE,
            Verdict.KNOWN_FAILURE,
        }:
            return Result.PARTIAL
        return Result.CONFORMANT

    @property
    def counts(self) -> dict[str, int]:
        """How many checks came to each verdict, all verdicts named."""
        found = Counter(one.verdict for one in self.outcomes)
        return {str(verdict): found[verdict] for verdict in Verdict}

    def by_id(self, check: str) -> Outcome:
        """Return the worst outcome of a check.

        Raises:
            KeyError: it was not run.
        """
        found = [one for one in self.outcomes if one.check == check]
        if not found:
            raise KeyError(check)
        return max(found, key=lambda one: one.verdict.rank)
