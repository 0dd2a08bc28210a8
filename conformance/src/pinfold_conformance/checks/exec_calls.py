"""Calls beside and after one another, lost ones and streamed ones (EX-10, EX-13, EX-14, EX-15)."""

from __future__ import annotations

import time

import anyio

from pinfold.errors import Effect, Lost, OutcomeUnknown, Unavailable
from pinfold.provider import ExecResult, InstanceStatus, OutputStream
from pinfold.spec import RETURN_GRACE_SECONDS, TERM_GRACE_SECONDS
from pinfold_conformance._case import Case
from pinfold_conformance._expect import Inconclusive, equal, expect_raises, fail, require
from pinfold_conformance._guard import Sabotage
from pinfold_conformance._registry import Kind, Place, check


@check("EX-10.nothing-leaks", needs={"exec"})
async def nothing_leaks(case: Case) -> None:
    """No cwd, variable, export, function, alias, option or umask leaks into the next call."""
    d, scratch = case.dialect, await case.scratch()
    control = await case.sh(d.leak(), d.leaked(), cwd=scratch)
    require(
        {b"variable", b"export", b"cwd"} <= set(control.stdout.split()),
        f"within one call the shell keeps its state: {control.stdout!r}",
    )
    after = await case.sh(d.leaked(), cwd=scratch)
    equal(after.stdout, b"", "what is left in the next call")
    await case.sh(d.leak(), d.exit(1), cwd=scratch)
    after = await case.run(*d.argv(d.leaked()), cwd=scratch)
    equal(after.stdout, b"", "what is left in the next argv")
    result = await case.sh(d.save("plain", b""), d.leaked())
    equal(result.stdout, b"", "what is left in the default cwd")


@check("EX-10.many", needs={"exec"}, deadline_s=180)
async def many(case: Case) -> None:
    """Call after call gives its own result: no life-time cap, no drift."""
    count = {0: 10, 1: 30, 2: 1100, 3: 3000}[case.profile.rank]
    for number in range(count):
        result = await case.sh(case.dialect.out(b"%d" % number))
        equal((result.exit_code, result.stdout), (0, b"%d" % number), f"call {number}")
    case.evidence["calls"] = count


@check("EX-13.no-mixing", needs={"exec"}, deadline_s=60)
async def no_mixing(case: Case) -> None:
    """Concurrent calls never mix output or exit codes."""
    d, results = case.dialect, dict[int, ExecResult]()

    async def one(number: int) -> None:
        text = b"<%d>" % number
        results[number] = await case.sh(
            d.out(text * 50), d.err(text), d.sleep(0.02), d.out(text), d.exit(number), timeout=50
        )

    count = case.profile.parallel
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
    for number in range(count):
        text, result = b"<%d>" % number, results[number]
        equal(result.exit_code, number, f"exit_code of call {number}")
        equal(result.stdout, text * 51, f"stdout of call {number}")
        equal(result.stderr, text, f"stderr of call {number}")
    case.evidence["concurrent"] = count


@check("EX-13.concurrent", needs={"exec", "concurrent_exec"}, kind=Kind.CLAIM)
async def concurrent(case: Case) -> None:
    """With concurrent_exec two calls run at once: each waits for what the other writes."""
    d, scratch = case.dialect, await case.scratch()
    ended: list[str] = []

    async def one(mine: str, other: str) -> None:
        script = d.seq(d.save(mine, b""), d.wait_for(other), d.out(b"met"))
        result = await case.sh(script, cwd=scratch, timeout=5)
        equal((result.timed_out, result.stdout), (False, b"met"), f"{mine} and {other}")
        ended.append(mine)

    async with anyio.create_task_group() as group:
        group.start_soon(one, "a", "b")
        group.start_soon(one, "b", "a")
    equal(sorted(ended), ["a", "b"], "calls that ended")


@check("EX-13.queue", needs={"exec", "!concurrent_exec"}, kind=Kind.CLAIM)
async def queue(case: Case) -> None:
    """Without concurrent_exec calls queue, and queueing is not timed."""
    d, scratch = case.dialect, await case.scratch()
    results: list[ExecResult] = []

    async def one() -> None:
        results.append(
            await case.sh(
                d.append("log", b"<"), d.sleep(0.4), d.append("log", b">"), cwd=scratch, timeout=1.0
            )
        )

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(one)
    for result in results:
        equal(result.timed_out, False, "timed_out of a call of 0.4 s under 1 s, in a queue of 4")
    log = await case.files.read(scratch / "log")
    equal(sorted(log), sorted(b"<><><><>"), "what the calls wrote")
    if log != b"<><><><>":
        case.underclaimed("calls run at once though concurrent_exec is denied")


