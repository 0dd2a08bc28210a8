"""Commands start with every signal at its default, whatever the controller ignores or blocks.

A controller that a shell started in the background ignores SIGINT and SIGQUIT, one under nohup
SIGHUP; what it spawns would inherit that, and neither a shell nor Ctrl-C could do a thing about it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.posix import Guest, PosixInstance, equip
from pinfold.provider import ExecRequest, InstanceRef, InstanceStatus
from tests.providers.host.support import create, workspace

pytestmark = pytest.mark.anyio

#: What a controller ignores, and what it blocks.
STATES = {
    "none": ((), ()),
    **{
        name: ((getattr(signal, f"SIG{name}"),), ())
        for name in ("INT", "QUIT", "HUP", "TERM", "USR1", "PIPE")
    },
    "blocked": ((), (signal.SIGUSR2,)),
    "all": (
        (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1),
        (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGWINCH),
    ),
}
ASK = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
C_LIBRARY_S_OWN = 1 << 31 | 1 << 32  # signals 32 and 33
NOTHING = {"SigIgn:": "0" * 16, "SigBlk:": "0" * 16}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=STATES)
def state(request):
    """For one test, the controller is in such a state."""
    ignored, blocked = STATES[request.param]
    with contextlib.ExitStack() as stack:
        for number in ignored:
            stack.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield request.param


class SpawnOnly(Guest):
    """The same guest, with nothing but the primitive: our shell supervises commands then."""

    def __init__(self, guest: Guest, root: PurePosixPath) -> None:
        self._guest = guest
        self._root = root

    async def spawn(self, argv, env, cwd):
        assert str(cwd) == "/", "our programs go where they go by themselves"
        return await self._guest.spawn(argv, env, self._root)


class SpawnOnlyInstance(PosixInstance):
    async def status(self) -> InstanceStatus:
        return InstanceStatus.RUNNING

    async def destroy(self) -> None:
        return None


def told(output: bytes) -> dict[str, str]:
    """What /proc says of a process's signals, but for the two that the C library keeps to itself.

    make, and whoever starts programs by glibc's posix_spawn, passes those on ignored; no program
    can use them, nor set them back.
    """
    lines = (line.split() for line in output.decode().splitlines())
    return {name: f"{int(bits, 16) & ~C_LIBRARY_S_OWN:016x}" for name, bits in lines}


async def typed(instance, script: str) -> bytes:
    """What a script says in a terminal."""
    terminal = await instance.open_terminal(ExecRequest(shell=script))
    said = b""
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            said += await terminal.receive()
    await terminal.aclose()
    return said


async def test_commands_start_with_all_signals_at_default(state, level, anyio_backend):
    """Each way a command is started: argv, script, terminal, and under the shell supervisor."""
    if state == "all":  # the control: what is spawned with no care inherits them
        grep = ["grep", "SigIgn", "/proc/self/status"]
        plain = await anyio.to_thread.run_sync(
            lambda: subprocess.run(grep, capture_output=True, check=True).stdout
        )
        assert told(plain)["SigIgn:"] != NOTHING["SigIgn:"]
    instance = await create(level)
    try:
        argv = await instance.exec(
            ExecRequest(argv=("grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"))
        )
        script = await instance.exec(ExecRequest(shell=ASK))
        job = await instance.exec(ExecRequest(shell=f'sh -c "{ASK}" | cat'))
        root = PurePosixPath("/workspace" if level == "native" else workspace(instance))
        kit = await equip(SpawnOnly(instance.equipment.guest, root), root=root, helper="never")
        ref = InstanceRef(provider="test", id="spawn-only")
        under_shell = await SpawnOnlyInstance(ref, kit).exec(ExecRequest(shell=ASK))
        ways = {
            "argv": argv.stdout,
            "script": script.stdout,
            "pipeline": job.stdout,
            "terminal": await typed(instance, ASK),
            "shell supervisor": under_shell.stdout,
        }
        assert {way: told(said) for way, said in ways.items()} == dict.fromkeys(ways, NOTHING)
    finally:
        await instance.destroy()


async def test_what_starts_a_command_leaves_no_trace(state, level, anyio_backend):
    """EX-2, EX-11, EX-12: argv, variables, exit codes and descriptors are the same in all states."""
    instance = await create(level)
    try:
        env = {"A": "x", "LC_CTYPE": "C", "E": ""}
        told_env = await instance.exec(ExecRequest(argv=("env",), env=env))
        seen = dict(line.split("=", 1) for line in told_env.stdout_text.splitlines())
        assert env.items() <= seen.items()
        bare = await instance.exec(ExecRequest(argv=("env", "-0")))
        allowed = {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"}
        names = {item.split("=")[0] for item in bare.stdout_text.split("\0") if item}
        extra = {name for name in names - allowed if not name.startswith(("LC_", "PINFOLD_"))}
        assert not extra
        assert "LC_CTYPE" not in names or "LC_CTYPE" in os.environ  # passed on, or not there
        words = ("", "-x", "a\nb", "\udcff", "ü", "x=y")
        echoed = await instance.exec(ExecRequest(argv=("printf", r"%s\0", *words)))
        assert echoed.stdout.split(b"\0")[:-1] == [
            word.encode("utf-8", "surrogateescape") for word in words
        ]
        (workspace(instance) / "plain").write_bytes(b"x")
        codes = [
            (await instance.exec(ExecRequest(argv=argv))).exit_code
            for argv in (("no-such-program",), ("/workspace/plain",), ("sh", "-c", "exit 3"))
        ]
        assert codes[0] == 127
        assert codes[1] in {126, 127}  # at none the path of the text is not mapped
        assert codes[2] == 3
        fds = await instance.exec(ExecRequest(shell="ls /proc/self/fd"))
        assert fds.stdout.split() == [b"0", b"1", b"2", b"3"]
    finally:
        await instance.destroy()


BACKGROUND = """
import json, sys
import anyio
from pinfold.provider import ExecRequest
from tests.providers.host.support import create

async def main():
    instance = await create(sys.argv[1])
    said = {}
    killed = await instance.exec(ExecRequest(shell="kill -INT $$; echo alive"))
    said["exec"] = [killed.exit_code, killed.signal, killed.stdout_text]
    terminal = await instance.open_terminal(ExecRequest(shell="echo ready; exec sleep 1000"))
    heard = b""
    with anyio.fail_after(60):
        while b"ready" not in heard:
            heard += await terminal.receive()
        await terminal.send(b"\\x03")
        said["terminal"] = await terminal.wait()
    await terminal.aclose()
    await instance.destroy()
    print(json.dumps(said))

anyio.run(main)
"""


def test_a_controller_in_the_background_still_has_its_ctrl_c_heard(level):
    """The controller is started as a shell starts background jobs: `&`, without job control."""
    background = 'python=$1 script=$2 level=$3; "$python" -c "$script" "$level" & wait $!'
    ran = subprocess.run(
        ["sh", "-c", background, "sh", sys.executable, BACKGROUND, level],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=True,
    )
    assert json.loads(ran.stdout) == {"exec": [130, 2, ""], "terminal": 130}, ran.stderr
