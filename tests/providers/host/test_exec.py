"""Commands on the host, at both levels (contract section 4)."""

import gc
import math
import os
import re
import resource
import signal
import time

import anyio
import pytest

from pinfold.errors import (
    InvalidArgument,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    TooLarge,
    Unavailable,
)
from pinfold.provider import ExecRequest
from pinfold.spec import RETURN_GRACE_SECONDS, TERM_GRACE_SECONDS
from tests.providers.host.support import (
    are_still,
    grows,
    heartbeat,
    out,
    plant,
    run,
    sh,
    until,
    workspace,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("code", [0, 1, 2, 124, 125, 126, 127, 128, 129, 137, 143, 255])
async def test_an_exit_code_is_the_commands_own(instance, code):
    """EX-1, EX-2, EX-4: whatever a plain exit code looks like, it is no signal and no timeout."""
    result = await sh(instance, f"exit {code}")
    assert (result.exit_code, result.signal, result.timed_out) == (code, None, False)


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 13, 15])
async def test_a_death_by_a_signal_is_told(instance, number):
    """EX-2: 128+n, and the signal by its number."""
    result = await sh(instance, f"kill -{number} $$")
    assert (result.exit_code, result.signal) == (128 + number, number)


async def test_what_is_not_there_and_what_cannot_be_run(instance):
    """EX-2: 127 and 126, told on stderr, by name and by path."""
    plant(instance, "data", b"text\n")
    plant(instance, "odd", b"neither a script nor a program\n", 0o755)
    for argv, code in {
        ("no-such-program",): 127,
        ("./no-such-file",): 127,
        ("/no/such/folder/program",): 127,
        ("./data",): 126,
        ("./odd",): 126,
        (".",): 126,
        ("",): 127,
    }.items():
        result = await run(instance, *argv)
        assert (result.exit_code, result.signal) == (code, None), argv
        assert result.stderr, argv
    plant(instance, "script", b"#!/no/such/interpreter\n", 0o755)
    assert (await run(instance, "./script")).exit_code == 127


@pytest.mark.parametrize(
    ("cwd", "error"),
    [
        ("relative", InvalidArgument),
        ("/workspace/../etc", InvalidArgument),
        ("/workspacefoo", OutsideWorkspace),
        ("/etc", OutsideWorkspace),
        ("/workspace/missing", NotFound),
        ("/workspace/file", NotADirectory),
        ("/workspace/out", OutsideWorkspace),
        ("/workspace/chain/sub", OutsideWorkspace),
    ],
)
async def test_a_bad_cwd_is_refused_before_anything_runs(instance, cwd, error):
    """EX-3, FS-2: also a link that leads out."""
    plant(instance, "file")
    (workspace(instance) / "out").symlink_to("/usr")
    (workspace(instance) / "chain").symlink_to("out/../..")
    with pytest.raises(error):
        await sh(instance, f"touch {workspace(instance)}/ran /workspace/ran", cwd=cwd)
    assert not (workspace(instance) / "ran").exists()


async def test_a_cwd_may_be_reached_by_a_link_that_stays_inside(instance):
    """FS-2, and the default is the workspace, which PINFOLD_WORKSPACE names."""
    plant(instance, "deep/er/file")
    (workspace(instance) / "link").symlink_to("deep")
    assert await out(instance, "ls", cwd="/workspace/link/er") == "file\n"
    assert await out(instance, '[ "$(pwd -P)" = "$PINFOLD_WORKSPACE" ] && echo same') == "same\n"


async def test_a_cwd_that_is_removed_while_its_command_runs(instance):
    """The command goes on, and its result is its own."""
    plant(instance, "gone/file")
    result = await sh(
        instance, "rm -r ../gone && echo x > y; echo $?; exit 7", cwd="/workspace/gone"
    )
    assert result.exit_code == 7
    assert result.stdout != b"0\n"


TREE = """
echo early; echo also >&2
({beat_1}) &
(trap '' TERM INT HUP; {beat_2}) &
setsid sh -c '{beat_3}' &
(setsid sh -c 'trap "" TERM; {beat_4}' &) &
trap '' TERM
{beat_5}
"""


def tree() -> str:
    """A family whose members use every ordinary way to be missed."""
    return TREE.format(**{f"beat_{n}": heartbeat(f"hb{n}") for n in range(1, 6)})