@check("EX-13.cancel-one", needs={"exec"}, place=Place.OWN)
async def cancel_one(case: Case) -> None:
    """Cancelling one call leaves the others be."""
    d, results = case.dialect, list[ExecResult]()

    async def stays() -> None:
        results.append(await case.sh(d.sleep(0.5), d.out(b"whole"), timeout=20))

    async with anyio.create_task_group() as group:
        group.start_soon(stays)
        with anyio.move_on_after(0.2):
            await case.sh(d.sleep(20))
    equal([(r.exit_code, r.stdout) for r in results], [(0, b"whole")], "the call that was left be")


@check("EX-14.lost", "LC-5", needs={"exec"}, place=Place.OWN)
async def lost(case: Case) -> None:
    """When the compute is gone, exec and files say lost, with effect none; status says absent."""
    equal((await case.sh(case.dialect.out(b"x"))).stdout, b"x", "a command before the loss")
    if not await case.site.lane.lose(case.instance.ref):
        raise Inconclusive("the lane can't destroy compute behind the controller's back")
    with expect_raises(Lost, what="exec after the loss", effect=Effect.NONE):
        await case.sh(case.dialect.exit(0))
    with expect_raises(Lost, what="write after the loss"):
        await case.files.write("/workspace/x", b"x")
    with expect_raises(Lost, what="read after the loss"):
        await case.files.read("/workspace/x")
    equal(await case.instance.status(), InstanceStatus.ABSENT, "status after the loss")


@check("EX-14.lost-midway", needs={"exec"}, place=Place.OWN)
async def lost_midway(case: Case) -> None:
    """Compute that goes away under a command: the outcome is unknown, or the target tells it."""
    d, scratch = case.dialect, await case.scratch()
    raised: list[Unavailable] = []

    async def go() -> None:
        try:
            result = await case.sh(d.save("began", b""), d.sleep(15), cwd=scratch, timeout=30)
        except Unavailable as exc:
            raised.append(exc)
        else:
            fail(f"a command whose compute went away came to exit_code {result.exit_code}")

    async def began() -> bool:
        return await case.exists(scratch / "began")

    async with anyio.create_task_group() as group:
        group.start_soon(go)
        await case.until(began, "the command has begun")
        if not await case.site.lane.lose(case.instance.ref):
            raise Inconclusive("the lane can't destroy compute behind the controller's back")
    (exc,) = raised
    require(
        isinstance(exc, OutcomeUnknown)
        or (isinstance(exc, Lost) and exc.effect is not Effect.NONE),
        f"{type(exc).__name__} with effect {exc.effect} though the command had begun (EX-14)",
    )
    require(not exc.retryable, "an unknown outcome is said to be retryable")


@check("EX-14.cut", needs={"exec", "connection"}, place=Place.OWN, deadline_s=90)
async def cut(case: Case) -> None:
    """A cut connection: nothing is run twice, and the outcome is told or unknown."""
    d, scratch = case.dialect, await case.scratch()
    told: list[str] = []

    async def go() -> None:
        script = d.seq(d.append("count", b"x"), d.sleep(1.0), d.exit(7))
        try:
            result = await case.sh(script, cwd=scratch, timeout=30)
        except OutcomeUnknown:
            told.append("unknown")
        else:
            equal(result.exit_code, 7, "exit_code of a command that outlived a cut")
            told.append("told")

    async def began() -> bool:
        return await case.exists(scratch / "count")

    async with anyio.create_task_group() as group:
        group.start_soon(go)
        await case.until(began, "the command has begun")
        if not await case.site.lane.cut(case.instance.ref):
            raise Inconclusive("the lane can't cut the connection")
    case.evidence["outcome"] = told

    async def back() -> bool:
        try:
            return await case.exists(scratch / "count")
        except Unavailable:
            return False

    await case.until(back, "the target is back after the cut", within=30)
    await anyio.sleep(1.2)
    equal(await case.files.read(scratch / "count"), b"x", "how often the command ran")


@check("EX-15.while-running", needs={"exec"}, place=Place.OWN)
async def while_running(case: Case) -> None:
    """A streamed exec yields output while the command runs: it waits for our answer to it."""
    d, scratch = case.dialect, await case.scratch()
    got = {"stdout": b"", "stderr": b""}

    async def sink(stream: OutputStream, data: bytes) -> None:
        got[stream] += data
        if got["stdout"] == b"first" and not got["stderr"]:
            await case.witness.write(scratch / "go", b"")

    result = await case.sh(
        d.out(b"first"),
        d.wait_for("go"),
        d.err(b"second"),
        d.out(b"third"),
        d.exit(4),
        sink=sink,
        cwd=scratch,
        timeout=5,
    )
    equal(result.timed_out, False, "the command saw our answer to its first output")
    equal(got, {"stdout": b"firstthird", "stderr": b"second"}, "what the sink got")
    equal(result.exit_code, 4, "exit_code")
    equal((result.stdout_total, result.stderr_total), (10, 6), "totals")


