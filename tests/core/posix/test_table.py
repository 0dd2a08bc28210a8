"""What trackers of other sandboxes report, one row each: none of it happens here.

The numbers are those of the survey that the contract was made from; each row is the smallest
reproduction, and what must be seen instead.
"""

import logging
import os
import secrets
import time
from pathlib import Path

import anyio
import pytest

from pinfold.errors import InvalidArgument, NotRegular, OutsideWorkspace, PinfoldError
from pinfold.provider import ExecRequest
from tests.core.posix.conftest import Heartbeat

pytestmark = pytest.mark.anyio


async def row_1(box) -> None:
    """A timeout ends the client; the process goes on inside."""
    beat = Heartbeat(box)
    assert (await box.sh(beat.loop, timeout_seconds=0.5)).timed_out
    assert beat.size
    assert await beat.is_still()


async def row_2(box) -> None:
    """A timeout is raised only when the grandchildren have let go of the pipe."""
    started = time.monotonic()
    assert (await box.sh("(sleep 20)& (sleep 20)& wait", timeout_seconds=0.5)).timed_out
    assert time.monotonic() - started < 5.5


async def row_4(box) -> None:
    """`cmd &` keeps stdout open, and the call never returns."""
    started = time.monotonic()
    assert (await box.sh("sleep 30 & echo now")).stdout == b"now\n"
    assert time.monotonic() - started < 4


async def row_5(box) -> None:
    """The end of one call kills a daemon that was wanted."""
    beat = Heartbeat(box)
    await box.sh(f"({beat.loop}) </dev/null >/dev/null 2>&1 &")
    await box.run("true")
    await beat.beats()


async def row_6(box) -> None:
    """A large stdin arrives as nothing, with success."""
    for size in (0, 1, 65_536, 1024 * 1024 - 1, 1024 * 1024):
        result = await box.sh("cat >f; wc -c <f", stdin=b"x" * size)
        assert int(result.stdout) == size


async def row_7(box) -> None:
    """A write leaves an empty or short file, with success; also beside others."""
    data = [secrets.token_bytes(100_000) for _ in range(8)]
    async with anyio.create_task_group() as tasks:
        for number, content in enumerate(data):
            tasks.start_soon(box.files.write, f"/workspace/{number}", content)
    assert [(box.workspace / str(number)).read_bytes() for number in range(8)] == data


async def row_9(box) -> None:
    """A command that reads stdin hangs, or eats the controller's."""
    with anyio.fail_after(5):
        assert (await box.sh("cat; echo done")).stdout == b"done\n"


async def row_10(box) -> None:
    """A deadlock on a timeout with much output on both streams."""
    flood = "dd if=/dev/zero bs=1048576 count=1 2>/dev/null"
    with anyio.fail_after(60):
        result = await box.sh(f"while :; do {flood}; ({flood}) >&2; done", timeout_seconds=3)
    assert result.timed_out
    for total in (result.stdout_total, result.stderr_total):
        assert total >= 1024 * 1024  # far more than pipes hold


async def row_11(box) -> None:
    """Output without limit fills the controller's memory."""
    result = await box.sh("dd if=/dev/zero bs=1048576 count=64", stdout_cap=1000)
    assert (len(result.stdout), result.stdout_truncated) == (1000, True)
    assert result.stdout_total == 64 * 1024 * 1024


async def row_13(box) -> None:
    """Output that is no UTF-8 raises inside the provider."""
    assert (await box.sh(r"printf '\377\376\000\200'")).stdout == b"\xff\xfe\0\x80"


async def row_16(box) -> None:
    """An unknown command can't be told from a lost transport."""
    assert (await box.run(f"no-such-{secrets.token_hex(4)}")).exit_code == 127
    await box.files.write("/workspace/plain", b"text")
    assert (await box.run("./plain")).exit_code == 126
    for code in (0, 1, 2, 125, 126, 127, 128, 129, 255):
        assert (await box.sh(f"exit {code}")).exit_code == code


async def row_17(box) -> None:
    """stdout and stderr are merged."""
    result = await box.sh("printf o; printf e >&2")
    assert (result.stdout, result.stderr) == (b"o", b"e")


