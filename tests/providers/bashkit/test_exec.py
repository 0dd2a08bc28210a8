"""Commands on bashkit: the clauses of EX, by id."""

import json
from collections.abc import Mapping

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import (
    InvalidArgument,
    Lost,
    NotADirectory,
    NotFound,
    OutcomeUnknown,
    OutsideWorkspace,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import ExecRequest, FileType, InstanceStatus
from pinfold_bashkit._interpreter import DEFAULT_ENV, Interpreter, Settings
from pinfold_bashkit._script import script_of
from pinfold_bashkit._vfs import Vfs
from tests.providers.bashkit.support import Stopwatch, make, run, sh

pytestmark = pytest.mark.anyio

# --- EX-1, EX-2: what ran is a result ---


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("true", 0, id="success"),
        pytest.param("exit 7", 7, id="own code"),
        pytest.param("exit 300", 44, id="modulo 256"),
        pytest.param("false | true; (exit 5)", 5, id="last of several"),
        pytest.param("set -e; false; exit 0", 1, id="errexit"),
        pytest.param("set -u; echo $nope", 1, id="nounset"),
        pytest.param("nosuch", 127, id="not found"),
        pytest.param("./nosuch", 127, id="no such file"),
        pytest.param("echo echo hi > s; ./s", 126, id="not executable"),
        pytest.param("mkdir d; ./d", 126, id="a directory"),
        pytest.param("kill -9 $$", 137, id="SIGKILL"),
        pytest.param("kill -TERM $$", 143, id="SIGTERM"),
        pytest.param("if then", 2, id="syntax error"),
        pytest.param("echo 'open", 2, id="open quote"),
        pytest.param("echo )", 2, id="stray parenthesis"),
        pytest.param("trap 'true' EXIT; exit 3", 3, id="trap"),
        pytest.param("", 0, id="nothing"),
        pytest.param("# only this", 0, id="a comment"),
    ],
)
async def test_the_exit_code_is_the_commands_own(box, script, code):
    """EX-1, EX-2."""
    result = await sh(box, script)
    assert (result.exit_code, result.timed_out, result.signal) == (code, False, None)
    assert result.generation == 3


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("true",), 0),
        (("false",), 1),
        (("exit", "3"), 3),
        (("nosuch",), 127),
        (("/nope/x",), 127),
        (("",), 127),
        (("if",), 127),
        (("A=1",), 127),
        (("-x",), 127),
        (("f() { echo; }",), 127),
        (("echo hi",), 127),
        (("bash", "-c", "exit 300"), 44),
        (("timeout", "1", "true"), 0),
        (("timeout", "0.05", "sleep", "9"), 124),
    ],
)
async def test_a_program_is_run_without_a_shell(box, argv, code):
    """EX-2, EX-11: no keyword, no assignment, no splitting; 124 of its own is no timeout (EX-4)."""
    result = await run(box, *argv)
    assert (result.exit_code, result.timed_out) == (code, False)


async def test_a_syntax_error_is_told_with_its_line(box):
    """EX-1: 2, as bash has it."""
    result = await sh(box, "echo before\nif then\necho after > f")
    assert result.exit_code == 2
    assert b"line 2: syntax error" in result.stderr
    assert (await sh(box, "ls")).stdout == b""


# --- EX-3: refused before anything runs ---


@pytest.mark.parametrize(
    ("cwd", "error"),
    [
        ("/workspace/missing", NotFound),
        ("/workspace/file", NotADirectory),
        ("/workspace/file/x", NotADirectory),
        ("/workspace/out", OutsideWorkspace),
        ("/workspace/dangling", NotFound),
        ("/tmp", OutsideWorkspace),
        ("/workspacefoo", OutsideWorkspace),
        ("/workspace/../etc", InvalidArgument),
        ("relative", InvalidArgument),
    ],
)
async def test_a_cwd_must_be_a_directory_inside(box, cwd, error):
    """EX-3, FS-2."""
    await sh(box, "touch file; ln -s /etc out; ln -s nowhere dangling")
    with pytest.raises(error) as caught:
        await sh(box, "touch ran", cwd=cwd)
    assert caught.value.effect == "none"
    assert "ran" not in (await sh(box, "ls")).stdout_text


