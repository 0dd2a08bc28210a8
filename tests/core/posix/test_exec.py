"""Commands keep the contract on any target that can spawn a process (EX)."""

import os
import resource
import secrets
import signal

import anyio
import pytest

from pinfold.errors import (
    InvalidArgument,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    TooLarge,
)
from pinfold.provider import ExecRequest
from pinfold.spec import TreeKill
from tests.core.posix.conftest import Heartbeat, until
from tests.core.posix.guests import living

pytestmark = pytest.mark.anyio

HOSTILE = (
    "", " ", "a b", "'", '"', "$HOME", "$(touch pwned)", "`touch pwned`", ";", "&", "|", "*", "~", "\n",
    "a\nb\n", "\t", "\\", "-n", "--", "-", "=", "A=b", "é", "\udcff\udc80", "%s", "\x01", "\udc81\udc88",
)  # fmt: skip


async def test_ex11_argv_arrives_exactly(box) -> None:
    """EX-11: spaces, quotes, newlines, dashes, empty, any bytes."""
    result = await box.run("printf", "%s\\0", *HOSTILE)
    assert result.stdout == b"".join(os.fsencode(arg) + b"\0" for arg in HOSTILE)
    assert list(box.workspace.iterdir()) == []


async def test_ex11_an_argument_of_the_longest_size_arrives(box) -> None:
    """EX-11, 1b: 131,071 bytes."""
    result = await box.run("printf", "%s", "x" * 131_071)
    assert (result.exit_code, result.stdout_total) == (0, 131_071)


async def test_ex11_many_long_arguments_arrive(box) -> None:
    args = [secrets.token_hex(50_000) for _ in range(9)]
    result = await box.run("printf", "%s,", *args)
    assert result.stdout == "".join(f"{arg}," for arg in args).encode()


@pytest.mark.parametrize("name", ["a=b", "-x", "-", "a b", "ü", "echo"])
async def test_ex11_the_program_is_found_by_its_exact_name(box, name) -> None:
    """EX-11: a name that env, a shell or an option parser would take for something else."""
    program = box.workspace / name
    program.write_text("#!/bin/sh\nprintf '%s' \"$1\"\n")
    program.chmod(0o755)
    result = await box.run(f"./{name}", "yes")
    assert (result.exit_code, result.stdout) == (0, b"yes")
    if (box.kind, name) == ("busybox", "echo"):
        return  # Debian's busybox runs its own applet for a bare name, whatever PATH says
    bare = await box.run(name, "yes", env={"PATH": f"{box.instance.equipment.layout.root}:/bin"})
    assert (bare.exit_code, bare.stdout) == (0, b"yes")


async def test_ex11_a_builtin_of_the_shell_is_no_program(box) -> None:
    assert (await box.run("exit", "3")).exit_code == 127


@pytest.mark.parametrize(
    "code", [0, 1, 2, 3, 123, 124, 125, 126, 127, 128, 129, 130, 137, 143, 255]
)
async def test_ex2_exit_codes_are_the_commands_own(box, code) -> None:
    """EX-1, EX-2: nothing raises, and no code is taken for a signal or a timeout."""
    result = await box.sh(f"exit {code}")
    assert (result.exit_code, result.signal, result.timed_out) == (code, None, False)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 24, 31, 34, 64])
async def test_ex2_a_death_by_a_signal_is_told_apart(box, number) -> None:
    """EX-2: 128+n, and which."""
    if (box.kind, number) == ("busybox", signal.SIGQUIT):
        return  # busybox ash ignores it itself, in whatever it runs
    result = await box.sh(f"ulimit -c 0; kill -{number} $$")
    assert (result.exit_code, result.signal) == (128 + number, number)


@pytest.mark.parametrize(
    ("number", "limit"), [(signal.SIGXCPU, "cpu"), (signal.SIGXFSZ, "disk"), (signal.SIGTERM, None)]
)
async def test_a_limit_that_ends_a_command_by_a_signal_is_named(box, number, limit) -> None:
    """Section 4, `limit`: the system tells by the signal which it was."""
    result = await box.sh(f"kill -{number} $$")
    assert (result.exit_code, result.signal, result.limit) == (128 + number, number, limit)


