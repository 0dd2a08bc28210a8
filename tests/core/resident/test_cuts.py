"""The connection breaks anywhere: nothing is lost, nothing is run twice (docs/helper.md)."""

import random

import anyio
import pytest

from pinfold.errors import Lost, OutcomeUnknown, Unreachable
from tests.core.resident.conftest import until

pytestmark = pytest.mark.anyio


async def work(place, rounds: int) -> None:
    """Commands and files, each of which tells whether it was done exactly once."""

    async def one(number: int) -> None:
        text = f"{number:06}" * 50
        script = (
            f"echo {number} >>log; head -c 300 | tr a b; echo {text}; echo e >&2; exit {number % 7}"
        )
        result = await place.sh(script, stdin=b"a" * 300)
        assert result.exit_code == number % 7
        assert result.stdout == b"b" * 300 + text.encode() + b"\n"
        assert result.stderr == b"e\n"
        path = f"/workspace/f{number}"
        await place.resident.files.write(path, text.encode())
        assert await place.resident.files.read(path) == text.encode()

    for start in range(0, rounds, 4):
        async with anyio.create_task_group() as tasks:
            for number in range(start, start + 4):
                tasks.start_soon(one, number)
    log = (place.workspace / "log").read_text().split()
    assert sorted(map(int, log)) == list(range(rounds))


@pytest.mark.parametrize("seed", range(5))
async def test_cuts_at_drawn_byte_offsets_lose_nothing_and_repeat_nothing(place, seed) -> None:
    """40 cuts in each of 5 runs, alternately early and late, in all layers of the protocol."""
    draw = random.Random(seed)  # noqa: S311
    place.guest.budgets = [
        draw.choice((draw.randrange(200), draw.randrange(6000))) for _ in range(40)
    ]
    rounds = 0
    await place.guest.cut()
    while place.guest.budgets:
        await work(place, 20)
        (place.workspace / "log").unlink()
        rounds += 1
        assert rounds < 60, "the cuts do not come"
    assert place.guest.cuts == 40
    assert place.resident.restarts == 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5, 25))
async def test_many_more_cuts(place, seed) -> None:
    await test_cuts_at_drawn_byte_offsets_lose_nothing_and_repeat_nothing(place, seed)


async def test_a_large_output_survives_a_cut_whole(place) -> None:
    seen = bytearray()

    async def sink(stream, data) -> None:
        seen.extend(data)
        if len(seen) in range(1 << 20, (1 << 20) + 65536):
            await place.guest.cut()

    script = "i=0; while [ $i -lt 40 ]; do head -c 100000 /dev/zero | tr '\\0' x; i=$((i+1)); done"
    result = await place.sh(script, sink=sink)
    assert result.stdout_total == len(seen) == 4_000_000
    assert place.guest.spawned >= 2


async def test_the_fate_of_a_command_in_flight_becomes_known(place) -> None:
    """EX-14: the target itself tells the outcome."""
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            result = await place.sh("echo before; while [ ! -e go ]; do sleep 0.01; done; exit 9")
            assert (result.exit_code, result.stdout) == (9, b"before\n")
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        await anyio.sleep(0.2)
        await place.guest.cut()
        (place.workspace / "go").touch()
        await anyio.sleep(20)
        pytest.fail("it never ended")


async def test_a_target_that_is_away_for_a_while_is_waited_for(place) -> None:
    place.guest.refuse = Unreachable("for a test")
    await place.guest.cut()
    async with anyio.create_task_group() as tasks:

        async def come_back() -> None:
            await anyio.sleep(0.5)
            place.guest.refuse = None

        tasks.start_soon(come_back)
        assert (await place.sh("echo back")).stdout == b"back\n"


async def test_a_target_that_is_gone_is_said_to_be(place) -> None:
    """EX-14: in flight is outcome_unknown."""
    async with anyio.create_task_group() as tasks:

        async def lose() -> None:
            await until((place.workspace / "started").exists)
            place.guest.refuse = Lost("for a test")
            await place.guest.cut()

        tasks.start_soon(lose)
        with pytest.raises(OutcomeUnknown):
            await place.sh("touch started; sleep 30")
    with pytest.raises(Lost):
        await place.sh("echo never")


async def test_only_the_one_with_the_token_is_let_in(place) -> None:
    """A workload finds the socket, and gains nothing by it."""
    folder = place.resident._running.folder
    stranger = await anyio.connect_unix(f"{folder}/socket")
    greeting = await stranger.receive(200)
    assert greeting.startswith(b"pinfold1")
    await stranger.send(b"pinfold1" + bytes(32) + bytes(8))
    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        await stranger.receive()
    await stranger.aclose()
    assert (await place.sh("echo still here")).stdout == b"still here\n"
    assert place.guest.spawned == 1


async def test_strangers_at_the_socket_do_not_keep_the_controller_out(place) -> None:
    folder = place.resident._running.folder
    strangers: list[anyio.abc.SocketStream] = []
    with anyio.move_on_after(2):
        while len(strangers) < 12:
            strangers += [await anyio.connect_unix(f"{folder}/socket")]
    await place.guest.cut()
    for stranger in strangers:
        await stranger.aclose()
    assert (await place.sh("echo mine")).stdout == b"mine\n"
