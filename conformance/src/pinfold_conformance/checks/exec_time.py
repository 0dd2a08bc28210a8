"""Time: deadlines, cancellation, what lives on and what dies (EX-4, EX-5, EX-8)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePosixPath

import anyio

from pinfold.provider import InstanceStatus
from pinfold.spec import KILL_GRACE_SECONDS, RETURN_GRACE_SECONDS, TERM_GRACE_SECONDS, TreeKill
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, equal, require
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.dialects import How

GRACE = TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS


Attempt = Callable[[float], Awaitable[None]]


class _Clock:
    """Wall time since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start


class _NotBegun(CheckFailed):
    """A command was ended before it came to what is looked at: the machine may just be busy."""


async def _patiently(case: Case, limits: Sequence[float], attempt: Attempt) -> None:
    """Attempt with a short timeout, and again with a longer one if the command had not begun.

    Raises:
        CheckFailed: another fault; or not even the longest sufficed.
    """
    for limit in limits[:-1]:
        try:
            await attempt(limit)
        except _NotBegun as exc:
            case.evidence[f"{limit:g} s"] = str(exc)
        else:
            return
    await attempt(limits[-1])


@check("EX-4.timeout", needs={"exec"}, place=Place.OWN)
async def timeout(case: Case) -> None:
    """A timeout: timed_out, 124, the output so far, in time; the target is still of use."""
    d = case.dialect
    script = d.seq(d.out(b"early"), d.err(b"oops"), d.sleep(30), d.out(b"late"))

    async def attempt(limit: float) -> None:
        clock = _Clock()
        result = await case.sh(script, timeout=limit)
        elapsed = clock.seconds
        equal(result.timed_out, True, "timed_out")
        equal(result.exit_code, 124, "exit_code")
        if (result.stdout, result.stderr) in ((b"", b""), (b"early", b"")):
            raise _NotBegun(
                f"output so far: expected b'early' and b'oops', found {result.stdout!r}"
            )
        equal(result.stdout, b"early", "stdout so far")
        # A shell that is asked to end may still say so: that is its own output.
        require(result.stderr.startswith(b"oops"), f"stderr so far: found {result.stderr!r}")
        require(elapsed >= 0.9 * limit, f"it returned after {elapsed:.2f} s of {limit:g} s")
        require(elapsed < limit + GRACE, f"{limit:g} s took {elapsed:.1f} s")

    await _patiently(case, (0.5, 3.0), attempt)
    result = await case.sh(d.out(b"alive"))
    equal((result.exit_code, result.stdout), (0, b"alive"), "the next command")


@check("EX-4.argv", needs={"exec"}, place=Place.OWN)
async def timeout_argv(case: Case) -> None:
    """A timeout ends an argv, and one that computes, likewise."""
    d = case.dialect
    for script in (d.sleep(30), d.spin()):
        clock = _Clock()
        result = await case.run(*d.argv(script), timeout=0.3)
        equal((result.timed_out, result.exit_code), (True, 124), "a command beyond its timeout")
        require(clock.seconds < 0.3 + GRACE, f"it returned after {clock.seconds:.1f} s")


@check("EX-4.own-124", needs={"exec"})
async def own_124(case: Case) -> None:
    """A command that itself exits 124 has not timed out; nor has one that ends just in time."""
    result = await case.sh(case.dialect.exit(124), timeout=10)
    equal((result.exit_code, result.timed_out), (124, False), "a command that exits 124")
    result = await case.sh(case.dialect.sleep(0.3), case.dialect.out(b"done"), timeout=10)
    equal((result.stdout, result.timed_out), (b"done", False), "a command that ends in time")


@check("EX-4.fractions", needs={"exec"}, place=Place.OWN)
async def fractions(case: Case) -> None:
    """Timeouts are exact enough: 0.3 s is neither 0 nor 1, None is no limit."""
    d = case.dialect

    async def attempt(limit: float) -> None:
        result = await case.sh(d.sleep(0.05), d.out(b"x"), timeout=limit)
        if result.timed_out:
            raise _NotBegun(f"0.05 s of work timed out after {limit:g} s")
        equal(result.stdout, b"x", f"0.05 s of work under {limit:g} s")

    await _patiently(case, (0.9, 2.9), attempt)
    if case.limits.exec_seconds is None:
        result = await case.sh(d.sleep(0.2), d.out(b"y"), timeout=None)
        equal((result.stdout, result.timed_out), (b"y", False), "work without a limit")
    clock = _Clock()
    result = await case.sh(d.sleep(30), timeout=0.3)
    equal(result.timed_out, True, "timed_out")
    require(0.25 <= clock.seconds < 0.3 + GRACE, f"0.3 s took {clock.seconds:.2f} s")
    require(result.duration_ms >= 250, f"duration_ms is {result.duration_ms} of a 0.3 s command")


