"""The engine's exec as a place where processes are spawned: exact, whole, and told apart."""

from functools import partial
from pathlib import PurePosixPath

import anyio
import pytest

from pinfold.errors import Effect, Lost, Unavailable, Unreachable
from pinfold.provider import ExecRequest, TerminalSize
from pinfold_docker import DockerProvider
from pinfold_docker._guest import DockerGuest
from tests.providers.docker.support import box as make_box
from tests.providers.docker.support import eventually, sh

pytestmark = pytest.mark.anyio

ROOT = PurePosixPath("/")
MIB = 1024 * 1024


@pytest.fixture
def guest(box) -> DockerGuest:
    return DockerGuest(box.engine, box.ref.id)


async def rest(stream) -> bytes:
    pieces = []
    try:
        while True:
            pieces.append(await stream.receive())
    except anyio.EndOfStream:
        return b"".join(pieces)


async def run(guest, *argv, stdin=b"", env=None, cwd=ROOT):
    process = await guest.spawn(argv, env or {}, cwd)
    found = {}

    async def collect(name: str) -> None:
        found[name] = await rest(getattr(process, name))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect, "stdout")
            tasks.start_soon(collect, "stderr")
            await process.stdin.send(stdin)
            await process.stdin.aclose()
        return await process.wait(), found["stdout"], found["stderr"]
    finally:
        await process.aclose()


async def test_streams_are_apart_and_the_exit_code_is_the_programs(guest):
    done = await run(guest, "sh", "-c", "echo o; echo e >&2; exit 7")
    assert done == (7, b"o\n", b"e\n")


@pytest.mark.parametrize("code", [0, 1, 124, 125, 126, 127, 128, 137, 255])
async def test_a_doubtful_code_is_believed_while_the_container_runs(guest, code):
    assert (await run(guest, "sh", "-c", f"exit {code}"))[0] == code


async def test_stdin_ends_when_it_is_closed(guest):
    """The half-close of one direction; the other goes on."""
    data = bytes(range(256)) * 4 * 1024
    code, out, _ = await run(guest, "sh", "-c", "cat; echo end", stdin=data)
    assert (code, out) == (0, data + b"end\n")


async def test_argv_env_and_cwd_arrive(guest):
    words = ("a b", "", "-n", "$(x)", "'\"", "\n", "é", "\udcff")
    _, out, _ = await run(
        guest, "sh", "-c", 'printf "%s|" "$@" "$A" "$PWD"', "sh", *words,
        env={"A": "x=y \udcfe"}, cwd=PurePosixPath("/workspace"),
    )  # fmt: skip
    assert out.decode("utf-8", "surrogateescape") == "|".join((*words, "x=y \udcfe", "/workspace|"))


async def test_an_engine_is_not_asked_how_a_command_ended_that_has_told_it(provider, monkeypatch):
    """It costs a tenth of the exec. A program of ours is waited for, and the engine asked once."""
    asked: list[str] = []
    honest = DockerGuest.exit_code

    async def counted(self, exec_id, *, broken):
        asked.append(exec_id)
        return await honest(self, exec_id, broken=broken)

    async with make_box(provider, helper="never") as box:
        monkeypatch.setattr(DockerGuest, "exit_code", counted)
        result = await box.exec(ExecRequest(argv=["sh", "-c", "exit 3"]))
        assert result.exit_code == 3
        assert asked == []
        await box.files.write("/workspace/f", b"x")
        assert await box.files.read("/workspace/f") == b"x"
    assert len(asked) == len(set(asked)) == 2


async def test_what_a_probe_found_holds_for_fresh_containers_of_the_same_make(monkeypatch):
    """A probe takes as long as an exec. What has run may have spoilt its tools: it is probed anew."""
    started: list[str] = []
    honest = DockerGuest.spawn

    async def counted(self, argv, env, cwd):
        started.append(argv[0])
        return await honest(self, argv, env, cwd)

    monkeypatch.setattr(DockerGuest, "spawn", counted)
    by_shell = partial(make_box, DockerProvider(), helper="never")
    async with by_shell() as first, by_shell() as second:
        assert len(started) == 1
        assert first.features == second.features
        assert first.details == second.details
        assert first.found.tools.control != second.found.tools.control
        await second.files.write_many({"/workspace/a": b"a", "/workspace/b": b"b"})
        found = await second.files.read_many(["/workspace/a", "/workspace/b"])  # uses our folder
        assert found == [b"a", b"b"]
        assert (await second.exec(ExecRequest(argv=("echo", "x")))).stdout == b"x\n"
        async with by_shell(roots=("/more",)) as other:
            assert other.found.layout.names == (PurePosixPath("/more"),)
        before = len(started)
        await second.pause()
        await second.resume()
        assert len(started) == before + 1


async def test_a_program_that_the_runtime_cannot_start_is_no_result(guest):
    """Measured: the engine then says exit code 126, and its own words on stdout."""
    with pytest.raises(Unavailable) as caught:
        await run(guest, "/no/such/program")
    assert caught.value.effect is Effect.NONE


