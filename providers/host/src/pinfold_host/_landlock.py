"""Ask the kernel what Landlock can do here."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Final

__all__ = ["can_scope_abstract_sockets"]

_SYS_CREATE_RULESET: Final = 444
_CREATE_RULESET_VERSION: Final = 1
_ABI_WITH_SCOPES: Final = 6


@functools.cache
def can_scope_abstract_sockets() -> bool:
    """Say whether Landlock is on and can keep abstract sockets out of reach (ABI 6, Linux 6.12)."""
    if not sys.platform.startswith("linux"):
        return False
    call = ctypes.CDLL(None).syscall
    arguments = (_SYS_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)
    return int(call(*map(ctypes.c_long, arguments))) >= _ABI_WITH_SCOPES
