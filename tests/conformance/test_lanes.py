"""The contract's checks on every lane of this repository, and the exec mutants on real processes.

Certificates, JUnit and a page to look at are left in build/conformance.
"""

from pathlib import Path

import pytest

from pinfold_conformance import PROFILES, Options, Result, Verdict, all_checks, run
from pinfold_conformance._artefacts import write
from pinfold_conformance._certificate import certificate, verify
from pinfold_conformance._known import load
from pinfold_conformance._targets import find_lanes, lane_names
from pinfold_conformance.mutants import mutants

HERE = Path(__file__).parent

#: What each lane is held to in CI; nightly all are held to `ci`.
PROFILE = {"bashkit": "ci", "docker-debian": "smoke"}


def held_to(name, profile):
    (found,) = find_lanes(name)
    assert found.lane is not None, found.problem
    known = load(HERE / "known-failures.toml", [one.id for one in all_checks()])
    options = Options(profile=PROFILES[profile], known=known)
    report = run(found.lane, options)
    form = certificate(
        report, found.lane.provider, command=f"pinfold conform {name} --profile {profile}"
    )
    write(HERE.parents[1] / "build" / "conformance" / name, [report], [form])
    if report.outcomes[0].check == "target.available":
        pytest.skip(f"{name}: {report.outcomes[0].reason}")
    assert verify(form) == []
    bad = {
        one.check: f"{one.verdict}: {one.reason}"
        for one in report.outcomes
        if one.verdict not in (Verdict.PASS, Verdict.NOT_CLAIMED, Verdict.KNOWN_FAILURE)
    }
    assert bad == {}
    assert report.result in (Result.CONFORMANT, Result.PARTIAL)


# Nightly's, until each lane has been seen to pass every time on a busy machine.
@pytest.mark.nightly
@pytest.mark.parametrize("name", lane_names())
def test_a_lane_keeps_the_contract(name):
    held_to(name, PROFILE.get(name, "remote"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", lane_names())
def test_a_lane_keeps_the_contract_in_the_large_profile(name):
    held_to(name, "ci")


EXEC_BUGS = [
    one
    for one in mutants()
    if one.any_adapter
    and not one.strict
    and one.kills.startswith("EX-")
    and one.kills != "EX-14.cut"
]

#: One of these is told by its waiting; they are tried on processes every night.
SLOW = {
    "EX-4.holders",
    "EX-4.flood",
    "EX-5.cancel-asleep",
    "EX-13.concurrent",
    "EX-15.while-running",
}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.nightly] if one.kills in SLOW else [])
        for one in EXEC_BUGS
    ],
)
def test_a_mutant_dies_on_real_processes(mutant):
    (found,) = find_lanes("host-none")
    assert found.lane is not None, found.problem
    options = Options(profile=PROFILES["remote"], only=(mutant.kills,))
    outcome = run(mutant.lane(found.lane), options).by_id(mutant.kills)
    assert outcome.verdict is Verdict.FAIL, outcome


def test_enough_mutants_are_tried_on_real_processes():
    assert len([one for one in EXEC_BUGS if one.kills not in SLOW]) >= 15
