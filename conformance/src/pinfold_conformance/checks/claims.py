"""Claims, both ways: what is claimed works, what is denied does not (TR-1)."""

from __future__ import annotations

import anyio

from pinfold.errors import Unimplemented
from pinfold.provider import (
    Endpoint,
    ExecRequest,
    ExecResult,
    Ports,
    RestorePlan,
    Terminals,
    TerminalSize,
)
from pinfold_conformance._case import Case
from pinfold_conformance._elf import PROGRAMS
from pinfold_conformance._expect import Inconclusive, equal, expect_raises, fail, require
from pinfold_conformance._forms import typed
from pinfold_conformance._guard import blamed
from pinfold_conformance._registry import Kind, check
from pinfold_conformance.checks._trees import plan, tree


async def _native(case: Case) -> list[str]:
    """Return the machines whose native program ran."""
    scratch, ran = await case.scratch(), []
    for machine, program in PROGRAMS.items():
        path = scratch / f"probe-{machine}"
        if case.features.modes:
            await case.files.write(path, program, mode=0o755)
        else:
            await case.files.write(path, program)
            await case.sh(case.dialect.chmod(path.name, 0o755), cwd=scratch)
        result = await case.run(f"./{path.name}", cwd=scratch)
        if (result.exit_code, result.stdout) == (0, b"native\n"):
            ran.append(machine)
    equal((await case.sh(case.dialect.out(b"x"))).stdout, b"x", "a command beside")
    return ran


@check("TR-1.native-processes", needs={"exec", "cap:native_processes"}, kind=Kind.CLAIM)
async def native_processes(case: Case) -> None:
    """native_processes: a native program, 160 bytes of machine code, runs as a process."""
    ran = await _native(case)
    case.evidence["ran"] = ran
    require(ran, f"native_processes is claimed, but no native program of {list(PROGRAMS)} runs")


@check("TR-1.native-processes-absent", needs={"exec", "!cap:native_processes"}, kind=Kind.CLAIM)
async def native_processes_absent(case: Case) -> None:
    """Without native_processes a native program does not run."""
    if ran := await _native(case):
        case.underclaimed(f"a native program for {ran[0]} runs though native_processes is denied")


@check("TR-1.packages", needs={"exec", "cap:packages"}, kind=Kind.CLAIM)
async def packages(case: Case) -> None:
    """packages: there is a package manager, and it could write where packages go."""
    result = await case.sh(case.dialect.packages())
    equal(result.stdout.strip(), b"yes", "a package manager with the right to install")


@check("TR-1.packages-absent", needs={"exec", "!cap:packages"}, kind=Kind.CLAIM)
async def packages_absent(case: Case) -> None:
    """Without packages nothing can be installed: no package manager, or no right to write."""
    result = await case.sh(case.dialect.packages())
    answer = result.stdout.strip()
    require(answer in (b"yes", b"no"), f"the guest does not answer: {answer!r}")
    if answer == b"yes":
        case.underclaimed("system packages could be installed though packages is denied")


@check("TR-1.portable-checkpoint", needs={"cap:portable_checkpoint"}, kind=Kind.CLAIM)
async def portable_checkpoint(case: Case) -> None:
    """portable_checkpoint: a scan tells of a file just written, with its contents."""
    scratch = await case.scratch()
    await case.files.write(scratch / "file", b"in the tree")
    scan = await case.instance.tree.scan()
    entries = [e for e in scan.entries if e.path == f"{scratch.name}/file"]
    equal(len(entries), 1, "entries of a file that was just written")
    data = b"".join([blob.data async for blob in case.instance.tree.read(entries)])
    equal(data, b"in the tree", "its contents")


@check("TR-1.portable-checkpoint-absent", needs={"!cap:portable_checkpoint"}, kind=Kind.CLAIM)
async def portable_checkpoint_absent(case: Case) -> None:
    """Without portable_checkpoint scan and restore are unimplemented, and nothing changes."""
    path = await case.scratch() / "file"
    await case.files.write(path, b"1")
    with expect_raises(Unimplemented, what="scan without portable_checkpoint"):
        await case.instance.tree.scan()
    wanted: RestorePlan = plan(tree({"x": b"2"}))
    with expect_raises(Unimplemented, what="restore without portable_checkpoint"):
        await case.instance.tree.restore(wanted)
    equal(await case.files.read(path), b"1", "the file")