async def row_18(box) -> None:
    """124, 137 and 143: the program's own, a timeout, or a kill?"""
    seen = []
    for script, timeout in (
        ("exit 124", 10), ("exit 137", 10), ("kill -9 $$", 10), ("kill -15 $$", 10), ("sleep 60", 0.3),
    ):  # fmt: skip
        result = await box.sh(script, timeout_seconds=timeout)
        seen.append((result.exit_code, result.signal, result.timed_out))
    assert seen == [
        (124, None, False), (137, None, False), (137, 9, False), (143, 15, False), (124, None, True),
    ]  # fmt: skip


async def row_22(box) -> None:
    """An upload through an argument hits the kernel's limit of one."""
    for size in (96 * 1024, 128 * 1024, 129 * 1024, 2 * 1024 * 1024):
        data = secrets.token_bytes(size)
        await box.files.write("/workspace/f", data)
        assert (box.workspace / "f").read_bytes() == data
    assert (await box.run("printf", "%s", "x" * (127 * 1024))).stdout_total == 127 * 1024


async def row_23(box) -> None:
    """A whole file is held in memory."""
    (box.workspace / "sparse").touch()
    os.truncate(box.workspace / "sparse", 256 * 1024 * 1024)
    total = largest = 0
    async for chunk in box.files.download("/workspace/sparse"):
        total += len(chunk)
        largest = max(largest, len(chunk))
    assert total == 256 * 1024 * 1024
    assert largest <= 1024 * 1024


async def row_25(box) -> None:
    """A file's name is put into a shell."""
    for name in (" ", "'", '"', "$(touch pwn)", ";touch pwn", "-rf", "a\nb", "-", "*"):
        await box.files.write(f"/workspace/d/{name}", name.encode())
        assert await box.files.read(f"/workspace/d/{name}") == name.encode()
        assert (await box.run("cat", f"./d/{name}")).stdout == name.encode()
        await box.files.remove(f"/workspace/d/{name}")
    assert [entry.name for entry in box.workspace.iterdir()] == ["d"]


async def row_26(box) -> None:
    """A write follows the last link; a read goes through a linked parent."""
    (box.outside / "canary").write_text("canary")
    for name, target in {
        "leaf": f"{box.out}/canary", "parent": box.out, "chain": "leaf", "dangling": f"{box.out}/none",
    }.items():  # fmt: skip
        (box.workspace / name).symlink_to(target)
    for path in ("leaf", "parent/canary", "chain", "dangling"):
        for operation in (box.files.read, lambda path: box.files.write(path, b"x")):
            with pytest.raises(OutsideWorkspace):
                await operation(f"/workspace/{path}")
    assert (box.outside / "canary").read_text() == "canary"
    assert [entry.name for entry in box.outside.iterdir()] == ["canary"]
    await box.files.write("/workspace/sibling", b"works")  # the control
    assert await box.files.read("/workspace/sibling") == b"works"


async def row_27(box) -> None:
    """A look-alike of an allowed path is allowed."""
    for path in ("/workspace/../etc", "/workspace-evil", "/workspaces", "workspace/f"):
        with pytest.raises(InvalidArgument):
            await box.files.write(path, b"")


async def row_28(box) -> None:
    """The controller's environment reaches the guest."""
    canary = secrets.token_hex(8)
    os.environ["PINFOLD_TEST_CANARY"] = canary
    try:
        result = await box.sh('printf %s "$PINFOLD_TEST_CANARY$DECLARED"', env={"DECLARED": "yes"})
    finally:
        del os.environ["PINFOLD_TEST_CANARY"]
    assert result.stdout == b"yes"


async def row_29(box, caplog) -> None:
    """Commands, outputs or tokens are written to logs, or told by an error."""
    secret = f"s3cret-{secrets.token_hex(8)}"
    with caplog.at_level(logging.DEBUG):
        await box.sh("cat; echo $TOKEN", env={"TOKEN": secret}, stdin=secret.encode())
        await box.files.write("/workspace/f", secret.encode())
        with pytest.raises(PinfoldError) as caught:
            await box.sh("true", env={"TOKEN": secret}, cwd="/workspace/none")
    assert secret not in caplog.text
    assert secret not in repr(caught.value) + str(caught.value.to_dict())
    assert secret not in repr(ExecRequest(argv=["x"], env={"A": secret}, stdin=secret.encode()))


