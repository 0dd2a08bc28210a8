"""However a stream is cut and acknowledged, its bytes come once, in order (docs/helper.md)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.posix._resident._outgoing import SMALL, Outgoing
from pinfold.posix._resident._wire import Malformed

#: What may happen: bytes are put, sent as far as a number says, acknowledged so far, or cut off.
steps = st.lists(
    st.tuples(st.sampled_from(["put", "send", "acknowledge", "cut"]), st.integers(0, 300)),
    max_size=60,
)


def pattern(start: int, size: int) -> bytes:
    """Bytes that tell where in the stream they are."""
    return bytes((at * 7 + at // 256) % 251 for at in range(start, start + size))


@given(steps)
def test_the_other_side_gets_every_byte_once_and_in_order(steps) -> None:
    out, got, acknowledged = Outgoing(), bytearray(), 0
    for what, number in [*steps, ("cut", 300), *[("send", SMALL)] * 80]:
        if what == "put":
            out.put(pattern(out.end, number))
        elif what == "send" and out.waits():
            piece = out.next_piece()
            size = min(number, len(piece))
            out.sent(piece, size)
            got += piece[:size]
        elif what == "acknowledge":
            acknowledged += (len(got) - acknowledged) * number // 300
            out.acknowledged(acknowledged)
        elif what == "cut":  # of what was on its way some never came
            del got[acknowledged + (len(got) - acknowledged) * number // 300 :]
            acknowledged = len(got)
            out.go_on_from(acknowledged)
            assert (out.base, out.was_given(len(got))) == (len(got), False)
        assert out.base <= acknowledged
        assert out.was_given(len(got)) is False
        assert not got or out.was_given(len(got) - 1)  # what is acknowledged, too
        assert out.base + out.held == out.end
    assert bytes(got) == pattern(0, out.end)
    assert not out.waits()


@given(st.integers(0, 200), st.integers(0, 200), st.integers(-300, 600))
def test_only_what_was_sent_is_acknowledged_and_never_taken_back(before, after, total) -> None:
    out = Outgoing()
    out.put(pattern(0, before) or b"x")
    piece = out.next_piece()
    out.sent(piece, len(piece))
    out.acknowledged(len(piece))
    out.put(pattern(len(piece), after))
    if after:
        second = out.next_piece()
        out.sent(second, after // 2)
    allowed = range(len(piece), len(piece) + after // 2 + 1)
    for check in (out.acknowledged, out.go_on_from):
        if total in allowed:
            check(total)
            allowed = range(total, total + 1) if check == out.go_on_from else allowed
        else:
            with pytest.raises(Malformed):
                check(total)


@given(st.lists(st.integers(1, 6 * SMALL), max_size=12))
def test_frames_go_together_in_bounded_pieces_and_a_large_one_is_not_copied(sizes) -> None:
    out = Outgoing()
    frames = [bytes(size) for size in sizes]
    for one in frames:
        out.put(one)
    found = []
    while out.waits():
        found.append(out.next_piece())
        out.sent(found[-1], len(found[-1]))
    assert list(map(len, frames)) == sizes
    assert sum(map(len, found)) == sum(sizes)
    for piece in found:
        assert len(piece) <= 4 * SMALL or any(piece is one for one in frames)
    for first, second in pairwise(found):  # nothing small goes alone that could have gone along
        assert len(first) >= SMALL or len(first) + len(second) > 4 * SMALL
