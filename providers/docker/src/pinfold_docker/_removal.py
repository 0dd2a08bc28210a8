"""Removing what a sandbox is on an engine: a container, what helped to make it, and a volume."""

from __future__ import annotations

from contextlib import suppress

import anyio

from pinfold_docker._config import volume_name
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError
from pinfold_docker._seed import SEED_SUFFIX

__all__ = ["remove_all", "remove_one"]


async def remove_all(engine: Engine, name: str) -> bool:
    """Remove a container, what helped to make it, and its volume; say if it was on our bridge."""
    networked = False
    with suppress(EngineError):
        found = await engine.call("GET", "containers", name, "json")
        networked = "pinfold" in found["NetworkSettings"]["Networks"]
    for container in (name, name + SEED_SUFFIX):
        await remove_one(engine, "containers", container)
    await remove_one(engine, "volumes", volume_name(name))
    return networked


async def remove_one(engine: Engine, kind: str, name: str) -> None:
    """Remove a container, with the nameless volumes that its image asked for, or a volume."""
    pause = 0.01
    while True:
        try:
            await engine.call("DELETE", kind, name, query={"force": 1, "v": 1})
        except EngineError as exc:
            if exc.status == 404:
                return
            if exc.status != 409:  # somebody else is removing it, or what uses it
                raise
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.5)
        else:
            return
