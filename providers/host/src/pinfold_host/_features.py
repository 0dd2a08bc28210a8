"""What a host sandbox promises for a spec; pure, and cheap to import (PR-1, PR-3)."""

from __future__ import annotations

import os
import sys

from pinfold.provider import Capabilities, Features
from pinfold.spec import Level, ResolvedSpec, TreeKill

__all__ = ["capabilities_of", "features_of"]


def capabilities_of(spec: ResolvedSpec) -> Capabilities:
    """Return the six facts (RS-7)."""
    native = spec.containment.level is Level.NATIVE
    return Capabilities(
        native_processes=True,
        network_enforced=native,
        packages=not native and os.name == "posix" and os.geteuid() == 0,
        portable_checkpoint=True,
        ports=False,
        pty=True,
    )


def features_of(spec: ResolvedSpec) -> Features:
    """Return what a spec promises (PR-7)."""
    native = spec.containment.level is Level.NATIVE
    return Features(
        background=True,
        concurrent_exec=True,
        signals=True,
        # The boundary of level native ends with its controller; a plain folder does not.
        attach=not native,
        pty=True,
        modes=True,
        symlinks=True,
        non_utf8_names=sys.platform != "darwin",
        argv_bytes=True,
        special_files=True,
        tree_kill=TreeKill.NAMESPACE if native else TreeKill.GROUP,
    )
