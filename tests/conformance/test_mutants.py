"""Who tests the tests: each bug dies by the check that is named for it, each attack hits the naive."""

import pytest

from pinfold.errors import NoSpace
from pinfold_conformance import PROFILES, Kind, Options, Verdict, all_checks, run
from pinfold_conformance._session import Planned, Session
from pinfold_conformance.adapters._degenerate import DEGENERATES, degenerate_lane
from pinfold_conformance.adapters._naive import NaiveLane
from pinfold_conformance.adapters.toy import ToyLane
from pinfold_conformance.checks import _attacks
from pinfold_conformance.mutants import mutants
from pinfold_conformance.mutants._base import BugFiles, BugInstance, BugLane
from tests.conformance.support import make_check

REMOTE = PROFILES["remote"]

#: Checks without a mutant of their own, each with the reason.
WITHOUT_MUTANT = {
    "TR-1.exec-absent": "a target without compute is core's own instance",
    "TR-1.network-allowlist": "the reference has no allowlist",
    "TR-1.network-allowlist-allowed": "the reference has no allowlist",
    "TR-1.network-unenforced": "the reference enforces its network",
    "TR-1.level-native": "the reference is isolated",
}


#: Checks that the reference can't be asked: test_lanes tries their mutants on real processes.
NATIVE = {"LC-6.bootstrap"}


@pytest.mark.parametrize(
    "mutant", [pytest.param(one, id=one.name) for one in mutants() if one.kills not in NATIVE]
)
def test_a_mutant_dies_by_its_check(mutant):
    only = (mutant.kills,) if mutant.kills != "LC-9.strays" else ("LC-5.empty",)
    report = run(mutant.lane(), Options(profile=REMOTE, only=only, strict=True, other=ToyLane()))
    outcome = report.by_id(mutant.kills)
    assert outcome.verdict is Verdict.FAIL, outcome
    assert outcome.reason


def test_there_are_enough_mutants_and_every_check_has_one():
    everyone = mutants()
    assert len(everyone) >= 60
    assert sum(one.any_adapter and one.kills.startswith("EX-") for one in everyone) >= 15
    named = {one.kills for one in everyone}
    checks = {one.id for one in all_checks()}
    assert named - checks == {"LC-9.strays"}
    assert checks - named == set(WITHOUT_MUTANT)


@pytest.mark.parametrize("written", [0, 1000], ids=["all or nothing", "some"])
@pytest.mark.parametrize(("listed", "verdict"), [(1000, Verdict.PASS), (700, Verdict.FAIL)])
def test_a_target_with_room_for_a_thousand_names_is_held_to_fewer(written, listed, verdict):
    """FS-5.list asks for half as many until there is room; what it then asks is not less strict."""

    class Crowded(BugFiles):
        async def write_many(self, files):
            fit = dict(list(files.items())[: len(files) if len(files) <= 1000 else written])
            await self.inner.write_many(fit)
            if len(fit) < len(files):
                raise NoSpace("no room for more names")

        async def list(self, path):
            return list(await self.inner.list(path))[:listed]

    class Instance(BugInstance):
        files_class = Crowded

    lane = BugLane(ToyLane(), wrap=Instance)
    report = run(lane, Options(profile=PROFILES["ci"], only=("FS-5.list",)))
    outcome = report.by_id("FS-5.list")
    assert outcome.verdict is verdict, outcome.reason
    if verdict is Verdict.PASS:
        assert outcome.evidence["entries"] == 750
    else:
        assert "a listing of 750" in outcome.reason


@pytest.mark.parametrize("name", DEGENERATES)
def test_an_adapter_that_keeps_nothing_passes_nothing(name):
    scale = 0.001 if name == "always-hangs" else 0.2
    options = Options(
        profile=PROFILES["ci"], scale=scale, patience=10_000, other=degenerate_lane(name)
    )
    report = run(degenerate_lane(name), options)
    assert len(report.outcomes) > 150
    told = {
        one.check: (str(one.verdict), one.reason)
        for one in report.outcomes
        if one.verdict not in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    }
    assert told == {}


ATTACKS = [one.id for one in all_checks() if one.kind is Kind.ATTACK]


@pytest.mark.parametrize("check", [*ATTACKS, "FS-2.race"])
def test_an_attack_succeeds_against_the_naive_adapter(check):
    report = run(NaiveLane(), Options(profile=PROFILES["ci"], only=(check,)))
    assert report.by_id(check).verdict is Verdict.FAIL, report.by_id(check)


def test_every_cell_of_the_attack_matrix_succeeds_against_the_naive_adapter():
    held = []

    async def all_cells(case):
        async with _attacks.a_field(case) as field:
            for attack in _attacks.attacks(case):
                case.evidence[attack.id] = await _attacks.escaped(case, field, attack)
                if case.evidence[attack.id] is None:
                    held.append(attack.id)

    with Session(NaiveLane(), Options(profile=REMOTE)) as session:
        outcome = session.run(Planned(make_check(all_cells, deadline_s=120.0), 0))
        session.finish()
    assert outcome is not None
    assert outcome.verdict is Verdict.PASS, outcome.reason
    assert len(outcome.evidence) > 100
    assert held == []