async def test_a_timeout_ends_the_whole_tree(instance):
    """EX-4: 124, output so far kept, everybody gone, in time; the child's own 124 is none."""
    beats = [workspace(instance) / f"hb{n}" for n in range(1, 6)]
    before = time.monotonic()
    result = await sh(instance, tree(), timeout_seconds=1.5)
    elapsed = time.monotonic() - before
    assert (result.exit_code, result.timed_out, result.signal) == (124, True, None)
    assert result.stdout == b"early\n"
    # A shell may still say how its own children ended before it is killed: its output too.
    assert re.fullmatch(rb"also\n((Terminated|Killed)\n)*", result.stderr)
    assert 1.5 <= elapsed < 1.5 + TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS
    assert result.duration_ms >= 1500
    assert all(beat.stat().st_size > 3 for beat in beats), "control: all of them lived"
    assert await are_still(*beats)


async def test_a_timeout_reaches_who_has_shed_every_mark(anyio_backend, native):
    """EX-4: under tree_kill namespace nobody escapes, whatever they do to their environment."""
    from tests.providers.host.support import create

    instance = await create("native")
    try:
        script = f"env -i setsid sh -c 'trap \"\" TERM; {heartbeat('hb')}' & sleep 100"
        await sh(instance, script, timeout_seconds=0.5)
        beat = workspace(instance) / "hb"
        assert beat.stat().st_size > 3, "control: it lived"
        assert await are_still(beat)
    finally:
        await instance.destroy()


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.5, math.pi / 10])
async def test_any_positive_number_is_a_timeout(instance, seconds):
    """EX-4: fractions are kept."""
    before = time.monotonic()
    result = await run(instance, "sleep", "30", timeout_seconds=seconds)
    assert result.timed_out
    elapsed = time.monotonic() - before
    assert seconds <= elapsed < seconds + TERM_GRACE_SECONDS + RETURN_GRACE_SECONDS


async def test_no_timeout_is_a_choice(instance):
    """Section 1b: None means unlimited."""
    assert (await run(instance, "true", timeout_seconds=None)).exit_code == 0


async def test_output_is_drained_while_a_command_is_killed(instance):
    """EX-4, peers' row 10: 64 MiB on both streams under a short timeout neither hang nor fail."""
    script = "dd if=/dev/zero bs=1M count=64 >&2 & dd if=/dev/zero bs=1M count=64; sleep 30"
    before = time.monotonic()
    result = await sh(instance, script, timeout_seconds=1)
    assert result.timed_out
    assert time.monotonic() - before < 6


async def test_cancellation_kills_before_it_propagates(instance):
    """EX-5: the same tree, within 5 s."""
    beats = [workspace(instance) / f"hb{n}" for n in range(1, 6)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, instance, tree())
        for beat in beats:
            await grows(beat)
        before = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - before < 5
    assert await are_still(*beats)


async def test_cancellation_at_any_moment_leaves_nothing(instance):
    """EX-5: also while the command is being started."""
    for delay in (0, 0.0005, 0.001, 0.002, 0.004, 0.008):
        with anyio.move_on_after(delay):
            await sh(instance, heartbeat("hb"))
    beat = workspace(instance) / "hb"
    assert not beat.exists() or await are_still(beat)
    assert await out(instance, "echo still works") == "still works\n"


async def test_a_hundred_refusals_and_cancellations_cost_nothing(instance):
    """EX-3, EX-5: whoever stops listening early harms neither the next call nor the sandbox."""
    for number in range(100):
        with pytest.raises(NotFound):
            await run(instance, "true", cwd="/workspace/missing")
        with anyio.move_on_after(number / 20_000):
            await run(instance, "true")
    assert await out(instance, "echo fine") == "fine\n"
    assert await instance.status() == "running"


async def test_an_end_that_was_brought_about_is_awaited(instance):
    """EX-4: what was killed can be reaped when its exec returns, however busy the machine is."""
    big = "exec dd if=/dev/zero of=/dev/null bs=300M"  # its end takes the kernel a while
    for _ in range(3):
        result = await sh(instance, big, timeout_seconds=0.4)
        assert result.timed_out
        gc.collect()  # a process that is forgotten before its end warns here


async def test_output_is_exact_and_apart(instance):
    """EX-6: every byte, and which stream it came on."""
    script = r"""printf 'a\377\000b\r\n\200'; printf 'e\376\000\n' >&2"""
    result = await sh(instance, script)
    assert (result.stdout, result.stderr) == (b"a\xff\0b\r\n\x80", b"e\xfe\0\n")
    assert result.stdout_text == "a\ufffd\0b\r\n\ufffd"


