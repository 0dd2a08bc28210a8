"""A durable sandbox without compute, and the file system of it."""

from __future__ import annotations

import pytest

from pinfold import blocking
from pinfold.checkpoint import CheckpointStore
from pinfold.fs import SandboxFileSystem
from pinfold.sandbox import Store
from pinfold.state import SqliteStateStore


def make_sandbox(folder, spec, name="box"):
    """Make a durable sandbox; return the options of its file system."""
    store = Store(
        CheckpointStore(folder / "checkpoints", fsync=False),
        SqliteStateStore(folder / "state.sqlite", fsync=False),
    )
    with blocking.open(spec, name=name, store=store):
        return {"sandbox": name, "store": store}


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return make_sandbox(tmp_path_factory.mktemp("fs"), {"target": None})


@pytest.fixture(scope="module")
def fs(options):
    system = SandboxFileSystem(**options, skip_instance_cache=True)
    yield system
    system.close()
