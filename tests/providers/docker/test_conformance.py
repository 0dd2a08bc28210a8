"""The contract's checks on both images, with the helper and without it, beside the engine's other
tests: they share the engine.
"""

import pytest

from tests.conformance.lanes import held_to

pytestmark = pytest.mark.usefixtures("client")

LANES = ["docker", "docker-shell", "docker-debian"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "profile"),
    # By the shell alone all takes four times as long: some six minutes of `remote`.
    [("docker", "remote"), ("docker-shell", "smoke"), ("docker-debian", "remote")],
)
def test_a_lane_keeps_the_contract(name, profile):
    held_to(name, profile)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "profile"),
    # What is random needs one of them alone: the one that can look at all that is denied.
    [*((name, "ci") for name in LANES), ("docker-debian", "nightly")],
)
def test_a_lane_keeps_the_contract_in_the_large_profiles(name, profile):
    held_to(name, profile)
