"""The docker provider: hardened containers on a Docker engine."""

from __future__ import annotations

from pinfold_docker._options import DockerOptions as DockerOptions
from pinfold_docker._provider import DockerProvider as DockerProvider

__all__ = ["DockerOptions", "DockerProvider", "provider"]

#: What the entry point names.
provider = DockerProvider()
