"""An exec's stream is taken apart without loss, whatever comes in which pieces (EX-6, EX-7)."""

import socket
import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold_docker import _socket
from pinfold_docker._engine import Hijacked
from pinfold_docker._socket import EngineSocket, Spool
from pinfold_docker._streams import AHEAD_BYTES, STDERR, STDOUT, Demultiplexer
from tests.providers.docker.support import all_of, eventually

pytestmark = pytest.mark.anyio


class Pieces(Hijacked):
    """A stream that comes in given pieces, then ends or breaks."""

    def __init__(self, pieces: list[bytes], *, breaks: bool = False) -> None:
        self.pieces = list(pieces)
        self.breaks = breaks
        self.closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if self.pieces:
            return self.pieces.pop(0)
        raise anyio.BrokenResourceError if self.breaks else anyio.EndOfStream

    def close(self) -> None:
        self.closed = True


def frame(number: int, data: bytes) -> bytes:
    return bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


async def rest(output: Demultiplexer, number: int, max_bytes: int = 65536) -> bytes:
    data = b""
    try:
        while True:
            data += await output.receive(number, max_bytes)
    except anyio.EndOfStream:
        return data


FRAMES = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=30)), max_size=12)


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 12)), max_bytes=st.integers(1, 40))
def test_any_frames_in_any_pieces_come_out_whole(frames, cuts, max_bytes):
    stream = b"".join(frame(number, data) for number, data in frames)
    pieces, left = [], stream
    for cut in cuts:
        if left:
            pieces.append(left[:cut])
            left = left[cut:]
    pieces += [left] if left else []

    async def main():
        output = Demultiplexer(Pieces(pieces))
        both = {}

        async def collect(number: int) -> None:
            both[number] = await rest(output, number, max_bytes)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect, STDOUT)
            tasks.start_soon(collect, STDERR)
        return output, both

    output, both = anyio.run(main)
    for number in (STDOUT, STDERR):
        expected = b"".join(data for which, data in frames if which == number)
        assert both[number] == expected
        assert output.totals[number] == len(expected)
    assert output.ended
    assert not output.broken


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 12])
async def test_a_stream_that_ends_within_a_frame_is_broken(cut):
    output = Demultiplexer(Pieces([frame(STDOUT, b"abcde")[:cut]]))
    assert await rest(output, STDOUT) == b"abcde"[: max(0, cut - 8)]
    assert output.broken


async def test_a_connection_that_breaks_is_told_from_an_end():
    output = Demultiplexer(Pieces([frame(STDOUT, b"a")], breaks=True))
    assert await rest(output, STDOUT) == b"a"
    assert output.broken


async def wait_for_the_end(output: Demultiplexer) -> None:
    await output.until_end()


async def read_the_other(output: Demultiplexer) -> None:
    assert await rest(output, STDERR) == b""


@pytest.mark.parametrize(
    "others", [[wait_for_the_end], [read_the_other], [wait_for_the_end, read_the_other]]
)
async def test_others_read_ahead_and_no_further(others):
    """EX-15: who reads one stream slowly slows the command down; nothing piles up.

    Not even for whoever waits for its end, or for the other stream, on which nothing comes.
    """
    size = AHEAD_BYTES // 4
    source = Pieces([frame(STDOUT, bytes(size)) for _ in range(12)])
    output = Demultiplexer(source)
    async with anyio.create_task_group() as tasks:
        for other in others:
            tasks.start_soon(other, output)
        await anyio.wait_all_tasks_blocked()
        assert len(source.pieces) == 12 - 4
        assert len(await rest(output, STDOUT)) == 12 * size
    assert output.ended


@pytest.mark.parametrize("other", [wait_for_the_end, read_the_other])
async def test_closing_ends_who_waits(other):
    source = Pieces([frame(STDOUT, bytes(2 * AHEAD_BYTES)), frame(STDOUT, b"x")])
    output = Demultiplexer(source)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other, output)
        await anyio.wait_all_tasks_blocked()
        output.close()
    assert source.closed


@given(puts=st.lists(st.binary(max_size=30)), gets=st.lists(st.integers(1, 30)))
def test_a_spool_gives_back_what_it_got_in_order(puts, gets):
    """In memory and, beyond a size, in a file."""
    spool, seen, everything = Spool(20), b"", b"".join(puts)
    sizes = iter(gets)
    for data in puts:
        spool.put(data)
        seen += spool.get(next(sizes, 7))
        assert (
            len(spool) == len(everything[len(seen) :]) - sum(map(len, puts[puts.index(data) + 1 :]))
            or puts.count(data) > 1
        )
    while len(spool):
        seen += spool.get(5)
    assert seen == everything
    assert spool.get(1) == b""


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    stream = EngineSocket(ours)
    yield stream, theirs
    theirs.close()
    stream.close()


async def test_a_stream_that_nobody_reads_is_read_little_by_little(pair, monkeypatch):
    """An engine drops what nobody reads for two seconds: the guard reads it in time."""
    stream, theirs = pair
    monkeypatch.setattr(_socket, "IDLE_SECONDS", 0.05)
    data = bytes(range(256)) * 4096
    sender = threading.Thread(target=lambda: (theirs.sendall(data), theirs.close()))
    stream.guard()
    sender.start()
    # It is blocked until somebody reads, and nobody of ours does.
    await eventually(lambda: not sender.is_alive())
    sender.join()
    assert await all_of(stream) == data


async def test_what_a_reader_waits_for_is_not_taken_by_the_guard(pair, monkeypatch):
    stream, theirs = pair
    monkeypatch.setattr(_socket, "IDLE_SECONDS", 0.0)
    stream.guard()
    got = b""
    for number in range(200):
        theirs.send(b"%04d" % number)
        got += await stream.receive(3)
    theirs.close()
    got += await all_of(stream)
    assert got == b"".join(b"%04d" % number for number in range(200))


async def test_closing_wakes_who_reads(pair):
    stream, _ = pair

    async def read() -> None:
        with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
            await stream.receive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        stream.close()
