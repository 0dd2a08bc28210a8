"""Running a verb's async part: SIGTERM ends all that it made before it ends us."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO, TypeVar

import anyio
import click

from pinfold._tasks import background
from pinfold.errors import InvalidArgument

__all__ = ["TERMINATED", "bytes_of", "is_terminal", "run"]

T = TypeVar("T")

#: The exit code after SIGTERM, as a shell has it.
TERMINATED = 128 + signal.SIGTERM


def bytes_of(stream: Any, name: str) -> BinaryIO:
    """Return a standard stream's bytes.

    Raises:
        InvalidArgument: we were started without it.
    """
    if stream is None:
        raise InvalidArgument(f"{name} is closed", hint="redirect it, if only to /dev/null")
    found: BinaryIO = stream.buffer
    return found


def is_terminal(stream: Any) -> bool:
    """Say whether a standard stream is a terminal; one that is closed is none."""
    return stream is not None and stream.isatty()


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end and return what it returns.

    Raises:
        Exit: it was cut short by SIGTERM, and has cleaned up.
    """
    results: list[T] = []
    terminated = False

    async def main() -> None:
        async def watch() -> None:
            nonlocal terminated
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    terminated = True
                    scope.cancel()

        async with background(watch) as scope:
            results.append(await work())

    anyio.run(main)
    if terminated or not results:
        raise click.exceptions.Exit(TERMINATED)
    return results[0]
