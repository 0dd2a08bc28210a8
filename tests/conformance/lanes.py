"""Holding a lane of this repository to the contract; certificates are left in build/conformance."""

import datetime as dt
from pathlib import Path

import pytest

from pinfold_conformance import PROFILES, Options, Result, Verdict, run
from pinfold_conformance._artefacts import write
from pinfold_conformance._certificate import certificate
from pinfold_conformance._known import load
from pinfold_conformance._targets import find_lanes
from pinfold_conformance._verify import verify

HERE = Path(__file__).parent
#: What `make conform` is told, too.
KNOWN = HERE / "known-failures.toml"

BUSYBOX_LACKS = {
    "TR-1.network-deny-udp": "busybox has no tool for it; the lane docker-debian has",
    "TR-1.network-deny-ipv6": "busybox has no tool for it; the lane docker-debian has",
    "TR-1.network-deny-unix": "busybox has no tool for it; the lane docker-debian has",
}
#: Checks that can't be made, by lane, with what the lane lacks.
_LANES = ("docker", "docker-shell", "busybox-root")
INCONCLUSIVE = dict.fromkeys(_LANES, BUSYBOX_LACKS)
#: What a machine may lack, whatever the lane.
LACKS = ("this machine has no IPv6",)


def held_to(target: str, profile: str, *only: str) -> None:
    """Run a profile on a lane, or some of it, leave its artefacts, and expect it to pass."""
    (found,) = find_lanes(target)
    assert found.lane is not None, found.problem
    name = found.lane.name
    known = load(KNOWN)
    # Certificates come from the fixed seed; what is random is another one every day.
    seed = 0 if PROFILES[profile].derandomize else dt.datetime.now(dt.UTC).date().toordinal()
    options = Options(profile=PROFILES[profile], only=only, known=known, seed=seed)
    report = run(found.lane, options)
    command = " ".join(
        [
            f"pinfold conform {target} --profile {profile} --seed {seed}",
            *(f"--only {o}" for o in only),
        ]
    )
    form = certificate(report, found.lane.provider, command=command)
    write(HERE.parents[1] / "build" / "conformance" / name / profile, [report], [form])
    if report.outcomes[0].check == "target.available":
        pytest.skip(f"{name}: {report.outcomes[0].reason}")
    if PROFILES[profile].derandomize and not only:  # what is random, or a part, certifies nothing
        assert verify(form) == []
    untold = {
        one.check
        for one in report.outcomes
        if one.verdict is Verdict.INCONCLUSIVE
        and (one.check in INCONCLUSIVE.get(name, {}) or one.reason.startswith(LACKS))
    }
    bad = {
        one.check: f"{one.verdict}: {one.reason}"
        for one in report.outcomes
        if one.verdict not in (Verdict.PASS, Verdict.NOT_CLAIMED, Verdict.KNOWN_FAILURE)
        and one.check not in untold
    }
    assert bad == {}
    assert report.result in (Result.CONFORMANT, Result.PARTIAL)
