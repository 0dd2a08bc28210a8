"""Fixtures of the suite's own tests."""

from pathlib import Path

import pytest

from pinfold.cli import main


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """`pinfold ARGS…`: its exit code, stdout and stderr."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*args):
        with pytest.raises(SystemExit) as caught:
            main(list(args))
        out = capsys.readouterr()
        return caught.value.code, out.out, out.err

    return call
