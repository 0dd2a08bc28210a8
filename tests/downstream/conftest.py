"""Wheels of the tree, and a fresh environment with them."""

from pathlib import Path

import pytest

from tests.downstream import fresh


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> list[Path]:
    """Core and the bashkit provider, built from the tree."""
    out = tmp_path_factory.mktemp("wheels")
    return [fresh.build(fresh.ROOT / name, out) for name in ("core", "providers/bashkit")]


@pytest.fixture
def environment(wheels, tmp_path) -> Path:
    """The bin folder of a fresh environment in which pinfold is installed."""
    bin_ = fresh.make(tmp_path / "venv")
    fresh.install(bin_, wheels)
    return bin_
