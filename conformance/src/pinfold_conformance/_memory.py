"""How much memory this process takes, watched while something runs."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["MemoryWatch", "resident_bytes"]


def resident_bytes() -> int:
    """Return the resident memory of this process, or 0 where it can't be read."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class MemoryWatch:
    """Samples the resident memory in a thread of its own.

    Attributes:
        growth: bytes between the start and the highest sample.
    """

    growth = 0

    def __enter__(self) -> Self:
        self._start = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.growth = max(self.growth, resident_bytes() - self._start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.growth = max(self.growth, resident_bytes() - self._start)
