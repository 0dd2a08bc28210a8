"""Ids are ordered and unique whatever the clock does; time is injected."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold._ids import Clock, Ids


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_ids_sort_in_the_order_they_were_made_also_when_the_clock_goes_back(times):
    ticks = iter([t * 1_000_000 for t in times])
    ids = Ids(Clock(now_ns=lambda: next(ticks)))

    made = [ids.make("ev_") for _ in times]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(len(value) == 35 for value in made)


def test_ids_are_never_the_same_in_one_millisecond():
    ids = Ids(Clock(now_ns=lambda: 5_000_000))

    made = [ids.make("sbx_") for _ in range(10_000)]

    assert len(set(made)) == 10_000
    assert made == sorted(made)


def test_time_is_utc_to_the_millisecond():
    clock = Clock(now_ns=lambda: 1_700_000_000_123_456_789)

    assert clock.now().isoformat() == "2023-11-14T22:13:20.123000+00:00"
