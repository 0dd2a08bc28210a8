"""One bashkit interpreter: made for one setting, used by one command at a time, ended at will."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import attrs

from pinfold.spec import WORKSPACE
from pinfold_bashkit._errors import contained, translated
from pinfold_bashkit._vfs import HOME, Vfs, system_directories

if TYPE_CHECKING:
    from bashkit import BuiltinContext, BuiltinResult, ExecResult, FileSystem, ScriptAnalysis

__all__ = ["DEFAULT_ENV", "WARM", "Interpreter", "Settings", "WarmInterpreters"]

DEFAULT_ENV: Final = {
    "HOME": HOME,
    "LOGNAME": "sandbox",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PINFOLD_WORKSPACE": str(WORKSPACE),
    "USER": "sandbox",
}

#: Each holds three file descriptors; a new one costs about what a `bash -c` does.
_MAX_WARM: Final = 32

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@attrs.frozen(kw_only=True)
class Settings:
    """What is fixed when an interpreter is made.

    Attributes:
        timeout_seconds: it ends by itself after this; null is never.
        max_loop_iterations: of one loop, in the shell and in awk.
        hosts: that it may talk to, on ports 80 and 443; null means no network at all.
        private_hosts: they may have private addresses.
    """

    timeout_seconds: float | None
    max_loop_iterations: int
    hosts: tuple[str, ...] | None = None
    private_hosts: bool = False

    @property
    def network(self) -> dict[str, Any] | None:
        """What bashkit is told: URL prefixes, matched by scheme, host and port."""
        if self.hosts is None:
            return None
        urls = [f"{scheme}://{host}" for host in self.hosts for scheme in ("http", "https")]
        return {"allow": urls, "block_private_ips": not self.private_hosts}


class _Sleep:
    """Stands in for bashkit's sleep, which nothing but the interpreter's own timeout can end.

    bashkit keeps it, and is not known to Python's collector, so it must not refer to bashkit.

    Attributes:
        used: it was called, and so bashkit has a thread with an asyncio loop for it.
    """

    def __init__(self) -> None:
        self.used = False
        self._ended = False
        self._lock = threading.Lock()
        self._sleepers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def end(self) -> None:
        """Wake whoever sleeps, now and later."""
        with self._lock:
            self._ended = True
            for loop, event in self._sleepers:
                loop.call_soon_threadsafe(event.set)

    async def __call__(self, ctx: BuiltinContext) -> str | BuiltinResult:
        """Sleep, on bashkit's own loop."""
        from bashkit import BuiltinResult

        self.used = True
        try:
            seconds = _duration(ctx.argv)
        except ValueError as exc:
            return BuiltinResult(stderr=f"sleep: {exc}\n", exit_code=1)
        sleeper = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._ended:
                return ""
            self._sleepers.add(sleeper)
        try:
            await asyncio.wait_for(sleeper[1].wait(), seconds)
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._sleepers.discard(sleeper)
        return ""


class Interpreter:
    """A bashkit interpreter over a sandbox's files."""

    def __init__(self, settings: Settings, root: FileSystem) -> None:
        from bashkit import Bash, ExecutionProfile

        self.settings = settings
        self.root = root
        self._stopped = False
        self._sleep = _Sleep()
        with translated("/"):
            self._bash = Bash(
                # The others end a session after 1,000 commands; this has no life-time cap.
                profile=ExecutionProfile.Interactive,
                username="sandbox",
                hostname="pinfold",
                cwd=str(WORKSPACE),
                env=DEFAULT_ENV,
                timeout_seconds=settings.timeout_seconds,
                max_loop_iterations=settings.max_loop_iterations,
                network=settings.network,  # type: ignore[arg-type]  # a TypedDict of the same keys
            )
        self._bash.mount("/", root)
        for name, system in system_directories().items():
            self._bash.mount(f"/{name}", system, read_only=True)
        self._bash.add_builtin("sleep", self._sleep)  # type: ignore[attr-defined]  # not in its stub

    @property
    def reusable(self) -> bool:
        """It may be kept for another command: it was not stopped, and has no thread."""
        return not self._stopped and not self._sleep.used

    def analyze(self, script: str) -> ScriptAnalysis | None:
        """Return what a script consists of, without running it; None for one that is malformed."""
        from bashkit import BashError

        try:
            return self._bash.analyze(script)
        except BashError:
            return None

    def parses(self, script: str) -> bool:
        """Say whether a script is well-formed by itself."""
        return self.analyze(script) is not None

    def run(self, script: str, on_output: Callable[[str, str], None]) -> ExecResult:
        """Run a script to its end; blocks, so call it in a worker thread."""
        with contained():
            return self._bash.execute_sync(script, on_output)

    def stop(self) -> None:
        """End what runs, for good: it returns at its next command, or when its built-in does.

        Cancelling is sticky in bashkit, so an interpreter that was stopped is not used again.
        """
        self._stopped = True
        self._bash.cancel()
        self._sleep.end()


def _duration(argv: list[str]) -> float | None:
    """Return seconds, or None for ever, as coreutils' sleep reads its operands."""
    if not argv:
        raise ValueError("missing operand")
    total = 0.0
    for word in argv:
        unit = _UNITS.get(word[-1:])
        try:
            value = float(word[:-1] if unit else word) * (unit or 1)
        except ValueError:
            value = -1
        if not value >= 0:
            raise ValueError(f"invalid time interval '{word}'")
        total += value
    return None if total > threading.TIMEOUT_MAX else total


class WarmInterpreters:
    """Interpreters between two commands, so that most commands need not make one.

    Bounded over all sandboxes of the process, the longest unused go first: hundreds may be open,
    and each interpreter holds file descriptors.
    """

    def __init__(self, limit: int = _MAX_WARM) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: WeakKeyDictionary[Vfs, Interpreter] = WeakKeyDictionary()

    def take(self, settings: Settings, vfs: Vfs) -> Interpreter:
        """Return an interpreter over `vfs` for one command, a kept one where it fits."""
        with self._lock:
            kept = self._kept.pop(vfs, None)
        if kept is not None and kept.settings == settings and kept.root is vfs.root:
            return kept
        return Interpreter(settings, vfs.root)

    def keep(self, vfs: Vfs, interpreter: Interpreter) -> None:
        """Take back one whose command has ended by itself; others are dropped."""
        if interpreter.reusable and interpreter.root is vfs.root:
            evicted = None
            with self._lock:
                self._kept[vfs] = interpreter
                if len(self._kept) > self._limit:
                    evicted = self._kept.pop(next(iter(self._kept)))
            del evicted  # ended outside the lock

    def drop(self, vfs: Vfs) -> None:
        """Forget the interpreter over files that go away."""
        with self._lock:
            kept = self._kept.pop(vfs, None)
        del kept


WARM: Final = WarmInterpreters()
