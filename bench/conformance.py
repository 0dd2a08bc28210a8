"""The conformance suite: what it costs beside the adapter that it examines; its own mutants."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import attrs

from bench.harness import figure
from pinfold.provider import Context, Instance
from pinfold.spec import PinnedSpec
from pinfold_conformance import (
    PROFILES,
    Case,
    Check,
    Kind,
    Level,
    Options,
    Place,
    Result,
    Session,
    Verdict,
    run,
)
from pinfold_conformance._session import Planned
from pinfold_conformance.adapters.toy import ToyLane
from pinfold_conformance.mutants import mutants

ROUNDS = 5


def main() -> list[dict[str, Any]]:
    """Run them all."""
    return [empty_check(), *profile("smoke"), *profile("remote"), *kills()]


async def _nothing(case: Case) -> None:
    """Ask for nothing."""


def empty_check() -> dict[str, Any]:
    """The engine alone: planning, needs, instance, deadline, tidying, outcome of one check."""
    check = Check(
        id="EX-1.nothing",
        clauses=("EX-1",),
        level=Level.MUST,
        kind=Kind.LAW,
        needs=frozenset({"exec", "symlinks"}),
        place=Place.SHARED,
        each_spec=False,
        profile="remote",
        deadline_s=30.0,
        title="nothing",
        run=_nothing,
    )
    took = []
    with Session(ToyLane(), Options(profile=PROFILES["remote"])) as session:
        for number in range(1000):
            planned = Planned(attrs.evolve(check, id=f"EX-1.nothing{number}"), 0)
            started = time.perf_counter()
            outcome = session.run(planned)
            took.append(time.perf_counter() - started)
            assert outcome is not None
            assert outcome.verdict is Verdict.PASS
        session.finish()
    return figure(
        "wall time of a check that asks the adapter for nothing, median of 1,000",
        statistics.median(took) * 1000,
        "ms",
        at_most=5,
    )


def profile(name: str) -> list[dict[str, Any]]:
    """CPU time of each check less what the adapter burnt of it: the best of some rounds.

    CPU and not wall time: what checks wait for, as a command that is to time out, is no overhead.
    What an adapter calls back (a sink, a fetch) counts as the adapter's.
    """
    own: dict[str, float] = {}
    theirs: dict[str, float] = {}
    walls = []
    for number in range(-1, ROUNDS):  # the first is to warm up
        gc.collect()
        lane, started = _Watched(), time.perf_counter()
        with Session(lane, Options(profile=PROFILES[name])) as session:
            for planned in session.plan():
                cpu, spent = time.process_time(), lane.watch.spent
                session.run(planned)
                spent = lane.watch.spent - spent
                cpu = time.process_time() - cpu - spent
                key = f"{planned.check.id} {planned.site}"
                if number >= 0:
                    own[key] = min(own.get(key, cpu), cpu)
                    theirs[key] = min(theirs.get(key, spent), spent)
            session.finish()
            assert session.report().result is Result.CONFORMANT
        walls.append(time.perf_counter() - started)
    dearest = sorted(own, key=lambda key: -own[key])[:8]
    print(f"\n{name}: {len(own)} checks in {min(walls):.1f} s of wall time, mostly waiting")
    print("dearest: " + "; ".join(f"{key} {own[key] * 1000:.1f} ms" for key in dearest))
    title = f"CPU time of the suite for a check, {name} profile, best of {ROUNDS} rounds"
    return [
        figure(f"{title}, mean", statistics.mean(own.values()) * 1000, "ms", at_most=5),
        figure(f"{title}, median", statistics.median(own.values()) * 1000, "ms", at_most=5),
        figure(
            f"CPU time of the reference adapter for a check, {name} profile, mean",
            statistics.mean(theirs.values()) * 1000,
            "ms",
        ),
    ]


def kills() -> list[dict[str, Any]]:
    """All mutants in memory, one after the other, as CI has them die."""
    took: dict[str, float] = {}
    for mutant in mutants():
        if mutant.kills == "LC-6.bootstrap":
            continue  # the reference can't be asked; it dies on processes
        only = ("LC-5.empty",) if mutant.kills == "LC-9.strays" else (mutant.kills,)
        started = time.perf_counter()
        options = Options(profile=PROFILES["remote"], only=only, strict=True, other=ToyLane())
        report = run(mutant.lane(), options)
        took[mutant.name] = time.perf_counter() - started
        assert report.by_id(mutant.kills).verdict is Verdict.FAIL, mutant.name
    slowest = sorted(took, key=lambda name: -took[name])[:8]
    print("\nslowest mutants: " + "; ".join(f"{name} {took[name]:.1f} s" for name in slowest))
    return [
        figure(
            f"{len(took)} mutants in memory, one after the other",
            sum(took.values()),
            "s",
            at_most=180,
        )
    ]


class _Watch:
    """How much CPU time its thread has burnt inside of what is watched."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._depth = 0

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Watch a function whose result is awaited, or iterated asynchronously."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            return self._pieces(made) if hasattr(made, "__anext__") else _Steps(self, made)

        return watched

    async def _pieces(self, pieces: Any) -> AsyncIterator[Any]:
        try:
            while True:
                try:
                    piece = await _Steps(self, pieces.__anext__())
                except StopAsyncIteration:
                    return
                yield piece
        finally:
            await pieces.aclose()

    def step(self, advance: Callable[[], Any]) -> Any:
        """Do a step; what is watched within what is watched counts once."""
        started = time.thread_time()
        self._depth += 1
        try:
            return advance()
        finally:
            self._depth -= 1
            if not self._depth:
                self.spent += time.thread_time() - started


class _Steps:
    """An awaitable whose steps are watched, and not what happens between them."""

    def __init__(self, watch: _Watch, inner: Awaitable[Any]) -> None:
        self._watch, self._inner = watch, inner

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._inner.__await__()
        advance: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                asked = self._watch.step(advance)
            except StopIteration as end:
                return end.value
            try:
                given = yield asked
            except BaseException as exc:  # noqa: BLE001 - handed on to where it belongs
                advance = _throwing(steps, exc)
            else:
                advance = _sending(steps, given)


def _throwing(steps: Any, exc: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(exc)


def _sending(steps: Any, value: Any) -> Callable[[], Any]:
    return lambda: steps.send(value)


_FILES = (
    "read", "write", "stat", "list", "make_directory", "remove", "rename", "symlink", "chmod",
    "download", "upload", "read_many", "stat_many", "write_many", "download_tree", "upload_tree",
)  # fmt: skip
_TREE = ("scan", "read", "restore", "recover")
_INSTANCE = ("exec", "status", "destroy", "detach", "pause", "resume")
_PROVIDER = ("probe", "create", "attach", "list", "destroy", "pin")


class _Watched(ToyLane):
    """The reference, watched."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = _Watch()
        self._watch(self.provider, _PROVIDER)

    def _watch(self, thing: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if hasattr(thing, name):
                setattr(thing, name, self.watch.call(getattr(thing, name)))

    async def make(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await super().make(pinned, ctx)
        self._watch(made, _INSTANCE)
        self._watch(made.files, _FILES)
        self._watch(made.tree, _TREE)
        return made
