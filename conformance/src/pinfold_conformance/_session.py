"""One run: a lane, its specs, its instances, and one check after the other."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import attrs

from pinfold.errors import PinfoldError
from pinfold.plugins import Catalog
from pinfold.provider import Context, ExecRequest, InstanceStatus, Owner
from pinfold.resolve import pin, resolve
from pinfold.spec import CREATE_TIMEOUT_SECONDS, PinnedSpec, Spec
from pinfold.testing import Lane
from pinfold_conformance._blame import classify, told_of, where
from pinfold_conformance._case import Case, Site
from pinfold_conformance._expect import Inconclusive
from pinfold_conformance._guard import GuardedInstance, Meter
from pinfold_conformance._known import apply
from pinfold_conformance._ledger import Ledger
from pinfold_conformance._needs import Need, judge
from pinfold_conformance._options import Options
from pinfold_conformance._profiles import PROFILES
from pinfold_conformance._registry import Check, Place, all_checks, find
from pinfold_conformance._verdicts import STRAYS, Outcome, Report, Verdict
from pinfold_conformance._worker import Overrun, Worker
from pinfold_conformance.dialects import DIALECTS

__all__ = ["Options", "Planned", "Session"]

T = TypeVar("T")

_GRACE_S: Final = 6.0  # to unwind after a deadline: longer, and the loop is given up
_CLEANUP_S: Final = 15.0


@attrs.frozen
class Planned:
    """A check on one of the lane's specs."""

    check: Check
    site: int


