"""The commands of the toy language, as bodies of model processes (see `dialects._toy`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import attrs

from pinfold.errors import PinfoldError
from pinfold.provider import Features
from pinfold_conformance.adapters.toy._kernel import (
    Body,
    Child,
    Kernel,
    Pipe,
    Process,
    Room,
    Until,
    Wait,
)
from pinfold_conformance.adapters.toy._world import Dir, Fifo, File, Link, World, drop, put
from pinfold_conformance.dialects._base import QUESTION, How
from pinfold_conformance.dialects._toy import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Machine", "Shell", "start"]

Steps = Generator[Wait, None, int]
_BLOCK: Final = 65_536

#: What a model network calls the machine that the suite runs on.
HOST: Final = b"host.toy"


@attrs.define(kw_only=True)
class Machine:
    """What commands act on."""

    world: World
    kernel: Kernel
    network: bool
    features: Features
    uid: int = 1000


@attrs.define(kw_only=True)
class Shell:
    """The state of one shell, and its streams."""

    machine: Machine
    env: dict[str, str]
    cwd: PurePosixPath
    stdin: bytes
    stdout: Pipe
    stderr: Pipe
    umask: int = 0o022
    local: set[str] = attrs.field(factory=set)

    def path(self, word: bytes) -> PurePosixPath:
        """Return the absolute path that a word names."""
        return self.cwd / os.fsdecode(word)

    def complain(self, text: str) -> None:
        """Write a line to stderr."""
        self.stderr.put(text.encode() + b"\n")


class Exit(Exception):
    """A script ends with a code."""

    def __init__(self, code: int) -> None:
        self.code = code


def start(
    machine: Machine,
    shell: Shell,
    *,
    job: int,
    argv: Sequence[str] | None,
    script: str | None,
    session: int | None = None,
    parent: Process | None = None,
) -> Process:
    """Start a process with an argv or a script."""

    def make(process: Process) -> Body:
        if script is not None:
            return _run(shell, script, process)
        return _program(shell, tuple(argv or ()), process)

    return machine.kernel.spawn(make, job=job, session=session, parent=parent)


def _program(shell: Shell, argv: tuple[str, ...], process: Process) -> Steps:
    name, *rest = argv
    if name == "run" and rest:
        return (yield from _run(shell, rest[0], process))
    if name == "args":
        for arg in rest:
            yield from _write(shell.stdout, os.fsencode(arg) + b"\0")
        return 0
    if "/" in name:
        try:
            node = shell.machine.world.find(shell.path(os.fsencode(name))).node
        except PinfoldError:
            node = None
        if node is None:
            shell.complain(f"{name}: not found")
            return 127
        if not isinstance(node, File) or not node.mode & 0o100:
            shell.complain(f"{name}: not executable")
            return 126
        return (yield from _run(shell, node.data.decode("utf-8", "surrogateescape"), process))
    shell.complain(f"{name}: not found")
    return 127


def _run(shell: Shell, script: str, process: Process) -> Steps:
    code = 0
    try:
        for line in script.split("\n"):
            command, *words = line.split(" ")
            if not command or command == ":":
                continue
            action = COMMANDS.get(command)
            if action is None:
                shell.complain(f"{command}: not found")
                code = 127
                continue
            try:
                code = yield from action(shell, [decode(word) for word in words], process)
            except PinfoldError as exc:
                shell.complain(f"{command}: {exc.message}")
                code = 1
    except Exit as end:
        return end.code
    return code


def _write(pipe: Pipe, data: bytes) -> Steps:
    for begin in range(0, len(data), _BLOCK):
        while not pipe.has_room:
            yield Room(pipe)
        pipe.put(data[begin : begin + _BLOCK])
    return 0


Action = Callable[[Shell, list[bytes], Process], Steps]
COMMANDS: dict[str, Action] = {}


def command(function: Action) -> Action:
    """Register a command under its function's name."""
    COMMANDS[function.__name__.strip("_")] = function
    return function


def _at_once(function: Callable[[Shell, list[bytes], Process], int | None]) -> Action:
    """Register a command that takes no time."""

    def action(shell: Shell, words: list[bytes], process: Process) -> Steps:
        yield from ()
        return function(shell, words, process) or 0

    COMMANDS[function.__name__.strip("_")] = action
    return action


@command
def out(shell: Shell, words: list[bytes], process: Process) -> Steps:
    return (yield from _write(shell.stdout, words[0]))


@command
def err(shell: Shell, words: list[bytes], process: Process) -> Steps:
    return (yield from _write(shell.stderr, words[0]))


