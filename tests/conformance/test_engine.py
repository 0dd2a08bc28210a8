"""The engine: verdicts, deadlines, whose fault it is, clean-up."""

import datetime as dt
import threading
import time
from contextlib import suppress

import anyio
import pytest

from pinfold.errors import Internal
from pinfold_conformance import PROFILES, Options, Place, Result, Verdict, run, run_checks
from pinfold_conformance._expect import Inconclusive, equal, expect_raises, require
from pinfold_conformance._guard import Sabotage
from pinfold_conformance._known import KnownFailure
from pinfold_conformance._session import Planned, Session
from pinfold_conformance.adapters.toy import ToyLane, ToyProvider
from pinfold_conformance.dialects import Toy
from pinfold_conformance.mutants import mutants
from pinfold_conformance.mutants._base import BugInstance, BugLane
from tests.conformance.support import (
    REMOTE,
    LaneWith,
    make_check,
    nothing,
    outcome_of,
    with_exec,
)


async def fails(case):
    equal(1, 2, "a number")


async def can_not_know(case):
    raise Inconclusive("no witness")


async def own_bug(case):
    raise ZeroDivisionError("a bug of the suite")


async def raises_pinfold(case):
    raise Internal("from an adapter")


async def sleeps(case):
    await anyio.sleep(60)


async def asks(case):
    await case.sh(case.dialect.exit(0))


@pytest.mark.parametrize(
    ("check", "verdict", "reason"),
    [
        (nothing, Verdict.PASS, ""),
        (fails, Verdict.FAIL, "a number: expected 2, found 1"),
        (can_not_know, Verdict.INCONCLUSIVE, "no witness"),
        (own_bug, Verdict.ENGINE_ERROR, "ZeroDivisionError"),
        (raises_pinfold, Verdict.FAIL, "unexpected Internal: from an adapter"),
    ],
)
def test_an_exception_says_whose_fault_it_is(check, verdict, reason):
    outcome = outcome_of(check)
    assert outcome.verdict is verdict
    assert reason in outcome.reason


def test_a_check_that_hangs_fails_at_its_deadline():
    started = time.monotonic()
    outcome = outcome_of(sleeps, deadline_s=0.2)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAIL, "it did not end within 0.2 s")
    assert time.monotonic() - started < 5


def test_an_adapter_that_blocks_the_event_loop_fails_its_check_and_the_run_goes_on():
    def block(inner, request, sink):
        if "exit" in (request.shell or ""):
            time.sleep(60)
        return inner.exec(request, sink)

    async def exec_(inner, request, sink):
        return await block(inner, request, sink)

    options = Options(profile=REMOTE, only=("EX-1.nonzero", "FS-3.contents"), scale=0.01)
    report = run(with_exec(exec_), options)
    assert report.by_id("EX-1.nonzero").verdict is Verdict.FAIL
    assert "not even when cancelled" in report.by_id("EX-1.nonzero").reason
    assert report.by_id("FS-3.contents").verdict is Verdict.PASS


@pytest.mark.parametrize("answer", [None, 7, "text", b"bytes"])
def test_an_answer_of_a_wrong_type_is_the_adapters_failure(answer):
    async def exec_(inner, request, sink):
        return answer

    outcome = outcome_of(asks, with_exec(exec_))
    assert outcome.verdict is Verdict.FAIL
    assert "the result of exec is" in outcome.reason


@pytest.mark.parametrize("error", [KeyError("x"), OSError(5, "io"), SystemExit(3), TimeoutError()])
def test_an_error_of_no_kind_is_the_adapters_failure(error):
    async def exec_(inner, request, sink):
        raise error

    outcome = outcome_of(asks, with_exec(exec_))
    assert outcome.verdict is Verdict.FAIL
    assert "only the contract's own errors" in outcome.reason


def test_a_target_that_can_not_be_made_fails_every_check_with_the_reason():
    async def make(pinned, ctx):
        raise Internal("out of stock")

    report = run(LaneWith(make=make), Options(profile=PROFILES["smoke"]))
    assert report.result is Result.NOT_CONFORMANT
    assert {one.verdict for one in report.outcomes} == {Verdict.FAIL}
    for one in report.outcomes:
        assert "out of stock" in one.reason


def test_an_unavailable_target_is_partial_never_conformant():
    async def unavailable():
        return "no engine answers"

    report = run(LaneWith(unavailable=unavailable), Options(profile=PROFILES["smoke"]))
    (one,) = report.outcomes
    assert report.result is Result.PARTIAL
    assert (one.check, one.verdict) == ("target.available", Verdict.INCONCLUSIVE)
    assert "no engine answers" in one.reason


def test_a_lane_whose_reset_fails_is_given_a_fresh_instance():
    async def reset(instance):
        raise OSError("the disk is gone")

    report = run(LaneWith(reset=reset), Options(profile=REMOTE, only=("CP-1.entries",)))
    assert report.by_id("CP-1.entries").verdict is Verdict.PASS


def test_a_lane_whose_clean_up_fails_is_told_as_strays(monkeypatch):
    lane = LaneWith()

    async def destroy(ref, ctx=None):
        raise Internal("can't be destroyed")

    monkeypatch.setattr(lane.provider, "destroy", destroy)
    report = run(lane, Options(profile=REMOTE, only=("LC-9.cancelled-create",)))
    assert report.result is Result.NOT_CONFORMANT


def test_resources_are_registered_and_none_is_left():
    provider = ToyProvider()
    report = run(ToyLane(provider=provider), Options(profile=PROFILES["smoke"]))
    assert report.result is Result.CONFORMANT
    assert [body.alive for _, body in provider.bodies.values()].count(True) == 0


