"""A durable sandbox, without async."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import wraps
from typing import Concatenate, ParamSpec

from anyio.from_thread import BlockingPortal

from pinfold.blocking._portal import call
from pinfold.blocking._sandbox import BlockingSandbox
from pinfold.sandbox import DurableSandbox, Store

__all__ = ["BlockingDurableSandbox"]

P = ParamSpec("P")


def _another(
    function: Callable[Concatenate[DurableSandbox, P], object],
) -> Callable[Concatenate[BlockingDurableSandbox, P], BlockingDurableSandbox]:
    """As `call`, for what gives another sandbox: it is held until the block of this one ends."""
    name = function.__name__

    @wraps(function)
    def method(
        self: BlockingDurableSandbox, /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingDurableSandbox:
        async def work() -> DurableSandbox:
            other: DurableSandbox = await getattr(self._target, name)(*args, **kwargs)
            self._held_too.push_async_callback(other.close)
            return other

        return BlockingDurableSandbox(self._portal, self._run(work), self._held_too)

    return method


class BlockingDurableSandbox(BlockingSandbox):
    """A durable sandbox; `pinfold.DurableSandbox` says what each call does and raises.

    What `fork` and `migrate` give is usable until the block of this one ends; it goes on in the
    store, as every durable sandbox does: `reopen` it.
    """

    _target: DurableSandbox  # type: ignore[mutable-override]  # set once

    def __init__(
        self, portal: BlockingPortal, target: DurableSandbox, held_too: AsyncExitStack
    ) -> None:
        super().__init__(portal, target)
        self._held_too = held_too

    start = call(DurableSandbox.start)
    pause = call(DurableSandbox.pause)
    drain = call(DurableSandbox.drain)
    delete = call(DurableSandbox.delete)
    events = call(DurableSandbox.events)
    checkpoint = call(DurableSandbox.checkpoint)
    checkpoints = call(DurableSandbox.checkpoints)
    restore = call(DurableSandbox.restore)
    fork = _another(DurableSandbox.fork)
    migrate = _another(DurableSandbox.migrate)

    @property
    def store(self) -> Store:
        """Where it is kept."""
        return self._target.store
