"""Identifiers and the clock, injected so that tests need neither luck nor sleep."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import attrs

__all__ = ["Clock", "Ids"]


@attrs.frozen
class Clock:
    """Time, as two functions.

    Attributes:
        now_ns: wall clock, nanoseconds since the epoch.
        monotonic: seconds on a clock that never goes back.
    """

    now_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic

    def now_us(self) -> int:
        """Return the wall clock's time, in microseconds since the epoch; JSON can carry it."""
        return self.now_ns() // 1000

    def now(self) -> datetime:
        """Return the wall clock's time, in UTC, to the millisecond."""
        millis = self.now_ns() // 1_000_000
        return datetime.fromtimestamp(millis / 1000, tz=UTC)


class Ids:
    """Makes ids: a prefix and 32 hex digits, ordered by time, never the same twice in a process.

    The first 12 digits are milliseconds, the next 6 count within this process, the rest is random.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        random_hex: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self._clock = clock or Clock()
        self._random_hex = random_hex
        self._lock = threading.Lock()
        self._last = (0, 0)

    def make(self, prefix: str) -> str:
        """Return a new id; later ids sort after earlier ones, also when the clock goes back."""
        millis = self._clock.now_ns() // 1_000_000
        with self._lock:
            last_millis, count = self._last
            if millis <= last_millis:
                millis, count = last_millis, count + 1
                if count >= 1 << 24:
                    millis, count = millis + 1, 0
            else:
                count = 0
            self._last = (millis, count)
        return f"{prefix}{millis:012x}{count:06x}{self._random_hex(7)}"