@attrs.define(eq=False)
class _Shared:
    """The instance that checks share, or why there is none."""

    instance: GuardedInstance | None = None
    failure: str | None = None
    dirty: bool = False
    facts: dict[str, Any] = attrs.field(factory=dict)


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
        self.ledger = Ledger(self.run_id, lane.name, file)
        self.meter = Meter()
        self.outcomes: list[Outcome] = []
        self.omitted: dict[str, str] = {}
        self.sites: list[Site] = []
        self.problem: Outcome | None = None
        self.probe: dict[str, Any] = {}
        self._shared: dict[int, _Shared] = {}
        self._memo: dict[tuple[str, int], Outcome | None] = {}
        self._cleanup_s = max(0.05, _CLEANUP_S * min(1.0, self.options.scale))
        self._overruns = 0  # in a row
        self._started = time.monotonic()
        self._worker = Worker(self.options.backend)

    # --- set up ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._guard_setup("target.available", self._available, 60.0)
        if self.problem is None:
            self._guard_setup("target.resolves", self._resolve, CREATE_TIMEOUT_SECONDS + 30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.close()
        self.ledger.close()

    def _guard_setup(self, name: str, step: Callable[[], Awaitable[None]], limit: float) -> None:
        async def bounded() -> None:
            with anyio.fail_after(limit * self.options.scale):
                await step()

        started = time.perf_counter()
        try:
            self._call(bounded, limit * self.options.scale + _GRACE_S)
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
            self._shared.clear()
            self._worker = Worker(self.options.backend)
            raise

    async def _available(self) -> None:
        reason = await self.lane.unavailable()
        if reason is not None:
            raise Inconclusive(f"the target is unavailable: {reason}")
        probe = await self.lane.provider.probe()
        self.probe = {"available": probe.available, **probe.details}
        if not probe.available:
            raise Inconclusive(f"the target is unavailable: {probe.reason}")

    async def _resolve(self) -> None:
        self.sites = [await self._site(self.lane, spec) for spec in self.lane.specs]
        if not self.sites:
            raise ValueError("the lane has no specs")
        if self.options.other is not None:
            other = self.options.other
            reason = await other.unavailable()
            if reason is not None:
                raise Inconclusive(f"the other target is unavailable: {reason}")
            second = await self._site(other, other.specs[0])
            self.sites = [attrs.evolve(site, other=second) for site in self.sites]

    async def _site(self, lane: Lane, spec: Spec) -> Site:
        catalog = self.options.catalog or Catalog([lane.provider])
        resolved = resolve(spec, catalog)
        ctx = Context(owner=Owner(store=self.run_id), connect=self.options.connect)
        pinned: PinnedSpec = await pin(resolved, catalog, ctx)
        contained = resolved.containment
        return Site(
            lane=lane,
            pinned=pinned,
            label=f"{contained.level}/{contained.network.mode}/{resolved.durability}",
            profile=self.options.profile,
            meter=self.meter,
            ledger=self.ledger,
            connect=self.options.connect,
            strict=self.options.strict,
            scale=self.options.scale,
            dialect=self.options.dialect or DIALECTS[0],
            seed=self.options.seed,
        )

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
        refused = self._unmet(planned)
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
        making = 2 * CREATE_TIMEOUT_SECONDS * self.options.scale + self._cleanup_s + _GRACE_S
        started, before = time.perf_counter(), self.meter.operations
        try:
            problem = self._call(lambda: self._target(case, planned.site), making)
            if problem is not None:
                verdict, reason = Verdict.FAIL, problem
            else:
                verdict, reason = self._call(
                    lambda: self._attempt(case, planned.site, deadline),
                    deadline + self._cleanup_s + _GRACE_S,
                )
        except Overrun as exc:
            verdict, reason = Verdict.FAIL, str(exc)
        except Exception as exc:  # noqa: BLE001 - a bug of this module
            verdict, reason = Verdict.ENGINE_ERROR, where(exc)
        return self._known(
            Outcome(
                check=check.id,
                spec=site.label,
                clauses=check.clauses,
                level=check.level,
                kind=str(check.kind),
                verdict=verdict,
                reason=reason,
                duration_ms=(time.perf_counter() - started) * 1000,
                operations=self.meter.operations - before,
                evidence=case.evidence,
                warnings=tuple(case.warnings),
                trace=case.trace,
            )
        )

    def _known(self, outcome: Outcome) -> Outcome:
        options = self.options
        return apply(
            outcome,
            options.known,
            target=self.lane.name,
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
            match judge(need, site, facts, attacks=self.options.attacks):
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

    def _not_claimed(self, planned: Planned, need: str) -> Outcome:
        """The target denies a claim: find out whether that is true (TR-1)."""
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
            shared = await self._share(number)
            if shared.instance is None:
                return shared.failure or "there is no instance"
            return {"instance": shared.instance, **shared.facts}

        try:
            limit = 2 * CREATE_TIMEOUT_SECONDS * self.options.scale + _GRACE_S
            return self._call(ask, limit)
        except Overrun as exc:
            self._shared[number] = _Shared(failure=f"the target could not be made: {exc}")
            return f"the target could not be made: {exc}"

    # --- in the event loop -------------------------------------------------------------------

    async def _target(self, case: Case, number: int) -> str | None:
        """Give a case its instance, or return why it has none."""
        place = case.check.place
        try:
            if place is Place.OWN:
                case.target = await self._make(case.site)
            elif place is not Place.NONE:
                shared = await self._share(number, clean=place is Place.CLEAN)
                if shared.instance is None:
                    return shared.failure or "there is no instance"
                case.target = shared.instance
        except Exception as exc:  # noqa: BLE001 - whatever the adapter raises
            return f"the target could not be made: {told_of(exc)}"
        return None

    async def _attempt(self, case: Case, number: int, deadline: float) -> tuple[Verdict, str]:
        check = case.check
        verdict, reason = Verdict.PASS, ""
        try:
            with anyio.move_on_after(deadline) as scope:
                await check.run(case)
            if scope.cancelled_caught:
                verdict, reason = Verdict.FAIL, f"it did not end within {deadline:g} s"
            self._overruns = self._overruns + 1 if scope.cancelled_caught else 0
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 - also what no adapter should raise
            verdict, reason = classify(exc)
            self._overruns = 0
        await self._tidy(case, number, verdict)
        return verdict, reason

    async def _make(self, site: Site) -> GuardedInstance:
        limit = CREATE_TIMEOUT_SECONDS * self.options.scale
        with anyio.move_on_after(limit):
            return await site.make()
        raise TimeoutError(f"create did not end within {limit:g} s")

    async def _share(self, number: int, *, clean: bool = False) -> _Shared:
        shared = self._shared.get(number)
        if shared is None:
            shared = self._shared[number] = _Shared()
            try:
                shared.instance = await self._make(self.sites[number])
            except Exception as exc:  # noqa: BLE001 - whatever the adapter raises
                shared.failure = f"the target could not be made: {told_of(exc)}"
                return shared
            await self._look(number, shared)
        elif clean and shared.instance is not None:
            try:
                with anyio.fail_after(self._cleanup_s):
                    await self.lane.reset(shared.instance.inner)
            except Exception as exc:  # noqa: BLE001 - the lane's own code
                await self._discard(number)
                shared = await self._share(number)
                shared.facts["reset"] = told_of(exc)
        return shared

    async def _look(self, number: int, shared: _Shared) -> None:
        """Find out how to speak to the guest, and who it is."""
        instance = shared.instance
        assert instance is not None  # noqa: S101 - just made
        site = self.sites[number]
        if self.options.dialect is None:
            for dialect in DIALECTS:
                script, answer = dialect.probe
                if await self._ask(instance, script) == answer:
                    self.sites[number] = site = attrs.evolve(site, dialect=dialect)
                    break
        shared.facts["uid"] = (await self._ask(instance, site.dialect.uid())).strip().decode()

    async def _ask(self, instance: GuardedInstance, script: str) -> bytes:
        with anyio.move_on_after(10 * self.options.scale):
            try:
                request = ExecRequest(shell=script, timeout_seconds=5)
                return (await instance.exec(request)).stdout
            except (PinfoldError, AssertionError):
                return b""
        return b""

    async def _tidy(self, case: Case, number: int, verdict: Verdict) -> None:
        with anyio.move_on_after(self._cleanup_s, shield=True):
            try:
                if case.check.place is Place.OWN:
                    await case.site.destroy(case.instance)
                elif verdict in (Verdict.FAIL, Verdict.ENGINE_ERROR):
                    await self._discard(number)  # nobody knows what it is like now
                elif case._scratch is not None and case.target is not None:  # noqa: SLF001
                    await case.target.files.remove(case._scratch, recursive=True)  # noqa: SLF001
            except (PinfoldError, AssertionError):
                self._shared.pop(number, None)  # the ledger still has it

    async def _discard(self, number: int) -> None:
        shared = self._shared.pop(number, None)
        if shared is not None and shared.instance is not None:
            await self.sites[number].destroy(shared.instance)

    # --- the end -----------------------------------------------------------------------------

    def finish(self) -> Outcome | None:
        """Clean up, last in first out, and ask the provider for strays (LC-9)."""
        if self.problem is not None or not self.sites:
            return None
        started = time.perf_counter()
        try:
            verdict, reason = self._call(self._clean_up, 4 * self._cleanup_s + _GRACE_S)
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
        return outcome

    async def _clean_up(self) -> tuple[Verdict, str]:
        provider, owner = self.lane.provider, Owner(store=self.run_id)
        ctx = Context(owner=owner, connect=self.options.connect)
        problem: str | None = f"clean-up did not end within {self._cleanup_s:g} s"
        with anyio.move_on_after(self._cleanup_s):
            problem = await self._end_shared(ctx)
        if problem is not None:
            return Verdict.FAIL, problem
        failures = []
        with anyio.move_on_after(self._cleanup_s) as scope:
            for ref in reversed(list(self.ledger.refs)):
                other = self.options.other
                theirs = other is not None and ref.provider == other.provider.descriptor.name
                try:
                    await (other.provider if other and theirs else provider).destroy(ref, ctx)
                    self.ledger.forget(ref)
                except Exception as exc:  # noqa: BLE001 - told in the report
                    failures.append(f"{ref.id}: {told_of(exc)}")
            strays = [ref.id for ref in await provider.list(owner, ctx)]
        if scope.cancelled_caught:
            return Verdict.FAIL, f"clean-up did not end within {self._cleanup_s:g} s"
        if failures:
            return Verdict.FAIL, f"could not be destroyed: {'; '.join(failures)}"
        if strays:
            return Verdict.FAIL, f"{len(strays)} strays are left: {', '.join(strays)}"
        return Verdict.PASS, ""

    async def _end_shared(self, ctx: Context) -> str | None:
        """Destroy what checks shared; return what was wrong, first with seeing it, then with it."""
        shared = [one.instance for one in self._shared.values() if one.instance is not None]
        if not shared:
            shared = [await self._make(self.sites[0])]
        listed = {ref.id for ref in await self.lane.provider.list(ctx.owner, ctx)}
        problem = None
        for instance in reversed(shared):
            await instance.destroy()
            self.ledger.forget(instance.ref)
            if await instance.status() is not InstanceStatus.ABSENT:
                problem = "a destroyed instance is not absent (LC-5)"
            elif instance.features.attach and instance.ref.id not in listed:
                problem = "list does not tell of an instance that is there (LC-9)"
        return problem

    def report(self) -> Report:
        """Return what the run came to so far."""
        return Report(target=self.lane.name, outcomes=tuple(self.outcomes), facts=self.facts())

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
            "attacks": options.attacks and self.lane.allow_attacks,
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
_HELD = (Verdict.PASS, Verdict.KNOWN_FAILURE, Verdict.NOT_CLAIMED)


def outcomes_of(
    session: Session, told: Callable[[Outcome], None] | None = None
) -> Sequence[Outcome]:
    """Run everything that is planned, clean up, and return the outcomes."""
    for planned in session.plan():
        before = len(session.outcomes)
        session.run(planned)
        for outcome in session.outcomes[before:] if told else ():
            told(outcome) if told else None
    last = session.finish()
    if told and last is not None:
        told(last)
    return session.outcomes