async def test_output_of_a_reader_that_comes_late_is_whole(guest):
    """An engine drops the tail of what nobody reads for two seconds, and says exit 0.

    Where that begins depends on its buffers: measured, at about 1.3 MB. With the guard switched off
    some of these lose up to 100 KiB.
    """

    async def late(size: int) -> None:
        process = await guest.spawn(["head", "-c", str(size), "/dev/zero"], {}, ROOT)
        try:
            await process.stdin.aclose()
            await anyio.sleep(4)  # this is what is tested: being late
            assert len(await rest(process.stdout)) == size
            assert await process.wait() == 0
        finally:
            await process.aclose()

    async with anyio.create_task_group() as tasks:
        for size in range(1_270_000, 1_400_000, 15_000):
            tasks.start_soon(late, size)


async def test_a_reader_that_stands_still_slows_the_command_down(guest, box):
    """EX-15: what is read ahead is bounded, in bytes and in time."""
    process = await guest.spawn(
        ["sh", "-c", "head -c 64000000 /dev/zero; : >/tmp/all-written"], {}, ROOT
    )
    try:
        with anyio.move_on_after(1.5):
            await process.wait()
        assert (await sh(box, "test -e /tmp/all-written")).exit_code == 1
        assert len(await rest(process.stdout)) == 64000000
        assert await process.wait() == 0
    finally:
        await process.aclose()


async def test_killing_reaches_all_that_carries_the_cookie(guest, box):
    env = {"PINFOLD_TASK": "cookie-of-this-test"}
    process = await guest.spawn(["sh", "-c", "setsid sleep 987 & sleep 987"], env, ROOT)
    found = "grep -al 'slee[p].987' /proc/[0-9]*/cmdline"  # which is not found itself

    async def both() -> bool:
        return (await sh(box, found)).stdout.count(b"\n") >= 2

    try:
        await eventually(both)
        await process.signal(9)
        assert await process.wait() == 137
    finally:
        await process.aclose()
    assert (await sh(box, found)).stdout == b""


async def test_killing_reaches_what_has_hardly_begun(guest, box):
    """The engine gives the stream of an exec before its process is there."""
    for _ in range(10):
        env = {"PINFOLD_TASK": "cookie-of-the-hasty"}
        process = await guest.spawn(["sh", "-c", "sleep 986 & sleep 986"], env, ROOT)
        try:
            await process.signal(9)
            with anyio.fail_after(30):
                assert await process.wait() == 137
        finally:
            await process.aclose()
    assert (await sh(box, "grep -al 'slee[p].986' /proc/[0-9]*/cmdline")).stdout == b""


@pytest.mark.parametrize("way", ["kill", "remove"])
async def test_a_container_that_goes_away_is_no_exit_code(client, provider, way):
    """Its end looks like 137: the container is asked before that is believed."""
    async with make_box(provider) as box:
        guest = DockerGuest(box.engine, box.ref.id)
        process = await guest.spawn(["sleep", "60"], {}, ROOT)
        container = client.containers.get(box.ref.id)
        if way == "kill":
            container.kill()
        else:
            container.remove(force=True)
        with pytest.raises((Lost, Unreachable)) as caught:
            await process.wait()
        assert caught.value.effect is Effect.UNKNOWN
        assert isinstance(caught.value, Lost) == (way == "remove")
        await process.aclose()
        with pytest.raises(Unavailable) as caught:
            await guest.spawn(["true"], {}, ROOT)
        assert caught.value.effect is Effect.NONE
        assert isinstance(caught.value, Lost) == (way == "remove")


async def all_until(terminal, mark: bytes) -> bytes:
    data = b""
    with anyio.fail_after(10):
        while mark not in data:
            data += await terminal.receive()
    return data


async def test_a_terminal_is_one_with_a_size_that_changes(guest):
    terminal = await guest.open_terminal(["sh"], {"PS1": "> "}, ROOT, TerminalSize(30, 90))
    await terminal.send(b"test -t 0 && stty size; echo do''ne\n")
    assert b"30 90\r\n" in await all_until(terminal, b"done\r\n")
    await terminal.resize(TerminalSize(40, 120))
    await terminal.send(b"stty size; echo do''ne\n")
    assert b"40 120\r\n" in await all_until(terminal, b"done\r\n")
    await terminal.send(b"exit 5\n")
    assert await terminal.wait() == 5
    with pytest.raises(anyio.EndOfStream):
        await terminal.receive()
    await terminal.aclose()


async def test_closing_a_terminal_ends_the_shell_and_what_is_in_front(guest, box):
    terminal = await guest.open_terminal(["sh"], {}, ROOT, TerminalSize())
    await terminal.send(b"echo ready; sleep 976\n")
    await all_until(terminal, b"ready\r\n")
    found = "grep -al 'slee[p].976' /proc/[0-9]*/cmdline"

    async def is_there() -> bool:
        return (await sh(box, found)).stdout != b""

    async def is_gone() -> bool:
        return not await is_there()

    await eventually(is_there)
    await terminal.aclose()
    await terminal.aclose()
    await eventually(is_gone)
    with pytest.raises(anyio.BrokenResourceError):
        await terminal.send(b"x")
