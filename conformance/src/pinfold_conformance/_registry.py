"""The checks: plain async functions, each with an id, its clauses and what it needs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Final

import attrs

from pinfold_conformance._profiles import PROFILES
from pinfold_conformance._verdicts import Level

if TYPE_CHECKING:
    from pinfold_conformance._case import Case

__all__ = ["CHECK_MODULES", "RETIRED", "Check", "Kind", "Place", "all_checks", "check", "find"]

CheckFunction = Callable[["Case"], Awaitable[None]]

#: Ids that were once in use; they never come back with another meaning.
RETIRED: Final[frozenset[str]] = frozenset()

CHECK_MODULES: Final = (
    "scripts",
    "exec_result",
    "exec_input",
    "exec_time",
    "exec_calls",
    "files_paths",
    "files_content",
    "files_errors",
    "files_stream",
    "files_alike",
    "tree_scan",
    "tree_restore",
    "life",
    "provider",
    "claims",
    "network",
    "attacks",
    "sandbox",
    "races",
    "machines",
)


class Kind(StrEnum):
    """What sort of evidence a check gives."""

    SCRIPT = "script"  # a fixed story over many operations
    LAW = "law"  # one clause, by examples
    CLAIM = "claim"  # a claim of the target: proof or refutation
    ATTACK = "attack"  # an attempt to break out, which succeeds against a naive adapter
    STOCHASTIC = "stochastic"  # many tries of a race or of random steps


class Place(StrEnum):
    """Which instance a check works on."""

    SHARED = "shared"  # one for all such checks, each in a folder of its own
    CLEAN = "clean"  # the shared one, after the lane's reset
    OWN = "own"  # one of its own, destroyed afterwards
    NONE = "none"  # none: it asks the provider alone


@attrs.frozen(kw_only=True)
class Check:
    """One check.

    Attributes:
        id: `CLAUSE.slug` (`EX-2.codes`) or `script.slug`; never reused.
        clauses: contract clauses; the first is the main one.
        level: MUST or SHOULD.
        kind: the sort of evidence.
        needs: features, capabilities (`cap:ports`) and hooks (`hook:witness`) without which it
            says nothing; `!name` needs the absence of a claim.
        place: which instance it works on.
        each_spec: it is run on every spec of the lane, not on the first alone.
        profile: the smallest profile that has it.
        deadline_s: seconds after which the target has failed it.
        title: what is checked, one line.
        run: the function.
    """

    id: str
    clauses: tuple[str, ...]
    level: Level
    kind: Kind
    needs: frozenset[str]
    place: Place
    each_spec: bool
    profile: str
    deadline_s: float
    title: str
    run: CheckFunction = attrs.field(repr=False, eq=False)


_ID = re.compile(r"(?:[A-Z]{2}-\d{1,2}|script|machine)\.[a-z0-9]+(?:-[a-z0-9]+)*")
_registry: dict[str, Check] = {}


def check(
    check_id: str,
    *also: str,
    level: Level = Level.MUST,
    kind: Kind = Kind.LAW,
    needs: Iterable[str] = (),
    place: Place = Place.SHARED,
    each_spec: bool = False,
    profile: str = "remote",
    deadline_s: float = 30.0,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; its docstring is the title.

    Args:
        check_id: `CLAUSE.slug`; of scripts and machines the clauses are in `also`.
        also: further clauses that it is evidence for.

    Raises:
        ValueError: the id is malformed, taken or retired, or there is no docstring.
    """

    def register(function: CheckFunction) -> CheckFunction:
        if not _ID.fullmatch(check_id):
            raise ValueError(f"{check_id!r} is not of the form CLAUSE.slug")
        if check_id in _registry or check_id in RETIRED:
            raise ValueError(f"the id {check_id} was given before; ids are never reused")
        if profile not in PROFILES:
            raise ValueError(f"{check_id}: there is no profile {profile!r}")
        title = (function.__doc__ or "").strip().splitlines()
        if not title:
            raise ValueError(f"{check_id}: the docstring says what is checked")
        clause = check_id.partition(".")[0]
        own = () if clause in ("script", "machine") else (clause,)
        _registry[check_id] = Check(
            id=check_id,
            clauses=(*own, *also),
            level=level,
            kind=kind,
            needs=frozenset(needs),
            place=place,
            each_spec=each_spec,
            profile=profile,
            deadline_s=deadline_s,
            title=title[0],
            run=function,
        )
        return function

    return register


def all_checks() -> tuple[Check, ...]:
    """Return every check of the suite, in the order of a run."""
    for name in CHECK_MODULES:
        import_module(f"pinfold_conformance.checks.{name}")
    order = {f"pinfold_conformance.checks.{name}": at for at, name in enumerate(CHECK_MODULES)}
    return tuple(
        sorted(
            _registry.values(),
            key=lambda one: (one.kind is not Kind.SCRIPT, order.get(one.run.__module__, 99)),
        )
    )


def find(patterns: Iterable[str]) -> Iterator[Check]:
    """Yield the checks that patterns name: an id, a clause, or a shell pattern (`EX-*`).

    Raises:
        LookupError: a pattern names none.
    """
    wanted = list(patterns)
    checks = all_checks()
    chosen: set[str] = set()
    for pattern in wanted:
        hits = {
            one.id
            for one in checks
            if one.id == pattern or pattern in one.clauses or fnmatchcase(one.id, pattern)
        }
        if not hits:
            raise LookupError(f"no check is named by {pattern!r}")
        chosen |= hits
    return (one for one in checks if one.id in chosen)
