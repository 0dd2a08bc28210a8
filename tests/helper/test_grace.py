"""The stated grace: how long a helper outlives its connection, and what it takes along (EX-14)."""

import subprocess
from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.errors import Lost, OutcomeUnknown, Unreachable
from pinfold.posix._resident import Resident
from pinfold.posix._resident import _session as session_module
from pinfold_helper import _build
from tests.core.resident.conftest import CuttingGuest, end_marked, is_alive, new_mark, until
from tests.helper.conftest import compiler

pytestmark = pytest.mark.anyio

SOURCE = _build.HERE / "source"
STATED = "GRACE_MS = 30000,"
#: Of the helper that is tested, in seconds: the source is the same but for the number.
GRACE = 1.0


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("impatient")
    for path in SOURCE.iterdir():
        text = path.read_text()
        (folder / path.name).write_text(text.replace(STATED, f"GRACE_MS = {GRACE * 1000:.0f},"))
    assert (folder / "helper.h").read_text() != (SOURCE / "helper.h").read_text()
    program = folder / "helper"
    sources = sorted(folder.glob("*.c"))
    subprocess.run([compiler(), "-std=c11", "-O1", "-static", *sources, "-o", program], check=True)
    return program.read_bytes()


def test_the_grace_is_the_stated_one_on_both_sides() -> None:
    assert STATED in (SOURCE / "helper.h").read_text()
    assert session_module._GRACE_SECONDS == 30
    assert "30 seconds" in Path("docs/helper.md").read_text()


async def test_after_the_grace_without_a_stream_it_ends_all_that_it_started_and_itself(
    impatient, tmp_path
) -> None:
    """Commands in flight and background jobs, those in sessions of their own, too; no folder stays."""
    mark, guest = new_mark(), CuttingGuest()
    workspace, folders = tmp_path / "w", tmp_path / "t"
    workspace.mkdir()
    folders.mkdir()
    resident = await Resident.start(
        guest, root=PurePosixPath(workspace), mark=mark, folders=(str(folders),),
        program=lambda _: impatient,
    )  # fmt: skip
    helper = resident.session.greeting.pid

    async def sh(script: str) -> bytes:
        result = await resident.guest.execute(
            ("/bin/sh", "-c", script), {}, PurePosixPath(workspace), stdin=b"",
            timeout_seconds=None, stdout_cap=999, stderr_cap=999, sink=None,
        )  # fmt: skip
        return result.stdout

    def pids() -> list[int]:
        return [int(pid) for name in ("job", "command") for pid in names(name)]

    def names(name: str) -> list[str]:
        path = workspace / name
        return path.read_text().split() if path.exists() else []

    try:
        await sh(
            "env -i /usr/bin/setsid -f /bin/sh -c 'echo $$ >job; exec /bin/sleep 300';"
            "while [ ! -s job ]; do :; done"
        )
        # While it is connected the grace never begins.
        until_then = anyio.current_time() + 2 * GRACE
        while anyio.current_time() < until_then:
            assert await sh("echo here") == b"here\n"
        async with anyio.create_task_group() as tasks:

            async def in_flight() -> None:
                with pytest.raises(OutcomeUnknown):
                    await sh("echo $$ >command; exec sleep 300")

            tasks.start_soon(in_flight)
            await until(lambda: len(pids()) == 2)
            assert all(map(is_alive, [helper, *pids()]))
            guest.refuse = Unreachable("for a test")
            await guest.cut()
            await until(lambda: not any(map(is_alive, [helper, *pids()])), 30.0)
            await until(lambda: not list(folders.iterdir()))
            guest.refuse = Lost("for a test")  # there is nobody to connect to any more
    finally:
        with anyio.CancelScope(shield=True):
            await resident.aclose()
        end_marked(mark)
