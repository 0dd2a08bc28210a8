"""Large output, large files, large directories, deep trees: nothing grows with them."""

import os
from pathlib import Path

import pytest

from pinfold.errors import InvalidArgument
from tests.providers.host.support import create, names, plant, sh, workspace
from tests.providers.host.test_tree import Checkpoint, facts

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_output_beyond_a_cap_costs_the_caller_nothing(instance):
    """EX-7: 256 MiB leave the caller's memory where it was."""
    await sh(instance, "head -c 4000000 /dev/zero")  # what is allocated once
    before = _resident()
    result = await sh(instance, "head -c 268435456 /dev/zero")
    assert result.exit_code == 0
    assert (result.stdout_total, len(result.stdout)) == (268_435_456, 1_048_576)
    assert _resident() - before < 16 * 1024 * 1024


async def test_streams_of_any_size_use_bounded_memory(instance):
    """FS-7: 256 MiB up and down grow nothing; so does a sparse file."""
    chunk = os.urandom(1024 * 1024)

    async def many():
        for _ in range(256):
            yield chunk

    before = _resident()
    assert await instance.files.upload("/workspace/big", many()) == 256 * len(chunk)
    total = 0
    async for got in instance.files.download("/workspace/big"):
        total += len(got)
    assert total == 256 * len(chunk)
    assert _resident() - before < 32 * 1024 * 1024


async def test_fifty_thousand_entries(anyio_backend):
    """Issue: a large directory is listed whole."""
    instance = await create("none")
    try:
        root = workspace(instance)
        folder = os.open(root, os.O_RDONLY)
        for number in range(50_000):
            os.mknod(f"f{number}", dir_fd=folder)
        os.close(folder)
        entries = await instance.files.list("/workspace")
        assert len({entry.path.name for entry in entries}) == 50_000
        await instance.files.remove("/workspace/f0")
    finally:
        await instance.destroy()


async def test_trees_of_any_depth_can_be_removed(instance):
    """FS-4: deeper than there are descriptors, and than a path can be long."""
    plant(instance, "deep/top")
    uid = workspace(instance).stat().st_uid
    here = os.open(workspace(instance) / "deep", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("dddd", dir_fd=here)
        os.chown("dddd", uid, uid, dir_fd=here)
        inner = os.open("dddd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    await instance.files.remove("/workspace/deep", recursive=True)
    assert names(instance) == []


async def test_trees_deeper_than_a_path_can_be_long(instance):
    """CP-1, CP-2: a guest can make them, so they come back; past any use they are refused."""
    _dig(instance, 900)
    before = await Checkpoint.of(instance)
    assert len(before.entries[-1].path) > 4400
    await instance.files.remove("/workspace/dddd", recursive=True)
    await instance.tree.restore(before.plan)
    assert await facts(instance) == before.facts
    await instance.files.remove("/workspace/dddd", recursive=True)
    _dig(instance, 1700)
    with pytest.raises(InvalidArgument, match="too deeply"):
        await instance.tree.scan()


def _dig(instance, depth: int) -> None:
    root = workspace(instance)
    uid = root.stat().st_uid
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("dddd", dir_fd=here)
        os.chown("dddd", uid, uid, dir_fd=here)
        inner = os.open("dddd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