@check("TR-1.ports", needs={"exec", "cap:ports"}, kind=Kind.CLAIM, deadline_s=60)
async def ports(case: Case) -> None:
    """ports: a server inside is reached from outside through expose."""
    inner = case.inner
    if not isinstance(inner, Ports):
        fail("the capability ports is claimed, but the instance is not Ports (PR-7)")
        return
    greeting, port = case.name("hello-").encode(), case.random.randint(20_000, 60_000)
    told: list[bytes] = []

    async def serve() -> None:
        result = await case.sh(case.dialect.listen(port, greeting), timeout=50)
        told.append(result.stdout)

    async def reached() -> bool:
        if any(b"no tool" in text for text in told):
            raise Inconclusive("the guest has no tool to serve a port with")
        try:
            with anyio.fail_after(2):
                async with await anyio.connect_tcp(host.strip("[]"), int(outside)) as stream:
                    return await stream.receive() == greeting
        except (OSError, TimeoutError, anyio.EndOfStream):
            return False

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        with blamed("expose"):
            endpoint = typed("the result of expose", await inner.expose(port), Endpoint)
            again = typed("the result of expose", await inner.expose(port), Endpoint)
        equal(again.url, endpoint.url, "expose of the same port again")
        scheme, _, address = endpoint.url.partition("://")
        host, _, outside = address.rstrip("/").rpartition(":")
        if scheme != "tcp":
            raise Inconclusive(f"this suite speaks tcp, the endpoint is {endpoint.url}")
        case.evidence["url"] = endpoint.url
        await case.until(reached, "the server inside greets a caller from outside", within=20)
        group.cancel_scope.cancel()


@check("TR-1.ports-absent", needs={"!cap:ports"}, kind=Kind.CLAIM)
async def ports_absent(case: Case) -> None:
    """Without ports the instance has no expose."""
    require(not isinstance(case.inner, Ports), "Ports without the capability ports (PR-7)")
    path = await case.scratch() / "file"
    await case.files.write(path, b"1")
    equal(await case.files.read(path), b"1", "a file of it")


async def _read_until(terminal: object, wanted: bytes) -> bytes:
    from pinfold.provider import Terminal

    data = b""
    if not isinstance(terminal, Terminal):
        fail(f"open_terminal returned {terminal!r}")
        return data
    with anyio.move_on_after(10):
        while wanted not in data:
            data += await terminal.receive()
    return data


@check("TR-1.pty", needs={"exec", "cap:pty", "pty"}, kind=Kind.CLAIM, deadline_s=60)
async def pty(case: Case) -> None:
    """pty: commands see a terminal, what is typed arrives, sizes change, the exit code is told."""
    inner = case.inner
    if not isinstance(inner, Terminals):
        fail("the capability pty is claimed, but the instance is not Terminals (PR-7)")
        return
    d = case.dialect
    request = ExecRequest(shell=d.seq(d.is_tty(), d.exit(7)))
    terminal = await inner.open_terminal(request, TerminalSize(24, 80))
    data = await _read_until(terminal, b"tty")
    require(b"tty" in data and b"no tty" not in data, f"the command saw no terminal: {data!r}")
    with anyio.fail_after(10):
        equal(await terminal.wait(), 7, "the exit code of a terminal's command")
    await terminal.aclose()
    terminal = await inner.open_terminal()
    await terminal.resize(TerminalSize(50, 132))
    await terminal.send(b"echo ty''ped\n")
    require(b"typed" in await _read_until(terminal, b"typed"), "what is typed does not arrive")
    await terminal.aclose()
    await terminal.aclose()
    plain = await case.sh(d.is_tty())
    equal(plain.stdout.strip(), b"no tty", "an exec beside, which has no terminal")


@check("TR-1.pty-absent", needs={"exec", "!cap:pty", "!pty"}, kind=Kind.CLAIM)
async def pty_absent(case: Case) -> None:
    """Without pty there is no open_terminal, and no command sees a terminal."""
    require(not isinstance(case.inner, Terminals), "Terminals without the capability pty (PR-7)")
    result: ExecResult = await case.sh(case.dialect.is_tty())
    equal(result.stdout.strip(), b"no tty", "what a command sees as stdin")


@check("EX-2.signals-absent", needs={"exec", "!signals"}, kind=Kind.CLAIM)
async def signals_absent(case: Case) -> None:
    """Without signals a killed command is 128+n and signal is null."""
    result = await case.sh(case.dialect.out(b"x"), case.dialect.die(9))
    equal((result.exit_code, result.signal), (137, None), "a death by signal 9")
    equal(result.stdout, b"x", "stdout so far")


@check("TR-1.exec-absent", needs={"!exec"}, kind=Kind.CLAIM)
async def exec_absent(case: Case) -> None:
    """Without a target exec is unimplemented; files work."""
    with expect_raises(Unimplemented, what="exec without a target"):
        await case.run("true")
    path = await case.scratch() / "file"
    await case.files.write(path, b"1")
    equal(await case.files.read(path), b"1", "a file")
