"""Wheels of the tree, and fresh environments with them."""

from pathlib import Path

import pytest

from tests.downstream import fresh


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> list[Path]:
    """Core and the suite, built from the tree."""
    out = tmp_path_factory.mktemp("wheels")
    return [fresh.build(fresh.ROOT / name, out) for name in ("core", "conformance")]


@pytest.fixture
def environment(wheels, tmp_path) -> Path:
    """The bin folder of a fresh environment in which pinfold and its suite are installed."""
    bin_ = fresh.make(tmp_path / "venv")
    fresh.install(bin_, wheels)
    return bin_