@pytest.mark.parametrize("cwd", ["/workspace/d", "/workspace/link", "/workspace/d/'q $x é"])
async def test_a_cwd_may_be_any_directory_inside(box, cwd):
    """EX-3: by its name or by a link."""
    await sh(box, 'mkdir -p "d/\'q \\$x é"; ln -s d link')
    result = await sh(box, "pwd; printenv OLDPWD || echo none", cwd=cwd)
    assert result.stdout_text == cwd.replace("link", "d") + "\nnone\n"


@pytest.mark.parametrize(
    "request_",
    [
        {"argv": ["echo", "\udcff"]},
        {"shell": "echo \udcff"},
        {"shell": "true", "env": {"A": "\udc80"}},
    ],
    ids=["argv", "script", "env"],
)
async def test_bytes_that_are_no_utf8_are_refused(box, request_):
    """PR-7, ER-3: `argv_bytes` is absent."""
    assert not box.features.argv_bytes
    with pytest.raises(InvalidArgument, match="UTF-8"):
        await box.exec(ExecRequest(**request_))


async def test_as_many_words_as_the_limits_allow(box):
    """EX-11, PR-3."""
    words = ["a"] * 400_000
    assert (await run(box, "true", *words)).exit_code == 0
    with pytest.raises(TooLarge, match="argv and env together"):
        await run(box, "touch", "ran", *words, "a" * 131_071, "b" * 131_071)
    assert (await sh(box, "ls")).stdout == b""


# --- EX-4: timeouts ---

_SLOW = [
    pytest.param("sleep 60", id="sleep"),
    pytest.param("/bin/sleep 60", id="sleep by path"),
    pytest.param("exec sleep infinity", id="sleep for ever"),
    pytest.param("sleep 60 | cat", id="in a pipe"),
    pytest.param("x=$(sleep 60)", id="in a substitution"),
    pytest.param("bash -c 'sleep 60'", id="in a child"),
    pytest.param("sleep 60 & wait", id="in the background"),
    pytest.param("timeout 50 sleep 60", id="under a longer timeout"),
    pytest.param("while :; do :; done", id="busy"),
    pytest.param("f() { while :; do sleep 0.01; done; }; f", id="busy in a function"),
]


@pytest.mark.parametrize("script", _SLOW)
async def test_a_timeout_ends_the_command_and_keeps_its_output(box, script):
    """EX-4: 124, `timed_out`, output so far; nothing of it happens later."""
    watch = Stopwatch()
    result = await sh(
        box, f"echo out; echo err >&2; {script}; echo late > late", timeout_seconds=0.3
    )
    assert (result.exit_code, result.timed_out) == (124, True)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert watch.seconds < 0.3 + 5
    assert (await sh(box, "ls")).stdout == b""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("jq -n 'last(repeat(1))'", id="jq"),
        pytest.param("jq -n 'def f: f; f'", id="jq recursion"),
        pytest.param("yq -n 'last(repeat(1))'", id="yq"),
    ],
)
async def test_a_built_in_that_never_looks_up_is_cut_by_the_timeout(box, script):
    """EX-4."""
    watch = Stopwatch()
    result = await sh(box, f"echo out; {script}; echo late > late", timeout_seconds=0.5)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"out\n")
    assert watch.seconds < 0.5 + 5
    assert (await sh(box, "ls")).stdout == b""


@pytest.mark.parametrize("timeout", [1e9, 1e12, 1.7e308, 10**300, 5e-324])
async def test_a_timeout_of_any_size_is_one(box, timeout):
    """1b: a float above 0."""
    result = await sh(box, "echo hi", timeout_seconds=timeout)
    assert (result.exit_code, result.timed_out) in ((0, False), (124, True))
    assert result.timed_out is (timeout < 1)


