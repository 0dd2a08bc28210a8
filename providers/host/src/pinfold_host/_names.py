"""The names of files that are on their way: no listing and no checkpoint shows them."""

from __future__ import annotations

import re
import secrets
from typing import Final

__all__ = ["is_temporary", "temporary_name"]

_PATTERN: Final = re.compile(r"\.pinfold-[0-9a-f]{16}\.tmp", re.ASCII)


def temporary_name() -> bytes:
    """Return a name that nobody has."""
    return f".pinfold-{secrets.token_hex(8)}.tmp".encode()


def is_temporary(name: str) -> bool:
    """Say whether a name is one of ours."""
    return name.startswith(".pinfold-") and _PATTERN.fullmatch(name) is not None
