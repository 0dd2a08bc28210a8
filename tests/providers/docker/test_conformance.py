"""The contract's checks on both images, with the helper and without it, beside the engine's other
tests: they share the engine.
"""

import pytest

from tests.conformance.lanes import held_to

pytestmark = pytest.mark.usefixtures("client")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["docker", "docker-debian"])
def test_a_lane_keeps_the_contract(name):
    held_to(name, "remote")


@pytest.mark.timeout(900)
def test_without_the_helper_commands_and_lives_keep_it_too():
    """All of it takes six minutes: that is for the night, and files are held to it elsewhere."""
    held_to("docker-shell", "remote", "EX-*", "LC-*")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("docker", "ci"),
        ("docker-shell", "remote"),
        ("docker-debian", "ci"),
        # What is random needs one of them alone: the one that can look at all that is denied.
        ("docker-debian", "nightly"),
    ],
)
def test_a_lane_keeps_the_contract_in_the_large_profiles(name, profile):
    held_to(name, profile)