@command
def fill(shell: Shell, words: list[bytes], process: Process) -> Steps:
    pipe = shell.stderr if words[1] == b"stderr" else shell.stdout
    left, block = int(words[0]), b"x" * _BLOCK
    while left > 0:
        while not pipe.has_room:
            yield Room(pipe)
        pipe.put(block[: min(left, _BLOCK)])
        left -= _BLOCK
    return 0


@_at_once
def _exit(shell: Shell, words: list[bytes], process: Process) -> int:
    raise Exit(int(words[0]) % 256)


@command
def die(shell: Shell, words: list[bytes], process: Process) -> Steps:
    shell.machine.kernel.kill(process, int(words[0]))
    yield Until(shell.machine.kernel.now + 5)
    return 0


@command
def cat(shell: Shell, words: list[bytes], process: Process) -> Steps:
    return (yield from _write(shell.stdout, _take(shell)))


def _take(shell: Shell) -> bytes:
    data, shell.stdin = shell.stdin, b""
    return data


@_at_once
def _count(shell: Shell, words: list[bytes], process: Process) -> None:
    shell.stdout.put(b"%d\n" % len(_take(shell)))


@_at_once
def _keep(shell: Shell, words: list[bytes], process: Process) -> None:
    _store(shell, words[0], _take(shell))


@command
def sleep(shell: Shell, words: list[bytes], process: Process) -> Steps:
    yield Until(shell.machine.kernel.now + float(words[0]))
    return 0


@command
def spin(shell: Shell, words: list[bytes], process: Process) -> Steps:
    while True:
        yield Until(shell.machine.kernel.now + 0.01)


@command
def beat(shell: Shell, words: list[bytes], process: Process) -> Steps:
    while True:
        _store(shell, words[0], b"x", append=True)
        yield Until(shell.machine.kernel.now + float(words[1]))


@command
def wait_for(shell: Shell, words: list[bytes], process: Process) -> Steps:
    while not _there(shell, words[0]):
        yield Until(shell.machine.kernel.now + 0.01)
    return 0


def _there(shell: Shell, word: bytes) -> bool:
    try:
        return shell.machine.world.find(shell.path(word), follow=False).node is not None
    except PinfoldError:
        return False


def _store(shell: Shell, word: bytes, data: bytes, *, append: bool = False) -> None:
    place = shell.machine.world.find(shell.path(word))
    node = place.node
    if isinstance(node, File):
        if not append:
            node.data.clear()
        node.data += data
        node.touched()
    elif node is None:
        mode = 0o666 & ~shell.umask
        put(place.parent, place.name, File(data=bytearray(data), mode=mode))
    else:
        raise PinfoldError("no file")


@_at_once
def _save(shell: Shell, words: list[bytes], process: Process) -> None:
    _store(shell, words[0], words[1])


@_at_once
def _append(shell: Shell, words: list[bytes], process: Process) -> None:
    _store(shell, words[0], words[1], append=True)


@command
def load(shell: Shell, words: list[bytes], process: Process) -> Steps:
    node = shell.machine.world.find(shell.path(words[0])).node
    while isinstance(node, Fifo):  # nobody writes to it
        yield Until(shell.machine.kernel.now + 0.1)
    if not isinstance(node, File):
        raise PinfoldError("no such file")
    if not node.mode & 0o400:
        raise PinfoldError("permission denied")
    return (yield from _write(shell.stdout, bytes(node.data)))


@_at_once
def _exists(shell: Shell, words: list[bytes], process: Process) -> int:
    return 0 if _there(shell, words[0]) else 1


@_at_once
def _remove(shell: Shell, words: list[bytes], process: Process) -> None:
    if not _there(shell, words[0]):
        return
    place = shell.machine.world.find(shell.path(words[0]), follow=False)
    drop(place.parent, place.name)


@_at_once
def _mkdir(shell: Shell, words: list[bytes], process: Process) -> None:
    shell.machine.world.make_dirs(shell.path(words[0]))


@_at_once
def _rename(shell: Shell, words: list[bytes], process: Process) -> None:
    world = shell.machine.world
    source = world.find(shell.path(words[0]), follow=False)
    if source.node is None:
        raise PinfoldError("no such file")
    target = world.find(shell.path(words[1]), follow=False)
    if isinstance(target.node, Dir):
        put(target.node, source.name, source.node)
    else:
        put(target.parent, target.name, source.node)
    drop(source.parent, source.name)


@_at_once
def _link(shell: Shell, words: list[bytes], process: Process) -> None:
    if not shell.machine.features.symlinks:
        raise PinfoldError("no symbolic links here")
    place = shell.machine.world.find(shell.path(words[0]), follow=False)
    put(place.parent, place.name, Link(text=os.fsdecode(words[1])))


@_at_once
def _hardlink(shell: Shell, words: list[bytes], process: Process) -> None:
    world = shell.machine.world
    node = world.find(shell.path(words[1])).node
    if not isinstance(node, File):
        raise PinfoldError("no such file")
    place = world.find(shell.path(words[0]), follow=False)
    put(place.parent, place.name, node)


