"""Links swapped in under every file operation of the helper lead nothing out (FS-2).

5,000 tries over all operations, 100,000 in nightly; with openat2, and by hand without it.
"""

from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import pytest

from pinfold.posix import equip
from pinfold.provider import InstanceRef
from tests.core.posix.conftest import Box, LocalInstance
from tests.core.posix.guests import LocalGuest, OldKernelGuest
from tests.core.posix.test_races import FAMILIES, race
from tests.core.resident.conftest import end_marked

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

CELLS = len(FAMILIES) * 2 * 2


@pytest.fixture(params=["helper", "helper-old-kernel"])
async def box(request: pytest.FixtureRequest, tmp_path) -> AsyncIterator[Box]:
    workspace, outside = tmp_path / "w", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    guest = LocalGuest() if request.param == "helper" else OldKernelGuest()
    root = PurePosixPath(workspace)
    kit = await equip(guest, root=root, identity=str(tmp_path), helper="required")
    instance = LocalInstance(InstanceRef(provider="test", id="x"), kit)
    assert kit.resident is not None
    assert kit.resident.session.greeting.openat2 is (request.param == "helper")
    yield Box(request.param, instance, guest, workspace, outside, str(outside))
    await kit.resident.aclose()
    end_marked(kit.mark)


@pytest.mark.parametrize(
    "total",
    [5_000, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("where", ["parent", "leaf"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_fs2_no_swap_leads_out(box, family, where, total) -> None:
    tries = -(-total // CELLS)
    swaps, successes, refusals = await race(box, family, where, tries=tries, seconds=600)
    assert successes + refusals == tries
    assert swaps > 20
    assert box.instance.equipment.resident.restarts == 0
