"""Links swapped in under every file operation of the helper lead nothing out (FS-2).

20,000 tries over all operations, 100,000 in nightly; with openat2, and by hand without it.
"""

from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import pytest

from pinfold.errors import Internal, PinfoldError
from pinfold.posix import equip
from pinfold.provider import InstanceRef
from tests.core.posix.conftest import Box, LocalInstance
from tests.core.posix.guests import LocalGuest, OldKernelGuest
from tests.core.posix.test_races import FAMILIES, attack, look
from tests.core.resident.conftest import end_marked

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

CELLS = len(FAMILIES) * 2


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
    [20_000, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("family", FAMILIES)
async def test_fs2_no_swap_leads_out(box, family, total) -> None:
    tries, calls = -(-total // CELLS), FAMILIES[family]
    (box.outside / "f").write_text("OUTSIDE")
    (box.outside / "secret-name").mkdir()
    before = look(box.outside)
    with attack(box) as counter:
        number = 0
        while number < tries or not int.from_bytes(counter[:8], "little"):
            said: object = ""
            try:
                said = await calls[number % len(calls)](box, "/workspace/d/f")
            except Internal:
                raise
            except PinfoldError:
                pass  # refused
            text = ascii(said) + ascii(getattr(said, "stdout", b""))
            assert "OUTSIDE" not in text, family
            assert "secret-name" not in text, family
            number += 1
            if number % 25 == 0:
                assert look(box.outside) == before, family
    assert look(box.outside) == before, family
    assert box.instance.equipment.resident.restarts == 0
