"""Does a certificate hold together? All that follows from its outcomes is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from pinfold.spec import digest_of
from pinfold_conformance._certificate import SCHEMA, evidence, requirements_digest
from pinfold_conformance._profiles import PROFILES, Profile
from pinfold_conformance._registry import Check, all_checks
from pinfold_conformance._verdicts import STRAYS, Level, Outcome, Report, Result, Verdict

__all__ = ["verify"]

#: Needs whose absence a certificate does not show: their reason stands beside the check.
_UNSEEN = ("durability", "limit", "connection", "unprivileged")
#: Needs that a spec's label tells, by their place in it (`isolated/deny/checkpointed`).
_IN_LABEL = {"level": 0, "network": 1, "keeps": 2}


def verify(form: Any) -> list[str]:
    """Return what is wrong with a certificate; nothing means that it holds together.

    Its digest, counts, result, claims, attacks and clean-up are computed again from its outcomes.
    Every check of its profile that this suite knows must be accounted for on every spec, with the
    clauses, level and kind that this suite gives it.
    """
    if not isinstance(form, Mapping) or form.get("schema") != SCHEMA:
        return [f"this is no certificate of schema {SCHEMA}"]
    try:
        return list(_problems(form))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        return [f"the certificate is malformed: {type(exc).__name__}: {exc}"]


def _problems(form: Mapping[str, Any]) -> Iterator[str]:
    body = {name: value for name, value in form.items() if name != "digest"}
    if form["digest"] != digest_of(body):
        yield "the digest is not that of its content: it was changed"
    outcomes = [_outcome(one) for one in form["outcomes"]]
    again = Report(target=form["target"], outcomes=outcomes)
    if form["counts"] != again.counts:
        yield "the counts are not those of its outcomes"
    if form["result"] != str(again.result):
        yield f"the result is {form['result']!r}; its outcomes come to {str(again.result)!r}"
    if form["suite"]["checks"] != requirements_digest():
        yield (
            f"it was issued by another suite ({form['suite']['version']}): "
            "its checks can't be compared with those of this one"
        )
        return
    checks = {one.id: one for one in all_checks()}
    yield from _relabelled(outcomes, checks)
    for name, value in evidence(outcomes).items():
        if form[name] != value:
            yield f"{name} is not what its outcomes show"
    run = form["run"]
    profile = PROFILES.get(run["profile"]["name"])
    if profile is None:
        yield f"there is no profile {run['profile']['name']!r}"
        return
    if run["profile"] != attrs.asdict(profile):
        yield f"the numbers are not those of the profile {profile.name}"
    if not profile.derandomize:
        yield f"the profile {profile.name} is randomised: certificates come from the others"
    if run["only"]:
        yield "only some checks were run"
    else:
        yield from _unaccounted(outcomes, run, profile)
    yield from _left_out(outcomes, run, checks)
    if form["result"] == str(Result.CONFORMANT) and form["cleanup"] != "pass":
        yield "it claims conformance without a proof of clean-up"


def _outcome(one: Mapping[str, Any]) -> Outcome:
    return Outcome(
        check=one["check"],
        spec=one["spec"],
        clauses=tuple(one["clauses"]),
        level=Level(one["level"]),
        kind=one["kind"],
        verdict=Verdict(one["verdict"]),
        evidence=one.get("evidence", {}),
    )


def _relabelled(outcomes: Sequence[Outcome], checks: Mapping[str, Check]) -> Iterator[str]:
    for one in outcomes:
        known = checks.get(one.check)
        if known is None:
            if one.check != STRAYS and one.kind != "setup":
                yield f"there is no check {one.check!r}"
        elif (one.level, one.clauses, one.kind) != (known.level, known.clauses, str(known.kind)):
            yield f"{one.check} is not told as the {known.level} of {known.kind} that it is"


def _unaccounted(
    outcomes: Sequence[Outcome], run: Mapping[str, Any], profile: Profile
) -> Iterator[str]:
    """Name what the profile asks for and neither came to a verdict nor was left out."""
    told = {f"{one.check} [{one.spec}]" for one in outcomes} | set(run["omitted"])
    labels = [one["label"] for one in run["specs"]]
    missing = [
        name
        for one in all_checks()
        if PROFILES[one.profile].rank <= profile.rank
        for label in (labels if one.each_spec else labels[:1])
        if (name := f"{one.id} [{label}]") not in told
    ]
    if missing or not labels:
        yield f"checks of the profile are not accounted for: {', '.join(missing) or 'all'}"


def _left_out(
    outcomes: Sequence[Outcome], run: Mapping[str, Any], checks: Mapping[str, Check]
) -> Iterator[str]:
    """Name what was left out although nothing that the check needs allows that."""
    told = {f"{one.check} [{one.spec}]" for one in outcomes}
    for name in run["omitted"]:
        check, _, label = name.removesuffix("]").partition(" [")
        if name in told:
            yield f"{name} is told twice: with a verdict, and as left out"
        elif check not in checks:
            yield f"there is no check {check!r}"
        elif not any(_may_lack(need, label, outcomes, run) for need in checks[check].needs):
            yield f"{name} can't be left out: nothing that it needs is lacking"


def _may_lack(need: str, label: str, outcomes: Sequence[Outcome], run: Mapping[str, Any]) -> bool:
    """Say whether the question behind a need does not arise on a spec, as far as can be seen."""
    kind, _, rest = need.partition(":")
    if need.startswith("!"):
        return not _denied(need.removeprefix("!"), label, outcomes)
    if need == "hook:other":
        return run["other"] is None
    if kind in _IN_LABEL:
        return bool(label.split("/")[_IN_LABEL[kind]] != rest)
    return kind in _UNSEEN


def _denied(claim: str, label: str, outcomes: Sequence[Outcome]) -> bool:
    """Say whether the outcomes on a spec show that a claim is denied there."""
    needs = {one.id: one.needs - {"exec"} for one in all_checks()}
    asked = [one for one in outcomes if one.spec == label and claim in needs.get(one.check, ())]
    tried = any(one.verdict is not Verdict.NOT_CLAIMED for one in asked)
    return not tried and any(needs[one.check] == {claim} for one in asked)
