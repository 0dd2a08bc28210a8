"""How a run is made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs

from pinfold.errors import NotFound
from pinfold.plugins import Catalog
from pinfold.testing import Lane
from pinfold_conformance._known import KnownFailure
from pinfold_conformance._profiles import PROFILES, Profile
from pinfold_conformance.dialects import Dialect

__all__ = ["Options"]

_GRACE_S: Final = 6.0
_CLEANUP_S: Final = 15.0


async def _no_connection(name: str) -> Any:
    raise NotFound(f"no connection {name!r} is known to this run")


@attrs.frozen(kw_only=True)
class Options:
    """How a run is made.

    Attributes:
        profile: how much to try.
        only: patterns of checks; empty is all of the profile.
        backend: asyncio or trio.
        seed: of all that is random.
        strict: underclaims fail.
        attacks: break-out attempts are made, where the lane allows them.
        scale: deadlines are multiplied by it.
        patience: checks in a row that may end at their deadline before the rest is given up.
        known: known failures.
        other: a second lane, for what passes between two targets.
        dialect: what the guest's shell speaks; None finds out.
        catalog: the providers to resolve with; None makes one of the lane's own.
        connect: resolves connections (PR-5).
        ledger: folder in which the ledger is kept while the run lasts; None keeps none.
        today: the day, for expiries.
    """

    profile: Profile = PROFILES["ci"]
    only: tuple[str, ...] = ()
    backend: str = "asyncio"
    seed: int = 0
    strict: bool = False
    attacks: bool = True
    scale: float = 1.0
    patience: int = 5
    known: tuple[KnownFailure, ...] = ()
    other: Lane | None = None
    dialect: Dialect | None = None
    catalog: Catalog | None = None
    connect: Callable[[str], Awaitable[Any]] = _no_connection
    ledger: Path | None = None
    today: dt.date = attrs.field(factory=dt.date.today)

    @property
    def cleanup_s(self) -> float:
        """Seconds that one clean-up may take."""
        return max(0.05, _CLEANUP_S * min(1.0, self.scale))

    @property
    def grace_s(self) -> float:
        """Seconds to unwind after a deadline: longer, and the event loop is given up."""
        return max(0.5, _GRACE_S * min(1.0, self.scale))