async def test_ex2_commands_start_with_no_signal_ignored(box) -> None:
    result = await box.run("grep", "SigIgn", "/proc/self/status")
    ignored = int(result.stdout.split()[1], 16)
    assert not ignored & sum(1 << number - 1 for number in (1, 2, 3, 13, 15))


async def test_ex2_missing_is_127_and_not_executable_is_126(box) -> None:
    (box.workspace / "plain").write_text("data")
    (box.workspace / "plain").chmod(0o644)
    missing = await box.run(f"no-such-{secrets.token_hex(4)}")
    assert missing.exit_code == 127
    assert missing.stderr
    assert (await box.run("./plain")).exit_code == 126
    assert (await box.run("./no-such")).exit_code == 127
    assert (await box.run("/")).exit_code == 126
    assert (await box.run("")).exit_code == 127


@pytest.mark.parametrize(
    ("make", "cwd", "error"),
    [
        (None, "/workspace/missing", NotFound),
        ("file", "/workspace/it", NotADirectory),
        ("out", "/workspace/it", OutsideWorkspace),
        ("out", "/workspace/it/deeper", OutsideWorkspace),
        ("dangling", "/workspace/it", OutsideWorkspace),
        (None, "/etc", OutsideWorkspace),
        (None, "/workspacefoo", OutsideWorkspace),
        (None, "relative", InvalidArgument),
        (None, "/workspace/../etc", InvalidArgument),
    ],
)
async def test_ex3_a_cwd_that_does_not_do_is_refused(box, make, cwd, error) -> None:
    """EX-3: and nothing is run."""
    it = box.workspace / "it"
    if make == "file":
        it.write_text("")
    elif make == "out":
        it.symlink_to(box.out)
    elif make == "dangling":
        it.symlink_to("/nowhere/at/all")
    with pytest.raises(error) as caught:
        await box.sh("touch /tmp/ran", cwd=cwd)
    assert type(caught.value) is error
    assert caught.value.effect == "none"


async def test_ex3_a_cwd_through_a_link_that_stays_inside(box) -> None:
    """FS-2."""
    (box.workspace / "d with\nnewline").mkdir()
    (box.workspace / "l").symlink_to("d with\nnewline")
    await box.sh("touch here", cwd="/workspace/l")
    assert (box.workspace / "d with\nnewline" / "here").exists()


async def test_ex3_a_cwd_that_goes_away_while_the_command_runs(box) -> None:
    (box.workspace / "d").mkdir()
    result = await box.sh('rmdir "$PINFOLD_WORKSPACE/d"; echo still', cwd="/workspace/d")
    assert (result.exit_code, result.stdout) == (0, b"still\n")


async def test_ex3_one_past_a_limit_is_too_large(box) -> None:
    """1b: typed, before anything is sent; not what the kernel says of it."""
    for request in (
        {"argv": ["true", "x" * 131_072]},
        {"argv": ["true", *["x" * 100_000] * 30]},
        {"argv": ["true"], "stdin": b"x" * (16 * 1024 * 1024 + 1)},
        {"argv": ["true"], "env": {"A": "x" * 131_070}},
    ):
        with pytest.raises(TooLarge) as raised:
            await box.instance.exec(ExecRequest(**request))
        assert "env" not in request or "the variable A takes 131072 bytes" in str(raised.value)
    whole = await box.sh('printf %s "$A" | wc -c', env={"A": "x" * 131_069})
    assert int(whole.stdout) == 131_069, "control: just within the limit"


async def test_ex4_a_timeout_kills_the_tree_and_keeps_the_output(box) -> None:
    """EX-4, table row 41: output so far, 124, and nothing of it is left."""
    beat = Heartbeat(box)
    result = await box.sh(
        f"printf early; printf oops >&2; ({beat.loop}) & {beat.loop}", timeout_seconds=0.5
    )
    assert (result.exit_code, result.timed_out, result.signal) == (124, True, None)
    assert result.stdout == b"early"
    assert result.stderr.startswith(b"oops")  # a shell may tell that its children were terminated
    assert (result.stdout_truncated, result.stderr_truncated) == (False, False)
    assert beat.size
    assert await beat.is_still()


