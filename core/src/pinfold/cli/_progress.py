"""A progress bar for what takes longer than a second, on a terminal only, on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from pinfold.cli import _session as session

__all__ = ["Progress"]

_PATIENCE_SECONDS = 1.0


class Progress:
    """Told of bytes moved; draws once it has taken a second."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._moved = 0
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, count: int) -> None:
        """Note that `count` more bytes were moved."""
        self.at(self._moved + count)

    def at(self, moved: int, total: int | None = None) -> None:
        """Note how many bytes were moved, and how many there are in all where that is known."""
        self._moved = moved
        if self._bar is None:
            late = time.monotonic() - self._start > _PATIENCE_SECONDS
            if not late or not session.is_terminal(sys.stderr):
                return
            self._draw()
        self._bar.update(self._task, completed=moved, total=total)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import DownloadColumn, SpinnerColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            SpinnerColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
