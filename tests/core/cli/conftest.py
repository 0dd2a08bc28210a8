"""Sandboxes on the command line, each test with a data folder of its own."""

from __future__ import annotations

import pytest

from pinfold.cli import _app
from tests.core.cli.durable_support import UP, Cli
from tests.core.cli.launcher import Launcher


@pytest.fixture(scope="module")
def launcher():
    """What `Cli` runs its commands by."""
    Cli.launcher = Launcher()
    yield
    Cli.launcher.close()


@pytest.fixture(params=UP)
def cli(request, tmp_path, launcher):
    return Cli(tmp_path, UP[request.param])


@pytest.fixture
def quick(tmp_path, launcher):
    """On bashkit alone, where the provider makes no difference."""
    return Cli(tmp_path, UP["bashkit"])


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Run what is wrong in this process: 125, and one line that says what."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("PINFOLD_CONFIG", "PINFOLD_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str) -> str:
        code = _app._main(list(args))
        out, err = capfd.readouterr()
        assert (code, out) == (125, ""), (code, out, err)
        assert err.startswith("pinfold: "), err
        assert err.count("\n") == 1, err
        return str(err)

    return run
