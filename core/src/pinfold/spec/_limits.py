"""Defaults and limits of contract section 1b; every number has its unit in its name or comment."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

import attrs

__all__ = [
    "BOOTSTRAP_TIMEOUT_SECONDS",
    "CREATE_TIMEOUT_SECONDS",
    "EXEC_TIMEOUT_SECONDS",
    "IDLE_AFTER_SECONDS",
    "KILL_GRACE_SECONDS",
    "OUTPUT_CAP_BYTES",
    "PROBE_TIMEOUT_SECONDS",
    "RETURN_GRACE_SECONDS",
    "TERM_GRACE_SECONDS",
    "WORKSPACE",
    "Limits",
]

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: The workspace as every caller sees it (contract section 0).
WORKSPACE: Final = PurePosixPath("/workspace")

EXEC_TIMEOUT_SECONDS: Final = 120.0
TERM_GRACE_SECONDS: Final = 2.0
#: A timed-out exec returns within its timeout + TERM_GRACE_SECONDS + this (EX-4).
RETURN_GRACE_SECONDS: Final = 3.0
#: A cancelled exec propagates within this (EX-5).
KILL_GRACE_SECONDS: Final = 5.0
PROBE_TIMEOUT_SECONDS: Final = 2.0
CREATE_TIMEOUT_SECONDS: Final = 120.0
BOOTSTRAP_TIMEOUT_SECONDS: Final = 600.0
IDLE_AFTER_SECONDS: Final = 180

#: What a result keeps of stdout and of stderr, each, unless the request says otherwise (EX-7).
OUTPUT_CAP_BYTES: Final = 1 * MIB


@attrs.frozen(kw_only=True)
class Limits:
    """What a target accepts, in bytes unless said otherwise; null means no limit of its own.

    A provider may lower these, never raise them, except where the default is null
    (contract section 1b, PR-3). One past a limit is `too_large`, before anything is sent.

    Attributes:
        argv_element_bytes: the longest single argument, and variable as NAME=VALUE.
        argv_env_bytes: all arguments and the environment together.
        stdin_bytes: what `stdin` of one exec may hold.
        read_bytes: what one `read` returns; larger files are streamed.
        file_bytes: the largest file.
        workspace_bytes: the whole workspace.
        workspace_files: files and directories in it (a count).
        output_bytes: the most output that one command can produce, per stream.
        exec_seconds: the longest timeout, in seconds.
    """

    argv_element_bytes: int = 131_071
    argv_env_bytes: int = 1 * MIB
    stdin_bytes: int = 16 * MIB
    read_bytes: int = 32 * MIB
    file_bytes: int | None = None
    workspace_bytes: int | None = None
    workspace_files: int | None = None
    output_bytes: int | None = None
    exec_seconds: float | None = None
