"""A download is a generator: it may be left half way, by any task, at any time."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

import pinfold
from pinfold.errors import Conflict, NotFound
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store

pytestmark = pytest.mark.anyio

SIZE = 3 << 20


@pytest.fixture(params=["ephemeral", "durable"])
async def box(request, tmp_path):
    runtime = make_runtime(Cloud())
    if request.param == "ephemeral":
        opening = pinfold.open({"target": {"kind": "container"}}, runtime=runtime)
    else:
        opening = pinfold.open(SPEC, name="box", store=make_store(tmp_path), runtime=runtime)
    async with opening as box:
        await box.files.write("/workspace/t/f", b"x" * SIZE)
        yield box


READERS = {
    "file": lambda box: box.files.download("/workspace/t/f"),
    "tree": lambda box: box.files.download_tree("/workspace/t"),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
async def test_a_reader_that_stops_half_way_leaves_the_sandbox_as_it_was(box, reader):
    async with aclosing(reader(box)) as items:
        async for _ in items:
            break
    assert (await box.exec(["true"])).exit_code == 0


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
async def test_a_reader_may_be_ended_by_another_task_and_within_another_scope(box, reader):
    items = reader(box)
    with anyio.CancelScope():
        await anext(items)
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            group.start_soon(items.aclose)
    assert (await box.exec(["true"])).exit_code == 0


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
async def test_a_reader_may_be_handed_from_task_to_task(box, reader):
    items = reader(box)
    first = await anext(items)
    rest = []

    async def read_on():
        rest.extend([item async for item in items])

    async with anyio.create_task_group() as group:
        group.start_soon(read_on)
    assert first
    assert rest


async def test_a_reader_that_fails_fails_with_the_typed_error(box):
    with pytest.raises(NotFound):
        await anext(box.files.download("/workspace/none"))


async def test_lc7_a_download_is_work_in_flight_for_as_long_as_it_is_read(tmp_path):
    runtime = make_runtime(Cloud())
    spec = {**SPEC, "lifecycle": {"idle_after_seconds": 1}}
    async with pinfold.open(spec, name="box", store=make_store(tmp_path), runtime=runtime) as box:
        await box.files.write("/workspace/f", b"x" * SIZE)
        async with aclosing(box.files.download("/workspace/f")) as items:
            await anext(items)
            deadline = (await box.view()).details["idle_deadline"]
            with pytest.raises(Conflict, match="in flight"):
                await box.pause()
            with anyio.fail_after(30):  # a reader that dawdles: its deadline moves on
                while (await box.view()).details["idle_deadline"] == deadline:
                    await anyio.sleep(0.02)
        with anyio.fail_after(30):
            while (await box.view()).observed_state != "paused":
                await anyio.sleep(0.02)