@pytest.mark.parametrize("kind", [RuntimeError, type("PanicException", (BaseException,), {})])
async def test_an_interpreter_that_fails_is_a_typed_error_and_ends_nothing_else(
    box, monkeypatch, kind
):
    """ER-1: a panic of bashkit is no Exception, and must not end the controller."""

    class Broken:
        def execute_sync(self, *_):
            raise kind("at the disco")

        def cancel(self):
            pass

    real = Interpreter.run

    def run_broken(self, script, on_output):
        self._bash = Broken()
        return real(self, script, on_output)

    monkeypatch.setattr(Interpreter, "run", run_broken)
    with pytest.raises(OutcomeUnknown, match="at the disco"):
        await sh(box, "echo hi")
    monkeypatch.undo()

    assert (await sh(box, "echo hi")).stdout == b"hi\n"


async def test_queueing_is_not_timed_and_calls_never_mix(box):
    """EX-13: without `concurrent_exec` they queue, first come, first served."""
    assert not box.features.concurrent_exec
    results = {}

    async def one(number):
        results[number] = await sh(
            box, f"echo {number}; sleep 0.4; echo {number}", timeout_seconds=1.5
        )

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(one, number)
    for number, result in results.items():
        assert (result.exit_code, result.stdout_text) == (0, f"{number}\n" * 2)


# --- EX-5: cancellation ---


@pytest.mark.parametrize("script", _SLOW)
async def test_a_cancellation_ends_the_command_before_it_propagates(box, script):
    """EX-5: within 5 s, and nothing of it happens later; the next command is not hit by it."""
    with anyio.move_on_after(0.2) as scope:
        await sh(box, f"{script}; echo late > late", timeout_seconds=None)
    assert scope.cancelled_caught
    result = await sh(box, "echo alive; ls")
    assert (result.exit_code, result.stdout) == (0, b"alive\n")


async def test_a_deaf_built_in_is_left_behind_with_nothing_to_write_to(box):
    """EX-5, EX-4: its files are a copy's, modes, links and FIFOs too; no loop is held up."""
    await sh(
        box, "echo x > f; chmod 750 f; ln -s f l; mkdir d; chmod 700 d; mkfifo p; echo t >/tmp/t"
    )
    written = 0

    async def tick():
        nonlocal written
        while True:
            await box.files.write(f"/workspace/w/{written}", b"")
            written += 1
            await anyio.sleep(0.01)

    watch = Stopwatch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with anyio.move_on_after(0.2) as scope:
            # Deaf for 2 s, whatever it is told; then it would write.
            await sh(box, "jq -n 'last(repeat(1))'; echo late > f", timeout_seconds=2.0)
        assert scope.cancelled_caught
        tasks.cancel_scope.cancel()
    assert watch.seconds < 5
    assert written > 5  # all else went on meanwhile, and nothing of it was lost
    assert len(await box.files.list("/workspace/w")) in (written, written + 1)
    result = await sh(
        box, "cat f /tmp/t; stat -c '%n %a %F' f d; readlink l; test -p p && echo pipe"
    )
    assert result.stdout_text.splitlines() == [
        "x",
        "t",
        "f 750 regular file",
        "d 700 directory",
        "f",
        "pipe",
    ]
    while watch.seconds < 3.5:  # until the one left behind must have ended
        assert (await box.files.read("/workspace/f")) == b"x\n"
        await anyio.sleep(0.1)


async def test_files_that_cannot_be_copied_are_given_up(box, monkeypatch):
    """EX-5: better lost than written to by a command that was said to have ended."""

    def fail(*, workspace):
        raise RuntimeError("Too many open files")

    monkeypatch.setattr(box.vfs, "copy", fail)
    with anyio.move_on_after(0.2) as scope:
        await sh(box, "jq -n 'last(repeat(1))'; echo late > f", timeout_seconds=2.0)
    assert scope.cancelled_caught
    assert await box.status() is InstanceStatus.ABSENT
    with pytest.raises(Lost):
        await sh(box, "true")


async def test_destroying_ends_what_runs(box):
    """LC: the call says that its outcome is unknown, the next that the sandbox is lost."""
    watch = Stopwatch()
    raised = []

    async def one():
        try:
            await sh(box, "sleep 60")
        except PinfoldError as exc:
            raised.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        await _until_running(box)
        await box.destroy()
    assert [exc.code for exc in raised] == ["outcome_unknown"]
    assert watch.seconds < 5
    with pytest.raises(Lost):
        await sh(box, "true")
    with pytest.raises(Lost):
        await box.files.read("/workspace/f")


