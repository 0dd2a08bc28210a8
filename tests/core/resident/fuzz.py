"""Feeds a session whatever a fuzzer makes up, as a helper that is an enemy would (atheris).

Run by test_fuzz.py. Anything but `Malformed` and the typed errors that it becomes is a finding.
"""

import sys
from contextlib import suppress

import anyio
import atheris

with atheris.instrument_imports(include=["pinfold.posix._resident"]):
    from pinfold.posix._resident._exec import _Ending
    from pinfold.posix._resident._link import Connector
    from pinfold.posix._resident._session import Session
    from pinfold.posix._resident._stream import Refused, results
    from pinfold.posix._resident._tree import _checked, _parse_fetched
    from pinfold.posix._resident._wire import (
        GREETING_BYTES,
        IN_CREDIT,
        Call,
        Cursor,
        Decoder,
        Greeting,
        Malformed,
        Open,
    )

anyio.current_time = lambda: 0.0  # there is no event loop, and nothing to wait for
GREETING = Greeting.parse(b"pinfold1\1\0\0\0" + bytes(GREETING_BYTES - 12))


class Nowhere(Connector):
    async def connect(self):
        raise AssertionError("a parser opens no connection")


def frames(data: bytes) -> None:
    """A stream of frames, cut in two anywhere, to a session with operations under way."""
    session = Session(Nowhere(), GREETING, bytes(32))
    streams = [session.open(Open.EXEC, b"", credit=IN_CREDIT, second_credit=100) for _ in range(3)]
    calls = [session.begin_call(Call.STAT, b"")[1] for _ in range(3)]
    cut, decoder = data[0] * len(data) // 256, Decoder()
    try:
        for piece in (data[1:cut], data[max(cut, 1) :]):
            for one in decoder.feed(piece):
                session._take(one)
    except Malformed:
        pass
    for stream in streams:
        assert len(stream.take(1)) <= IN_CREDIT + 2 * IN_CREDIT
        assert len(stream.take(2)) <= 100
        if stream._end is not None:
            _Ending(results(stream._end))
    for call in calls:
        if call.ready:
            cursor = results(call.reply)
            cursor.facts()
            cursor.text()
            cursor.end()


def records(data: bytes) -> None:
    cursor = Cursor(data)
    while cursor.left:
        cursor.facts()
        name = _checked(cursor.text())
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        cursor.text()


def fetched(data: bytes) -> None:
    found, rest = _parse_fetched(data)
    assert sum(len(one.data) for one in found) + len(rest) <= len(data)


PARSERS = (frames, frames, records, fetched, Greeting.parse, results)


def one_input(data: bytes) -> None:
    if len(data) < 2:
        return
    with suppress(Malformed, Refused):
        PARSERS[data[0] % len(PARSERS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
