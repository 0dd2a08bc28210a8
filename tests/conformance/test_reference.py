"""The reference passes every profile, on both event loops; so does the least of targets."""

import pytest

from pinfold_conformance import PROFILES, Options, Result, Verdict, run
from pinfold_conformance.adapters.toy import NOTHING, ToyLane, ToyProvider


def strict_lane():
    return ToyLane(name="strict", provider=ToyProvider("strict", features=NOTHING))


def bad(report):
    return [
        f"{one.check}: {one.verdict}: {one.reason}"
        for one in report.outcomes
        if one.verdict not in (Verdict.PASS, Verdict.NOT_CLAIMED)
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("make", [ToyLane, strict_lane], ids=["reference", "strict"])
def test_conformant_on_both_event_loops(make, backend):
    profile = PROFILES["remote" if backend == "asyncio" else "smoke"]
    report = run(make(), Options(profile=profile, backend=backend, strict=True, other=ToyLane()))
    assert bad(report) == []
    assert report.result is Result.CONFORMANT


def test_the_golden_scripts_are_short():
    """Each is one story of at most 150 operations, on one target."""
    report = run(ToyLane(), Options(profile=PROFILES["smoke"]))
    count = {one.check: one.operations for one in report.outcomes if one.kind == "script"}
    assert len(count) == 5
    assert {check: number for check, number in count.items() if not 10 <= number <= 150} == {}


def test_the_least_of_targets_claims_little_and_refutes_the_rest():
    report = run(strict_lane(), Options(profile=PROFILES["remote"], only=("TR-1", "LC-1", "EX-8")))
    denied = {o.check for o in report.outcomes if o.verdict is Verdict.NOT_CLAIMED}
    assert {"TR-1.pty", "LC-1.attach", "LC-1.pause", "EX-8.background"} <= denied


def test_a_run_in_which_nothing_was_checked_is_never_conformant():
    report = run(ToyLane(), Options(profile=PROFILES["remote"], only=("CP-4.other",)))
    assert report.result is Result.PARTIAL
    assert [one.check for one in report.outcomes] == ["LC-9.strays"]
    assert "no second target" in report.facts["omitted"]["CP-4.other [isolated/deny/checkpointed]"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ci", "nightly"])
def test_conformant_in_the_large_profiles(name):
    report = run(ToyLane(), Options(profile=PROFILES[name], other=ToyLane()))
    assert bad(report) == []
