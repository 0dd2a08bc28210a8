"""A sandbox in memory, and the operator's folder beside what nothing may reach."""

from __future__ import annotations

import os

import pytest

from pinfold.memory import MemoryFiles, Store
from pinfold.spec import Limits


@pytest.fixture
def files():
    return MemoryFiles(Store(), Limits())


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """The operator's working folder, with a neighbour that nothing may reach."""
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "canary").write_bytes(b"untouched")
    monkeypatch.chdir(folder)
    before = os.umask(0o022)
    yield folder
    os.umask(before)
    assert [p.name for p in (tmp_path / "neighbour").iterdir()] == ["canary"]
    assert (tmp_path / "neighbour" / "canary").read_bytes() == b"untouched"
