"""Fixtures of the bashkit tests."""

from collections.abc import AsyncIterator

import pytest

from pinfold_bashkit._instance import BashkitInstance
from tests.providers.bashkit.support import make


@pytest.fixture
async def box() -> AsyncIterator[BashkitInstance]:
    """A sandbox, gone afterwards."""
    instance = await make()
    yield instance
    await instance.destroy()
