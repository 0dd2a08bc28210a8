"""A whole tree's records, none of them from anywhere else (FS-2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from pinfold.posix._bulk import batched
from pinfold.posix._call import Shell
from pinfold.posix._layout import Place
from pinfold.posix._probe import Tools
from pinfold.posix._records import Record, from_find, from_stat, unreadable, within
from pinfold.provider import FileType

__all__ = ["walk"]

#: How often a tree is listed by its paths: a directory that was changed a moment before is sound
#: when it is looked at again.
_TRIES: Final = 2


async def walk(shell: Shell, tools: Tools, place: Place) -> tuple[int, list[Record], str]:
    """List a whole tree.

    Args:
        shell: runs our programs.
        tools: what the target has; `find` among them.
        place: the top.

    Returns:
        The target's time when it began, in nanoseconds (0 where it has no clock); facts, with
        names relative to the place; what could not be looked at, as the tools said it.

    Raises:
        ProgramFailed: the place can't be entered.
        Unavailable: what came is no listing.
        OutcomeUnknown, Lost, Unreachable: as `Shell.call`.
    """
    if tools.find_printf:  # goes by descriptors
        found = _Found()
        answer = await shell.ask(
            "paths", "scan", args=(*place.args, "1", _date(tools)), take=found.take
        )
        return _time(found.clock or b"", tools), found.records, answer.trouble
    started, trouble = 0, ""
    records: list[Record] = []
    doubtful = [""]
    for attempt in range(_TRIES):
        answer = await shell.ask("paths", "scan", args=(*place.args, "", _date(tools)))
        clock, _, said = answer.said.partition(b"\n")
        started, trouble = started if attempt else _time(clock, tools), answer.trouble
        records, doubtful = _by_paths(_text(said))
        if not doubtful:
            break
    tops = [_Top(name, place.below(name) if name else place.args) for name in doubtful]
    for batch in batched(tops):
        answer = await shell.ask(
            "paths", "walk", args=tuple(arg for top in batch for arg in top.args)
        )
        records += _entered(batch, _text(answer.said))
        trouble += answer.trouble
    return started, records, trouble


@attrs.frozen
class _Top:
    """A directory to be entered: its name from the place, and two arguments of `walk.sh`."""

    name: str
    args: tuple[str, str]


def _date(tools: Tools) -> str:
    return "+%s%N" if tools.date_ns else "+%s"


def _time(clock: bytes, tools: Tools) -> int:
    return (int(clock) if clock.isdigit() else 0) * (1 if tools.date_ns else 1_000_000_000)


class _Found:
    """What `find -printf` says, read while it says it: the line with the time, and records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.clock: bytes | None = None
        self._held = b""

    def take(self, data: bytes) -> None:
        held = self._held + data
        if self.clock is None and b"\n" in held:
            self.clock, _, held = held.partition(b"\n")
        whole = 0 if self.clock is None else held.rfind(b"\0") + 1
        for _ in range(held.count(b"\0", 0, whole) % 3):  # three make a record
            whole = held.rfind(b"\0", 0, whole - 1) + 1
        self._held = held[whole:]
        self.records += within(from_find(_text(held[:whole])), deep=True)


def _by_paths(text: str) -> tuple[list[Record], list[str]]:
    """Return what is in sound directories, and those directories in them that are not."""
    now, _, text = text.partition("\n")
    found, text = from_stat(text)
    sound = _sound(now, text)
    within(found, deep=True)
    if "" not in sound:
        return [], [""]
    records = [record for record in found if _above(record.name) in sound]
    return records, [
        record.name
        for record in records
        if record.type is FileType.DIRECTORY and record.name not in sound
    ]


def _text(said: bytes) -> str:
    return said.decode("utf-8", "surrogateescape")


def _sound(now: str, text: str) -> set[str]:
    """Return the directories in which nothing was made, moved or removed while all was listed.

    Args:
        now: when it began.
        text: `TIME NAME//` for each directory, in the end: its change time then, those in it first.

    Those in it first, so that what was said of them was said of them: by the same path one comes to
    another directory only when one above has changed.
    """
    sound: set[str] = set()
    for line in reversed(text.split("//\n")[:-1]):
        *stamp, path = line.split(" ", 3)
        name = path.removeprefix(".").removeprefix("/")
        if " ".join(stamp) < now and (not name or _above(name) in sound):
            sound.add(name)
    return sound


def _above(name: str) -> str:
    return name.rpartition("/")[0]


def _entered(batch: Sequence[_Top], said: str) -> Iterator[Record]:
    """Read what `walk.sh` says: for each directory `NUMBER PATH//`, and the records in it."""
    tops = {str(number): top.name for number, top in enumerate(batch)}
    while said:
        where, _, said = said.partition("//\n")
        number, _, path = where.partition(" ")
        if number not in tops:
            raise unreadable(f"{where!r} is no directory that was asked for")
        found, said = from_stat(said)
        within(found, deep=False)
        prefix = "".join(f"{part}/" for part in (tops[number], path) if part)
        for record in found:
            yield record._replace(name=prefix + record.name)
