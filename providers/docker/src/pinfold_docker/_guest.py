"""A container as a place where processes can be spawned: the engine's exec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any, Final

import anyio
import anyio.lowlevel

from pinfold.errors import Effect, Lost, OutcomeUnknown, PinfoldError, Unavailable, Unreachable
from pinfold.posix import COOKIE, TASK, Process, TerminalGuest
from pinfold.provider import InstanceStatus, TerminalSize
from pinfold_docker._engine import Engine, Hijacked
from pinfold_docker._http import EngineError
from pinfold_docker._streams import STDERR, STDOUT, Demultiplexer, OutputStream, StdinStream
from pinfold_docker._terminal import DockerTerminal
from pinfold_docker._words import shell_argv

__all__ = ["DockerGuest", "status_of"]

#: An exec whose stream has ended is said to run on for a moment at most.
EXIT_SECONDS: Final = 5.0
#: From here on an exit code may be the container's end and not the command's.
DOUBTFUL: Final = 126
RUNTIME_DIRECTORY: Final = "/run/pinfold"
KILL: Final = 9
#: Killing goes on until a pass finds nobody: what was forked during one is not in its list.
SIGNAL: Final = """
again=1
while [ "$again" ]; do
  again=
  for e in /proc/[0-9]*/environ; do
    if tr '\\0' '\\n' <"$e" | grep -qxFe "$2"; then
      p=${e%/environ}; kill -"$1" "${p#/proc/}"; if [ "$1" = 9 ]; then again=1; fi
    fi
  done
