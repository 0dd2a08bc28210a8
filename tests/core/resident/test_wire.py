"""The controller believes no byte: any stream ends in frames or in `Malformed`, in bounded memory."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.posix._resident._stream import Refused, results
from pinfold.posix._resident._tree import _checked, _parse_fetched
from pinfold.posix._resident._wire import (
    GREETING_BYTES,
    MAX_FRAME,
    MAX_OUT,
    Cursor,
    Decoder,
    Frame,
    From,
    Greeting,
    Malformed,
    Output,
    frame,
    text,
    texts,
)

kinds = st.sampled_from([kind for kind in From if kind is not From.OUT])
numbers = st.integers(0, 0xFFFFFFFF)
whole = st.tuples(kinds, numbers, st.binary(max_size=300))
outputs = st.tuples(st.just(From.OUT), numbers, st.binary(min_size=2, max_size=300))
frames = st.lists(whole | outputs, max_size=20)


@given(frames=frames, cuts=st.lists(st.integers(0, 4000), max_size=10))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames, cuts) -> None:
    stream = b"".join(frame(*one) for one in frames)
    decoder = Decoder()
    found: list[Frame | Output] = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        found += decoder.feed(stream[start:end])
    at = iter(found)
    for kind, number, payload in frames:
        one = next(at)
        if isinstance(one, Frame):
            assert (one.kind, one.number, one.payload) == (kind, number, payload)
            continue
        pieces = [one.data]  # of one output, in order, and none is empty
        while sum(map(len, pieces)) < len(payload) - 1:
            more = next(at)
            assert isinstance(more, Output)
            assert (more.number, more.index) == (one.number, one.index)
            pieces.append(more.data)
        assert (From.OUT, one.number, one.index) == (kind, number, payload[0])
        assert b"".join(pieces) == payload[1:]
        assert all(pieces)
    assert next(at, None) is None


def test_output_is_passed_on_before_its_frame_is_whole() -> None:
    decoder = Decoder()
    data = frame(From.OUT, 7, b"\2" + bytes(1000))
    assert list(decoder.feed(data[:500])) == [Output(7, 2, bytes(490))]
    assert list(decoder.feed(data[500:])) == [Output(7, 2, bytes(510))]


@given(st.lists(st.binary(max_size=100), max_size=20))
@example([b"\xff\xff\xff\xff" * 3])
@example([b"\x04\0\0\0" + b"\x11" + bytes(20)])
@example([b"\x06\0\0\0" + b"\x12" + bytes(20)])
@example([b"\x07\0\x04\0" + b"\x12" + bytes(20)])
def test_any_bytes_are_frames_or_malformed(pieces) -> None:
    decoder = Decoder()
    try:
        for piece in pieces:
            for one in decoder.feed(piece):
                if isinstance(one, Output):
                    assert 1 <= len(one.data) <= MAX_OUT
                    continue
                assert From.REPLY <= one.kind <= From.ACK
                assert len(one.payload) <= MAX_FRAME
    except Malformed:
        pass


def test_a_promised_frame_takes_no_memory_before_it_comes() -> None:
    decoder = Decoder()
    tracemalloc.start()
    assert list(decoder.feed((MAX_FRAME).to_bytes(4, "little") + b"\x11" + bytes(4))) == []
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@given(
    st.binary(max_size=200),
    st.lists(st.sampled_from("u8 u32 u64 i64 flag text facts rest".split())),
)
def test_a_cursor_reads_what_is_there_or_says_malformed(raw, wanted) -> None:
    cursor = Cursor(raw)
    for name in wanted:
        left = cursor.left
        try:
            getattr(cursor, name)()
        except Malformed:
            continue
        assert 0 <= cursor.left <= left


@given(st.binary(min_size=GREETING_BYTES, max_size=GREETING_BYTES))
@example(b"pinfold1" + (1).to_bytes(4, "little") + bytes(GREETING_BYTES - 12))
@example(b"pinfold1" + (2).to_bytes(4, "little") + bytes(GREETING_BYTES - 12))
def test_a_greeting_is_one_or_malformed(raw) -> None:
    try:
        greeting = Greeting.parse(raw)
    except Malformed:
        return
    assert raw.startswith(b"pinfold1\1\0\0\0")
    assert len(greeting.digest) == 64


@given(st.binary(max_size=200))
@example(b"\x01\x02\0\0\0" + text("x"))
@example(b"\x63")
def test_results_are_there_refused_or_malformed(raw) -> None:
    try:
        results(raw)
    except Refused:
        assert raw[0] != 0
    except Malformed:
        assert raw[:1] != b"\0"
    else:
        assert raw[0] == 0


@given(st.binary(max_size=400))
def test_fetched_files_are_pieces_or_malformed(raw) -> None:
    try:
        found, rest = _parse_fetched(raw)
    except Malformed:
        return
    assert raw.endswith(rest)
    assert len(found) <= len(raw)


@given(st.binary(max_size=60))
@example(b"../x")
@example(b"/x")
@example(b"a/../b")
@example(b"a//b")
def test_a_path_of_the_workspace_stays_in_it(raw) -> None:
    try:
        path = _checked(raw)
    except Malformed:
        return
    parts = path.split("/")
    assert path
    assert not {"", ".", ".."} & set(parts)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_texts_come_back(values) -> None:
    cursor = Cursor(texts(values))
    assert cursor.u32() == len(values)
    assert [cursor.text().decode() for _ in values] == values
    cursor.end()


@pytest.mark.parametrize("raw", [b"\0\0\0\0", b"\2\0\0\0\0\0", b"\2\0\0\0ab", b"\3\0\0\0a\0"])
def test_a_text_has_one_nul_and_that_at_its_end(raw) -> None:
    with pytest.raises(Malformed):
        Cursor(raw).text()
