"""One run: one check after the other on a lane, each of which comes to an outcome."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import attrs

from pinfold.spec import CREATE_TIMEOUT_SECONDS
from pinfold.testing import Lane
from pinfold_conformance._attempt import Attempt, attempt
from pinfold_conformance._blame import classify, where
from pinfold_conformance._case import Case, Site
from pinfold_conformance._end import clean_up
from pinfold_conformance._expect import Inconclusive
from pinfold_conformance._guard import Meter
from pinfold_conformance._guard_lane import GuardedLane, name_of
from pinfold_conformance._instances import Instances
from pinfold_conformance._known import apply
from pinfold_conformance._ledger import Ledger
from pinfold_conformance._needs import Need, claimed_by, claims, judge
from pinfold_conformance._options import Options
from pinfold_conformance._profiles import PROFILES
from pinfold_conformance._registry import Check, Kind, Place, all_checks, find
from pinfold_conformance._setup import available, sites_of
from pinfold_conformance._verdicts import STRAYS, Outcome, Report, Verdict
from pinfold_conformance._worker import Overrun, Worker

__all__ = ["Planned", "Session"]

T = TypeVar("T")

_CLEANUPS: Final = 4  # as many as may follow each other in one check, or at the end of a run


@attrs.frozen
class Planned:
    """A check on one of the lane's specs."""

    check: Check
    site: int