async def row_32(box) -> None:
    """Calls at the same time mix their results."""
    results = {}

    async def one(number: int) -> None:
        results[number] = await box.sh(f"printf {number}; exit {number}")

    async with anyio.create_task_group() as tasks:
        for number in range(32):
            tasks.start_soon(one, number)
    assert {n: (r.exit_code, r.stdout) for n, r in results.items()} == {
        number: (number, str(number).encode()) for number in range(32)
    }


async def row_35(box) -> None:
    """What was uploaded is somebody else's."""
    await box.files.write("/workspace/f", b"one\n")
    result = await box.sh("echo two >>f && chmod 600 f && [ -O f ] && cat f; echo new >g")
    assert result.stdout == b"one\ntwo\n"
    assert await box.files.read("/workspace/g") == b"new\n"
    await box.files.remove("/workspace/g")


async def row_41(box) -> None:
    """What was said before a timeout is lost."""
    result = await box.sh("printf early; sleep 30", timeout_seconds=0.5)
    assert (result.stdout, result.timed_out) == (b"early", True)


async def row_45(box) -> None:
    """Small timeouts, fractions or none are ignored or refused."""
    for timeout in (0.3, 1.2):
        started = time.monotonic()
        assert (await box.sh("sleep 60", timeout_seconds=timeout)).timed_out
        assert timeout <= time.monotonic() - started < timeout + 5
    assert (await box.sh("exit 0", timeout_seconds=None)).exit_code == 0
    for timeout in (0, -1):
        with pytest.raises(InvalidArgument):
            await box.sh("exit 0", timeout_seconds=timeout)


async def row_48(box) -> None:
    """A backslash in a guest's name becomes something else."""
    await box.files.write("/workspace/a\\b", b"x")
    assert [entry.name for entry in box.workspace.iterdir()] == ["a\\b"]


async def row_fifo(box) -> None:
    """A FIFO where a file is expected hangs the session (measured on SFTP)."""
    os.mkfifo(box.workspace / "fifo")
    with anyio.fail_after(5):
        for operation in (box.files.read, lambda path: box.files.write(path, b"x")):
            with pytest.raises(NotRegular):
                await operation("/workspace/fifo")


ROWS = {
    name.removeprefix("row_"): row
    for name, row in list(globals().items())
    if name.startswith("row_")
}


#: Rows that need more than a box, and where they are held. Of what there is not yet (mounts, forks
#: that share a clock, jobs to come back to, gates) and of Windows there are none: 27, 37, 42, 46, 48, 49.
ELSEWHERE = {
    "3": "tests/core/posix/test_exec.py::test_ex4_every_shape_of_tree_dies",
    "19": "tests/core/posix/test_loss.py::test_ex14_what_never_reached_the_target_has_no_effect",
    "20": "tests/core/sandbox/test_fence.py::test_lc2_a_stale_handle_is_refused_everywhere_and_touches_nothing",
    "21": "tests/core/posix/test_loss.py::test_ex14_a_target_that_goes_away_leaves_the_outcome_unknown",
    "30": "tests/providers/host/test_life.py::test_a_cancelled_create_leaves_nothing",
    "31": "tests/providers/host/test_life.py::test_the_controllers_end_leaves_nothing",
    "33": "tests/core/posix/test_probe.py::test_all_that_is_missing_is_named_at_once",
    "36": "tests/core/posix/test_tree.py::test_cp2_restore_gives_exactly_that_tree",
    "38": "tests/providers/docker/test_images.py::test_a_sandbox_keeps_the_image_that_its_tag_was_pinned_to",
    "40": "tests/providers/host/test_native.py::test_deny_has_no_names_and_no_way_out",
    "50": "tests/providers/host/test_life.py::test_an_error_in_the_body_is_the_one_that_comes_out_and_leaves_nothing",
    "51": "tests/conformance/test_lanes.py::test_a_mutant_dies_on_real_processes",
}  # fmt: skip


@pytest.mark.parametrize("row", ELSEWHERE)
def test_table_row_is_held_elsewhere(row) -> None:
    file, _, name = ELSEWHERE[row].partition("::")
    assert row not in ROWS
    text = (Path(__file__).parents[3] / file).read_text()
    assert f"def {name}(" in text, ELSEWHERE[row]


@pytest.mark.parametrize("row", ROWS)
async def test_table_row(box, row, caplog) -> None:
    await (ROWS[row](box, caplog) if row == "29" else ROWS[row](box))
