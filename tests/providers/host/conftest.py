"""Every test runs at both levels and on both event loops, in a data folder of its own."""

import pytest

from pinfold_host._boundary import missing
from pinfold_host._linux import openat2_or_none
from tests.providers.host.support import create, is_there


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """The user's data folder is the test's own."""
    home = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    return home


@pytest.fixture(params=["asyncio-openat2", "trio-openat2", "asyncio-walk"])
def kind(request):
    return request.param.split("-")


@pytest.fixture
def way(kind, monkeypatch):
    """How the kernel is asked: one call for a whole path, or one for each component."""
    if kind[1] == "walk":
        monkeypatch.setattr("pinfold_host._beneath.openat2_or_none", lambda: None)
    elif openat2_or_none() is None:
        pytest.skip("this kernel has no openat2")
    return kind[1]


@pytest.fixture
def native():
    """Level native can be had here."""
    if reason := missing():
        pytest.skip(f"level native: {reason}")


@pytest.fixture(params=["none", "native"])
def level(request):
    if request.param == "native":
        request.getfixturevalue("native")
    return request.param


@pytest.fixture
async def instance(anyio_backend, level, data_home):
    """An instance, and the certainty that nothing is left of it afterwards."""
    made = await create(level)
    yield made
    await made.destroy()
    assert not is_there(made)
