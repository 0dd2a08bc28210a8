"""The contract's checks on every lane of this repository, and the exec mutants on real processes.

Lanes that need the one Docker engine are held to it beside its tests, in tests/providers/docker.
"""

import pytest

from pinfold_conformance import PROFILES, Options, Verdict, run
from pinfold_conformance._known import load
from pinfold_conformance._targets import find_lanes, lane_names
from pinfold_conformance.mutants import mutants
from tests.conformance.lanes import KNOWN, held_to

LANES = [name for name in lane_names() if not name.startswith("docker")]
#: The POSIX layer with nothing but its one primitive: no provider ships it, all stand on it.
FLOOR = pytest.param("tests.core.posix.lane:lane", id="busybox-root")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*LANES, FLOOR])
def test_a_lane_keeps_the_contract(name):
    held_to(name, "ci" if name == "bashkit" else "remote")


@pytest.mark.parametrize("profile", ["remote", "ci"])
@pytest.mark.parametrize(
    "entry", [pytest.param(one, id=f"{one.check}-{one.target}") for one in load(KNOWN)]
)
def test_a_known_failure_shows_from_its_profile_on_and_not_below(cli, entry, profile):
    """What `make conform` says of it: as it is listed, a known failure fails no profile."""
    code, stdout, _ = cli(
        "conform", entry.target, "--profile", profile, "--only", entry.check, "--known", str(KNOWN)
    )  # fmt: skip
    met = entry.applies(entry.check, entry.target, PROFILES[profile])
    assert (code, "known-failure" in stdout) == ((4, True) if met else (0, False)), stdout


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("profile", ["ci", "nightly"])
@pytest.mark.parametrize("name", LANES)
def test_a_lane_keeps_the_contract_in_the_large_profiles(name, profile):
    held_to(name, profile)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [FLOOR])
def test_the_floor_keeps_the_contract_in_the_ci_profile(name):
    held_to(name, "ci")


EXEC_BUGS = [
    one
    for one in mutants()
    if one.any_adapter
    and not one.strict
    and (one.kills.startswith("EX-") or one.kills == "LC-6.bootstrap")
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
