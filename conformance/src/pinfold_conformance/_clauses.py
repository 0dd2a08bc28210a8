"""Which checks stand behind each clause, and why some clauses have none here."""

from __future__ import annotations

from typing import Final

from pinfold_conformance._registry import Check, all_checks

__all__ = ["CLAUSES", "REASONS", "by_clause", "table"]

_AREAS: Final = {
    "SP": range(6), "RS": range(1, 10), "PR": range(1, 8), "EX": range(1, 16), "FS": range(1, 8),
    "CP": range(1, 11), "LC": range(1, 10), "ER": range(1, 4), "EV": range(1, 4), "TR": range(1, 3),
}  # fmt: skip

#: Every clause of contract 1.0.
CLAUSES: Final = tuple(f"{area}-{number}" for area, numbers in _AREAS.items() for number in numbers)

_CORE = "core keeps it, whatever the provider"
_STORE = "of the checkpoint store, which is core's: no provider takes part"

#: Clauses without a check of an adapter, each with its reason. What core keeps, core's own tests
#: prove.
REASONS: Final = {
    "SP-0": _CORE,
    "SP-1": _CORE,
    "SP-2": _CORE,
    "SP-3": _CORE,
    "SP-5": "levels are proved one by one: see TR-1",
    "RS-1": _CORE,
    "RS-4": _CORE,
    "RS-5": _CORE,
    "RS-6": _CORE,
    "RS-7": "capabilities are a function of the resolved spec: see PR-3 and TR-1",
    "RS-8": _CORE,
    "RS-9": _CORE,
    "PR-1": _CORE,
    "PR-2": _CORE,
    "CP-10": _STORE,
    "ER-1": "every error that any check meets is held to it (code, message, JSON-able details)",
    "ER-2": "every error that any check meets is one of its classes, or the check fails",
    "ER-3": "unimplemented is expected of denied claims alone (TR-1), and fails any other check",
    "EV-1": _CORE,
    "EV-2": _CORE,
    "EV-3": _CORE,
    "TR-2": _CORE,
}


def by_clause() -> dict[str, list[Check]]:
    """Return the checks behind each clause, the clause's own first."""
    found: dict[str, list[Check]] = {clause: [] for clause in CLAUSES}
    for one in all_checks():
        for clause in one.clauses:
            found[clause].append(one)
    return {
        clause: sorted(checks, key=lambda one: not one.id.startswith(f"{clause}."))
        for clause, checks in found.items()
    }


def table() -> str:
    """Return the table of clauses and checks, as Markdown."""
    lines = ["| clause | checks |", "|---|---|"]
    for clause, checks in by_clause().items():
        told = ", ".join(f"`{one.id}`" for one in checks) or f"none: {REASONS.get(clause, '?')}"
        lines.append(f"| {clause} | {told} |")
    return "\n".join(lines)