async def _heartbeat_control(case: Case, instance_script: str, beat: PurePosixPath) -> None:
    """Positive control: while the command runs, its heartbeat is seen."""
    async with anyio.create_task_group() as group:
        group.start_soon(_quietly, case, instance_script)
        await case.lives(beat, "the control heartbeat is seen to grow while its command runs")
        group.cancel_scope.cancel()


async def _quietly(case: Case, script: str) -> None:
    await case.sh(script, timeout=15)


async def _dead(case: Case, beats: dict[str, PurePosixPath], after: str) -> None:
    for what, path in beats.items():
        if not await case.exists(path):
            raise _NotBegun(f"{what} never beat: the check proves nothing")
    alive = []

    async def look(what: str, path: PurePosixPath) -> None:
        if await case.beats(path):
            alive.append(what)

    async with anyio.create_task_group() as group:
        for what, path in beats.items():
            group.start_soon(look, what, path)
    require(not alive, f"alive after {after}: {', '.join(sorted(alive))} (EX-4)")


def _family(case: Case, scratch: PurePosixPath) -> tuple[str, dict[str, PurePosixPath]]:
    """Return a script that starts every kin that the target promises to kill, and their files."""
    d = case.dialect
    force = case.features.tree_kill
    hows = {
        "the command": None,
        "a child": How.CHILD,
        "a background child": How.HOLDING,
        "a quiet background child": How.QUIET,
    }
    if force is not None and force.at_least(TreeKill.COOKIE):
        hows["a child of a session of its own"] = How.SESSION
    if force is not None and force.at_least(TreeKill.SUBREAPER):
        hows["a child of its own session and no environment"] = How.CLEAN
    hows = {what: how for what, how in hows.items() if how is None or how in d.hows}
    beats = {what: scratch / f"beat{number}" for number, what in enumerate(hows)}
    starts, last = [], ""
    for what, how in hows.items():
        beat = d.beat(beats[what].name)
        if how is None:
            continue
        if how is How.CHILD:
            grandchild = scratch / "grand"
            beats["a grandchild"] = grandchild
            inner = d.seq(d.start(d.beat(grandchild.name), How.QUIET), beat)
            last = d.start(inner, How.CHILD)
        else:
            starts.append(d.start(beat, how))
    own = beats.pop("the command")
    del own
    return d.seq(*starts, last), beats


@check("EX-4.tree", needs={"exec", "tree_kill"}, place=Place.OWN, deadline_s=60)
async def tree(case: Case) -> None:
    """A timeout ends the process tree: children, grandchildren, background and own sessions."""
    scratch = await case.scratch()
    control = scratch / "control"
    await _heartbeat_control(case, case.dialect.beat(f"{scratch.name}/{control.name}"), control)

    async def attempt(limit: float) -> None:
        folder = scratch / f"after{limit:g}"
        await case.files.make_directory(folder)
        script, beats = _family(case, folder)
        result = await case.sh(script, cwd=folder, timeout=limit)
        equal((result.timed_out, result.exit_code), (True, 124), "a tree beyond its timeout")
        await _dead(case, beats, "a timeout")

    await _patiently(case, (1.0, 8.0), attempt)
    case.evidence["tree_kill"] = str(case.features.tree_kill)


@check("EX-4.deaf", needs={"exec"}, place=Place.OWN)
async def deaf(case: Case) -> None:
    """A command that ignores every polite signal is ended all the same, in time."""
    d, scratch = case.dialect, await case.scratch()

    async def attempt(limit: float) -> None:
        clock, beat = _Clock(), scratch / f"beat{limit:g}"
        script = d.seq(d.ignore_signals(), d.out(b"deaf"), d.beat(beat.name))
        result = await case.sh(script, cwd=scratch, timeout=limit)
        elapsed = clock.seconds
        equal((result.timed_out, result.exit_code), (True, 124), "a deaf command")
        require(elapsed < limit + GRACE, f"{limit:g} s took {elapsed:.1f} s")
        await _dead(case, {"the deaf command": beat}, "a timeout")
        equal(result.stdout, b"deaf", "stdout so far")

    await _patiently(case, (0.5, 3.0), attempt)


@check("EX-4.holders", needs={"exec", "background"}, place=Place.OWN)
async def holders(case: Case) -> None:
    """A timeout returns in time though children hold the output and the command waits."""
    d = case.dialect
    clock = _Clock()
    script = d.seq(d.start(d.sleep(20), How.HOLDING), d.start(d.sleep(20), How.CHILD))
    result = await case.sh(script, timeout=0.5)
    equal(result.timed_out, True, "timed_out")
    require(clock.seconds < 0.5 + GRACE, f"it returned after {clock.seconds:.1f} s")


@check("EX-4.flood", needs={"exec"}, place=Place.OWN)
async def flood(case: Case) -> None:
    """A command that floods both streams and then hangs is ended in time, its head kept."""
    d, clock = case.dialect, _Clock()
    size = min(1_000_000, case.limits.output_bytes or 1_000_000)
    script = d.seq(d.out(b"head"), d.fill(size), d.fill(size, "stderr"), d.sleep(30))
    result = await case.sh(script, timeout=3.0, stdout_cap=1000)
    equal(result.timed_out, True, "timed_out")
    equal(result.stdout, b"head" + b"x" * 996, "the head of stdout")
    require(clock.seconds < 3.0 + GRACE, f"it returned after {clock.seconds:.1f} s")


