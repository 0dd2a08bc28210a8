"""The tutorial's projects, from the built wheels alone: written, installed, certified (PR-1, PR-6).

docs/write-a-provider.md is that tutorial: what it shows of a project is in the project that
`pinfold new-provider` writes, word for word, and its commands certify both flavours.
"""

import json
import subprocess

import pytest

from pinfold_conformance._template import FLAVOURS
from tests.docs.blocks import read_blocks
from tests.docs.walk import Walk
from tests.downstream import fresh

PAGE = "docs/write-a-provider.md"


@pytest.fixture
def folder(tmp_path):
    """An empty folder, with a neighbour to be at home in."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def ask(environment, cwd, *command):
    done = subprocess.run(
        [environment / command[0], *command[1:]],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_tutorial_holds_and_certifies_both_flavours(environment, folder, tmp_path):
    blocks = read_blocks(fresh.ROOT / PAGE, PAGE)
    assert len([block for block in blocks if block.source]) >= 10
    Walk(folder, environment, fresh.PIP).run(blocks)

    form = json.loads((folder / "certified/certificate.json").read_text())
    assert (form["adapter"]["dist"], form["result"]) == ("pinfold-cloud", "conformant")

    # Nothing of the tree is in sight: everything of ours comes from a wheel.
    names = ("pinfold", "pinfold_conformance", "pinfold_acme", "pinfold_cloud")
    program = f"import {', '.join(names)}\nfor m in ({', '.join(names)}): print(m.__file__)"
    code, said = ask(environment, tmp_path, "python", "-c", program)
    assert code == 0, said
    assert [str(environment.parent) in path for path in said.split()] == [True] * len(names)

    # Two providers make kind host now: none is implied, and the fault names both (SP-0).
    program = (
        "from pinfold import blocking\nblocking.open({'target': {'kind': 'host'}}).__enter__()"
    )
    code, said = ask(environment, tmp_path, "python", "-c", program)
    assert code == 1
    assert "allowed: acme, cloud" in said


def test_a_provider_that_is_not_installed_is_told_so(environment, tmp_path):
    code, said = ask(environment, tmp_path, "pinfold", "run", "--provider", "acme", "--", "true")
    assert code == 125
    assert "provider 'acme' is not installed" in said


@pytest.mark.nightly
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_new_provider_passes_the_remote_profile_and_its_own_tests(flavour, environment, tmp_path):
    fresh.run(
        environment / "pinfold", "new-provider", "my-place", "--flavour", flavour,
        "--into", tmp_path,
    )  # fmt: skip
    project = tmp_path / "pinfold-my-place"
    fresh.install(environment, [fresh.build(project, tmp_path)])
    code, said = ask(environment, tmp_path, "pinfold", "conform", "my-place", "--profile", "remote")
    assert code == 0, said
    code, said = ask(environment, project, "python", "-m", "pytest", "-q")
    assert code == 0, said
    assert "6 passed" in said
