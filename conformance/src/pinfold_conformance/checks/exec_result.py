"""What came of a command: codes, signals, output, caps (EX-1, EX-2, EX-6, EX-7)."""

from __future__ import annotations

from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal, require
from pinfold_conformance._memory import MemoryWatch
from pinfold_conformance._registry import check

#: With 2 and 3, which a shell has its background jobs ignore: a command is none of those.
SIGNALS = (1, 2, 3, 6, 9, 15)
MIB = 1024 * 1024


@check("EX-1.nonzero", needs={"exec"})
async def nonzero(case: Case) -> None:
    """A command that ran is a result, whatever its exit code; its output is kept."""
    d = case.dialect
    result = await case.sh(d.out(b"before"), d.err(b"why"), d.exit(3))
    equal(result.exit_code, 3, "exit_code")
    equal(result.stdout, b"before", "stdout")
    equal(result.stderr, b"why", "stderr")
    equal(result.timed_out, False, "timed_out")


@check("EX-2.codes", needs={"exec"}, deadline_s=120)
async def codes(case: Case) -> None:
    """exit_code is the command's own, 0..255, by shell and by argv."""
    edges = (0, 1, 2, 3, 63, 124, 125, 126, 127, 128, 129, 137, 143, 254, 255)
    wanted = range(256) if case.profile.all_codes else case.sample(range(256), 5, edges)
    for code in wanted:
        result = await case.sh(case.dialect.exit(code))
        equal(result.exit_code, code, f"exit_code of exit {code}")
        equal(result.signal, None, f"signal of exit {code}")
        equal(result.timed_out, False, f"timed_out of exit {code}")
    for code in (0, 1, 42, 255):
        result = await case.run(*case.dialect.argv(case.dialect.exit(code)))
        equal(result.exit_code, code, f"exit_code of an argv that exits {code}")


@check("EX-2.last-command", needs={"exec"})
async def last_command(case: Case) -> None:
    """The exit code of a script is its last command's; a failure before it changes nothing."""
    d = case.dialect
    missing = case.name()
    result = await case.sh(d.exists(missing), d.out(b"on"))
    equal((result.exit_code, result.stdout), (0, b"on"), "a script with a failure inside")
    result = await case.sh(d.out(b"on"), d.exists(missing))
    equal((result.exit_code, result.stdout), (1, b"on"), "a script with a failure at its end")


@check("EX-2.signals", needs={"exec", "signals"})
async def signals(case: Case) -> None:
    """Killed by signal n: 128+n, and `signal` is n."""
    for number in SIGNALS:
        result = await case.sh(case.dialect.out(b"so far"), case.dialect.die(number))
        equal(result.exit_code, 128 + number, f"exit_code of a death by signal {number}")
        equal(result.signal, number, f"signal of a death by signal {number}")
        equal(result.timed_out, False, f"timed_out of a death by signal {number}")
        equal(result.limit, None, f"limit of a death by signal {number}, which nobody set")
        equal(result.stdout, b"so far", f"stdout of a death by signal {number}")


@check("EX-2.signals-argv", needs={"exec", "signals"})
async def signals_argv(case: Case) -> None:
    """A program started by argv and killed by a signal is told apart from a plain exit code."""
    d = case.dialect
    died = await case.run(*d.argv(d.die(9)))
    left = await case.run(*d.argv(d.exit(137)))
    equal((died.exit_code, died.signal), (137, 9), "a death by signal 9")
    equal((left.exit_code, left.signal), (137, None), "a plain exit 137")


@check("EX-2.not-found", needs={"exec"})
async def not_found(case: Case) -> None:
    """A command that is not there: 127, by argv and by shell; the shell goes on."""
    missing = case.name("no-such-")
    result = await case.run(missing, "x")
    equal(result.exit_code, 127, "exit_code of a missing program")
    equal(result.signal, None, "signal of a missing program")
    result = await case.sh(missing)
    equal(result.exit_code, 127, "exit_code of a missing command")
    result = await case.sh(missing, case.dialect.out(b"next"))
    equal((result.exit_code, result.stdout), (0, b"next"), "a script with a missing command")


@check("EX-2.not-executable", needs={"exec", "modes"})
async def not_executable(case: Case) -> None:
    """A file that is not executable, or a directory: 126; once executable it runs."""
    scratch = await case.scratch()
    name = case.name("tool-")
    await case.files.write(scratch / name, case.dialect.out(b"ran").encode() + b"\n", mode=0o644)
    result = await case.run(f"./{name}", cwd=scratch)
    equal(result.exit_code, 126, "exit_code of a file that is not executable")
    await case.files.make_directory(scratch / "folder")
    result = await case.run("./folder", cwd=scratch)
    equal(result.exit_code, 126, "exit_code of a directory")