async def _until_running(box):
    with anyio.fail_after(5):
        while box._running is None:
            await anyio.sleep(0.005)


# --- EX-6, EX-7: output ---


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"no newline", bytes(range(256)), b"\xff\xfe", b"\xc3", "é\ufffd€".encode()],
)
async def test_output_is_byte_exact(box, data):
    """EX-6: both streams."""
    await box.files.write("/workspace/f", data)
    result = await sh(box, "cat f; cat f >&2")
    assert (result.stdout, result.stderr) == (data, data)
    assert (result.stdout_total, result.stderr_total) == (len(data), len(data))


@pytest.mark.parametrize("size", [0, 9, 10, 11, 100_000])
async def test_beyond_a_cap_output_is_counted_and_dropped(box, size):
    """EX-7: the head is kept; exactly the cap is not truncated; the command is undisturbed."""
    await box.files.write("/workspace/f", b"x" * size)
    result = await sh(box, "cat f; cat f >&2; echo done > done", stdout_cap=10, stderr_cap=9)
    assert (result.stdout, result.stdout_total) == (b"x" * min(size, 10), size)
    assert (result.stderr, result.stderr_total) == (b"x" * min(size, 9), size)
    assert (result.stdout_truncated, result.stderr_truncated) == (size > 10, size > 9)
    assert await box.files.read("/workspace/done") == b"done\n"


async def test_a_cap_of_nothing_keeps_nothing(box):
    """EX-7."""
    result = await sh(box, "echo hi", stdout_cap=0)
    assert (result.stdout, result.stdout_total, result.stdout_truncated) == (b"", 3, True)


async def test_a_timeout_counts_what_the_cap_dropped(box):
    """EX-4, EX-7."""
    result = await sh(box, "seq 1 1000; sleep 60", stdout_cap=4, timeout_seconds=0.3)
    assert (result.stdout, result.stdout_total, result.stdout_truncated) == (b"1\n2\n", 3893, True)


async def test_what_bashkit_itself_drops_is_reported(box):
    """EX-7, PR-3: beyond `limits.output_bytes` it is a limit, not silence."""
    limit = box._limits.output_bytes
    assert limit is not None
    script = "for i in $(seq 1 11); do head -c 1000000 /dev/zero; done"
    result = await sh(box, script + "; echo done > done", stdout_cap=2 * limit)
    assert (result.exit_code, result.limit, result.stdout_total) == (0, "output", limit)
    assert await box.files.read("/workspace/done") == b"done\n"


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        pytest.param("f() { f; }; f", "cpu", id="recursion"),
        pytest.param("while :; do :; done", "cpu", id="a loop"),
        pytest.param("for i in $(seq 1 10001); do declare v$i=1; done", "memory", id="variables"),
        pytest.param("dd if=/dev/zero bs=1M count=100 of=z", "memory", id="buffers"),
    ],
)
async def test_a_limit_of_the_interpreter_is_named(script, limit):
    """EX-2: which limit ended it, and why, in stderr; what went before stands."""
    box = await make(target={"options": {"max_loop_iterations": 50_000}})
    result = await sh(box, f"echo out; {script}; echo late > late")
    assert result.limit == limit
    assert result.exit_code not in (0, 124)
    assert result.stdout == b"out\n"
    assert b"exceeded" in result.stderr or b"exhausted" in result.stderr
    assert (await sh(box, "ls")).stdout == b""


async def test_there_is_no_life_time_cap(box):
    """bashkit's other profiles end a session after 1,000 commands."""
    for number in range(1_100):
        result = await run(box, "echo", str(number))
        assert result.stdout_text == f"{number}\n"


# --- EX-8: no background ---


async def test_jobs_run_to_their_end_before_the_call_returns(box):
    """EX-8: `background` is absent."""
    assert not box.features.background
    result = await sh(box, "(sleep 0.1; echo late > late) & echo started")
    assert result.stdout == b"started\n"
    assert await box.files.read("/workspace/late") == b"late\n"


