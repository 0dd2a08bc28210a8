"""What eats memory, processes or disk is contained, named, and survived."""

from contextlib import suppress

import pytest

from pinfold.errors import SpecInvalid, Unavailable
from pinfold.provider import ExecRequest, InstanceStatus
from tests.providers.docker.support import all_of, box, make, said, sh

pytestmark = pytest.mark.anyio

MIB = 2**20


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What a kernel limits does not depend on the event loop."""
    return "asyncio"


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


@pytest.mark.parametrize("helper", ["required", "never"])
async def test_memory_full_of_files_is_named_and_a_restart_empties_it(provider, helper):
    """A tmpfs larger than the memory: its files stay when who wrote them was killed.

    There may be no room for any other process then. That is a result, or an error, that names the
    limit; the workspace is not in memory, and is there again after a pause.
    """
    async with box(provider, memory_bytes=64 * MIB, helper=helper) as instance:
        await said(instance, "echo kept >f")
        named: set[str | None] = set()
        for _ in range(3):
            try:
                result = await sh(instance, "head -c 300000000 /dev/zero >/tmp/x")
            except Unavailable as exc:
                named.add(exc.details.get("limit"))
            else:
                assert result.exit_code != 0
                named.add(result.limit)
        assert "memory" in named
        await instance.pause()
        await instance.resume()
        assert await said(instance, "cat f; ls /tmp") == "kept\n"


BOMB = "bomb() { while :; do (bomb) & done; }; bomb"


@pytest.mark.parametrize("helper", ["required", "never"])
async def test_a_fork_bomb_is_held_and_the_sandbox_is_usable_afterwards(provider, client, helper):
    """It leaves a job in the background that takes every process there may be, until a pause."""
    async with box(provider, pids=64, helper=helper) as instance:
        result = await sh(instance, BOMB, timeout_seconds=5)
        assert result.exit_code != 0
        assert b"fork" in result.stderr
        # A command's timeout is told before it.
        assert result.limit == (None if result.timed_out else "pids")
        assert len(client.containers.get(instance.ref.id).top()["Processes"]) <= 64
        with suppress(Unavailable):
            assert (await sh(instance, "echo usable", timeout_seconds=20)).exit_code == 0
        await instance.pause()
        assert await instance.resume() is True
        assert await said(instance, "echo usable") == "usable\n"
        assert await instance.status() is InstanceStatus.RUNNING


async def test_more_processors_than_there_are_is_a_fault_of_the_options(provider):
    """RS-4: refused by the engine, and for good."""
    with pytest.raises(SpecInvalid, match="CPUs") as caught:
        await make(provider, cpus=1024)
    assert [fault.pointer for fault in caught.value.faults] == ["/target/options"]
    assert not caught.value.retryable


async def test_processors_are_shared_as_asked_for(provider, client):
    async with box(provider, cpus=0.5, pids=40, memory_bytes=96 * MIB) as instance:
        limits = client.containers.get(instance.ref.id).attrs["HostConfig"]
        assert limits["NanoCpus"] == 500_000_000
        assert limits["PidsLimit"] == 40
        assert limits["Memory"] == limits["MemorySwap"] == 96 * MIB


@pytest.mark.parametrize("helper", ["required", "never"])
async def test_extra_ulimits_are_in_force(provider, helper):
    """Also where the engine's runtime loses the soft one: seen in one exec of five to forty."""
    ulimits = [
        {"name": "nofile", "soft": 77, "hard": 88},
        {"name": "core", "soft": 0, "hard": 0},
        {"name": "fsize", "soft": 10 * MIB, "hard": -1},
    ]
    async with box(provider, ulimits=ulimits, helper=helper) as instance:
        script = "ulimit -n; ulimit -Hn; ulimit -c; ulimit -f; ulimit -Hf"
        for _ in range(1 if helper == "required" else 5):
            assert await said(instance, script) == "77\n88\n0\n20480\nunlimited\n"
        terminal = await instance.open_terminal(ExecRequest(shell="ulimit -n; ulimit -Hn"))
        assert await all_of(terminal) == b"77\r\n88\r\n"
        await terminal.aclose()
