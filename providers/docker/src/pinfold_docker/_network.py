"""The one bridge that sandboxes with a network share, without traffic between them."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from pinfold.errors import Conflict, Unavailable
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError

__all__ = ["ensure_network", "release_network"]

NAME: Final = "pinfold"
LABEL: Final = "pinfold.network"
ICC: Final = "com.docker.network.bridge.enable_icc"


async def ensure_network(engine: Engine, facts: dict[str, Any]) -> str:
    """Return the id of the bridge, which is made if it isn't there.

    Args:
        engine: where.
        facts: what the engine says of itself.

    Raises:
        Conflict: somebody else has a network of that name.
        Unavailable: the engine can't keep sandboxes apart on a bridge.
    """
    if not facts.get("BridgeNfIptables"):
        raise Unavailable(
            "the engine's host does not filter traffic on bridges, so that sandboxes could reach "
            "each other",
            hint="load br_netfilter there (net.bridge.bridge-nf-call-iptables=1), or use network "
            "deny",
            retryable=False,
        )
    for _ in range(3):  # somebody may make or remove it at the same time
        try:
            network = await engine.call("GET", "networks", NAME)
        except EngineError as exc:
            if exc.status != 404:
                raise
        else:
            ours = LABEL in (network.get("Labels") or {})
            if not ours or (network.get("Options") or {}).get(ICC) != "false":
                raise Conflict(
                    f"the engine has a network {NAME!r} that is not ours",
                    hint="rename or remove it: sandboxes with network allow share a bridge of that "
                    "name",
                )
            return str(network["Id"])
        with contextlib.suppress(EngineError):
            await engine.call(
                "POST",
                "networks",
                "create",
                body={
                    "Name": NAME,
                    "CheckDuplicate": True,
                    "Driver": "bridge",
                    "Labels": {LABEL: "1"},
                    "Options": {ICC: "false"},
                },
            )
    raise Unavailable("the engine can't make a bridge network")


async def release_network(engine: Engine) -> None:
    """Remove the bridge if it is ours and nobody is on it."""
    with contextlib.suppress(EngineError):
        network = await engine.call("GET", "networks", NAME)
        if LABEL in (network.get("Labels") or {}):
            await engine.call("DELETE", "networks", network["Id"])  # refused while it is in use
