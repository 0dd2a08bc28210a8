"""CP-3: a restore is interrupted anywhere, and one of the two trees stands, whole."""

import os
import random
import signal
from contextlib import suppress

import anyio
import pytest

from pinfold.errors import PinfoldError
from pinfold.provider import RestorePlan
from tests.core.resident.conftest import until

pytestmark = pytest.mark.anyio


def build(root, name: str) -> None:
    for number in range(150):
        folder = root / f"{name}{number % 5}" / "deep"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_text(f"{name} {number}")
    (root / "both").write_text(name)
    (root / f"link-{name}").symlink_to(name)


def shape(root) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


async def plan_of(place) -> RestorePlan:
    scan = await place.resident.tree.scan()
    contents: dict[str, bytes] = {}
    data = bytearray()
    async for blob in place.resident.tree.read(scan.entries):
        data += blob.data
        if blob.last:
            contents[blob.digest] = bytes(data)
            data.clear()

    async def fetch(digest):
        yield contents[digest]

    return RestorePlan(entries=scan.entries, fetch=fetch)


@pytest.mark.parametrize("seed", range(6))
async def test_cp3_a_restore_is_finished_or_undone(place, seed) -> None:
    """The helper is killed, the worker with it, at a moment that is drawn."""
    draw = random.Random(seed)  # noqa: S311
    tree = place.resident.tree
    build(place.workspace, "old")
    plan = await plan_of(place)
    old = shape(place.workspace)
    for name in ("old0", "old3"):
        (place.workspace / name).rename(place.workspace / f"{name}-moved")
    build(place.workspace, "new")
    new = shape(place.workspace)

    async def kill() -> None:
        worker = f"/proc/{place.pid}/task/{place.pid}/children"
        await until(lambda: _read(worker).strip() or done)
        await anyio.sleep(draw.uniform(0, 0.04))
        with suppress(ProcessLookupError):
            os.kill(place.pid, signal.SIGKILL)

    done: list[bool] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        with suppress(PinfoldError):
            await tree.restore(plan)
        done.append(True)
    await anyio.sleep(1.1)  # idle: it is asked whether it lives before anything is sent
    await tree.recover()
    assert shape(place.workspace) in (old, new)
    assert await tree.recover() is False


def _read(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return "gone"
