"""What eats memory, processes or disk is contained, named, and survived."""

import pytest

from pinfold.errors import OutcomeUnknown, Unavailable
from pinfold.provider import InstanceStatus
from tests.providers.docker.support import box, eventually, said, sh

pytestmark = pytest.mark.anyio

MIB = 2**20


async def test_a_memory_hog_is_killed_and_the_limit_is_named(provider):
    async with box(provider, memory_bytes=64 * MIB) as instance:
        result = await sh(instance, "exec dd if=/dev/zero of=/dev/null bs=200M count=1")
        assert (result.exit_code, result.limit) == (137, "memory")
        ordinary = await sh(instance, "kill -9 $$")
        assert (ordinary.exit_code, ordinary.limit) == (137, None)
        assert await said(instance, "echo usable") == "usable\n"


async def test_memory_behind_files_is_memory_too(provider):
    """A tmpfs is limited in itself, and counts for the container."""
    async with box(provider, tmp_bytes=8 * MIB) as instance:
        result = await sh(instance, "head -c 50000000 /dev/zero >/tmp/big")
        assert result.exit_code not in (0, 137)
        assert int(await said(instance, "stat -c %s /tmp/big; rm /tmp/big")) <= 8 * MIB


async def test_a_fork_bomb_is_held_and_the_sandbox_is_usable_afterwards(provider, client):
    bomb = "bomb() { while :; do (bomb) & done; }; bomb"
    async with box(provider, pids=64) as instance:
        try:
            result = await sh(instance, bomb, timeout_seconds=2)
        except (OutcomeUnknown, Unavailable):
            pass  # the bomb may hit what watches it
        else:
            assert result.exit_code != 0
        top = client.containers.get(instance.ref.id).top()
        assert len(top["Processes"]) <= 64

        async def usable() -> bool:
            try:
                return (await sh(instance, "echo usable")).stdout == b"usable\n"
            except Unavailable:
                await instance.pause()  # cleanly lost: what is paused can be resumed
                await instance.resume()
                return False

        await eventually(usable, 30)
        assert await instance.status() is InstanceStatus.RUNNING


async def test_processors_are_shared_as_asked_for(provider, client):
    async with box(provider, cpus=0.5, pids=40, memory_bytes=96 * MIB) as instance:
        limits = client.containers.get(instance.ref.id).attrs["HostConfig"]
        assert limits["NanoCpus"] == 500_000_000
        assert limits["PidsLimit"] == 40
        assert limits["Memory"] == limits["MemorySwap"] == 96 * MIB


async def test_extra_ulimits_are_in_force(provider):
    ulimits = [{"name": "nofile", "soft": 77, "hard": 88}]
    async with box(provider, ulimits=ulimits) as instance:
        assert await said(instance, "ulimit -n; ulimit -Hn") == "77\n88\n"
