"""A durable sandbox on a cloud whose machines can be taken away."""

from __future__ import annotations

import pytest

import pinfold
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store


@pytest.fixture
def cloud():
    return Cloud()


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path)


@pytest.fixture
def opened(cloud, store):
    """Open a durable sandbox, or another handle of it."""
    runtime = make_runtime(cloud)

    def get(name="box", spec=SPEC, **more):
        return pinfold.open(spec, name=name, store=store, runtime=runtime, **more)

    get.again = lambda name="box": pinfold.reopen(name, store=store, runtime=runtime)
    get.runtime = runtime
    return get