@check("EX-15.uncapped", needs={"exec"})
async def uncapped(case: Case) -> None:
    """A stream is never capped, in order, byte-exact; the result keeps nothing but the totals."""
    d, chunks = case.dialect, list[bytes]()
    count = min(3_000_000, case.limits.output_bytes or 3_000_000)

    async def sink(stream: OutputStream, data: bytes) -> None:
        equal(stream, "stdout", "the stream")
        chunks.append(data)

    result = await case.sh(d.out(b"a"), d.fill(count - 2), d.out(b"z"), sink=sink, stdout_cap=10)
    data = b"".join(chunks)
    equal(len(data), count, "bytes streamed under a cap of 10")
    equal((data[:2], data[-2:]), (b"ax", b"xz"), "both ends of the stream")
    equal(result.stdout_total, count, "stdout_total")
    require(all(chunks), "the sink was given an empty piece")


@check("EX-15.back-pressure", needs={"exec", "hook:witness"}, place=Place.OWN, deadline_s=60)
async def back_pressure(case: Case) -> None:
    """While the sink waits the command waits: it can't end with its output unread."""
    d, scratch = case.dialect, await case.scratch()
    # More than buffers hold, and little enough to be written soon by whatever does not wait.
    count = min(16 * 1024 * 1024, case.limits.output_bytes or 16 * 1024 * 1024)
    if count < 8 * 1024 * 1024:
        raise Inconclusive("the output limit is below what buffers may hold")
    total, looked, early = 0, list[bool](), list[bool]()

    async def sink(stream: OutputStream, data: bytes) -> None:
        nonlocal total
        total += len(data)
        if not looked:
            looked.append(True)
            await anyio.sleep(2.0)
            early.append("ended" in await case.witness.list(scratch))

    result = await case.sh(d.fill(count), d.save("ended", b""), sink=sink, cwd=scratch, timeout=50)
    require(True not in early, "the command ended while its sink was waiting (EX-15)")
    equal((total, result.stdout_total), (count, count), "bytes streamed")
    require("ended" in await case.witness.list(scratch), "the command did not run to its end")


@check("EX-15.sink-raises", needs={"exec"}, place=Place.OWN)
async def sink_raises(case: Case) -> None:
    """What the sink raises ends the command and propagates."""
    d, scratch = case.dialect, await case.scratch()

    async def sink(stream: OutputStream, data: bytes) -> None:
        raise Sabotage("by the sink")

    started = time.monotonic()
    with expect_raises(Sabotage, what="an exec whose sink raises"):
        await case.sh(d.out(b"x"), d.beat("beat"), sink=sink, cwd=scratch, timeout=20)
    require(time.monotonic() - started < 8, "the error of the sink took too long to come out")
    if await case.exists(scratch / "beat"):
        require(not await case.beats(scratch / "beat"), "the command lives on (EX-15)")
    equal((await case.sh(d.out(b"alive"))).stdout, b"alive", "the next command")


@check("EX-15.as-any", "EX-4", "EX-5", needs={"exec"}, place=Place.OWN, deadline_s=60)
async def as_any(case: Case) -> None:
    """A streamed exec is an exec: stdin, variables, cwd, deadline and cancellation are kept."""
    d, scratch = case.dialect, await case.scratch()
    got = {"stdout": b"", "stderr": b""}

    async def sink(stream: OutputStream, data: bytes) -> None:
        got[stream] += data

    data = case.bytes(100_000)
    script = d.seq(d.cat(), d.var("ODD"), d.fill(50_000, "stderr"), d.save("here", b"1"))
    result = await case.sh(script, sink=sink, stdin=data, env={"ODD": "a b"}, cwd=scratch)
    equal(result.exit_code, 0, "exit_code")
    equal(got["stdout"], data + b"a b", "stdin and a variable, streamed back")
    equal(got["stderr"], b"x" * 50_000, "stderr, streamed")
    equal((result.stdout_total, result.stderr_total), (100_003, 50_000), "totals")
    equal(await case.files.read(scratch / "here"), b"1", "a file written in the cwd")

    got["stdout"] = b""
    began = time.monotonic()
    script = d.seq(d.out(b"early"), d.beat("timed"))
    result = await case.sh(script, sink=sink, cwd=scratch, timeout=1.0)
    took = time.monotonic() - began
    equal((result.timed_out, result.exit_code), (True, 124), "a stream beyond its timeout")
    equal(got["stdout"], b"early", "what was streamed before")
    limit = 1.0 + TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS
    require(took < limit, f"a timeout of 1 s took {took:.1f} s")
    require(not await case.beats(scratch / "timed"), "it lives on after its timeout (EX-4)")

    async def beats() -> bool:
        return await case.exists(scratch / "cancelled") and await case.beats(scratch / "cancelled")

    async def command() -> None:
        await case.sh(d.beat("cancelled"), sink=sink, cwd=scratch, timeout=40)

    async with anyio.create_task_group() as group:
        group.start_soon(command)
        await case.until(beats, "the streamed command beats")
        group.cancel_scope.cancel()
    require(not await case.beats(scratch / "cancelled"), "it lives on when cancelled (EX-5)")