@pytest.mark.parametrize("breaks", [False, True])
def test_a_run_that_is_left_early_leaves_nothing(breaks):
    """As the pytest plugin is, where only some tests are selected, or a run that is interrupted."""
    provider = ToyProvider()
    with suppress(KeyboardInterrupt), Session(ToyLane(provider=provider), Options()) as session:
        outcome = session.run(Planned(make_check(nothing), 0))
        assert outcome is not None
        assert outcome.verdict is Verdict.PASS
        assert [body.alive for _, body in provider.bodies.values()] == [True]
        if breaks:
            raise KeyboardInterrupt
    assert [body.alive for _, body in provider.bodies.values()].count(True) == 0


def test_five_hangs_in_a_row_end_the_run():
    async def exec_(inner, request, sink):
        await anyio.sleep_forever()

    options = Options(profile=REMOTE, only=("EX-*",), scale=0.005)
    report = run(with_exec(exec_), options)
    given_up = [one for one in report.outcomes if "not tried" in one.reason]
    assert len(given_up) > 20
    assert report.result is Result.NOT_CONFORMANT


def test_hangs_that_no_cancellation_ends_count_too():
    """Each costs an event loop, and all its waiting."""
    toy, over = Toy(), threading.Event()

    async def exec_(inner, request, sink):
        if request.shell != toy.uid():
            over.wait(60)
        return await inner.exec(request, sink)

    options = Options(profile=REMOTE, only=("EX-*",), scale=0.02, patience=2, dialect=toy)
    try:
        report = run(with_exec(exec_), options)
    finally:
        over.set()
    told = [one.reason for one in report.outcomes if one.check.startswith("EX-")]
    assert ["not even when cancelled" in reason for reason in told[:3]] == [True, True, False]
    assert all("not tried" in reason for reason in told[2:])
    assert len(told) > 20


class HangsAtItsEnd(BugInstance):
    async def destroy(self):
        await anyio.sleep_forever()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_destroy_that_hangs_fails_its_check_and_is_not_said_to_be_deaf(backend):
    async def uses_another(case):
        async with case.another():
            pass

    async def hangs_with_another(case):
        async with case.another():
            await anyio.sleep_forever()

    async def fails_with_another(case):
        async with case.another():
            equal(1, 2, "a number")

    lane = BugLane(ToyLane(), wrap=HangsAtItsEnd)
    options = Options(profile=REMOTE, scale=0.02, backend=backend)
    for check, deadline_s, told in (
        (uses_another, 500.0, "destroy did not end within 0.3 s"),
        (hangs_with_another, 25.0, "it did not end within 0.5 s"),
        (fails_with_another, 500.0, "a number: expected 2, found 1"),
    ):
        outcome = outcome_of(check, lane, options, deadline_s=deadline_s)
        assert (outcome.verdict, outcome.reason) == (Verdict.FAIL, told)


def test_a_refutation_that_is_known_to_fail_refutes_nothing():
    entry = KnownFailure(
        check="LC-1.pause-absent", reason="it pauses", issue="acme-1",
        expires=dt.date(2999, 1, 1), match="",
    )  # fmt: skip
    bug = next(one for one in mutants() if one.kills == entry.check)
    report = run(bug.lane(), Options(profile=REMOTE, only=("LC-1.pause*",), known=(entry,)))
    assert report.by_id("LC-1.pause-absent").verdict is Verdict.KNOWN_FAILURE
    assert report.by_id("LC-1.pause").verdict is Verdict.INCONCLUSIVE


def test_the_shared_instance_is_replaced_after_a_failure():
    seen = []

    async def look(case):
        seen.append(case.instance.ref.id)
        require(len(seen) > 1, "the first time it fails")

    for place in (Place.SHARED,):
        outcome_of(look, place=place)
    outcome = outcome_of(look)
    assert outcome.verdict is Verdict.PASS
    assert len(set(seen)) == 2


@pytest.mark.anyio
async def test_run_checks_needs_no_test_framework_and_no_thread_of_the_callers():
    report = await run_checks(ToyLane(), options=Options(profile=REMOTE, only=("EX-1",)))
    assert report.result is Result.CONFORMANT


def throw(error):
    raise error


def caught_from(error):
    with expect_raises(type(error)) as caught:
        throw(error)
    return caught


def test_expect_raises_raises_assertion_errors_alone():
    with pytest.raises(AssertionError, match="nothing was raised"), expect_raises(Internal):
        pass
    with pytest.raises(AssertionError, match="found Internal"), expect_raises(Sabotage):
        raise Internal("x")
    caught = caught_from(Internal("x"))
    assert caught.error.message == "x"
    with pytest.raises(AssertionError, match="no message"), expect_raises(Internal):
        raise Internal(" ")
    with pytest.raises(AssertionError, match="not JSON-able"), expect_raises(Internal):
        raise Internal("x", details={"at": object()})


def test_checks_import_no_test_framework(root):
    folder = root / "conformance/src/pinfold_conformance"
    files = [*folder.rglob("*.py")]
    assert len(files) > 50
    guilty = [
        file.relative_to(folder)
        for file in files
        if "pytest" in file.read_text().replace("pytest --", "")
        and file.name not in ("plugin.py", "test_conformance.py", "__init__.py", "_expect.py")
        and any(
            line.lstrip().startswith(("import pytest", "from pytest"))
            for line in file.read_text().splitlines()
        )
    ]
    assert guilty == []
