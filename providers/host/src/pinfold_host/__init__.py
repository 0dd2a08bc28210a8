"""The host provider: processes on this machine, plain or in namespaces."""

from __future__ import annotations

from pinfold_host._options import HostOptions, Rlimits
from pinfold_host._provider import HostProvider

__all__ = ["HostOptions", "HostProvider", "Rlimits", "provider"]

#: The one object behind the entry point `host`.
provider = HostProvider()
