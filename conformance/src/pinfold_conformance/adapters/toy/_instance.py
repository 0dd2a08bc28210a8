"""The reference adapter's instance: exec by model processes."""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import Literal

import anyio
import anyio.lowlevel
import attrs

from pinfold.errors import Lost, NotADirectory, NotFound, OutcomeUnknown, Unimplemented
from pinfold.provider import (
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    InstanceRef,
    InstanceStatus,
    Pausable,
    Sink,
    check_exec,
    guest_env,
)
from pinfold.spec import Limits, TreeKill
from pinfold_conformance.adapters.toy._files import ToyFiles
from pinfold_conformance.adapters.toy._kernel import Kernel, Pipe, Process
from pinfold_conformance.adapters.toy._language import Machine, Shell, start
from pinfold_conformance.adapters.toy._tree import ToyTree
from pinfold_conformance.adapters.toy._world import Dir, World

__all__ = ["Body", "ToyInstance"]

_LONGEST_NAP = 0.05


@attrs.define(eq=False, kw_only=True)
class Body:
    """What an instance is made of; handles come and go, this stays."""

    world: World
    kernel: Kernel
    network: bool
    alive: bool = True
    paused: bool = False
    running: int = 0  # foreground execs
    cuts: int = 0  # of the connection
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)


@attrs.define
class Kept:
    """One stream's output: what is kept, and how much there was."""

    cap: int
    data: bytearray = attrs.field(factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        """Count all, keep the head."""
        self.total += len(data)
        self.data += data[: max(0, self.cap - len(self.data))]


class ToyInstance(Instance):
    """One handle on a `Body`."""

    def __init__(
        self,
        body: Body,
        *,
        ref: InstanceRef,
        features: Features,
        limits: Limits,
        generation: int,
        compute: bool = True,
    ) -> None:
        self.body, self.ref, self.features, self.limits = body, ref, features, limits
        self.generation, self.compute = generation, compute
        self.toy_files = ToyFiles(body.world, features, limits, self.ready)
        self.files = self.toy_files
        self.tree = ToyTree(
            world=body.world,
            features=features,
            limits=limits,
            busy=lambda: body.running > 0,
            end_jobs=self.end_jobs,
            ready=self.ready,
        )

    def ready(self) -> None:
        """Let processes catch up with the clock.

        Raises:
            Lost: the instance is no more.
        """
        if not self.body.alive:
            raise Lost("the instance is gone", hint="make another")
        self.body.kernel.advance()

    def end_jobs(self) -> bool:
        """End every process and say whether there was one."""
        processes = list(self.body.kernel.processes)
        for process in processes:
            self.body.kernel.kill(process)
        return bool(processes)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if not self.compute:
            raise Unimplemented("this target runs no commands")
        check_exec(
            request,
            self.limits,
            self.body.world.roots[1:],
            argv_bytes=self.features.argv_bytes,
        )
        self.ready()
        if self.features.concurrent_exec:
            return await self._exec(request, sink)
        async with self.body.lock:
            return await self._exec(request, sink)

    def _cwd(self, path: PurePosixPath) -> PurePosixPath:
        place = self.toy_files.place(path)
        if place.node is None:
            raise NotFound(f"the cwd {str(path)!r} is not there")
        if not isinstance(place.node, Dir):
            raise NotADirectory(f"the cwd {str(path)!r} is no directory")
        return place.path

    def environment(self, request: ExecRequest) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the variables of a command, and the names dropped (EX-12)."""
        own = {"PINFOLD_WORKSPACE": "/workspace"}
        env, dropped = guest_env(request, own)
        return {"PATH": "/bin", "HOME": "/workspace", **env}, dropped

    async def _exec(self, request: ExecRequest, sink: Sink | None) -> ExecResult:
        cwd = self._cwd(request.cwd)
        env, dropped = self.environment(request)
        body, kernel = self.body, self.body.kernel
        shell = Shell(
            machine=Machine(
                world=body.world, kernel=kernel, network=body.network, features=self.features
            ),
            env=env,
            cwd=cwd,
            stdin=request.stdin,
            stdout=Pipe(),
            stderr=Pipe(),
        )
        job = kernel.new_job()
        began = time.monotonic()
        body.running += 1
        process = start(shell.machine, shell, job=job, argv=request.argv, script=request.shell)
        kept = {"stdout": Kept(request.stdout_cap), "stderr": Kept(request.stderr_cap)}
        try:
            timed_out = await self._follow(process, shell, request, kept, sink)
        except OutcomeUnknown:
            raise  # the command goes on, or is gone with its instance
        except BaseException:
            self.kill_tree(process)
            raise
        finally:
            body.running -= 1
            shell.stdout.read = shell.stderr.read = False
        code = process.exit_code or 0
        return ExecResult(
            exit_code=124 if timed_out else code,
            stdout=b"" if sink else bytes(kept["stdout"].data),
            stderr=b"" if sink else bytes(kept["stderr"].data),
            stdout_truncated=not sink and kept["stdout"].total > len(kept["stdout"].data),
            stderr_truncated=not sink and kept["stderr"].total > len(kept["stderr"].data),
            stdout_total=kept["stdout"].total,
            stderr_total=kept["stderr"].total,
            timed_out=timed_out,
            signal=process.signal if self.features.signals and not timed_out else None,
            duration_ms=int((time.monotonic() - began) * 1000),
            env_dropped=dropped,
            generation=self.generation,
        )

    async def _follow(
        self,
        process: Process,
        shell: Shell,
        request: ExecRequest,
        kept: dict[Literal["stdout", "stderr"], Kept] | dict[str, Kept],
        sink: Sink | None,
    ) -> bool:
        """Carry output until the command has ended; say whether its time ran out."""
        body, kernel, cuts = self.body, self.body.kernel, self.body.cuts
        timeout = request.timeout_seconds
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if not body.alive or body.cuts != cuts:
                raise OutcomeUnknown("the connection broke while the command ran")
            self.ready()
            moved = False
            names: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")
            for name in names:
                data = getattr(shell, name).take()
                if data:
                    moved = True
                    kept[name].add(data)
                    if sink is not None:
                        await sink(name, data)
            if moved:
                await anyio.lowlevel.checkpoint()
            elif self.ended(process):
                return False
            now = time.monotonic()
            if deadline is not None and now >= deadline and not self.ended(process):
                self.kill_tree(process)
                for name in names:
                    kept[name].add(getattr(shell, name).take())
                return True
            if not moved:
                await anyio.sleep(self._nap(kernel, deadline))

    def _nap(self, kernel: Kernel, deadline: float | None) -> float:
        until = kernel.next_time()
        nap = _LONGEST_NAP if until is None else min(_LONGEST_NAP, until - kernel.time())
        if deadline is not None:
            nap = min(nap, deadline - time.monotonic())
        return max(0.0, nap)

    def ended(self, process: Process) -> bool:
        """Say whether a command has ended; without `background` its jobs belong to it (EX-8)."""
        if process.alive:
            return False
        return self.features.background or not self.body.kernel.of_job(process.job)

    def kill_tree(self, process: Process) -> None:
        """End what a command started, as far as `tree_kill` reaches."""
        kernel = self.body.kernel
        kernel.advance()
        group_only = self.features.tree_kill is TreeKill.GROUP
        for other in kernel.of_job(process.job):
            if not group_only or other.session == process.session:
                kernel.kill(other)

    async def status(self) -> InstanceStatus:
        if not self.body.alive:
            return InstanceStatus.ABSENT
        return InstanceStatus.PAUSED if self.body.paused else InstanceStatus.RUNNING

    async def destroy(self) -> None:
        self.end_jobs()
        self.body.alive = False

    async def detach(self) -> None:
        if not self.features.attach:
            await self.destroy()


class PausableToy(ToyInstance, Pausable):
    """A reference instance with the feature `pause`: its clock can stand."""

    async def pause(self) -> None:
        self.ready()
        self.body.kernel.pause()
        self.body.paused = True

    async def resume(self) -> bool:
        if not self.body.alive:
            raise Lost("the instance is gone")
        self.body.kernel.resume()
        self.body.paused = False
        return False
