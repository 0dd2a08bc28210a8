"""Bugs in what comes out of a command (EX-1, EX-2, EX-6, EX-7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from pinfold.errors import (
    Internal,
    NotFound,
)
from pinfold.provider import ExecRequest, ExecResult, Sink
from pinfold_conformance.mutants._base import BugInstance, BugToy, mutant

Bug = BugInstance


@mutant("EX-1.nonzero")
class RaisesOnFailure(Bug):
    """A command that fails raises."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.exit_code == 3:
            raise Internal("command failed")
        return result


@mutant("EX-1.nonzero")
class RaisesForeignErrors(Bug):
    """An error of the adapter's own kind leaves it."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        raise KeyError("exit_code")


@mutant("EX-1.nonzero")
class WrongTypes(Bug):
    """The output is text, not bytes."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        text: Any = result.stdout.decode("utf-8", "replace")
        return attrs.evolve(result, stdout=text)


@mutant("EX-2.codes")
class CodesAreSigned(Bug):
    """Exit codes above 127 lose their highest bit."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=result.exit_code & 0x7F)


@mutant("EX-2.codes")
class CodesAreBooleans(Bug):
    """Every failure is exit code 1."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=min(result.exit_code, 1), timed_out=False)


@mutant("EX-2.last-command")
class FirstFailureCounts(Bug):
    """A script ends with its first failure's code, as under `set -e`."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        failed = result.exit_code == 0 and result.stdout == b"on"
        return attrs.evolve(result, exit_code=1) if failed else result


@mutant("EX-2.signals")
class SignalsAreLost(Bug):
    """A death by signal is told as -1 would be: 255, no signal."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.signal is None or result.timed_out:
            return result
        return attrs.evolve(result, exit_code=255, signal=None)


@mutant("EX-2.signals-argv")
class CodesAreTakenForSignals(Bug):
    """A plain exit code above 128 is taken for a death by signal."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        code = result.exit_code
        if 128 < code < 160 and not result.timed_out:
            return attrs.evolve(result, signal=code - 128)
        return result


@mutant("EX-2.not-found")
class MissingCommandRaises(Bug):
    """A command that is not there raises not_found."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.exit_code == 127:
            raise NotFound("command not found")
        return result


@mutant("EX-2.not-executable")
class NotExecutableIsNotFound(Bug):
    """A file that is not executable is told as missing."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=127) if result.exit_code == 126 else result


@mutant("EX-6.separate")
class MergesStreams(Bug):
    """stderr ends up in stdout."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        both = result.stdout + result.stderr
        return attrs.evolve(
            result, stdout=both, stdout_total=len(both), stderr=b"", stderr_total=0,
            stdout_truncated=False, stderr_truncated=False,
        )  # fmt: skip


@mutant("EX-6.bytes")
class DecodesOutput(Bug):
    """Output passes through text, with replacement."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        data = result.stdout.decode("utf-8", "replace").encode()
        return attrs.evolve(result, stdout=data, stdout_total=len(data), stdout_truncated=False)


@mutant("EX-6.bytes")
class AddsCarriageReturns(Bug):
    """Newlines become CR LF, as through a terminal."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        data = result.stdout.replace(b"\n", b"\r\n")
        return attrs.evolve(result, stdout=data, stdout_total=len(data), stdout_truncated=False)


@mutant("EX-6.nothing")
class Chatters(Bug):
    """A silent command gets a line of the adapter's on stderr."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if result.stdout or result.stderr:
            return result
        return attrs.evolve(result, stderr=b"done\n", stderr_total=5)


@mutant("EX-7.cap")
class TruncatedTooEarly(Bug):
    """Output of exactly the cap loses its last byte."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if 0 < len(result.stdout) == request.stdout_cap:
            return attrs.evolve(result, stdout=result.stdout[:-1], stdout_truncated=True)
        return result


@mutant("EX-7.cap")
class KeepsTheTail(Bug):
    """Beyond the cap the tail is kept, not the head."""

    def asked(self, request: ExecRequest) -> ExecRequest:
        return attrs.evolve(request, stdout_cap=10_000_000)

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        cap = request.stdout_cap
        tail = result.stdout[max(0, len(result.stdout) - cap) :] if cap else b""
        return attrs.evolve(result, stdout=tail, stdout_truncated=result.stdout_total > len(tail))


@mutant("EX-7.undisturbed")
class EndsAtTheCap(Bug):
    """A command whose output is cut is told as killed."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, exit_code=141, signal=None) if result.truncated else result


@mutant("EX-7.flood")
class StopsCounting(Bug):
    """Bytes are counted up to 1 MiB alone."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, stdout_total=min(result.stdout_total, 1 << 20))


@mutant("EX-7.both")
class LosesTheEnd(Bug):
    """The end of large output is lost when both streams are busy."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if len(result.stdout) > 100_000 and result.stderr:
            data = result.stdout[:100_000]
            return attrs.evolve(result, stdout=data, stdout_total=len(data))
        return result


@mutant("EX-2.signals-absent", strict=True)
class SignalsUnclaimed(BugToy):
    """Signals are told though the feature is denied."""

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        result = await super().exec(request, sink)
        died = result.exit_code == 137
        return attrs.evolve(result, signal=9 if died else None)


@mutant("machine.exec")
class ConfusesCaps(Bug):
    """The cap of stdout counts for stderr too, when both are small."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        if request.stderr_cap == 5 and len(result.stderr) == 5:
            data: Sequence[int] = result.stderr[:4]
            return attrs.evolve(result, stderr=bytes(data), stderr_truncated=True)
        return result


@mutant("EX-2.signals")
class EveryDeathIsALimit(Bug):
    """Every death by signal 9 is told as one for want of memory."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, limit="memory") if result.signal == 9 else result


@mutant("EX-7.cap")
class ACapIsALimit(Bug):
    """What a cap drops is told as the target's own limit."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, limit="output") if result.truncated else result


@mutant("EX-1.nonzero")
class Nanoseconds(Bug):
    """duration_ms is in nanoseconds."""

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        return attrs.evolve(result, duration_ms=(result.duration_ms + 1) * 1_000_000)