@_at_once
def _fifo(shell: Shell, words: list[bytes], process: Process) -> None:
    if not shell.machine.features.special_files:
        raise PinfoldError("no special files here")
    place = shell.machine.world.find(shell.path(words[0]), follow=False)
    put(place.parent, place.name, Fifo())


@_at_once
def _chmod(shell: Shell, words: list[bytes], process: Process) -> None:
    node = shell.machine.world.find(shell.path(words[0])).node
    if node is None:
        raise PinfoldError("no such file")
    node.mode = int(words[1], 8)


@_at_once
def _copy_times(shell: Shell, words: list[bytes], process: Process) -> None:
    node = shell.machine.world.find(shell.path(words[0])).node
    source = shell.machine.world.find(shell.path(words[1])).node
    if node is None or source is None:
        raise PinfoldError("no such file")
    node.mtime_ns = source.mtime_ns


@_at_once
def _env(shell: Shell, words: list[bytes], process: Process) -> None:
    for name, value in sorted(shell.env.items()):
        shell.stdout.put(os.fsencode(f"{name}={value}\n"))


@_at_once
def _var(shell: Shell, words: list[bytes], process: Process) -> None:
    shell.stdout.put(os.fsencode(shell.env.get(words[0].decode(), "")))


@_at_once
def _leak(shell: Shell, words: list[bytes], process: Process) -> None:
    shell.local |= {"variable", "function", "alias", "option"}
    shell.env["leaked_export"] = "1"
    shell.umask = 0o077
    shell.machine.world.make_dirs(shell.cwd / "leaked_cwd")
    shell.cwd /= "leaked_cwd"


@_at_once
def _leaked(shell: Shell, words: list[bytes], process: Process) -> None:
    found = sorted(shell.local)
    found += ["export"] if "leaked_export" in shell.env else []
    found += ["umask"] if shell.umask == 0o077 else []
    found += ["cwd"] if shell.cwd.name == "leaked_cwd" else []
    shell.stdout.put("".join(f"{name} " for name in found).encode())


@_at_once
def _pwd(shell: Shell, words: list[bytes], process: Process) -> None:
    shell.stdout.put(os.fsencode(f"{shell.cwd}\n"))


@_at_once
def _uid(shell: Shell, words: list[bytes], process: Process) -> None:
    shell.stdout.put(b"%d\n" % shell.machine.uid)


@_at_once
def _ignore_signals(shell: Shell, words: list[bytes], process: Process) -> None:
    process.ignores_polite = True


@command
def _start(shell: Shell, words: list[bytes], process: Process) -> Steps:
    script, how = words[0].decode("utf-8", "surrogateescape"), How(words[1].decode())
    closed = how not in (How.CHILD, How.HOLDING)
    inner = attrs.evolve(
        shell,
        env={} if how is How.CLEAN else dict(shell.env),
        stdin=shell.stdin if how is How.CHILD else b"",
        stdout=Pipe(read=False) if closed else shell.stdout,
        stderr=Pipe(read=False) if closed else shell.stderr,
        local=set(),
    )
    own_session = how in (How.SESSION, How.CLEAN)
    child = start(
        shell.machine,
        inner,
        job=process.job,
        argv=None,
        script=script,
        session=None if own_session else process.session,
        parent=process,
    )
    if how is How.CHILD:
        yield Child(child)
        return child.exit_code or 0
    return 0


@command
def swap(shell: Shell, words: list[bytes], process: Process) -> Steps:
    world = shell.machine.world
    while True:
        a = world.find(shell.path(words[0]), follow=False)
        b = world.find(shell.path(words[1]), follow=False)
        if a.node is not None and b.node is not None:
            put(a.parent, a.name, b.node)
            put(b.parent, b.name, a.node)
            _store(shell, words[2], b"x", append=True)
        # Not faster: whoever has little of a processor must be able to catch up with it.
        yield Until(shell.machine.kernel.now + 0.005)


@_at_once
def _connect(shell: Shell, words: list[bytes], process: Process) -> None:
    if not shell.machine.network:
        shell.stdout.put(b"refused\n")
        return
    try:
        if words[0] != HOST:  # the host's own loopback is not visible
            raise OSError
        kind = socket.SOCK_DGRAM if words[2] == b"udp" else socket.SOCK_STREAM
        with socket.socket(socket.AF_INET, kind) as caller:
            caller.settimeout(1)
            caller.connect(("127.0.0.1", int(words[1])))
            caller.send(QUESTION)
            caller.recv(512)
        shell.stdout.put(b"reached\n")
    except OSError:
        shell.stdout.put(b"refused\n")
