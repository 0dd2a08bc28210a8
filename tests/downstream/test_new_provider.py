"""The tutorial's project, from the built wheels alone: written, installed, certified (PR-1, PR-6)."""

import json
import subprocess

import pytest

from tests.downstream import fresh


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return fresh.build(fresh.ROOT / "conformance", tmp_path_factory.mktemp("suite"))


@pytest.fixture
def provider(environment, suite, tmp_path):
    """A fresh environment with a provider that `pinfold new-provider` wrote."""
    fresh.install(environment, [suite])
    fresh.run(environment / "pinfold", "new-provider", "acme", "--into", tmp_path)
    fresh.install(environment, [fresh.build(tmp_path / "pinfold-acme", tmp_path)])
    return tmp_path / "pinfold-acme"


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


def test_a_third_party_provider_is_certified_by_two_commands(provider, environment, tmp_path):
    out = tmp_path / "out"
    code, said = ask(
        environment, tmp_path, "pinfold", "conform", "acme", "--profile", "smoke", "--out", str(out)
    )
    assert code == 0, said
    code, said = ask(
        environment, tmp_path, "pinfold", "conform", "--verify", str(out / "certificate.json")
    )
    assert code == 0, said
    form = json.loads((out / "certificate.json").read_text())
    assert form["adapter"]["dist"] == "pinfold-acme"
    assert form["result"] == "conformant"
    code, said = ask(
        environment, tmp_path, "pinfold", "run", "--provider", "acme", "--", "echo", "hi"
    )
    assert (code, said) == (0, "hi\n")


def test_its_own_tests_run_the_suite(provider, environment):
    code, said = ask(environment, provider, "python", "-m", "pytest", "-q")
    assert code == 0, said
    assert "6 passed" in said


@pytest.mark.nightly
def test_it_passes_the_remote_profile(provider, environment, tmp_path):
    code, said = ask(environment, tmp_path, "pinfold", "conform", "acme", "--profile", "remote")
    assert code == 0, said
