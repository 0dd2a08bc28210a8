"""The trackers' table once more, on this provider's own ways to run commands and to reach files.

The rows are the POSIX layer's own (tests/core/posix/test_table.py), by their numbers.
"""

import pytest

from tests.core.posix.conftest import Box
from tests.core.posix.test_table import ROWS
from tests.providers.host.support import workspace

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def box(instance, level, tmp_path):
    """The instance as the rows know one: the workspace is seen past it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    return Box(
        kind=f"host-{level}",
        instance=instance,
        guest=instance.equipment.guest,
        workspace=workspace(instance),
        outside=outside,
        out=str(outside),
    )


@pytest.mark.parametrize("row", ROWS)
async def test_table_row(box, row, caplog):
    await (ROWS[row](box, caplog) if row == "29" else ROWS[row](box))