@pytest.mark.parametrize(("size", "truncated"), [(999, False), (1000, False), (1001, True)])
async def test_exactly_the_cap_is_not_truncated(instance, size, truncated):
    """EX-7: the head is kept, the rest is counted; each stream has its own cap."""
    script = f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2"
    result = await sh(instance, script, stdout_cap=1000, stderr_cap=0)
    assert (len(result.stdout), result.stdout_total) == (min(size, 1000), size)
    assert (len(result.stderr), result.stderr_total) == (0, size)
    assert (result.stdout_truncated, result.stderr_truncated) == (truncated, True)


async def test_an_exec_returns_when_its_command_exits(instance):
    """EX-8: a child that holds the output delays nothing, and loses nothing by it."""
    before = time.monotonic()
    script = f"({heartbeat('hb')}) & (while :; do echo more; echo > wrote; done) & echo now; exit 9"
    result = await sh(instance, script)
    assert time.monotonic() - before < 10  # its children have no end
    assert result.exit_code == 9
    assert b"now\n" in result.stdout
    await grows(workspace(instance) / "hb")
    await grows(workspace(instance) / "hb")
    assert await out(instance, "echo next") == "next\n"


async def test_a_job_may_write_on_when_nobody_reads_any_more(instance):
    """EX-8: neither a full pipe nor a broken one ends it."""
    script = "(head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo done > mark) & :"
    assert (await sh(instance, script)).exit_code == 0
    mark = workspace(instance) / "mark"
    await until(mark.exists)


async def test_what_a_command_wrote_is_there_though_a_job_holds_the_pipe(instance):
    """EX-8, EX-6: 20 times, the last byte is never lost."""
    for _ in range(20):
        result = await sh(instance, "sleep 5 & head -c 100000 /dev/zero; printf end")
        assert result.stdout[-3:] == b"end"
        assert result.stdout_total == 100_003


async def test_jobs_of_one_exec_can_be_talked_to_from_the_next(instance):
    """EX-8, FS-6: they share files, and pipes with names."""
    await sh(instance, "mkfifo pipe; (cat pipe > got) & :")
    await sh(instance, "echo hello > pipe")
    got = workspace(instance) / "got"
    await until(lambda: got.exists() and got.read_bytes() == b"hello\n")


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_048_575, 1_048_576, 16_777_216])
async def test_stdin_is_exactly_what_was_given_then_the_end(instance, size):
    """EX-9: nothing is cut, nothing is added."""
    result = await sh(instance, "cat > f; wc -c < f", stdin=b"z" * size)
    assert int(result.stdout) == size


async def test_stdin_too_large_is_refused(instance):
    """Section 1b: 16 MiB; nothing runs."""
    with pytest.raises(TooLarge):
        await sh(instance, "touch ran", stdin=bytes(16_777_217))
    assert not (workspace(instance) / "ran").exists()


async def test_no_stdin_is_the_end_at_once(instance):
    """EX-9: and never the controller's own."""
    ours, theirs = os.pipe()
    saved = os.dup(0)
    os.write(theirs, b"canary\n")
    os.dup2(ours, 0)
    try:
        assert await out(instance, "cat; echo done", timeout_seconds=5) == "done\n"
    finally:
        os.dup2(saved, 0)
        for fd in (ours, theirs, saved):
            os.close(fd)


@pytest.mark.parametrize("script", ["exit 3", "exec 0<&-; sleep 0.1; exit 3", "head -c 1; exit 3"])
async def test_a_large_stdin_that_nobody_reads_is_no_trouble(instance, script):
    """EX-9: neither a hang nor an error."""
    assert (await sh(instance, script, stdin=bytes(5_000_000))).exit_code == 3


async def test_calls_are_independent(instance):
    """EX-10: no cwd, variable, option or function leaks into the next."""
    await sh(instance, "cd /; X=1; export X; set -e; f() { echo f; }; umask 0; alias ls=false")
    said = await out(instance, 'echo "$X"; umask; command -v f; [ "$PWD" != / ] && echo same')
    assert said in {"\n0022\nsame\n", "\n022\nsame\n"}


ARGUMENTS = [
    "",
    " ",
    "-",
    "--",
    "-n",
    "a b",
    "'",
    '"',
    "$HOME",
    "`id`",
    "$(touch pwned)",
    "a\nb\n",
    "\\",
    "*",
    "~",
    "a;b|c&d>e",
    "äöü☃",
    os.fsdecode(b"\xff\xfe raw"),
    "\r\t\x01\x7f",
    "x" * 100_000,
    "=",
    "a=b",
]