TREES = {
    "child": "({loop}) & wait",
    "ignores TERM": "(trap '' TERM; {loop}) & wait",
    "all ignore TERM": "trap '' TERM; {loop}",
    "own session": "setsid sh -c '{loop}' & wait",
    "own session, orphaned": "(setsid sh -c '{loop}' &) ; sleep 60",
    "daemon": "(setsid sh -c '(setsid sh -c \"{loop}\" </dev/null >/dev/null 2>&1 &)' &); sleep 60",
    "leader is gone": "({loop}) & exec sleep 60",
    "forks on": "f() {{ ({loop}) & sleep 0.1; f; }}; f",
}


@pytest.mark.parametrize("name", TREES)
async def test_ex4_every_shape_of_tree_dies(box, name) -> None:
    """What claims `group` alone (PR-7) leaves what went into a session of its own, and no more."""
    beat = Heartbeat(box)
    with anyio.fail_after(6.5):
        result = await box.sh(TREES[name].format(loop=beat.loop), timeout_seconds=0.7)
    assert result.timed_out
    assert beat.size
    if box.instance.features.tree_kill is TreeKill.GROUP and "setsid" in TREES[name]:
        await beat.beats()
    else:
        assert await beat.is_still()


async def test_ex4_what_shed_the_cookie_dies_with_its_group(box) -> None:
    beat = Heartbeat(box)
    result = await box.sh(
        f"env -i PATH=/bin:/usr/bin sh -c '{beat.loop}' & sleep 60", timeout_seconds=0.5
    )
    assert result.timed_out
    assert await beat.is_still()


async def test_ex4_term_comes_first(box) -> None:
    """1b: a grace of 2 s to clean up in; what is said in it is output like any other."""
    script = "trap 'sleep 0.3; echo bye; exit 0' TERM; sleep 60 & wait"
    result = await box.sh(script, timeout_seconds=2)
    assert (result.timed_out, result.stdout) == (True, b"bye\n")


@pytest.mark.parametrize("timeout", [0.3, 1.5])
async def test_ex4_timeouts_are_any_positive_number(box, timeout) -> None:
    """Table row 45."""
    started = anyio.current_time()
    result = await box.run("sleep", "60", timeout_seconds=timeout)
    assert result.timed_out
    assert timeout <= anyio.current_time() - started < timeout + 5
    assert result.duration_ms >= timeout * 1000


async def test_ex4_none_is_no_timeout(box) -> None:
    assert (await box.run("true", timeout_seconds=None)).exit_code == 0


async def test_ex4_a_flood_does_not_stop_the_timeout(box) -> None:
    """Table row 10: pipes are drained while it is killed."""
    with anyio.fail_after(8):
        result = await box.sh(
            "cat /dev/zero & cat /dev/zero >&2 & wait",
            timeout_seconds=0.5,
            stdout_cap=10,
            stderr_cap=10,
        )
    assert result.timed_out
    assert result.stdout == bytes(10)
    assert result.stdout_total > 100_000


async def test_ex5_cancellation_kills_the_tree_within_5_s(box) -> None:
    """EX-5."""
    beat = Heartbeat(box)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await box.sh(f"trap '' TERM; ({beat.loop}) & {beat.loop}")

        tasks.start_soon(run)
        await beat.beats()
        asked = anyio.current_time()
        tasks.cancel_scope.cancel()
    assert anyio.current_time() - asked < 5
    assert await beat.is_still()


async def test_ex5_cancellation_while_it_starts_leaves_nothing(box) -> None:
    for delay in (0, 0.001, 0.002, 0.004, 0.008):
        with anyio.move_on_after(delay):
            await box.sh("echo x >>ran; sleep 60")
    assert not living(f"PINFOLD_EXEC={box.instance.equipment.mark}")