# --- EX-9: stdin ---


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"line\nno newline", bytes(range(256)) * 300, b"\xff\xfe\x00"]
)
@pytest.mark.parametrize("script", ["cat", "bash -c cat", "f() { cat; }; f", "cat /dev/stdin"])
async def test_stdin_is_exactly_the_bytes_then_the_end(box, data, script):
    """EX-9."""
    assert (await sh(box, script, stdin=data)).stdout == data


async def test_no_stdin_is_empty(box):
    """EX-9: never inherited, never waited for."""
    result = await sh(box, "cat; read -r x; echo $?", timeout_seconds=5)
    assert result.stdout == b"1\n"


async def test_a_large_stdin_need_not_be_read(box):
    """EX-9; nor is it left behind, where the next could read it."""
    data = bytes(range(256)) * 12_288
    assert (await sh(box, "true; true | true", stdin=data, env={"A": "1"})).exit_code == 0
    assert (await sh(box, "cat | cat | wc -c", stdin=data)).stdout_text == f"{len(data)}\n"
    assert (await sh(box, "head -c 3 | wc -c", stdin=data)).stdout == b"3\n"
    assert (await sh(box, "cat; ls -A /dev/.pinfold")).stdout == b""


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf /",
        "rm -rf /dev",
        "rm -rf /dev/.pinfold",
        "rm -rf /dev/.pinfold; echo x > /dev/.pinfold",
        "rm -rf /dev/.pinfold; ln -s /workspace /dev/.pinfold",
        "rm -rf /dev/.pinfold; mkfifo /dev/.pinfold",
        "mkdir -p /dev/.pinfold/stdin/x /dev/.pinfold/0/x /dev/.pinfold/1/x",
        "for i in stdin 0 1; do mkfifo /dev/.pinfold/$i; done",
        "for i in stdin 0 1; do ln -s /workspace/stolen /dev/.pinfold/$i; done",
    ],
)
async def test_a_guest_can_not_spoil_where_files_are_put_together(box, script):
    """EX-9, FS-4: whatever a guest does to the place, what comes next is whole."""
    assert not (await sh(box, script)).timed_out

    assert (await sh(box, "cat", stdin=b"\xffin")).stdout == b"\xffin"
    await box.files.write("/workspace/file", b"\xffdata", mode=0o600)
    await box.files.write("/workspace/file", b"\xffnew")
    stat = await box.files.stat("/workspace/file")
    assert (stat.type, stat.mode) == (FileType.FILE, 0o600)
    assert await box.files.read("/workspace/file") == b"\xffnew"
    assert [entry.path.name for entry in await box.files.list("/workspace")] == ["file"]


async def test_stdin_is_read_piece_by_piece(box):
    """EX-9: what one command leaves is there for the next."""
    result = await sh(box, "read -r a; read -r b; echo $b-$a; cat", stdin=b"1\n2\n3\n\xff")
    assert result.stdout == b"2-1\n3\n\xff"


async def test_more_stdin_than_fits_is_refused(box):
    """PR-3."""
    with pytest.raises(TooLarge):
        await sh(box, "touch ran", stdin=b"x" * (3 * 1024 * 1024 + 1))
    assert (await sh(box, "ls")).stdout == b""


# --- EX-10: independence ---

