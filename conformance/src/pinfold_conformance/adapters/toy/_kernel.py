"""Model processes: generators on a clock.

Nothing runs by itself: whoever looks at the world first lets the kernel catch up with the clock,
and each process then does what it would have done by now, in order of time. So a background process
lives on between calls without a task of its own, and a killed one can never write again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from typing import Final

import attrs

__all__ = ["CAPACITY", "Child", "Kernel", "Pipe", "Process", "Room", "Until"]

CAPACITY: Final = 65_536
_POLITE: Final = frozenset({1, 2, 15})


@attrs.frozen
class Until:
    """Wait until a time."""

    time: float


@attrs.frozen
class Child:
    """Wait until a process has ended."""

    process: Process


@attrs.frozen
class Room:
    """Wait until a pipe has room."""

    pipe: Pipe


Wait = Until | Child | Room
Body = Generator[Wait, None, int]


@attrs.define(eq=False)
class Pipe:
    """Bytes on their way; without a reader they vanish."""

    data: bytearray = attrs.field(factory=bytearray)
    read: bool = True

    def put(self, data: bytes) -> None:
        """Write."""
        if self.read:
            self.data += data

    @property
    def has_room(self) -> bool:
        """A write would not wait."""
        return not self.read or len(self.data) < CAPACITY

    def take(self) -> bytes:
        """Return and remove what is there."""
        data = bytes(self.data)
        self.data.clear()
        return data


@attrs.define(eq=False, kw_only=True)
class Process:
    """One model process.

    Attributes:
        job: the number of the exec that it descends from.
        session: the number of its session; the exec's own unless it made one.
        body: what it does; its value is the exit code.
    """

    pid: int
    job: int
    session: int
    wait: Wait
    body: Body | None = None
    ignores_polite: bool = False
    exit_code: int | None = None
    signal: int | None = None

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self.exit_code is None


class Kernel:
    """All processes of one instance."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pids = itertools.count(2)
        self._jobs = itertools.count(1)
        self.now = clock()
        self.processes: list[Process] = []
        self._paused_at: float | None = None
        self._lag = 0.0

    def time(self) -> float:
        """The instance's clock; it stands while the instance is paused."""
        return (self._paused_at or self._clock()) - self._lag

    def pause(self) -> None:
        """Stop the clock."""
        self.advance()
        self._paused_at = self._paused_at or self._clock()

    def resume(self) -> None:
        """Let the clock go on from where it stood."""
        if self._paused_at is not None:
            self._lag += self._clock() - self._paused_at
            self._paused_at = None

    def new_job(self) -> int:
        """Return a number for the processes of one exec."""
        return next(self._jobs)

    def spawn(
        self,
        make: Callable[[Process], Body],
        *,
        job: int,
        session: int | None = None,
        parent: Process | None = None,
    ) -> Process:
        """Start a process; it runs at the next `advance`."""
        pid = next(self._pids)
        process = Process(
            pid=pid,
            job=job,
            session=pid if session is None else session,
            wait=Until(self.now if parent else self.time()),
            ignores_polite=parent is not None and parent.ignores_polite,
        )
        process.body = make(process)
        self.processes.append(process)
        return process

    def advance(self) -> None:
        """Let every process do what it would have done by now."""
        end = self.time()
        while True:
            ready = [(self._ready_at(p), p.pid, p) for p in self.processes]
            due = [item for item in ready if item[0] is not None and item[0] <= end]
            if not due:
                break
            at, _, process = min(due, key=lambda item: (item[0] or 0.0, item[1]))
            self.now = max(self.now, at or 0.0)
            self._step(process)
        self.now = end

    def next_time(self) -> float | None:
        """Return when the next process has something to do, or None."""
        times = [at for at in map(self._ready_at, self.processes) if at is not None]
        return min(times, default=None)

    def _ready_at(self, process: Process) -> float | None:
        match process.wait:
            case Until(time=at):
                return at
            case Child(process=child):
                return None if child.alive else self.now
            case Room(pipe=pipe):
                return self.now if pipe.has_room else None

    def _step(self, process: Process) -> None:
        body = process.body
        if body is None:  # it killed itself
            return
        try:
            process.wait = next(body)
        except StopIteration as stop:
            self._end(process, stop.value, None)
        except Exception as exc:  # noqa: BLE001 - a model process may fail as it likes
            del exc
            self._end(process, 1, None)

    def _end(self, process: Process, code: int, signal: int | None) -> None:
        if process.alive:
            process.exit_code, process.signal = code, signal
        if process in self.processes:
            self.processes.remove(process)

    def kill(self, process: Process, signal: int = 9) -> None:
        """Send a signal; a polite one may be ignored."""
        if signal in _POLITE and process.ignores_polite:
            return
        self._end(process, 128 + signal, signal)

    def of_job(self, job: int) -> list[Process]:
        """Return the living processes of an exec."""
        return [process for process in self.processes if process.job == job]
