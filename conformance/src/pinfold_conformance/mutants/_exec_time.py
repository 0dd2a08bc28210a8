"""Bugs in deadlines, cancellation and what outlives a command (EX-4, EX-5, EX-8)."""

from __future__ import annotations

import anyio
import attrs

from pinfold.errors import (
    Internal,
    Unavailable,
)
from pinfold.provider import ExecRequest, ExecResult, Sink
from pinfold_conformance.adapters.toy._kernel import Process
from pinfold_conformance.mutants._base import BugInstance, BugToy, mutant

Bug = BugInstance


@mutant("EX-4.timeout")
class TimeoutLosesOutput(Bug):
    """After a timeout the output so far is lost."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if not result.timed_out:
            return result
        return attrs.evolve(result, stdout=b"", stdout_total=0, stdout_truncated=False)


@mutant("EX-4.argv")
class TimeoutRaises(Bug):
    """A timeout raises."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.timed_out:
            raise Unavailable("timed out")
        return result


@mutant("EX-4.own-124")
class OwnCodeIsATimeout(Bug):
    """A command that exits 124 is taken for timed out."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, timed_out=result.exit_code == 124)


@mutant("EX-4.fractions")
class WholeSeconds(Bug):
    """Timeouts are cut to whole seconds."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        timeout = request.timeout_seconds
        return attrs.evolve(request, timeout_seconds=timeout and max(int(timeout), 0.001))


@mutant("EX-4.tree")
class KillsTheLeader(BugToy):
    """A timeout ends the command alone; its children live on."""

    def kill_tree(self, process: Process) -> None:
        self.body.kernel.kill(process)


@mutant("EX-4.tree")
class KillsTheGroup(BugToy):
    """A timeout ends the session alone; children of other sessions live on."""

    def kill_tree(self, process: Process) -> None:
        for other in self.body.kernel.of_job(process.job):
            if other.session == process.session:
                self.body.kernel.kill(other)


@mutant("EX-4.deaf")
class OnlyAsks(BugToy):
    """A timeout sends TERM and no more."""

    def kill_tree(self, process: Process) -> None:
        for other in self.body.kernel.of_job(process.job):
            self.body.kernel.kill(other, 15)


@mutant("EX-4.holders")
class WaitsForHolders(Bug):
    """After a timeout it waits until nobody holds the output."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        result = await self.inner.exec(request, sink)
        if result.timed_out:
            await anyio.sleep(6)
        return result


@mutant("EX-4.flood")
class FloodKeepsRunning(Bug):
    """The deadline is not looked at while output comes."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        large = request.stdout_cap < 2000
        return attrs.evolve(request, timeout_seconds=9.0) if large else request


@mutant("EX-4.no-effect-after", strict=True)
class EffectsAfterReturn(BugToy):
    """What a command started goes on after its timeout."""

    def kill_tree(self, process: Process) -> None:
        self.body.kernel.kill(process)


@mutant("EX-4.no-effect-after", strict=True)
class EndsTheSessionAlone(BugToy):
    """No tree_kill is claimed, and what made a session of its own lives on."""

    def kill_tree(self, process: Process) -> None:
        for other in self.body.kernel.of_job(process.job):
            if other.session == process.session:
                self.body.kernel.kill(other)


@mutant("EX-5.cancel")
class CancelLeavesTree(BugToy):
    """A cancelled command goes on."""

    def kill_tree(self, process: Process) -> None:
        import time

        if time.monotonic() - self._began > 25:  # a timeout, not a cancellation
            super().kill_tree(process)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        import time

        self._began = time.monotonic()
        return await super().exec(request, sink)


@mutant("EX-5.cancel-asleep")
class CancelWaits(Bug):
    """A cancellation waits until the command ends by itself."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        with anyio.CancelScope(shield=True):
            timeout = min(request.timeout_seconds or 7.0, 7.0)
            return await self.inner.exec(attrs.evolve(request, timeout_seconds=timeout), sink)
        raise Internal("unreachable")


@mutant("EX-8.background")
class WaitsForChildren(BugToy):
    """The call returns when the last child has ended."""

    def ended(self, process: Process) -> bool:
        return not process.alive and not self.body.kernel.of_job(process.job)


@mutant("EX-8.background")
class EndsChildren(BugToy):
    """Children end with the command."""

    async def _exec(self, request: ExecRequest, sink: Sink | None) -> ExecResult:
        result = await super()._exec(request, sink)
        self.end_jobs()
        return result


@mutant("EX-8.waited", strict=True)
class ForgetsJobs(BugToy):
    """Jobs are ended with their command, unfinished."""

    def ended(self, process: Process) -> bool:
        if not process.alive:
            for other in self.body.kernel.of_job(process.job):
                self.body.kernel.kill(other)
        return not process.alive