_LEAKS = {
    "variable": "X=1; export Y=2; declare -r RO=1; declare -i N=3",
    "function": "f() { :; }; export -f f; function g { :; }",
    "alias": "shopt -s expand_aliases; alias ll=ls",
    "array": "a=(1 2 3); declare -A m=([x]=1)",
    "cwd": "cd /tmp; pushd /home",
    "options": "set -eufo pipefail; set -x; shopt -s nullglob extglob",
    "redirection": "exec 5>/tmp/five; exec 1>/tmp/out; exec 2>/tmp/err; exec 0</etc/passwd",
    "trap": "trap 'echo trap' EXIT ERR DEBUG",
    "positional": "set -- a b c",
    "builtin variables": "IFS=:; PATH=/x; HOME=/y; RANDOM=5; SECONDS=1000; OPTIND=7",
    "unset": "unset PATH HOME IFS PWD PINFOLD_WORKSPACE",
    "pipe status": "false | false; false",
    "umask": "umask 077",
    "hash": "hash -p /x y",
    "history": "history -s secret; echo secret",
    "coprocess": "coproc cat",
    "job": "sleep 0 &",
    "getopts": "getopts ab x -a",
    "nameref": "declare -n r=PATH",
    "exit": "X=1; exit 7",
    "exec": "X=1; exec true",
    "return": "X=1; return 5",
    "break": "X=1; break 3",
    "failing": "X=1; cd /tmp; set -u; echo $nope",
    "limit": "X=1; cd /tmp; f() { f; }; f",
    "break out": "echo ) ; X=1 ; cd /tmp ; ( echo",
    "break out in a word": "echo $(echo ) ; X=1; (true)",
    "open heredoc": "X=1; cat <<EOF\nfoo",
    "trailing backslash": "X=1; echo a\\",
    "open array": "X=1; a=(1",
    "sourced": "echo 'X=1; cd /tmp' > /tmp/s; . /tmp/s; eval 'Y=2'",
    "builtin off": "enable -n echo",
}
_PROBE = (
    "set; env; declare -F; alias; shopt; set -o; pwd; umask; trap -p; jobs; history; hash; dirs;"
    'echo "$!|$OLDPWD|$OPTIND|$-|$#|$0|${PIPESTATUS[*]}|$BASH_SUBSHELL|$$|$PPID|$SHLVL|$?";'
    "echo five >&5; readonly -p; cat"
)


@pytest.mark.parametrize("script", [pytest.param(s, id=name) for name, s in _LEAKS.items()])
async def test_nothing_leaks_from_one_call_into_the_next(box, script):
    """EX-10; /tmp is a file system, not a state of the shell."""
    before = await sh(box, _PROBE)
    await sh(box, script)
    after = await sh(box, _PROBE)
    assert (after.exit_code, after.stdout_text, after.stderr_text) == (
        before.exit_code,
        before.stdout_text,
        before.stderr_text,
    )


async def test_nothing_leaks_out_of_a_call_that_was_cut_off(box):
    """EX-10, EX-4, EX-5: by a timeout, and by a cancellation."""
    before = await sh(box, _PROBE)
    await sh(box, "X=1; cd /tmp; f() { :; }; sleep 60", timeout_seconds=0.1)
    with anyio.move_on_after(0.1):
        await sh(box, "X=1; cd /tmp; f() { :; }; sleep 60")
    assert (await sh(box, _PROBE)).stdout_text == before.stdout_text


