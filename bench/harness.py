"""Measure several ways to do one thing, interleaved, and compare them by ratios of medians."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

ROUNDS = 7


@attrs.frozen(kw_only=True)
class Way:
    """One way to do the thing.

    Attributes:
        name: what it is called in the table.
        run: does it `number` times.
        number: how often one call of `run` does it.
        limit: the ratio to the floor that must not be exceeded, for ours; null for peers.
    """

    name: str
    run: Callable[[], object]
    number: int = 1
    limit: float | None = None


@attrs.frozen(kw_only=True)
class Row:
    """What was measured of one way: seconds of wall and CPU time for one."""

    name: str
    wall: tuple[float, ...]
    cpu: tuple[float, ...]
    limit: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    def ratio(self, floor: Row) -> float:
        return self.median / floor.median

    def ratios(self, floor: Row) -> list[float]:
        """The ratio in each round: its spread says how far the one above can be trusted."""
        return sorted(mine / theirs for mine, theirs in zip(self.wall, floor.wall, strict=True))


def _cpu() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def compare(title: str, ways: Sequence[Way], *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure each way once a round, in turn, after one round to warm up; the first is the floor."""
    times: dict[str, tuple[list[float], list[float]]] = {way.name: ([], []) for way in ways}
    for number in range(-1, rounds):
        # Who goes first changes, so that no way always follows the same other.
        shift = number % len(ways)
        for way in (*ways[shift:], *ways[:shift]):
            cpu, wall = _cpu(), time.perf_counter()
            way.run()
            wall, cpu = time.perf_counter() - wall, _cpu() - cpu
            if number >= 0:
                times[way.name][0].append(wall / way.number)
                times[way.name][1].append(cpu / way.number)
    rows = [
        Row(
            name=way.name,
            wall=tuple(times[way.name][0]),
            cpu=tuple(times[way.name][1]),
            limit=way.limit,
        )
        for way in ways
    ]
    return show(title, rows)


def show(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Print a table and return it as JSON."""
    floor = rows[0]
    print(f"\n{title} ({len(floor.wall)} rounds, ratio of medians to the first row)")
    result: dict[str, Any] = {"title": title, "rows": []}
    for row in rows:
        ratio, spread = row.ratio(floor), row.ratios(floor)
        verdict = (
            ""
            if row.limit is None
            else f"  must be <= {row.limit:g}: {'yes' if ratio <= row.limit else 'NO'}"
        )
        print(
            f"  {row.name:<46} {_time(row.median):>10}  cpu {_time(statistics.median(row.cpu)):>10}"
            f"  x {ratio:6.2f} [{spread[0]:.2f}..{spread[-1]:.2f}]{verdict}"
        )
        result["rows"].append(
            {
                "name": row.name,
                "median_s": row.median,
                "cpu_median_s": statistics.median(row.cpu),
                "wall_s": row.wall,
                "ratio": ratio,
                "ratio_spread": [spread[0], spread[-1]],
                "limit": row.limit,
            }
        )
    return result


def figure(
    title: str,
    value: float,
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> dict[str, Any]:
    """Print and return one figure that is no ratio."""
    bound = ""
    if at_most is not None:
        bound = f"  must be <= {at_most:g}: {'yes' if value <= at_most else 'NO'}"
    if at_least is not None:
        bound = f"  must be >= {at_least:g}: {'yes' if value >= at_least else 'NO'}"
    print(f"\n{title}\n  {value:,.2f} {unit}{bound}")
    return {"title": title, "value": value, "unit": unit, "at_most": at_most, "at_least": at_least}


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.2f} {unit}"
    raise AssertionError


def machine() -> dict[str, Any]:
    """Say what the figures were measured on."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }


def write(path: str, results: list[dict[str, Any]]) -> None:
    """Write all results as JSON."""
    text = json.dumps({"machine": machine(), "results": results}, indent=2)
    Path(path).write_text(text + "\n", encoding="utf-8")
