"""An event loop in a thread of its own, which can be given up when an adapter blocks it."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["Escaped", "Overrun", "Worker"]

T = TypeVar("T")


class Overrun(Exception):
    """A call neither ended nor could be cancelled; its event loop is lost."""


class Escaped(Exception):
    """Something was raised that is no error, as SystemExit is not: it would end the suite."""


async def _kept(function: Callable[[], Awaitable[T]]) -> T:
    """Await a function; what would end the event loop, and this program, is an error instead."""
    try:
        return await function()
    except (Exception, anyio.get_cancelled_exc_class()):
        raise
    except BaseException as exc:
        raise Escaped(f"{type(exc).__name__}: {exc}") from exc


class Worker:
    """Runs async functions in the event loop of a daemon thread.

    Args:
        backend: asyncio or trio.
    """

    def __init__(self, backend: str = "asyncio") -> None:
        self._ready: concurrent.futures.Future[BlockingPortal] = concurrent.futures.Future()
        self._backend = backend
        self._thread = threading.Thread(target=self._main, name="conformance", daemon=True)
        self._thread.start()
        self._portal = self._ready.result(timeout=30)
        self.lost = False

    def _main(self) -> None:
        try:
            anyio.run(self._serve, backend=self._backend)
        except BaseException as exc:  # noqa: BLE001 - whatever an adapter left behind
            if not self._ready.done():
                self._ready.set_exception(exc)

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._ready.set_result(portal)
            await portal.sleep_until_stopped()

    def call(self, function: Callable[[], Awaitable[T]], limit_s: float) -> T:
        """Run a function in the loop and return its result.

        Raises:
            Overrun: it did not end within the limit though it was told to; the loop is given up.
        """
        if self.lost:
            raise Overrun("the event loop was lost before")
        future: concurrent.futures.Future[T] | None = None
        try:
            future = self._portal.start_task_soon(_kept, function)
            return future.result(timeout=limit_s)
        except concurrent.futures.TimeoutError:
            if future is not None and future.done():  # the function's own TimeoutError
                raise
            self.lost = True
            raise Overrun(f"it did not end within {limit_s:g} s, not even when cancelled") from None
        except concurrent.futures.CancelledError:
            self.lost = True
            raise Overrun("the event loop broke down") from None
        except RuntimeError as exc:
            if "portal" not in str(exc):
                raise
            self.lost = True
            raise Overrun("the event loop broke down") from exc

    def close(self) -> None:
        """Stop the loop, unless it was lost."""
        if self.lost:
            return
        try:
            self._portal.start_task_soon(self._portal.stop, True)
        except RuntimeError:  # it broke down
            return
        self._thread.join(timeout=10)