# --- EX-11: argv ---


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def recorded(request: ExecRequest, env: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Run a request by a command that writes down its arguments and its variable V."""
    interpreter = Interpreter(Settings(timeout_seconds=5, max_loop_iterations=100), Vfs().root)
    seen: list[tuple[list[str], str]] = []

    def record(ctx):
        seen.append((list(ctx.argv), ctx.env["V"]))
        return ""

    interpreter._bash.add_builtin("record", record)  # type: ignore[attr-defined]
    script = script_of(request, cwd="/workspace", env=env, stdin=None, parses=interpreter.parses)
    assert interpreter.run(script, lambda *_: None).exit_code == 0
    return seen


@given(st.lists(_TEXT), _TEXT)
@pytest.mark.parametrize("anyio_backend", ["none"])  # no event loop needed
def test_arguments_and_variables_arrive_exactly(anyio_backend, words, value):
    """EX-11, EX-12."""
    assert recorded(ExecRequest(argv=("record", *words)), {"V": value}) == [(words, value)]


@given(_TEXT)
@pytest.mark.parametrize("anyio_backend", ["none"])
def test_a_script_sees_variables_exactly(anyio_backend, value):
    """EX-12."""
    script = 'record "$V" "$(printf %s. "$V")"'
    assert recorded(ExecRequest(shell=script), {"V": value}) == [([value, value + "."], value)]


async def test_argv_through_the_whole_path(box):
    """EX-11."""
    words = [
        "",
        " ",
        "a b",
        "-n",
        "--",
        "'",
        '"',
        "$HOME",
        "`id`",
        "*",
        "~",
        "\\",
        "a\nb",
        "é😀",
        "!",
    ]
    result = await run(box, "printf", "%s\\0", *words)
    assert result.stdout.split(b"\0")[:-1] == [word.encode() for word in words]
    assert (await run(box, "printf", "%s", "x" * 131_071)).stdout_total == 131_071


# --- EX-12: the environment ---


async def test_the_environment_is_exactly_what_is_stated(box):
    """EX-12: defaults, the request's, ours; nothing of this process."""
    result = await sh(box, "env", env={"A": "1 '2'\n3", "HOME": "/h", "PINFOLD_X": "1"})
    found = result.stdout_text.replace("A=1 '2'\n3", "A=1").splitlines()
    expected = DEFAULT_ENV | {"A": "1", "HOME": "/h", "PWD": "/workspace"}
    assert sorted(found) == sorted(f"{name}={value}" for name, value in expected.items())
    assert result.env_dropped == ("PINFOLD_X",)


# --- EX-15: streams ---


async def test_a_stream_gives_output_while_the_command_runs(box):
    """EX-15: in order per stream, exact; the result keeps none of it."""
    chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    async def sink(stream, data):
        chunks[stream].append(data)
        if data == b"1\n":  # the command waits for this file: it must still be running
            await box.files.write("/workspace/go", b"")

    script = "echo 1; until [ -e go ]; do sleep 0.01; done; echo 2; echo e >&2; printf '\\xff\\n'; echo 3"
    result = await sh(box, script, sink, timeout_seconds=10)
    assert b"".join(chunks["stdout"]) == b"1\n2\n\xff\n3\n"
    assert b"".join(chunks["stderr"]) == b"e\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b"")
    assert (result.stdout_total, result.stderr_total, result.truncated) == (8, 2, False)


async def test_a_slow_sink_holds_the_command_back(box):
    """EX-15: back-pressure; memory does not grow with what a command could write."""
    seen = []

    async def sink(stream, data):
        await anyio.sleep(0.02)
        seen.append(json.loads((await box.files.read("/workspace/n")).decode()))

    script = "for i in $(seq 1 20); do echo $i > n; echo x; done"
    await sh(box, script, sink)
    assert len(seen) == 20
    assert all(written - taken <= 2 for taken, written in enumerate(seen, 1))


async def test_a_stream_that_times_out_has_given_all_there_was(box):
    """EX-4, EX-15: also what could not be shown at once."""
    chunks = []

    async def sink(stream, data):
        chunks.append((stream, data))

    script = "echo a; printf 'b\\xff'; sleep 60"
    result = await sh(box, script, sink, timeout_seconds=0.3)
    assert (result.exit_code, result.timed_out) == (124, True)
    assert b"".join(data for _, data in chunks) == b"a\nb\xef\xbf\xbd"  # as the descriptor says


async def test_a_sink_that_fails_ends_the_command(box):
    """EX-15: what it raises propagates, as it is."""

    async def sink(stream, data):
        raise ValueError("no more")

    watch = Stopwatch()
    with pytest.raises(ValueError, match="no more"):
        await sh(box, "echo a; sleep 60; echo late > late", sink)
    assert watch.seconds < 5
    assert (await sh(box, "ls")).stdout == b""


async def test_a_sink_that_is_stuck_holds_no_cancellation_up(box):
    """EX-5, EX-15."""
    watch = Stopwatch()

    async def sink(stream, data):
        await anyio.sleep_forever()

    with anyio.move_on_after(0.2) as scope:
        await sh(box, "while :; do echo x; done", sink)
    assert scope.cancelled_caught
    assert watch.seconds < 5
    assert (await sh(box, "echo alive")).stdout == b"alive\n"


async def test_one_stuck_sandbox_holds_no_other_up(box):
    """EX-13: an interpreter has a thread of its own while it runs, and no loop waits for it."""

    async def stuck(other):
        await sh(other, "jq -n 'last(repeat(1))'", timeout_seconds=2)

    others = [await make() for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for other in others:
            tasks.start_soon(stuck, other)
        with anyio.fail_after(1.5):
            for other in others:
                await _until_running(other)
            assert (await sh(box, "echo hi")).stdout == b"hi\n"