class Session:
    """Runs checks on one lane. Use it as a context; blocking, for any thread.

    Args:
        lane: the target.
        options: how.
    """

    def __init__(self, lane: Lane, options: Options | None = None) -> None:
        self.lane = lane
        self.options = options or Options()
        self.run_id = str(uuid.uuid4())
        folder = self.options.ledger
        file = folder / f"{self.run_id}.json" if folder is not None else None
        self.ledger = Ledger(self.run_id, name_of(lane), file)
        self.meter = Meter()
        self.outcomes: list[Outcome] = []
        self.omitted: dict[str, str] = {}
        self.sites: list[Site] = []
        self.problem: Outcome | None = None
        self.probe: dict[str, Any] = {}
        self._instances = Instances(self.sites, self.options)
        self._memo: dict[tuple[str, int], Outcome | None] = {}
        self._overruns = 0  # in a row
        self._finished: Outcome | None = None
        self._started = time.monotonic()
        self._worker = Worker(self.options.backend)

    # --- set up ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        async def load() -> None:
            self.lane, other = GuardedLane(self.lane, self.meter), self.options.other
            if other is not None:
                guarded = GuardedLane(other, self.meter)
                self.options = attrs.evolve(self.options, other=guarded)

        async def look() -> None:
            self.probe.update(await available(self.lane))

        async def settle() -> None:
            self.sites += await sites_of(self.lane, self.options, self.ledger, self.meter)

        for name, step, limit in (
            ("target.loads", load, 60.0),
            ("target.available", look, 60.0),
            ("target.resolves", settle, CREATE_TIMEOUT_SECONDS + 30),
        ):
            if self.problem is None:
                self._guard_setup(name, step, limit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish()  # however far it came, nothing is left behind
        self._worker.close()
        self.ledger.close()

    def _guard_setup(self, name: str, step: Callable[[], Awaitable[None]], limit: float) -> None:
        async def bounded() -> None:
            with anyio.fail_after(limit * self.options.scale):
                await step()

        started = time.perf_counter()
        try:
            self._call(bounded, limit * self.options.scale + self.options.grace_s)
        except Inconclusive as exc:
            verdict, reason = Verdict.INCONCLUSIVE, str(exc)
        except TimeoutError:
            verdict, reason = Verdict.FAIL, f"it did not end within {limit:g} s"
        except Overrun as exc:
            verdict, reason = Verdict.FAIL, str(exc)
        except Exception as exc:  # noqa: BLE001 - whatever a lane or a provider raises
            verdict, reason = Verdict.FAIL, f"{type(exc).__name__}: {exc}"
        else:
            return
        self.problem = Outcome(
            check=name,
            kind="setup",
            verdict=verdict,
            reason=reason,
            duration_ms=(time.perf_counter() - started) * 1000,
        )
        self.outcomes.append(self.problem)

    def _call(self, function: Callable[[], Awaitable[T]], limit: float) -> T:
        try:
            return self._worker.call(function, limit)
        except Overrun:
            # Whatever lived in that loop is out of reach; the ledger still names it.
            self._instances.lost()
            self._worker = Worker(self.options.backend)
            raise

    # --- running -----------------------------------------------------------------------------

    def plan(self) -> Iterator[Planned]:
        """Yield what is to be run, in order."""
        if self.problem is not None:
            return
        rank = self.options.profile.rank
        chosen = list(find(self.options.only)) if self.options.only else list(all_checks())
        for one in chosen:
            if not self.options.only and PROFILES[one.profile].rank > rank:
                continue
            for number in range(len(self.sites)) if one.each_spec else (0,):
                yield Planned(one, number)

    def run(self, planned: Planned) -> Outcome | None:
        """Run one check; None when it does not apply to this target (see `omitted`)."""
        key = planned.check.id, planned.site
        if key not in self._memo:
            outcome = self._run(planned)
            self._memo[key] = outcome
            if outcome is not None:
                self.outcomes.append(outcome)
        return self._memo[key]

    def _run(self, planned: Planned) -> Outcome | None:
        check = planned.check
        if self._overruns >= self.options.patience:
            reason = f"not tried: the target hung in {self._overruns} checks in a row"
            return self._plain(planned, Verdict.FAIL, reason)
        try:
            refused = self._unmet(planned)
        except (AssertionError, Overrun) as exc:  # a hook or a claim that can't be asked
            refused = self._plain(planned, Verdict.FAIL, str(exc))
        if refused is not None:
            return None if refused is _OMITTED else refused
        site = self.sites[planned.site]
        case = Case(
            check=check,
            site=site,
            target=None,
            random=random.Random(f"{self.options.seed}:{check.id}:{site.label}"),  # noqa: S311
        )
        deadline = check.deadline_s * self.options.scale
        making = self._making_s + self.options.cleanup_s
        started, before = time.perf_counter(), self.meter.operations
        try:
            problem = self._call(lambda: self._instances.give(case, planned.site), making)
            if problem is not None:
                tried = Attempt(Verdict.FAIL, problem)
            else:
                tried = self._call(
                    lambda: self._try(case, planned.site, deadline),
                    deadline + self._ending_s,
                )
        except Overrun as exc:
            tried = Attempt(Verdict.FAIL, str(exc), overran=True)
        except Exception as exc:  # noqa: BLE001 - a bug of this module
            tried = Attempt(Verdict.ENGINE_ERROR, where(exc))
        self._overruns = self._overruns + 1 if tried.overran else 0
        return self._known(
            Outcome(
                check=check.id,
                spec=site.label,
                clauses=check.clauses,
                level=check.level,
                kind=str(check.kind),
                verdict=tried.verdict,
                reason=tried.reason,
                duration_ms=(time.perf_counter() - started) * 1000,
                operations=self.meter.operations - before,
                evidence=case.evidence,
                warnings=tuple(case.warnings),
                trace=case.trace,
            )
        )

    async def _try(self, case: Case, number: int, deadline: float) -> Attempt:
        tried = await attempt(case, deadline)
        problem = await self._instances.take_back(case, number, tried.verdict)
        if problem is not None and tried.verdict is Verdict.PASS:
            return Attempt(Verdict.FAIL, problem)
        return tried

    @property
    def _making_s(self) -> float:
        """Seconds in which an instance is there, also where one is replaced first."""
        return 2 * CREATE_TIMEOUT_SECONDS * self.options.scale + self.options.grace_s

    @property
    def _ending_s(self) -> float:
        """Seconds in which a check, or a run, is at its end once it was told to end."""
        return _CLEANUPS * self.options.cleanup_s + self.options.grace_s

    def _known(self, outcome: Outcome) -> Outcome:
        options = self.options
        return apply(
            outcome,
            options.known,
            target=self.ledger.target,
            profile=options.profile,
            today=options.today,
        )

    def _unmet(self, planned: Planned) -> Any:
        """Return what stands in the way of a check: an outcome, `_OMITTED`, or None."""
        check, site = planned.check, self.sites[planned.site]
        if check.place is Place.NONE and not check.needs:
            return None
        facts = self._facts(planned.site)
        if isinstance(facts, str):
            return self._plain(planned, Verdict.FAIL, facts)
        # Without exec nothing else that a command would show is asked.
        for need in sorted(check.needs, key=lambda need: (need != "exec", need)):
            match self._judged(need, site, facts):
                case Need.MET:
                    continue
                case Need.OMIT, why:
                    self.omitted[f"{check.id} [{site.label}]"] = str(why)
                    return _OMITTED
                case Need.MISSING, why:
                    return self._plain(planned, Verdict.INCONCLUSIVE, str(why))
                case _:
                    return self._not_claimed(planned, need)
        return None

    def _judged(self, need: str, site: Site, facts: dict[str, Any]) -> Any:
        async def stands() -> Any:  # in the event loop: hooks are the lane's own code
            return judge(need, site, facts, attacks=self.options.attacks)

        return self._call(stands, 30 * self.options.scale + self.options.grace_s)

    def _not_claimed(self, planned: Planned, need: str) -> Outcome:
        """The target denies a claim: find out whether that is true (TR-1)."""
        claimed = self._claimed_beside(planned, need)
        if claimed:
            return self._plain(
                planned,
                Verdict.INCONCLUSIVE,
                f"{claimed} is claimed, but can't be proved where {need} is denied",
            )
        refuters = [one for one in all_checks() if f"!{need}" in one.needs]
        held = []
        for refuter in refuters:
            outcome = self.run(Planned(refuter, planned.site))
            if outcome is not None and outcome.verdict in _HELD:
                held.append(refuter.id)
            elif outcome is not None:
                return self._plain(
                    planned,
                    Verdict.INCONCLUSIVE,
                    f"{need} is denied, but its refutation {refuter.id} came to {outcome.verdict}",
                )
        if not held:
            return self._plain(
                planned, Verdict.INCONCLUSIVE, f"{need} is denied, and nothing refutes it"
            )
        return self._plain(
            planned, Verdict.NOT_CLAIMED, f"{need} is denied; refuted by {', '.join(held)}"
        )

    def _claimed_beside(self, planned: Planned, need: str) -> str:
        """Return what a check of claims would prove besides, were one of them not denied."""
        check, site = planned.check, self.sites[planned.site]
        facts = self._facts(planned.site)
        if check.kind is not Kind.CLAIM or isinstance(facts, str):
            return ""
        others = [one for one in check.needs & set(claims()) if one not in ("exec", need)]
        return ", ".join(one for one in sorted(others) if claimed_by(one, site, facts))

    def _plain(self, planned: Planned, verdict: Verdict, reason: str) -> Outcome:
        check = planned.check
        return Outcome(
            check=check.id,
            spec=self.sites[planned.site].label,
            clauses=check.clauses,
            level=check.level,
            kind=str(check.kind),
            verdict=verdict,
            reason=reason,
        )

    def _facts(self, number: int) -> dict[str, Any] | str:
        """Return what is known of a site's instances, or why none can be made."""

        async def ask() -> dict[str, Any] | str:
            shared = await self._instances.share(number)
            if shared.instance is None:
                return shared.failure or "there is no instance"
            return {"instance": shared.instance, **shared.facts}

        try:
            return self._call(ask, self._making_s)
        except Overrun as exc:
            failure = f"the target could not be made: {exc}"
            self._instances.hopeless(number, failure)
            return failure

    # --- the end -----------------------------------------------------------------------------

    def finish(self) -> Outcome | None:
        """Clean up, last in first out, and ask the provider for strays (LC-9); once."""
        if self.problem is not None or not self.sites:
            return None
        if self._finished is not None:
            return self._finished

        async def end() -> tuple[Verdict, str]:
            return await clean_up(self.lane, self.options, self.ledger, self._instances)

        started = time.perf_counter()
        try:
            verdict, reason = self._call(end, self._ending_s)
        except Overrun as exc:
            verdict, reason = Verdict.FAIL, f"clean-up: {exc}"
        except Exception as exc:  # noqa: BLE001 - whatever the adapter raises
            verdict, reason = classify(exc)
        outcome = self._known(
            Outcome(
                check=STRAYS,
                clauses=("LC-9",),
                kind="law",
                verdict=verdict,
                reason=reason,
                duration_ms=(time.perf_counter() - started) * 1000,
            )
        )
        self.outcomes.append(outcome)
        self._finished = outcome
        return outcome

    def report(self) -> Report:
        """Return what the run came to so far."""
        return Report(target=self.ledger.target, outcomes=tuple(self.outcomes), facts=self.facts())

    def facts(self) -> Mapping[str, Any]:
        """Return what a certificate tells of the run besides its outcomes."""
        options = self.options
        return {
            "run": self.run_id,
            "profile": attrs.asdict(options.profile),
            "only": list(options.only),
            "backend": options.backend,
            "seed": options.seed,
            "strict": options.strict,
            "attacks": options.attacks and self.lane.allow_attacks is True,
            "other": options.other.name if options.other else None,
            "specs": [
                {"label": site.label, "digest": site.pinned.digest, "dialect": site.dialect.name}
                for site in self.sites
            ],
            "probe": self.probe,
            "omitted": dict(sorted(self.omitted.items())),
            "timings": self.meter.summary(),
            "duration_s": round(time.monotonic() - self._started, 3),
        }


_OMITTED = object()
_HELD = (Verdict.PASS, Verdict.NOT_CLAIMED)
