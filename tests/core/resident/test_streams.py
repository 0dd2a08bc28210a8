"""Output to whoever takes it slowly, input to whoever does not take it (EX-7, EX-9, EX-15)."""

import hashlib
import sys
import tracemalloc
from contextlib import aclosing

import anyio
import pytest

pytestmark = pytest.mark.anyio

MIB = 1 << 20
#: Writes 64 MiB that never repeat, tells after each MiB how far it is, and at last their digest.
WRITER = """
import hashlib, os, sys
digest = hashlib.sha256()
for number in range(64):
    data = hashlib.shake_128(b"%d" % number).digest(1 << 20)
    digest.update(data)
    while data:
        data = data[os.write(1, data):]
    with open("progress", "ab") as file:
        file.write(b".")
os.write(2, digest.hexdigest().encode())
"""


async def test_ex15_64_mib_to_a_reader_that_sleeps_arrive_whole(place) -> None:
    """The stall fills every buffer there is, so that the command stands; then all of it comes."""
    digest, seen, said = hashlib.sha256(), 0, b""
    progress = place.workspace / "progress"
    progress.touch()

    async def stands_still() -> None:
        """Whoever writes is held up: what it has written does not grow for a second."""
        with anyio.fail_after(60):
            size, since = -1, anyio.current_time()
            while anyio.current_time() - since < 1.0:
                if progress.stat().st_size != size:
                    size, since = progress.stat().st_size, anyio.current_time()
                await anyio.sleep(0.02)

    async def sink(stream, data) -> None:
        nonlocal seen, said
        if stream == "stderr":
            said += data
            return
        if seen == 0 or seen < 32 * MIB <= seen + len(data):
            await stands_still()
            written = progress.stat().st_size * MIB
            assert written < 64 * MIB  # back-pressure reaches the command
            assert written - seen < 4 * MIB  # and what is on its way is bounded
        seen += len(data)
        digest.update(data)

    (place.workspace / "writer.py").write_text(WRITER)
    result = await place.run(sys.executable, "writer.py", sink=sink, timeout_seconds=200)
    assert (result.exit_code, result.stdout_total, seen) == (0, 64 * MIB, 64 * MIB)
    assert said.decode() == digest.hexdigest()


async def test_ex15_others_go_on_beside_a_reader_that_sleeps(place) -> None:
    """One stream that is full holds up no other operation of the session."""
    full, done = anyio.Event(), anyio.Event()

    async def sink(stream, data) -> None:
        full.set()
        await done.wait()

    async with anyio.create_task_group() as tasks:

        async def slow() -> None:
            result = await place.sh("head -c 8000000 /dev/zero", sink=sink)
            assert result.stdout_total == 8_000_000

        tasks.start_soon(slow)
        await full.wait()
        for number in range(20):
            assert (await place.sh(f"echo {number}")).stdout == b"%d\n" % number
            await place.resident.files.write("/workspace/f", bytes(MIB))
            assert await place.resident.files.read("/workspace/f") == bytes(MIB)
        done.set()


async def test_ex7_what_is_beyond_the_cap_is_counted_inside_and_never_travels(place) -> None:
    received = place.session._received
    result = await place.sh("head -c 64000000 /dev/zero", stdout_cap=1000)
    assert (result.stdout, result.stdout_total) == (bytes(1000), 64_000_000)
    assert place.session._received - received < 2000


async def test_ex9_input_that_nobody_takes_is_dropped_and_bounded(place) -> None:
    """16 MiB to a command that closes its stdin, or never reads it, and ends."""
    data = bytes(16 * MIB)
    tracemalloc.start()
    try:
        for script in ("exec <&-; echo on; while [ ! -e go ]; do sleep 0.01; done", "echo on"):
            (place.workspace / "go").touch()
            assert (await place.sh(script, stdin=data)).stdout == b"on\n"
            (place.workspace / "go").unlink()
        assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    finally:
        tracemalloc.stop()


async def test_fs7_files_that_grow_while_a_tree_is_read_come_whole_and_break_nothing(place) -> None:
    """They are asked for ahead by what they had: a workload can't fill the way with more."""
    for number in range(80):
        (place.workspace / f"f{number:02}").write_bytes(b"small")
    sizes = {}
    async with aclosing(place.resident.files.download_tree("/workspace")) as items:
        assert (await anext(items)).path.name == ""  # the root; by now all is listed
        for number in range(80):
            with (place.workspace / f"f{number:02}").open("r+b") as file:
                file.truncate(MIB + 5)
        async for item in items:
            assert item.chunks is not None
            sizes[item.path.name] = sum([len(chunk) async for chunk in item.chunks])
    assert sizes == {f"f{number:02}": MIB + 5 for number in range(80)}
    assert place.resident.restarts == 0
