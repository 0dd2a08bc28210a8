"""A store's objects, for the event loop: every call in a worker thread, every step announced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from pinfold.checkpoint._keys import FOSSILS, fossil_of, is_fossil
from pinfold.checkpoint._objects import ObjectInfo, Objects, OnStep, no_step

__all__ = ["Io"]

_THREADS: Final = 8
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("pinfold_checkpoint_threads")

_T = TypeVar("_T")


async def in_thread(act: Callable[[], _T]) -> _T:
    """Run blocking work in one of the few threads that checkpoints have on this event loop."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await to_thread.run_sync(act, limiter=limiter)


class Io:
    """`Objects` as coroutines. Errors are those of `Objects`."""

    def __init__(self, objects: Objects, on_step: OnStep = no_step) -> None:
        self.objects = objects
        self._on_step = on_step

    async def run(self, step: str, key: str, act: Callable[[], _T]) -> _T:
        """Do one blocking step."""
        self._on_step(step, key)
        result = await in_thread(act)
        self._on_step(f"{step}.done", key)
        return result

    async def put(self, items: Mapping[str, bytes]) -> None:
        """Put each of these."""
        if items:
            await self.run("put", next(iter(items)), lambda: self.objects.put(items))

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of `keys` that are there, also if a collection has set them aside."""
        if not keys:
            return {}
        found = await self.run("get", keys[0], lambda: self.objects.get(keys))
        missing = [key for key in keys if key not in found]
        if missing:
            found |= await self._among_fossils(missing)
        return found

    async def _among_fossils(self, keys: list[str]) -> dict[str, bytes]:
        # One that is moved back between the two looks is at its own place by the third.
        fossils = {fossil_of(fossil)[1]: fossil for fossil in await self.fossils()}
        aside = {fossils[key]: key for key in keys if key in fossils}
        found: dict[str, bytes] = {}
        if aside:
            there = await self.run("get", keys[0], lambda: self.objects.get(list(aside)))
            found = {aside[fossil]: data for fossil, data in there.items()}
        last = [key for key in keys if key not in found]
        if last:
            found |= await self.run("get", last[0], lambda: self.objects.get(last))
        return found

    async def fossils(self) -> list[str]:
        """Return the keys of all fossils."""
        return [info.key for info in await self.list(FOSSILS) if is_fossil(info.key)]

    async def exists(self, keys: Collection[str]) -> set[str]:
        """Return those of `keys` that are at their own place."""
        if not keys:
            return set()
        return await self.run("exists", next(iter(keys)), lambda: self.objects.exists(keys))

    async def rely(self, keys: Collection[str]) -> set[str]:
        """As `exists`; the next `sync` is for these too."""
        if not keys:
            return set()
        return await self.run("exists", next(iter(keys)), lambda: self.objects.rely(keys))

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """Return all objects below a prefix."""
        return await self.run("list", prefix, lambda: self.objects.list(prefix))

    async def move(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Rename objects."""
        if pairs:
            await self.run("move", pairs[0][0], lambda: self.objects.move(pairs))

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        doomed = list(keys)
        if doomed:
            await self.run("delete", doomed[0], lambda: self.objects.delete(doomed))

    async def sync(self) -> None:
        """Return when all that was put survives a power cut."""
        await self.run("sync", "", self.objects.sync)
