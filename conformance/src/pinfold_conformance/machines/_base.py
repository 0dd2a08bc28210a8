"""What a machine is, and how Hypothesis drives one.

Hypothesis chooses steps; we record them, stop at the first failure, and minimise what we recorded:
its own shrinking would cost hundreds of environments, ours costs about 25 replays.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import hypothesis
from hypothesis import strategies as st

from pinfold.errors import PinfoldError
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed
from pinfold_conformance._trace import Step, Trace, minimise
from pinfold_conformance._verdicts import signature_of

__all__ = ["Choose", "Machine", "explore", "replay"]

T = TypeVar("T")

STEP_DEADLINE_S = 30.0


class _Enough(KeyboardInterrupt):
    """Ends Hypothesis' run: all else it takes for the end of an example, to be judged by it."""


class Choose:
    """How a machine chooses: like `random`, but Hypothesis decides."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def of(self, options: Sequence[T]) -> T:
        """Return one of some options; the first is the simplest."""
        chosen: T = self._data.draw(st.sampled_from(options))
        return chosen

    def number(self, low: int, high: int) -> int:
        """Return a number between two, both included."""
        chosen: int = self._data.draw(st.integers(low, high))
        return chosen


class Machine(ABC):
    """Steps on a target, each against a model.

    Args:
        case: the check that it belongs to.
    """

    name: ClassVar[str]

    def __init__(self, case: Case) -> None:
        self.case = case

    @abstractmethod
    async def reset(self) -> None:
        """Begin again, with a fresh target and a fresh model."""

    @abstractmethod
    def choose(self, choose: Choose) -> Sequence[Step]:
        """Choose what to do next: one step, or an excursion of several."""

    @abstractmethod
    async def apply(self, step: Step) -> None:
        """Do a step on target and model.

        Raises:
            CheckFailed: they differ.
        """

    @abstractmethod
    async def audit(self) -> None:
        """Compare all of the target with all of the model.

        Raises:
            CheckFailed: they differ.
        """

    async def close(self) -> None:
        """Let go of what the machine holds."""
        return


async def explore(case: Case, make: Callable[[Case], Machine]) -> None:
    """Run a machine as the profile says; a failure is minimised and put into the report.

    Raises:
        CheckFailed: a run failed; the reason tells the minimised steps.
    """
    machine, profile = make(case), case.profile
    limit = STEP_DEADLINE_S * min(1.0, case.site.scale)
    budget = min(profile.machine_seconds, case.check.deadline_s * 0.6)  # the rest is to minimise
    end = time.monotonic() + budget * case.site.scale
    runs: list[int] = []
    failed: list[tuple[list[Step], str]] = []

    def one(data: Any) -> None:
        if time.monotonic() > end:
            raise _Enough
        steps: list[Step] = []
        reason = _guarded(machine.reset, limit)
        choose = Choose(data)
        while reason is None and len(steps) < profile.steps:
            for step in machine.choose(choose):
                steps.append(step)
                reason = _guarded(partial(machine.apply, step), limit)
                if reason is not None:
                    break
        if reason is None:
            reason = _guarded(machine.audit, limit)
        runs.append(len(steps))
        if reason is not None:
            failed.append((steps, reason))
            raise _Enough

    try:
        await anyio.to_thread.run_sync(_drive, one, case)
        case.evidence.update(runs=len(runs), steps=sum(runs))
        if failed:
            steps, reason = failed[0]
            trace = await _smaller(machine, steps, reason)
            case.trace = trace.to_json()
            raise CheckFailed(
                f"{reason} (after {len(trace.steps)} of {len(steps)} steps; see the trace)"
            )
    finally:
        await machine.close()
    if not runs:
        raise CheckFailed("no run was made in time")


def _drive(one: Callable[[Any], None], case: Case) -> None:
    profile = case.profile
    settings = hypothesis.settings(
        max_examples=profile.examples,
        deadline=None,
        database=None,
        derandomize=profile.derandomize,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
    )

    @settings
    @hypothesis.given(st.data())
    def body(data: Any) -> None:
        one(data)

    if not profile.derandomize:
        body = hypothesis.seed(case.site.seed)(body)
    with suppress(_Enough):
        body()


def _guarded(call: Callable[[], Any], limit: float) -> str | None:
    """Run a step in the event loop and return why it failed, or None."""
    return anyio.from_thread.run(_attempt, call, limit)


async def _attempt(call: Callable[[], Any], limit: float = STEP_DEADLINE_S) -> str | None:
    try:
        with anyio.move_on_after(limit) as scope:
            await call()
    except AssertionError as exc:
        return str(exc)
    except PinfoldError as exc:
        return f"unexpected {type(exc).__name__}: {exc.message}"
    return f"a step did not end within {limit:g} s" if scope.cancelled_caught else None


async def replay(machine: Machine, steps: Sequence[Step]) -> str | None:
    """Do recorded steps from the beginning; return why they fail, or None."""
    reason = await _attempt(machine.reset)
    for step in steps:
        if reason is None:
            reason = await _attempt(partial(machine.apply, step))
    return reason if reason is not None else await _attempt(machine.audit)


async def _smaller(machine: Machine, steps: Sequence[Step], reason: str) -> Trace:
    case = machine.case
    wanted = signature_of(case.check.id, reason)

    async def fails(fewer: Sequence[Step]) -> bool:
        found = await replay(machine, fewer)
        return found is not None and signature_of(case.check.id, found) == wanted

    small, replays = await minimise(steps, fails, case.profile.replays)
    return Trace(
        machine=machine.name,
        steps=small,
        signature=wanted,
        target=case.site.lane.name,
        replays=replays,
    )
