"""The numbers of signals, from what `jobs` of a Linux shell calls them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["signal_number"]

#: As glibc and musl have them; both are the same but for a few.
_NUMBERS: Final = {
    "Hangup": 1,
    "Interrupt": 2,
    "Quit": 3,
    "Illegal instruction": 4,
    "Trace/breakpoint trap": 5,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Arithmetic exception": 8,
    "Killed": 9,
    "User defined signal 1": 10,
    "Segmentation fault": 11,
    "User defined signal 2": 12,
    "Broken pipe": 13,
    "Alarm clock": 14,
    "Terminated": 15,
    "Stack fault": 16,
    "CPU time limit exceeded": 24,
    "File size limit exceeded": 25,
    "Virtual timer expired": 26,
    "Profiling timer expired": 27,
    "I/O possible": 29,
    "Power failure": 30,
    "Bad system call": 31,
}
_REAL_TIME: Final = re.compile(r"(?:Real-time signal |RT)([0-9]+)")
_GLIBC_FIRST_REAL_TIME: Final = 34


def signal_number(text: str) -> int | None:
    """Return the number of a signal given by number or by its text; None for one unknown."""
    text = text.removesuffix(" (core dumped)").strip()
    if text.isdecimal():
        return int(text)
    match = _REAL_TIME.fullmatch(text)
    if match:
        number = int(match[1])
        return number if text.startswith("RT") else number + _GLIBC_FIRST_REAL_TIME
    return _NUMBERS.get(text)
