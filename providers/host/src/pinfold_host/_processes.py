"""Find and end processes by a mark in their environment (tree_kill: cookie).

The kernel gives every process its parent's environment, and shows it in /proc. A process that has
shed the mark (`env -i`) is not found: that is what `cookie` says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["can_find_marked", "end_instance", "end_marked", "signal_marked", "start_time"]

_PAUSE_SECONDS: Final = 0.005


def can_find_marked() -> bool:
    """Say whether marked processes can be found here: it takes Linux's /proc and pidfds."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return False
    try:
        with open("/proc/self/environ", "rb"):
            os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def signal_marked(mark: bytes, number: int) -> int:
    """Send a signal to every process that carries `NAME=value`; return how many there were."""
    count = 0
    for pidfd in _marked(mark):
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, number)
            count += 1
    return count


def end_marked(mark: bytes, deadline: float) -> bool:
    """Kill every process that carries the mark, until two looks in a row find none.

    One look could miss a process that hops from pid to pid.

    Args:
        mark: `NAME=value`.
        deadline: on the monotonic clock, when to give up.

    Returns:
        Whether none is left.
    """
    empty_looks = 0
    while empty_looks < 2:
        if signal_marked(mark, signal.SIGKILL) == 0:
            empty_looks += 1
            continue
        empty_looks = 0
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _marked(mark: bytes) -> Iterator[int]:
    """Yield a pidfd of each; it is opened before the mark is looked for, so that it can't lie."""
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            pidfd = os.pidfd_open(int(name))
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EINVAL):
                continue
            raise
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                if mark in stream.read().split(b"\0"):
                    yield pidfd
        except OSError:
            continue  # gone, or another user's
        finally:
            os.close(pidfd)


def start_time(pid: int) -> int:
    """Return when a process started, in the kernel's ticks: with its pid it names one process.

    Raises:
        OSError: there is none.
    """
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return int(stream.read().rpartition(b")")[2].split()[19])


def end_instance(launcher: tuple[int, int] | None, workspace: Path, seconds: float) -> bool:
    """End all processes of an instance, as far as can be told from outside.

    Args:
        launcher: level native: its pid and start time.
        workspace: level none: what its processes have in `PINFOLD_WORKSPACE`.
        seconds: when to give up.

    Returns:
        Whether none is left.
    """
    deadline = time.monotonic() + seconds
    if launcher is not None:
        return _end_one(*launcher, deadline)
    if not can_find_marked():
        return True
    return end_marked(b"PINFOLD_WORKSPACE=" + os.fsencode(workspace), deadline)


def _end_one(pid: int, started: int, deadline: float) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(OSError):
            if start_time(pid) != started:
                return True
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ready, _, _ = select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        return bool(ready)
    finally:
        os.close(pidfd)