done 2>/dev/null"""

#: A runtime in Go raises its own soft limit to the hard one, and an exec sometimes inherits that
#: (measured with runc 1.1.5: one in forty, and one in five on a busy machine).
LIMITED: Final = 'ulimit -S -n "$0" && exec "$@"'


async def status_of(engine: Engine, container: str) -> InstanceStatus:
    """Ask the engine what has become of a container; never raises for an engine that is away."""
    try:
        facts = await engine.call("GET", "containers", container, "json", seconds=10)
    except EngineError as exc:
        return InstanceStatus.ABSENT if exc.status == 404 else InstanceStatus.UNREACHABLE
    except PinfoldError:
        return InstanceStatus.UNREACHABLE
    state = facts["State"]
    if state.get("Running") and not state.get("Paused") and not state.get("Restarting"):
        return InstanceStatus.RUNNING
    if state.get("Status") in ("removing", "dead"):
        return InstanceStatus.ABSENT
    return InstanceStatus.PAUSED


class DockerGuest(TerminalGuest):
    """One container.

    Args:
        engine: that runs it.
        container: its name.
        open_files: the soft limit of all that is spawned, -1 for none; None is the engine's.
    """

    def __init__(self, engine: Engine, container: str, *, open_files: int | None = None) -> None:
        self.engine = engine
        self.container = container
        self._open_files = open_files
        self._open: set[DockerProcess] = set()

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> DockerProcess:
        exec_id, stream = await self.start(self._config(argv, env, cwd))
        cookie = next((f"{name}={env[name]}" for name in (TASK, COOKIE) if name in env), "")
        process = DockerProcess(self, exec_id, stream, cookie)
        self._open.add(process)
        return process

    def was_cut(self) -> bool:
        """Say whether a stream has been ended from the other side and nobody has seen it yet."""
        return any(process.was_cut() for process in self._open)

    def release(self) -> None:
        """Let go of everything that is still open; what runs in the container goes on."""
        for process in list(self._open):
            process.close()

    def forget(self, process: DockerProcess) -> None:
        """Told by a process that was closed."""
        self._open.discard(process)

    async def run(self, script: str, *args: str) -> None:
        """Run a shell script to its end and forget what came of it; never raises."""
        argv = ["/bin/sh", "-c", script, "sh", *args]
        # An error: it is stopped or gone, and all that ran in it.
        with anyio.move_on_after(EXIT_SECONDS, shield=True), suppress(PinfoldError):
            process = await self.spawn(argv, {}, PurePosixPath("/"))
            try:
                await process.discard()
            finally:
                await process.aclose()

    async def open_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: PurePosixPath,
        size: TerminalSize,
    ) -> DockerTerminal:
        pidfile = f"{RUNTIME_DIRECTORY}/tty-{token_hex(8)}"
        script = f'echo $$ >{pidfile}; exec "$@"'
        config = self._config(["/bin/sh", "-c", script, "sh", *argv], env, cwd) | {"Tty": True}
        exec_id, stream = await self.start(config, tty=True)
        terminal = DockerTerminal(self, exec_id, stream, pidfile)
        await terminal.resize(size)
        return terminal

    def _config(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> dict[str, Any]:
        if self._open_files is not None:
            limit = "unlimited" if self._open_files < 0 else str(self._open_files)
            argv = ["/bin/sh", "-c", LIMITED, limit, *argv]
        argv, env = shell_argv(argv, env)
        return {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": str(cwd),
        }

    async def start(self, config: Mapping[str, Any], *, tty: bool = False) -> tuple[str, Hijacked]:
        """Start an exec, with the engine's refusals told apart.

        Raises:
            Lost, Unavailable: nothing was started.
            Unreachable: nothing was started.
            OutcomeUnknown: it may have been started.
        """
        try:
            return await self.engine.exec(self.container, config, tty=tty)
        except EngineError as exc:
            raise await self.refusal(exc) from None
        except Unreachable as exc:
            if exc.effect is Effect.NONE:
                raise
            raise OutcomeUnknown(exc.message, hint=exc.hint) from None

    async def suspended(self) -> Unavailable | None:
        try:
            facts = await self.engine.call("GET", "containers", self.container, "json", seconds=10)
        except (EngineError, PinfoldError):
            return None
        if not facts["State"].get("Paused"):
            return None
        return Unavailable(
            f"the container {self.container} is frozen: somebody has paused it at the engine",
            hint="resume the sandbox, or unpause the container",
            details={"container": self.container},
        )

    async def refusal(self, exc: EngineError) -> PinfoldError:
        """Say what it means that the engine refused to touch the container."""
        status = await status_of(self.engine, self.container)
        if status is InstanceStatus.ABSENT:
            return Lost(
                f"the container {self.container} is gone", details={"container": self.container}
            )
        if status is InstanceStatus.PAUSED:
            return await self.suspended() or Unavailable(
                f"the container {self.container} is stopped",
                hint="resume the sandbox",
                details={"container": self.container},
            )
        return Unavailable(
            f"the engine refuses: {exc.message}", details={"container": self.container}
        )

    async def begun(self, exec_id: str) -> None:
        """Wait for an exec to have its process: its stream is there before; never raises."""
        with anyio.move_on_after(EXIT_SECONDS, shield=True), suppress(PinfoldError):
            await self._facts(exec_id, lambda f: f.get("ExitCode") is not None or f.get("Pid"))

    async def _facts(self, exec_id: str, enough: Callable[[Any], object]) -> dict[str, Any]:
        """Ask of an exec, again and again, until what the engine tells is enough."""
        pause = 0.002
        while True:
            facts: dict[str, Any] = await self.engine.call("GET", "exec", exec_id, "json")
            if enough(facts):
                return facts
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.2)

    async def exit_code(self, exec_id: str, *, broken: bool) -> int:
        """Return an exec's exit code once it has one that can be believed.

        Raises:
            Lost: the container went away meanwhile.
            Unreachable: it was stopped meanwhile, or the engine can't tell.
            Unavailable: the engine could not start the program at all (`effect` none).
        """
        facts: dict[str, Any] = {}
        try:
            with anyio.move_on_after(EXIT_SECONDS):
                facts = await self._facts(exec_id, lambda f: not f["Running"])
        except EngineError:
            pass  # it is asked of the container below
        code = facts.get("ExitCode")
        if code is None or broken or code >= DOUBTFUL:
            status = await status_of(self.engine, self.container)
            if status is InstanceStatus.ABSENT:
                raise Lost(
                    f"the container {self.container} went away while a command ran",
                    effect=Effect.UNKNOWN,
                )
            if status is not InstanceStatus.RUNNING or code is None or broken:
                raise Unreachable(
                    f"the container {self.container} was stopped, or its engine, while a command "
                    "ran; how the command ended is unknown",
                    effect=Effect.UNKNOWN,
                )
            if not facts.get("Pid"):  # measured: it stays 0 when the runtime failed
                raise Unavailable(
                    f"the engine could not start a process in {self.container}",
                    hint="the pids or memory limit may be reached",
                    effect=Effect.NONE,
                )
        return int(code)


class DockerProcess(Process):
    """One exec.

    Attributes:
        stdin: ends in a half-close of the stream.
        stdout: as demultiplexed.
        stderr: likewise.
    """

    distant = True

    def __init__(self, guest: DockerGuest, exec_id: str, stream: Hijacked, cookie: str) -> None:
        self._guest = guest
        self._exec_id = exec_id
        self._cookie = cookie
        self._given_up = False
        self._exit_code: int | None = None
        self._stream = stream
        self._output = Demultiplexer(stream)
        self.stdin = StdinStream(stream)
        self.stdout = OutputStream(self._output, STDOUT)
        self.stderr = OutputStream(self._output, STDERR)

    async def wait(self) -> int:
        if self._exit_code is None:
            if self._given_up:
                await self._output.discard()
            else:
                await self._output.until_end()
            broken = self._output.broken
            self._exit_code = await self._guest.exit_code(self._exec_id, broken=broken)
        return self._exit_code

    async def discard(self) -> None:
        """Read to the end and drop it all."""
        await self._output.discard()

    async def signal(self, number: int) -> None:
        """Signal all that carries the cookie: an engine itself can't signal an exec."""
        if self._cookie and not self._output.ended:
            self._given_up = number == KILL
            await self._guest.begun(self._exec_id)
            await self._guest.run(SIGNAL, str(number), self._cookie)

    def send_now(self, data: bytes) -> int:
        return self._stream.send_now(data)

    def was_cut(self) -> bool:
        """Say whether the stream has been ended from the other side and nobody has seen it yet."""
        return not self._output.ended and self._stream.has_ended()

    def close(self) -> None:
        """Let go of it at once."""
        self._output.close()
        self._guest.forget(self)

    async def aclose(self) -> None:
        self.close()
        await anyio.lowlevel.checkpoint()
