"""The certificate of a run: what was tested, how, and what it came to, under one digest.

It is evidence against error, not against a lie: whoever wants to know runs the suite again, with
the command that the certificate holds.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Final

from pinfold.provider import Provider
from pinfold.spec import CONTRACT, digest_of
from pinfold_conformance._registry import all_checks
from pinfold_conformance._verdicts import STRAYS, Outcome, Report, Verdict

__all__ = ["SCHEMA", "certificate", "evidence", "requirements_digest"]

SCHEMA: Final = "pinfold-conformance-certificate/1"


def certificate(report: Report, provider: Provider | None, *, command: str = "") -> dict[str, Any]:
    """Return a run's certificate, JSON-able, its own digest included.

    Args:
        report: of the run.
        provider: that was tested; None when it could not even be loaded.
        command: that reproduces the run.
    """
    body = {
        "schema": SCHEMA,
        "contract": CONTRACT,
        "suite": {
            "name": "pinfold-conformance",
            "version": _version("pinfold-conformance"),
            "checks": requirements_digest(),
        },
        "core": _version("pinfold"),
        "target": report.target,
        "adapter": _adapter(provider) if provider is not None else None,
        "result": str(report.result),
        "counts": report.counts,
        "run": _jsonable(report.facts),
        **evidence(report.outcomes),
        "outcomes": [_outcome(one) for one in report.outcomes],
        "platform": {"python": platform.python_version(), "system": platform.platform()},
        "reproduce": command,
    }
    return {**body, "digest": digest_of(body)}


def evidence(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what a certificate says of its outcomes besides themselves."""
    return {
        "claims": _claims(outcomes),
        "attacks": _attacks(outcomes),
        "cleanup": _cleanup(outcomes),
    }


def _version(dist: str) -> str:
    try:
        return version(dist)
    except PackageNotFoundError:
        return "unknown"


def requirements_digest() -> str:
    """Return the digest over the ids, clauses and levels of all checks."""
    return digest_of([[one.id, list(one.clauses), str(one.level)] for one in all_checks()])


def _adapter(provider: Provider) -> dict[str, Any]:
    package = type(provider).__module__.partition(".")[0]
    dists = packages_distributions().get(package, [])
    dist = dists[0] if dists else provider.descriptor.dist or package
    return {
        "provider": provider.descriptor.name,
        "dist": dist,
        "version": _version(dist),
        "package_sha256": _package_hash(package),
    }


def _package_hash(package: str) -> str:
    """Return the hash over a package's files: names and contents."""
    origin = getattr(import_module(package), "__file__", None) or sys.modules[package].__name__
    root = Path(origin).parent
    total = sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix not in (".pyc", ".pyo"):
            total.update(str(path.relative_to(root)).encode() + b"\0")
            total.update(sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _outcome(one: Outcome) -> dict[str, Any]:
    form: dict[str, Any] = {
        "check": one.check,
        "spec": one.spec,
        "clauses": list(one.clauses),
        "level": str(one.level),
        "kind": one.kind,
        "verdict": str(one.verdict),
        "duration_ms": round(one.duration_ms, 1),
        "operations": one.operations,
    }
    optional = {
        "reason": one.reason,
        "evidence": _jsonable(one.evidence),
        "warnings": list(one.warnings),
        "trace": _jsonable(one.trace),
        "issue": one.issue,
    }
    return form | {name: value for name, value in optional.items() if value}


def _claims(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return each claim with the checks that prove or refute it."""
    checks = {one.id: one for one in all_checks()}
    found: dict[str, dict[str, Any]] = {}
    for one in outcomes:
        needs = checks[one.check].needs if one.check in checks else frozenset()
        if one.kind != "claim" or one.verdict is Verdict.NOT_CLAIMED:
            continue
        for need in sorted(needs - {"exec"}):
            kind = need.partition(":")[0]
            if kind in ("hook", "limit") or need == "attack":
                continue
            name, claimed = need.removeprefix("!"), not need.startswith("!")
            entry = found.setdefault(name, {"claimed": claimed, "evidence": {}})
            entry["evidence"][f"{one.check} [{one.spec}]"] = str(one.verdict)
    return dict(sorted(found.items()))


def _attacks(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    return {
        f"{one.check} [{one.spec}]": {"verdict": str(one.verdict), **_jsonable(one.evidence)}
        for one in outcomes
        if one.kind == "attack" or one.check == "script.attack" or "tries" in one.evidence
    }


def _cleanup(outcomes: Iterable[Outcome]) -> str:
    return next((str(one.verdict) for one in outcomes if one.check == STRAYS), "not run")
