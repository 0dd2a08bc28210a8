"""A target that gives too few processes or files: what is told, and that it passes (bad input)."""

import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import pytest

from pinfold.errors import Effect, OutcomeUnknown, Unavailable
from pinfold.posix import equip
from pinfold.provider import ExecRequest, InstanceRef
from tests.core.posix.conftest import LocalInstance, until
from tests.core.posix.guests import LocalGuest, busybox_root, end_all

pytestmark = pytest.mark.anyio

#: Nobody else's, another test process's neither, so that only what is started here counts.
USER = 1_000_000_000 + os.getpid()
LIMIT = 8
AS_USER = (
    shutil.which("setpriv") or "setpriv",
    f"--reuid={USER}",
    f"--regid={USER}",
    "--clear-groups",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class LimitedGuest(LocalGuest):
    prefix: tuple[str, ...] = (
        shutil.which("prlimit") or "prlimit",
        f"--nproc={LIMIT}:{LIMIT}",
        *AS_USER,
    )

    def __init__(self, path: str) -> None:
        super().__init__()
        self.default_env = {"PATH": path}


@pytest.fixture(params=["gnu", "busybox"])
async def instance(request, anyio_backend, open_path):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user can be taken on only by root, with setpriv")
    path = "/usr/bin:/bin"
    if request.param == "busybox":
        path = str(busybox_root(open_path / "root") / "bin")
    workspace = open_path / "w"
    workspace.mkdir()
    os.chown(workspace, USER, USER)
    kit = await equip(LimitedGuest(path), root=PurePosixPath(workspace))
    yield LocalInstance(InstanceRef(provider="test", id="limited"), kit)
    end_all(str(open_path))
    shutil.rmtree(kit.control)


@asynccontextmanager
async def taken(number: int):
    """So many of the user's processes run for as long as the block."""
    sleepers = [subprocess.Popen([*AS_USER, "sleep", "1000"]) for _ in range(number)]
    names = [Path(f"/proc/{sleeper.pid}/comm") for sleeper in sleepers]
    try:
        await until(lambda: all(name.read_text() == "sleep\n" for name in names), 60)
        yield
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


async def test_a_command_that_meets_the_limit_has_a_result(instance) -> None:
    """EX-1: it is the command's own trouble, told by its shell, and ends with the command's jobs."""
    bomb = "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; echo no limit"
    result = await instance.exec(
        ExecRequest(shell=f"({bomb}); kill $(jobs -p) 2>/dev/null; exit 7")
    )
    assert result.exit_code != 0
    assert b"ork" in result.stderr
    assert b"no limit" not in result.stdout


async def works(instance) -> bool:
    await instance.files.write("/workspace/f", b"x")
    ran = await instance.exec(ExecRequest(argv=("cat", "f")))
    return (ran.exit_code, ran.stdout) == (0, b"x")


@pytest.mark.parametrize("more", [0, 1], ids=["no-child", "no-shell"])
async def test_where_nothing_can_be_started_that_is_told_and_passes(instance, more) -> None:
    """EX-1, EX-14: unavailable, or unknown where nobody could look; never a made-up result."""
    async with taken(LIMIT + more):
        with pytest.raises(Unavailable) as raised:
            await instance.exec(ExecRequest(argv=("touch", "ran")))
        error = raised.value
        assert error.effect is Effect.NONE or isinstance(error, OutcomeUnknown)
        with pytest.raises(Unavailable):
            await instance.files.list("/workspace")
        with pytest.raises(Unavailable):
            await instance.files.write("/workspace/f", b"x")
    assert [entry.path.name for entry in await instance.files.list("/workspace")] == []
    assert await works(instance)


@pytest.mark.parametrize("left", range(1, 5))
async def test_a_command_that_is_said_to_have_ended_was_started(instance, left) -> None:
    """EX-1: whoever stands between, a shell, time or setsid, may be the last to be started."""
    async with taken(LIMIT - left):
        try:
            ended: int | Unavailable = (
                await instance.exec(ExecRequest(argv=("touch", "ran")))
            ).exit_code
        except Unavailable as exc:
            ended = exc
    names = [entry.path.name for entry in await instance.files.list("/workspace")]
    if isinstance(ended, int):
        assert (ended, names) == (0, ["ran"])
    else:
        assert ended.effect is Effect.NONE or isinstance(ended, OutcomeUnknown)
        assert names == []
    assert await works(instance)


@pytest.fixture(params=["gnu", "busybox"])
async def scarce(request, anyio_backend, tmp_path):
    """A guest, and an instance that has yet to meet a limit: the ways to watch a command differ."""
    workspace = tmp_path / "w"
    workspace.mkdir()
    guest = LocalGuest()
    if request.param == "busybox":
        path = str(busybox_root(tmp_path / "root") / "bin")
        guest.default_env = {**guest.default_env, "PATH": path}
    kit = await equip(guest, root=PurePosixPath(workspace), helper="never")
    yield guest, LocalInstance(InstanceRef(provider="test", id="scarce"), kit)
    end_all(str(tmp_path))
    shutil.rmtree(kit.control)


async def told(instance) -> str:
    """Run commands that have one result each, and say whether they had it, or an error."""
    said = set()
    for request, output in (
        (ExecRequest(argv=("echo", "x")), b"x\n"),
        (ExecRequest(argv=("cat",), stdin=b"y"), b"y"),
    ):
        try:
            result = await instance.exec(request)
        except OutcomeUnknown:
            said.add("unknown")
        except Unavailable as exc:
            said.add(f"unavailable, effect {exc.effect}")
        else:
            assert (result.exit_code, result.stdout, result.stderr) == (0, output, b"")
            said.add("works")
    assert said <= {"works"} or said <= {"unknown", "unavailable, effect none"}
    return min(said)


async def test_too_few_files_for_what_watches_is_no_exit_code_of_the_command(scarce) -> None:
    """EX-1, EX-2: with each number of files it works, or says that it was not run."""
    guest, instance = scarce
    met = {}
    for files in range(3, 24):
        guest.prefix = (shutil.which("prlimit") or "prlimit", f"--nofile={files}:{files}")
        met[files] = await told(instance)
    guest.prefix = ()
    assert await told(instance) == "works"
    assert met[23] == "works"
    assert "unavailable, effect none" in met.values(), "control: one is too small"
