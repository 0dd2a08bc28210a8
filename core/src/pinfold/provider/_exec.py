"""One command: what is asked, and what came of it (contract section 4)."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, Literal

import attrs

from pinfold.errors import InvalidArgument, TooLarge
from pinfold.provider._paths import guest_path
from pinfold.spec import (
    EXEC_TIMEOUT_SECONDS,
    OUTPUT_CAP_BYTES,
    WORKSPACE,
    JsonObject,
    Limits,
    freeze,
)

__all__ = [
    "ExecRequest",
    "ExecResult",
    "LimitMet",
    "OutputStream",
    "Sink",
    "check_exec",
    "guest_env",
]

OutputStream = Literal["stdout", "stderr"]

#: What a command was stopped by.
LimitMet = Literal["memory", "pids", "disk", "cpu", "output"]

#: Receives output while a command runs (EX-15): which stream, and the bytes. Awaiting it is the
#: back-pressure. What it raises ends the command and propagates.
Sink = Callable[[OutputStream, bytes], Awaitable[None]]

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OWN_PREFIX: Final = "PINFOLD_"


def _argv(value: Sequence[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise InvalidArgument(
            "argv is a list of strings, not one string",
            hint="pass a list, or use shell= for a script",
        )
    try:
        return tuple(value)
    except TypeError:
        raise InvalidArgument("argv is a list of strings") from None


def _cwd(value: PurePosixPath | str) -> PurePosixPath:
    if value is WORKSPACE:
        return WORKSPACE
    if not isinstance(value, (str, PurePosixPath)):
        raise InvalidArgument("cwd is a path")
    return PurePosixPath(value)


def _env(value: Mapping[str, str] | None) -> JsonObject:
    if value is None:
        return freeze({})
    if not isinstance(value, Mapping):
        raise InvalidArgument("env is a mapping of names to values")
    for name, item in value.items():
        if not isinstance(name, str) or not isinstance(item, str):
            raise InvalidArgument("the names and values of env are strings")
    return freeze(value)


@attrs.frozen(kw_only=True)
class ExecRequest:
    """One command to run; made of plain values, checked when it is made (EX-3).

    Attributes:
        argv: the program and its arguments, no shell between; str with surrogateescape (EX-11).
        shell: a script for the target's shell; exactly one of argv and shell is given.
        cwd: where it runs; the workspace by default.
        env: variables added to the target's defaults (EX-12).
        stdin: exactly these bytes, then end-of-file (EX-9).
        timeout_seconds: > 0; None is unlimited. The clock starts when the command starts.
        stdout_cap: bytes of stdout that the result keeps, the head (EX-7).
        stderr_cap: bytes of stderr that the result keeps.

    Raises:
        InvalidArgument: any of it is malformed; nothing was run.
    """

    argv: tuple[str, ...] | None = attrs.field(default=None, converter=_argv)
    shell: str | None = None
    cwd: PurePosixPath = attrs.field(default=WORKSPACE, converter=_cwd)
    env: Mapping[str, str] = attrs.field(default=None, converter=_env, repr=False)
    stdin: bytes = attrs.field(default=b"", repr=False)
    timeout_seconds: float | None = EXEC_TIMEOUT_SECONDS
    stdout_cap: int = OUTPUT_CAP_BYTES
    stderr_cap: int = OUTPUT_CAP_BYTES

    def __attrs_post_init__(self) -> None:
        if (self.argv is None) == (self.shell is None):
            raise InvalidArgument("give exactly one of argv and shell")
        if self.argv is not None:
            if not self.argv:
                raise InvalidArgument("argv is empty", hint="the first element is the program")
            for index, arg in enumerate(self.argv):
                _text(f"argv[{index}]", arg)
        else:
            _text("shell", self.shell)
        for name, value in self.env.items():
            if not _ENV_NAME.fullmatch(name):
                raise InvalidArgument(
                    f"{name!r} is not the name of a variable",
                    hint="letters, digits and _, not a digit first",
                )
            _text(f"the value of {name}", value)
        if not isinstance(self.stdin, bytes):
            raise InvalidArgument("stdin is bytes")
        for label in ("stdout_cap", "stderr_cap"):
            cap = getattr(self, label)
            if type(cap) is not int or cap < 0:
                raise InvalidArgument(f"{label} is a number of bytes, 0 or more")
        if not _is_timeout(self.timeout_seconds):
            raise InvalidArgument(
                "timeout_seconds is a number of seconds above 0",
                hint="None means unlimited",
            )


def _is_timeout(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return value > 0 and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is a string, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidArgument(f"{what} has a NUL byte, which no program can be given")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"{what} has a surrogate that stands for no byte",
                hint="bytes that are not UTF-8 travel as os.fsdecode gives them",
            ) from None


@attrs.frozen(kw_only=True)
class ExecResult:
    """What came of a command that ran, whatever its exit code (EX-1).

    Attributes:
        exit_code: the command's own, 0..255; 128+n for signal n; 127 not found; 126 not
            executable; 124 on a timeout (EX-2, EX-4).
        stdout: the head of what it wrote, up to the cap; empty when it was streamed.
        stderr: likewise.
        stdout_truncated: more was written than `stdout` holds; always false when streamed.
        stderr_truncated: likewise.
        stdout_total: bytes written in all.
        stderr_total: likewise.
        timed_out: pinfold's own deadline ended it.
        signal: the number of the signal that ended it, where the feature `signals` is present.
        limit: the limit that it met, if it met one: it ended the command, or (output) the target
            itself dropped what the command wrote beyond it, which then no total counts.
        duration_ms: milliseconds from the command's start to its end.
        env_dropped: names in the request's env that were not passed on (EX-12).
        generation: of the instance that ran it.
    """

    exit_code: int
    stdout: bytes = attrs.field(default=b"", repr=lambda value: f"<{len(value)} bytes>")
    stderr: bytes = attrs.field(default=b"", repr=lambda value: f"<{len(value)} bytes>")
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_total: int = 0
    stderr_total: int = 0
    timed_out: bool = False
    signal: int | None = None
    limit: LimitMet | None = None
    duration_ms: int = 0
    env_dropped: tuple[str, ...] = ()
    generation: int = 1

    @property
    def truncated(self) -> bool:
        """Either stream was cut."""
        return self.stdout_truncated or self.stderr_truncated

    @property
    def stdout_text(self) -> str:
        """`stdout` as UTF-8, with replacement (EX-6)."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """`stderr` as UTF-8, with replacement (EX-6)."""
        return self.stderr.decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        """Return the wire form: text with replacement, plus `truncated`."""
        form = attrs.asdict(self)
        form["stdout"], form["stderr"] = self.stdout_text, self.stderr_text
        form["truncated"] = self.truncated
        form["env_dropped"] = list(self.env_dropped)
        return form


def check_exec(
    request: ExecRequest,
    limits: Limits,
    roots: Sequence[PurePosixPath] = (),
    *,
    argv_bytes: bool = True,
) -> None:
    """Hold a request to what a target accepts; every provider calls it first (EX-3, PR-3).

    Args:
        request: the command.
        limits: the target's own.
        roots: writable roots besides the workspace, in which a cwd may also lie.
        argv_bytes: the feature; without it only UTF-8 can be passed.

    Raises:
        InvalidArgument: the cwd is relative or has `..`; non-UTF-8 without `argv_bytes`.
        OutsideWorkspace: the cwd lies elsewhere.
        TooLarge: one past a limit.
    """
    if request.cwd is not WORKSPACE:
        guest_path(request.cwd, roots, what="cwd")
    env_bytes = 0
    for name, value in request.env.items():
        size = len(name) + 1 + _size(value)  # the kernel takes NAME=VALUE for one argument more
        _at_most(f"the variable {name}", size, limits.argv_element_bytes)
        env_bytes += size + 1
    words = request.argv if request.argv is not None else (request.shell or "",)
    sizes = [_size(word) for word in words]
    _at_most("one argument", max(sizes), limits.argv_element_bytes)
    _at_most("argv and env together", sum(sizes) + len(sizes) + env_bytes, limits.argv_env_bytes)
    _at_most("stdin", len(request.stdin), limits.stdin_bytes)
    if limits.exec_seconds is not None and (
        request.timeout_seconds is None or request.timeout_seconds > limits.exec_seconds
    ):
        raise TooLarge(
            f"timeout_seconds is beyond this target's {limits.exec_seconds:g} seconds",
            details={"limit": limits.exec_seconds},
        )
    if not argv_bytes:
        for text in (*words, *request.env.values()):
            if any("\udc80" <= char <= "\udcff" for char in text):
                raise InvalidArgument(
                    "this target takes UTF-8 arguments and variables only",
                    hint="pass the bytes on stdin or in a file",
                )


def _size(text: str) -> int:
    """Return how many bytes a guest sees for `text`."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _at_most(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(
            f"{what} takes {size} bytes; this target takes at most {limit}",
            hint="put large data into a file",
            details={"size": size, "limit": limit},
        )


def guest_env(
    request: ExecRequest, own: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables to add to the target's defaults, and the names dropped (EX-12).

    Args:
        request: the command.
        own: pinfold's own variables, `PINFOLD_WORKSPACE` and the like; they win.
    """
    if not request.env:
        return dict(own), ()
    dropped = tuple(sorted(name for name in request.env if name.startswith(_OWN_PREFIX)))
    env = {name: value for name, value in request.env.items() if name not in dropped}
    return {**env, **own}, dropped
