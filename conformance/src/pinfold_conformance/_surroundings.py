"""What a run takes from the machine that it is on, whichever front end begins it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

__all__ = ["connections", "ledgers"]


def connections() -> Callable[[str], Awaitable[Any]]:
    """Return what resolves connections: those of pinfold.toml and of hooks (PR-5)."""
    from pinfold import config
    from pinfold.connections import Connections
    from pinfold.plugins import hooks

    return Connections(config.load().connections, hook=hooks().connection).resolve


def ledgers() -> Path:
    """Return the folder of the ledgers, which `pinfold conform --sweep` reads."""
    from platformdirs import user_state_path

    return user_state_path("pinfold") / "conformance"