async def test_ex6_streams_are_separate_and_exact(box) -> None:
    """EX-6, table rows 13 and 17."""
    result = await box.sh(r"printf '\377\376\000\200o\r\n'; printf 'e\000\377' >&2")
    assert result.stdout == b"\xff\xfe\0\x80o\r\n"
    assert result.stderr == b"e\0\xff"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 1000])
async def test_ex7_exactly_the_cap_is_not_truncated(box, size) -> None:
    result = await box.sh(f"head -c {size} /dev/zero", stdout_cap=10)
    assert (result.stdout_total, result.stdout_truncated) == (size, size > 10)
    assert result.stdout == bytes(min(size, 10))


async def test_ex7_a_flood_is_counted_in_bounded_memory(box) -> None:
    """EX-7, table row 11."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await box.sh("head -c 256m /dev/zero || head -c 256M /dev/zero")
    assert (result.exit_code, result.stdout_total) == (0, 256 * 1024 * 1024)
    assert (len(result.stdout), result.stdout_truncated) == (1024 * 1024, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


@pytest.mark.parametrize("how", ["sleep 60 &", "setsid sleep 60 &", "(sleep 60; echo late) &"])
async def test_ex8_returns_when_the_command_ends_though_a_child_holds_the_pipes(box, how) -> None:
    """EX-8, table rows 2 and 4."""
    with anyio.fail_after(4):
        result = await box.sh(f"{how} echo now; echo e >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"now\n", b"e\n")
    assert result.timed_out is False


async def test_ex8_the_child_lives_on(box) -> None:
    beat = Heartbeat(box)
    await box.sh(f"({beat.loop}) &")
    await beat.beats()
    await box.run("true")
    await beat.beats()


async def test_ex8_a_talkative_child_lives_on(box) -> None:
    """It may not die of a pipe that nobody reads, nor stand still on a full one."""
    script = "while :; do head -c 4096 /dev/zero; printf x >>hb; sleep 0.02; done"
    await box.sh(f"({script}) &")
    beat = Heartbeat(box)
    await until(lambda: beat.size > 40)


async def test_ex8_nothing_that_the_command_wrote_is_lost(box) -> None:
    """All of it comes before the end, though others write on."""
    script = "(while :; do echo noise; done) & head -c 300000 /dev/zero | tr '\\0' a; exit 3"
    result = await box.sh(script, stdout_cap=10_000_000)
    assert result.exit_code == 3
    assert result.stdout.count(b"a") == 300_000


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_048_575, 1_048_576, 16 * 1024 * 1024])
async def test_ex9_stdin_is_exact_and_then_ends(box, size) -> None:
    """EX-9, table row 6."""
    data = secrets.token_bytes(min(size, 4096)) * (size // 4096 + 1)
    data = data[:size]
    result = await box.sh("cat >f; wc -c <f", stdin=data)
    assert int(result.stdout) == size
    assert (box.workspace / "f").read_bytes() == data


async def test_ex9_no_stdin_is_empty_and_not_inherited(box) -> None:
    """Table row 9."""
    with anyio.fail_after(5):
        result = await box.sh("cat; echo done")
    assert result.stdout == b"done\n"


@pytest.mark.parametrize("script", ["exit 4", "exec <&-; exit 4", "head -c 1 >/dev/null; exit 4"])
async def test_ex9_a_stdin_that_is_not_read_neither_hangs_nor_fails(box, script) -> None:
    with anyio.fail_after(5):
        result = await box.sh(script, stdin=bytes(5_000_000))
    assert result.exit_code == 4


async def test_ex10_calls_are_independent(box) -> None:
    await box.sh("cd /; export LEAK=1; f() { :; }; umask 077; set -e; alias true=false")
    result = await box.sh('pwd; echo "[$LEAK]"; umask; f')
    root = str(box.instance.equipment.layout.root)
    assert result.stdout.decode().splitlines() == [root, "[]", "0022"]
    assert result.exit_code == 127


async def test_ex12_the_environment_is_the_targets_the_requests_and_ours(box, monkeypatch) -> None:
    """EX-12, table row 28: and nothing else: not the controller's, not a shell's."""
    canary = secrets.token_hex(8)
    monkeypatch.setenv("CONTROLLER_CANARY", canary)
    asked = {
        "A": "",
        "B": "x\ny $(z) '\"",
        "PATH": "/bin:/usr/bin",
        "PWD": "p",
        "OLDPWD": "o",
        "IFS": "i",
        "PS4": "\udcff",
    }
    result = await box.run("env", "-0", env={**asked, "PINFOLD_EXEC": "mine", "PINFOLD_X": "y"})
    lines = os.fsdecode(result.stdout).split("\0")[:-1]
    env = dict(line.split("=", 1) for line in lines)
    cookie = env.pop("PINFOLD_EXEC")
    assert cookie.startswith(box.instance.equipment.mark)
    assert env.pop("PINFOLD_WORKSPACE") == str(box.instance.equipment.layout.root)
    assert env == {**box.guest.default_env, **asked}
    assert result.env_dropped == ("PINFOLD_EXEC", "PINFOLD_X")


async def test_ex12_without_a_request_the_environment_is_bare(box) -> None:
    result = await box.run("env", "-0")
    names = {line.split("=")[0] for line in os.fsdecode(result.stdout).split("\0")[:-1]}
    assert names == {*box.guest.default_env, "PINFOLD_EXEC", "PINFOLD_WORKSPACE"}


async def test_ex12_no_descriptor_of_ours_is_inherited(box) -> None:
    script = "for fd in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$fd ] && echo $fd; done"
    assert (await box.sh(script)).stdout.split() == [b"0", b"1", b"2"]


async def test_ex13_concurrent_calls_never_mix(box) -> None:
    """EX-13, table row 32."""
    results = {}

    async def one(number: int) -> None:
        results[number] = await box.sh(
            f"printf {number}; cat; printf e{number} >&2; exit {number}",
            stdin=f"<{number}>".encode(),
        )

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(one, number)
    for number, result in results.items():
        assert result.exit_code == number
        assert result.stdout == f"{number}<{number}>".encode()
        assert result.stderr == f"e{number}".encode()


async def test_ex15_output_is_streamed_while_the_command_runs(box) -> None:
    """EX-15: in order, and none of it is kept."""
    seen = []
    gate = box.workspace / "go"

    async def sink(stream, data) -> None:
        seen.append((stream, data))
        if b"first" in data:
            gate.write_text("")

    result = await box.sh(
        "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second; echo e >&2",
        sink,
        timeout_seconds=10,
    )
    assert b"".join(data for stream, data in seen if stream == "stdout") == b"first\nsecond\n"
    assert b"".join(data for stream, data in seen if stream == "stderr") == b"e\n"
    assert (result.stdout, result.stdout_total, result.stdout_truncated) == (b"", 13, False)


async def test_ex15_a_slow_sink_holds_the_command_back(box) -> None:
    """Nothing is lost to a slow consumer, and nothing is held for it."""
    total = 0

    async def sink(stream, data) -> None:
        nonlocal total
        assert len(data) <= 65_536
        await anyio.sleep(0.002)
        total += len(data)

    result = await box.sh("head -c 3000000 /dev/zero; printf end", sink)
    assert (total, result.stdout_total, result.exit_code) == (3_000_003, 3_000_003, 0)


async def test_ex15_a_sink_that_raises_ends_the_command(box) -> None:
    beat = Heartbeat(box)

    async def sink(stream, data) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        await box.sh(f"echo x; {beat.loop}", sink)
    assert await beat.is_still()


async def test_a_command_that_lists_processes_does_not_end_its_own_output(box) -> None:
    """The boundary is nowhere to be read while a command runs."""
    result = await box.sh(
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; echo; echo end"
    )
    assert result.stdout.endswith(b"end\n")


async def test_a_command_that_signals_its_whole_group_has_its_own_end(box) -> None:
    result = await box.sh("trap 'exit 5' TERM; kill -TERM 0; sleep 5")
    assert result.exit_code == 5
    result = await box.sh("kill -9 0; sleep 5")
    assert (result.exit_code, result.signal) == (137, signal.SIGKILL)