async def test_arguments_reach_the_program_exactly(instance):
    """EX-11: all of them, in one call and each alone."""
    result = await run(instance, "printf", "%s\\0", *ARGUMENTS)
    assert result.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in ARGUMENTS]
    assert not (workspace(instance) / "pwned").exists()


async def test_the_program_itself_may_have_an_odd_name(instance):
    """EX-11: spaces, quotes, a leading dash, an equals sign, a newline."""
    for name in ("a b", "-x", "it's", "a=b", "new\nline", "$HOME"):
        plant(instance, f"bin/{name}", b'#!/bin/sh\necho "ran $1"\n', 0o755)
        result = await run(instance, f"./bin/{name}", "it")
        assert result.stdout == b"ran it\n", (name, result.stderr)
        path = await out(instance, 'echo "$PATH"')
        root = "/workspace" if instance.features.tree_kill == "namespace" else workspace(instance)
        result = await run(instance, name, "it", env={"PATH": f"{root}/bin:{path.strip()}"})
        assert result.stdout == b"ran it\n", (name, result.stderr)


async def test_arguments_that_no_system_takes_are_refused(instance):
    """Section 1b: a typed error, and nothing is run."""
    for argv in (["echo", "x" * 131_072], ["echo", *["x" * 100_000] * 31]):
        with pytest.raises(TooLarge):
            await run(instance, *argv)