@check("EX-6.separate", needs={"exec"})
async def separate(case: Case) -> None:
    """Stdout and stderr are separate, each in its own order."""
    d = case.dialect
    result = await case.sh(d.out(b"o1"), d.err(b"e1"), d.out(b"o2"), d.err(b"e2"))
    equal(result.stdout, b"o1o2", "stdout")
    equal(result.stderr, b"e1e2", "stderr")
    equal((result.stdout_total, result.stderr_total), (4, 4), "totals")


@check("EX-6.bytes", needs={"exec"})
async def all_bytes(case: Case) -> None:
    """Output is byte-exact: every byte, no encoding, no newline or carriage return added."""
    every = bytes(range(256))
    for data in (every, b"a\r\nb\rc\n", b"\xff\xfe\x00\x80", b"\n", b"no newline", b"\x1b[2J\x07"):
        result = await case.sh(case.dialect.out(data), case.dialect.err(data))
        equal(result.stdout, data, "stdout")
        equal(result.stderr, data, "stderr")


@check("EX-6.nothing", needs={"exec"})
async def nothing(case: Case) -> None:
    """A command without output gives none: no prompt, no banner, no warning; others are heard."""
    result = await case.sh(case.dialect.exit(7))
    equal((result.stdout, result.stderr), (b"", b""), "output of a silent command")
    equal(result.exit_code, 7, "exit_code")


@check("EX-7.cap", needs={"exec"})
async def cap(case: Case) -> None:
    """Beyond a cap output is counted and dropped, its head kept; exactly the cap is not cut."""
    d = case.dialect
    for count, limit in ((99, 100), (100, 100), (101, 100), (70_000, 65_536), (5, 0)):
        for stream in ("stdout", "stderr"):
            head = d.out(b"ab") if stream == "stdout" else d.err(b"ab")
            rest = d.fill(count - 2, "stdout" if stream == "stdout" else "stderr")
            result = await case.sh(head, rest, stdout_cap=limit, stderr_cap=limit)
            data = (b"ab" + b"x" * (count - 2))[:limit]
            what = f"{count} bytes of {stream} under a cap of {limit}"
            equal(getattr(result, stream), data, what)
            equal(getattr(result, f"{stream}_total"), count, f"total of {what}")
            equal(getattr(result, f"{stream}_truncated"), count > limit, f"truncated of {what}")
            equal(result.exit_code, 0, f"exit_code of {what}")
            equal(result.limit, None, f"limit of {what}: a cap is the caller's")


@check("EX-7.undisturbed", needs={"exec"})
async def undisturbed(case: Case) -> None:
    """A command whose output is dropped runs on to its own end."""
    d, scratch = case.dialect, await case.scratch()
    count = min(2 * MIB, case.limits.output_bytes or 2 * MIB)
    result = await case.sh(
        d.fill(count), d.save("after", b"done"), d.exit(9), cwd=scratch, stdout_cap=1000
    )
    equal(result.exit_code, 9, "exit_code")
    equal(result.stdout, b"x" * 1000, "stdout")
    equal(result.stdout_total, count, "stdout_total")
    equal(await case.files.read(scratch / "after"), b"done", "what it wrote afterwards")


@check("EX-7.flood", needs={"exec"}, deadline_s=180)
async def flood(case: Case) -> None:
    """A flood of output under a small cap leaves the caller's memory bounded."""
    size = case.profile.flood_bytes
    count = min(size, case.limits.output_bytes or size)
    case.evidence["bytes"] = count
    with MemoryWatch() as watch:
        result = await case.sh(case.dialect.fill(count), stdout_cap=64 * 1024, timeout=170)
    case.evidence["memory_growth_bytes"] = watch.growth
    equal(result.stdout_total, count, "stdout_total")
    equal(len(result.stdout), min(count, 64 * 1024), "bytes kept")
    # A target that lives in this process holds its own output, up to its limit, a few times over.
    inside = 0 if case.capabilities.native_processes else 8 * (case.limits.output_bytes or 0)
    require(
        watch.growth < 48 * MIB + inside,
        f"the caller's memory grew by {watch.growth} bytes for {count} bytes of output (EX-7)",
    )


@check("EX-7.both", needs={"exec"})
async def both(case: Case) -> None:
    """Much output on both streams at once neither blocks nor mixes."""
    d = case.dialect
    result = await case.sh(d.fill(200_000), d.fill(200_000, "stderr"), d.out(b"end"))
    equal(result.stdout, b"x" * 200_000 + b"end", "stdout")
    equal(result.stderr, b"x" * 200_000, "stderr")