@check("EX-4.no-effect-after", needs={"exec", "!tree_kill"}, place=Place.OWN, kind=Kind.CLAIM)
async def no_effect_after(case: Case) -> None:
    """Without processes (vfs) no effect of a command appears after its return."""
    d, scratch = case.dialect, await case.scratch()
    hows = sorted(d.hows - {How.CHILD})
    script = d.seq(*[d.start(d.beat(how), how) for how in hows], d.beat("own"))

    async def attempt(limit: float) -> None:
        result = await case.sh(script, cwd=scratch, timeout=limit)
        equal(result.timed_out, True, "timed_out")
        if not await case.exists(scratch / "own"):
            raise _NotBegun("the command never wrote")

    await _patiently(case, (0.8, 4.0), attempt)
    for name in ("own", *hows):
        if await case.exists(scratch / name):
            require(not await case.beats(scratch / name), f"{name} grows after the return (PR-7)")


@check("EX-5.cancel", needs={"exec"}, place=Place.OWN, deadline_s=60)
async def cancel(case: Case) -> None:
    """Cancellation kills in the same way before it propagates, within 5 s."""
    d, scratch = case.dialect, await case.scratch()
    if case.features.tree_kill is None:
        script, beats = d.beat("beat"), {"the command": scratch / "beat"}
    else:
        script, beats = _family(case, scratch)

    async def started() -> bool:
        return all([await case.exists(path) for path in beats.values()])

    clock = _Clock()
    async with anyio.create_task_group() as group:

        async def go() -> None:
            await case.sh(script, cwd=scratch, timeout=30)

        group.start_soon(go)
        await case.until(started, "every process of the command has begun to beat")
        clock = _Clock()
        group.cancel_scope.cancel()
    require(
        clock.seconds < KILL_GRACE_SECONDS + 0.5, f"cancelling took {clock.seconds:.1f} s (EX-5)"
    )
    await _dead(case, beats, "a cancellation")
    result = await case.sh(d.out(b"alive"))
    equal(result.stdout, b"alive", "the next command")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "status")


@check("EX-5.cancel-asleep", needs={"exec"}, place=Place.OWN)
async def cancel_asleep(case: Case) -> None:
    """Cancelling a command that sleeps, and one that computes, takes no more than 5 s either."""
    d = case.dialect
    for script in (d.sleep(20), d.spin()):
        clock = _Clock()
        with anyio.move_on_after(0.3) as scope:
            await case.sh(script, timeout=30)
        require(scope.cancelled_caught, "it returned before it was cancelled")
        took = clock.seconds - 0.3
        require(took < KILL_GRACE_SECONDS + 0.5, f"cancelling took {took:.1f} s (EX-5)")
        result = await case.sh(d.out(b"alive"))
        equal(result.stdout, b"alive", "the next command")


@check("EX-8.background", needs={"exec", "background"}, kind=Kind.CLAIM, place=Place.OWN)
async def background(case: Case) -> None:
    """The call returns when the command exits though a child holds its output; the child lives."""
    d, scratch = case.dialect, await case.scratch()
    for how in (How.HOLDING, How.QUIET):
        beat = scratch / f"beat-{how}"
        clock = _Clock()
        script = d.seq(d.start(d.beat(beat.name), how), d.out(b"now"))
        result = await case.sh(script, cwd=scratch, timeout=6)
        equal((result.exit_code, result.timed_out), (0, False), f"a command with a {how} child")
        equal(result.stdout, b"now", "stdout")
        require(clock.seconds < 5, f"it returned after {clock.seconds:.1f} s (EX-8)")
        await case.lives(beat, f"a {how} child lives on (EX-8)")
    await case.sh(d.out(b"next"))
    await case.lives(scratch / "beat-quiet", "a child lives on after the next command (EX-8)")


@check("EX-8.waited", needs={"exec", "!background"}, kind=Kind.CLAIM, place=Place.OWN)
async def waited(case: Case) -> None:
    """Without background, jobs run to their end before the call returns, or to the deadline."""
    d, scratch = case.dialect, await case.scratch()
    job = d.seq(d.sleep(0.4), d.save("late", b"1"))
    result = await case.sh(d.start(job, How.QUIET), d.out(b"now"), cwd=scratch)
    equal((result.timed_out, result.stdout), (False, b"now"), "a command with a job")
    equal(await case.files.read(scratch / "late"), b"1", "what the job wrote before the return")
    result = await case.sh(d.start(d.beat("beat"), How.QUIET), cwd=scratch, timeout=0.8)
    equal(result.timed_out, True, "timed_out of a job without end")
    require(await case.exists(scratch / "beat"), "the job never ran")
    require(not await case.beats(scratch / "beat"), "the job lives on after its deadline (EX-8)")