async def test_the_environment_is_rebuilt(instance, monkeypatch):
    """EX-12: nothing of the controller's, all of the request's, and pinfold's own."""
    monkeypatch.setenv("CANARY", "of the controller")
    monkeypatch.setenv("SOME_API_KEY", "of the controller")
    env = {"GIVEN": "a b\n'c'", "PINFOLD_WORKSPACE": "/evil", "PINFOLD_X": "1"}
    result = await run(instance, "env", "-0", env=env)
    seen = dict(line.split("=", 1) for line in result.stdout_text.split("\0") if line)
    assert "of the controller" not in result.stdout_text
    assert seen["GIVEN"] == "a b\n'c'"
    assert result.env_dropped == ("PINFOLD_WORKSPACE", "PINFOLD_X")
    own = {name for name in seen if name.startswith("PINFOLD_")}
    assert own == {"PINFOLD_WORKSPACE", "PINFOLD_EXEC"}
    assert seen["PINFOLD_WORKSPACE"] != "/evil"
    rest = set(seen) - own - {"GIVEN"}
    allowed = {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"}
    assert {name for name in rest - allowed if not name.startswith("LC_")} == set()


@pytest.mark.parametrize("name", ["", "a=b", "1x", "a b", "a\0b", "ä"])
async def test_a_malformed_name_of_a_variable_is_refused(instance, name):
    """EX-3: before anything runs."""
    with pytest.raises(InvalidArgument):
        await sh(instance, "touch ran", env={name: "x"})
    assert not (workspace(instance) / "ran").exists()


async def test_concurrent_calls_never_mix(instance):
    """EX-13: 64 at once, each with its own output and code."""
    assert instance.features.concurrent_exec
    results = {}

    async def one(number: int) -> None:
        script = f"printf 'out {number}'; printf 'err {number}' >&2; exit {number}"
        results[number] = await sh(instance, script)

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(one, number)
    for number, result in results.items():
        assert result.exit_code == number
        assert (result.stdout_text, result.stderr_text) == (f"out {number}", f"err {number}")


async def test_a_stream_comes_while_the_command_runs(instance):
    """EX-15: in order, uncapped, kept nowhere but counted."""
    got: list[tuple[str, bytes]] = []
    seen = anyio.Event()

    async def sink(stream: str, data: bytes) -> None:
        got.append((stream, data))
        if b"first" in data:
            plant(instance, "go")
            seen.set()

    script = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo error >&2; echo second"
    request = ExecRequest(shell=script, timeout_seconds=10)
    result = await instance.exec(request, sink)
    assert seen.is_set()
    assert result.exit_code == 0
    assert b"".join(data for stream, data in got if stream == "stdout") == b"first\nsecond\n"
    assert b"".join(data for stream, data in got if stream == "stderr") == b"error\n"
    assert (result.stdout, result.stdout_total, result.stdout_truncated) == (b"", 13, False)


async def test_a_slow_reader_slows_the_command_down(instance):
    """EX-15: back-pressure: nothing is gathered for it, and nothing is lost."""
    total, ahead = 0, 0
    count = workspace(instance) / "count"

    async def sink(_: str, data: bytes) -> None:
        nonlocal total, ahead
        total += len(data)
        if total < 300_000:
            await anyio.sleep(0.05)
            ahead = max(ahead, (count.stat().st_size if count.exists() else 0) * 65_536 - total)

    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do head -c 65536 /dev/zero; printf x >> count; done"
    result = await instance.exec(ExecRequest(shell=script), sink)
    assert (result.exit_code, total) == (0, 16 * 65_536)
    assert ahead < 400_000


async def test_an_error_of_the_sink_ends_the_command(instance):
    """EX-15: and is the one that the caller sees."""

    async def sink(_: str, data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await instance.exec(ExecRequest(shell=f"echo x; {heartbeat('hb')}"), sink)
    beat = workspace(instance) / "hb"
    assert not beat.exists() or await are_still(beat)


async def test_the_umask_and_the_user_are_what_the_contract_says(instance, level):
    """Section 1b: umask 022; uid 1000 at native, the controller's own user at none."""
    said = await out(instance, "umask; id -u; id -g; : > f")
    umask, uid, gid = said.split()
    assert int(umask, 8) == 0o022
    wanted = ("1000", "1000") if level == "native" else (str(os.getuid()), str(os.getgid()))
    assert (uid, gid) == wanted
    assert (workspace(instance) / "f").stat().st_mode & 0o777 == 0o644


async def test_descriptors_are_as_a_program_expects(instance):
    """None but the three, and ls's own; signals have tests of their own."""
    assert (await out(instance, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("options", "script", "wanted"),
    [
        ({"open_files": 33}, "ulimit -n", "33\n"),
        ({"file_bytes": 4096}, "head -c 9999 /dev/zero > f; wc -c < f", "4096\n"),
        ({"cpu_seconds": 1}, "ulimit -t", "1\n"),
        ({"address_space_bytes": 100_000_000}, "ulimit -v", "97656\n"),
    ],
)
async def test_limits_of_the_options_hold(anyio_backend, level, options, script, wanted):
    """Issue: rlimits as options, for each process of each command."""
    from tests.providers.host.support import create

    instance = await create(level, options={"rlimits": options})
    try:
        result = await sh(instance, script)
        assert result.stdout_text == wanted
        result = await run(instance, "-x")
        assert result.exit_code in {126, 127}
    finally:
        await instance.destroy()


@pytest.mark.parametrize(
    ("options", "script", "number", "limit"),
    [
        ({"cpu_seconds": 1}, "while :; do :; done", signal.SIGXCPU, "cpu"),
        ({"file_bytes": 4096}, "exec head -c 9999 /dev/zero >f", signal.SIGXFSZ, "disk"),
    ],
)
async def test_a_limit_that_ends_a_command_is_named(
    anyio_backend, level, options, script, number, limit
):
    """Section 4, `limit`: the signal comes before SIGKILL, and the result says what was met."""
    from tests.providers.host.support import create

    instance = await create(level, options={"rlimits": options})
    try:
        result = await sh(instance, script)
        assert (result.exit_code, result.signal, result.limit) == (128 + number, number, limit)
    finally:
        await instance.destroy()


async def test_a_limit_that_pinfold_itself_may_not_have_is_refused(
    anyio_backend, level, monkeypatch
):
    """RS-6, EX-1: at the creation, not by an exit code of every command."""
    from tests.providers.host.support import create

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(Unavailable, match="RLIMIT_NOFILE 65: pinfold itself may have 64"):
        await create(level, options={"rlimits": {"open_files": 65}})


async def test_a_limit_on_processes_is_told_as_it_is(anyio_backend, native):
    """Bad input: the limit is the command's trouble, told by its shell; the next exec works."""
    from tests.providers.host.support import create

    instance = await create("native", options={"rlimits": {"processes": 20}})
    try:
        script = "i=0; while [ $i -lt 40 ]; do sleep 3 & i=$((i+1)); done; echo no limit"
        result = await sh(instance, script)
        assert (result.exit_code, result.stdout) == (2, b"")
        assert b"ork" in result.stderr
        assert await instance.end_jobs(), "control: the limit was reached by jobs that live on"
        assert await out(instance, "echo $(echo usable)") == "usable\n"
    finally:
        await instance.destroy()
