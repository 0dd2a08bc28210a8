"""What level native keeps out of reach, each with a control that shows it was there (SP-5, TR-1)."""

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from pinfold.errors import Unavailable
from pinfold_host import _boundary, _seccomp, provider
from tests.providers.host.support import (
    context,
    create,
    grows,
    heartbeat,
    out,
    pinned,
    run,
    sh,
    until,
    workspace,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("native")]

#: The attacks are small Python programs, run by an interpreter that is there inside.
PYTHON = next(filter(os.path.exists, ("/usr/bin/python3", "/usr/local/bin/python3")), "")


@pytest.fixture(scope="module", autouse=True)
def inner_python():
    """There is something to attack with."""
    if not PYTHON:
        pytest.skip("there is no python3 below /usr to attack with")


@pytest.fixture(params=["deny", "allow"])
def network(request):
    return request.param


@pytest.fixture
async def instance(anyio_backend, network, data_home):
    made = await create("native", network)
    yield made
    await made.destroy()


async def python(instance, program: str) -> str:
    """Run a program inside; return what it says."""
    result = await run(instance, PYTHON, "-c", program)
    assert result.exit_code == 0, result.stderr_text
    return result.stdout_text.strip()


# --- files -----------------------------------------------------------------------------------


async def test_only_named_system_folders_are_there(instance):
    """SP-5: nothing of /run, /var, /home, /root, /sys, /opt, /srv, /mnt, and no host socket."""
    allowed = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "proc", "sbin"}
    allowed |= {"tmp", "usr", "workspace"}
    seen = set((await out(instance, "ls -A /")).split())
    assert {"bin", "etc", "usr", "workspace"} <= seen <= allowed
    assert await out(instance, "find / -xdev -type s 2>/dev/null; true") == ""
    etc = set((await out(instance, "ls -A /etc")).split())
    assert etc <= {name.split("/")[0] for name in _boundary._ETC} | set(_boundary._MADE) | {
        "resolv.conf"
    }
    users = await out(instance, "cut -d: -f1 /etc/passwd")
    assert users.split() == ["root", "sandbox", "nobody"]


async def test_nothing_but_the_workspace_and_tmp_can_be_written(instance):
    """SP-5: nor can modes, owners or times of the system be changed, nor anything mounted."""
    script = """
    for place in / /usr /usr/bin /etc /dev /proc /bin /lib /dev/pts; do
        touch $place/x 2>/dev/null && echo touched $place; mkdir $place/d 2>/dev/null && echo made $place
    done
    for file in /etc/passwd /usr/bin/env; do
        { echo x >> $file; } 2>/dev/null && echo wrote $file
        chmod 777 $file 2>/dev/null && echo chmod $file; rm -f $file 2>/dev/null && echo rm $file
        mv $file $file.x 2>/dev/null && echo mv $file
    done
    touch /workspace/x /tmp/x /dev/shm/x && echo control
    """
    assert await out(instance, script) == "control\n"


@pytest.fixture
def canary(tmp_path):
    """A secret that only its owner may read, and, where this is root, one in /etc."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    places = [home / "canary"]
    if os.geteuid() == 0:
        places.append(Path(f"/etc/pinfold-canary-{os.getpid()}"))
    for place in places:
        place.touch(mode=0o600)
        place.write_text("canary")
    yield places
    for place in places:
        place.unlink()


async def test_secrets_of_the_host_cannot_be_read(instance, canary):
    """SP-5: a 0600 file in /etc and one in a home; by path, by link, by descriptor, by /proc."""
    for place in canary:
        assert place.read_text() == "canary", "control"
        (workspace(instance) / "link").unlink(missing_ok=True)
        (workspace(instance) / "link").symlink_to(place)
        script = f"""
        cat {place} link /proc/1/root{place} /proc/self/root{place} /proc/1/cwd{place} 2>/dev/null
        for up in .. ../.. ../../.. ../../../.. ../../../../..; do cat $up{place} 2>/dev/null; done
        for fd in /proc/1/fd/*; do cat $fd/{place.name} $fd$place 2>/dev/null; done
        find / -name {place.name} 2>/dev/null
        true
        """
        assert await out(instance, script) == ""


async def test_other_sandboxes_are_out_of_reach(instance, network):
    """SP-5: neither their files, nor their /tmp, nor their processes, nor their names."""
    other = await create("native", network, sandbox="sbx_other")
    try:
        await sh(other, f"echo theirs > /tmp/t; echo theirs > f; ({heartbeat('hb')}) & :")
        await grows(workspace(other) / "hb")
        script = f"cat /tmp/t; cat {workspace(other)}/f; ls {workspace(other)}; kill -9 -1; true"
        assert (await sh(instance, script)).stdout == b""
        assert other.ref.id not in await out(instance, "cat /proc/self/mountinfo | cut -d' ' -f5")
        await grows(workspace(other) / "hb")
        assert workspace(instance).stat().st_uid != workspace(other).stat().st_uid or os.geteuid()
    finally:
        await other.destroy()


async def test_tmp_lives_as_long_as_the_sandbox(instance):
    """Issue: a private /tmp, shared by all commands of one sandbox, also /dev/shm."""
    await sh(instance, "echo one > /tmp/f; echo two > /dev/shm/g; echo $HOME > /tmp/home")
    assert await out(instance, "cat /tmp/f /dev/shm/g /tmp/home") == "one\ntwo\n/tmp\n"
    assert await out(instance, "stat -c %a /tmp /dev/shm") == "1777\n1777\n"
    assert not os.access("/tmp/home", os.F_OK)


# --- users and processes -----------------------------------------------------------------------


def outside(mark: str) -> dict[str, str]:
    """What the host's /proc says of the process that has a mark in its environment."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                lines = (process / "status").read_text().splitlines()
                return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        except OSError:
            continue
    raise AssertionError("control: the process was not found from outside")


async def test_a_command_is_nobody_outside(instance):
    """Issue: uid 1000 inside; outside never root, no group, no capability, filtered, no new ones."""
    await sh(instance, "sleep 30 & :", env={"MARK": "of-this-test"})
    status = outside("MARK=of-this-test")
    uids, gids = set(status["Uid"].split()), set(status["Gid"].split())
    if os.geteuid() == 0:
        assert uids == gids == {str(workspace(instance).stat().st_uid)}
        assert int(uids.pop()) > 0x70000000
        assert status["Groups"].split() == []
    else:
        assert uids == {str(os.getuid())}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert (await out(instance, "id -u; id -g; id -G")).split() == ["1000", "1000", "1000"]


async def test_a_setuid_program_gives_nothing(instance):
    """No new privileges: neither the system's nor one that the guest makes."""
    script = "cp /usr/bin/id ./id; chmod 6755 ./id; ./id -u; ./id -g"
    assert await out(instance, script) == "1000\n1000\n"
    for name in ("su", "mount", "passwd"):
        script = f"command -v {name} >/dev/null || exit 0; {name} </dev/null >/dev/null 2>&1; true"
        await out(instance, script)


async def test_only_ones_own_processes_are_there(instance):
    """SP-5: an exec sees its own; the host's are neither seen nor hit by a signal."""
    pids = (await out(instance, "ls /proc | grep -E '^[0-9]+$'")).split()
    assert len(pids) <= 5
    pid = os.getpid()
    script = f"kill -0 {pid + 100_000} 2>/dev/null && echo seen; kill -9 -1; true"
    assert b"seen" not in (await sh(instance, script)).stdout
    assert await out(instance, "echo alive") == "alive\n"


async def test_the_init_of_an_exec_is_not_the_guests(instance):
    """It can be neither ended, traced nor read; its command line tells nothing of the host."""
    script = "kill -9 1; kill -TERM 1; kill -INT 1; kill -STOP 1; sleep 0.1; echo alive"
    assert await out(instance, script) == "alive\n"
    script = """
    for what in environ mem maps root/etc cwd/etc exe fd/0 fd/3 fd/4 stack syscall; do
        head -c 1 /proc/1/$what >/dev/null 2>&1 && echo read $what
        ls /proc/1/$what/ >/dev/null 2>&1 && echo listed $what
    done
    readlink /proc/1/exe /proc/1/cwd /proc/1/root
    tr -d '\\0 ' < /proc/1/cmdline; echo end
    """
    assert (await sh(instance, script)).stdout_text.strip() == "end"
    attach = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert await python(instance, attach) == "-1"


async def test_a_job_serves_on_loopback_to_later_commands(instance, network):
    """EX-8: background, and the commands of a sandbox share their network, also under deny."""
    serve = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "open('port', 'w').write(str(s.getsockname()[1]))\n"
        "while True: c, _ = s.accept(); c.sendall(b'hello'); c.close()"
    )
    assert (await sh(instance, f'{PYTHON} -c "{serve}" & :')).exit_code == 0
    port = workspace(instance) / "port"
    await until(lambda: port.exists() and port.read_text())
    call = (
        f"import socket; print(socket.create_connection(('127.0.0.1', {port.read_text()})).recv(9))"
    )
    assert await python(instance, call) == "b'hello'"


# --- network -----------------------------------------------------------------------------------


@contextmanager
def listener(family: int, kind: int, address: Any) -> Iterator[tuple[Any, list[bytes]]]:
    """A listener of the host's, and a way to see what reached it."""
    got: list[bytes] = []
    with socket.socket(family, kind) as server:
        server.bind(address)
        server.settimeout(0.1)
        stop = threading.Event()
        if kind != socket.SOCK_DGRAM:
            server.listen()

        def serve() -> None:
            while not stop.is_set():
                try:
                    if kind != socket.SOCK_DGRAM:
                        connection, _ = server.accept()
                        with closing(connection):
                            got.append(connection.recv(100))
                    else:
                        got.append(server.recv(100))
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname(), got
        finally:
            stop.set()
            thread.join()


def own_addresses() -> list[str]:
    """The addresses of this machine but loopback, so far as it has any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


SEND = """
import shutil
import socket
s = socket.socket({family}, {kind})
s.settimeout(2)
try:
    s.connect({address!r})
    s.sendall(b'{token}')
    print('sent')
except OSError as error:
    print('refused')
"""


async def reach(instance, family: int, kind: int, address, token: str) -> str:
    return await python(
        instance, SEND.format(family=family, kind=kind, address=address, token=token)
    )


def reach_from_here(family: int, kind: int, address, got: list[bytes]) -> None:
    """The control: whoever is on the host gets there."""
    with socket.socket(family, kind) as client:
        client.settimeout(2)
        client.connect(address)
        client.sendall(b"control")


INET = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM),
}


@pytest.mark.parametrize("name", INET)
async def test_deny_denies_and_allow_allows(instance, network, name):
    """TR-1: TCP and UDP, IPv4 and IPv6, to this machine's loopback and to its other addresses."""
    family, kind = INET[name]
    hosts = ["::1"] if family == socket.AF_INET6 else ["127.0.0.1", *own_addresses()]
    for host in hosts:
        with listener(family, kind, (host, 0)) as (address, got):
            reach_from_here(family, kind, address[:2], got)
            await until(lambda: b"control" in got)
            await reach(instance, family, kind, address[:2], "guest")
            if network == "allow":
                await until(lambda: b"guest" in got)
            else:
                reach_from_here(family, kind, address[:2], got)
                await until(lambda: got.count(b"control") == 2)
                assert b"guest" not in got


ASK_NAME = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2)
name = b''.join(bytes([len(part)]) + part for part in b'secret.leak.test'.split(b'.'))
try:
    s.connect({address!r})
    s.send(b'ID' + bytes.fromhex('01000001000000000000') + name + bytes.fromhex('0000010001'))
    print(socket.inet_ntoa(s.recv(512)[-4:]))
except OSError:
    print('no answer')
"""


@contextmanager
def name_server() -> Iterator[tuple[Any, list[bytes]]]:
    """A name server of the host's that knows every name, and the questions that came to it."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.1)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                with suppress(TimeoutError):
                    question, whom = server.recvfrom(512)
                    asked.append(question[12:-4])
                    head = question[:2] + bytes.fromhex("81800001000100000000")
                    answer = bytes.fromhex("c00c000100010000003c0004") + socket.inet_aton(NOWHERE)
                    server.sendto(head + question[12:] + answer, whom)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname(), asked
        finally:
            stop.set()
            thread.join()


NOWHERE = "192.0.2.7"


async def test_names_are_asked_for_where_the_network_is_allowed(instance, network):
    """TR-1: a question to a name server carries data out; under deny none arrives."""
    with name_server() as (address, asked):
        question = ASK_NAME.format(address=address)
        here = [sys.executable, "-c", question]
        said = await anyio.to_thread.run_sync(lambda: subprocess.check_output(here, text=True))
        assert said.strip() == NOWHERE, "control: who is on the host is answered"
        assert len(asked) == 1
        if network == "allow":
            assert await python(instance, question) == NOWHERE
        else:
            assert await python(instance, question) == "no answer"
            assert len(asked) == 1


async def test_deny_has_no_names_and_no_way_out(anyio_backend, data_home):
    """TR-1: no resolver answers, no route leads out, loopback is the only interface."""
    instance = await create("native", "deny")
    try:
        lookup = "import socket\ntry: print(socket.getaddrinfo('example.com', 80))\nexcept OSError: print('none')"
        assert await python(instance, lookup) == "none"
        assert await out(instance, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"
        assert await out(instance, "tail -n +2 /proc/net/route") == ""
        for host in ("192.0.2.1", "169.254.169.254", "10.0.2.2", "224.0.0.1"):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                said = await reach(instance, socket.AF_INET, kind, (host, 80), "x")
                assert said == "refused", host
    finally:
        await instance.destroy()


async def test_path_sockets_of_the_host_are_out_of_reach(instance, tmp_path):
    """SP-5: also one that the controller's group, or everybody, may use; under allow as well."""
    for mode in (0o660, 0o666):
        path = tmp_path / f"s{mode:o}"
        with listener(socket.AF_UNIX, socket.SOCK_STREAM, str(path)) as (address, got):
            path.chmod(mode)
            reach_from_here(socket.AF_UNIX, socket.SOCK_STREAM, address, got)
            await until(lambda: got == [b"control"])
            for place in (str(path), f"/proc/1/root{path}"):
                said = await reach(instance, socket.AF_UNIX, socket.SOCK_STREAM, place, "guest")
                assert said == "refused"
            assert got == [b"control"]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
async def test_abstract_sockets_of_the_host_are_out_of_reach(instance, kind):
    """Issue: they belong to a network namespace, or are kept apart by Landlock's scopes."""
    name = f"\0pinfold-test-{os.getpid()}"
    with listener(socket.AF_UNIX, kind, name) as (_, got):
        reach_from_here(socket.AF_UNIX, kind, name, got)
        await until(lambda: got == [b"control"])
        assert await reach(instance, socket.AF_UNIX, kind, name, "guest") == "refused"
        assert got == [b"control"]


async def test_commands_of_one_sandbox_share_their_own_abstract_sockets(instance):
    """EX-8: what keeps the host's away does not come between them."""
    serve = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\\\0mine'); s.listen(); "
        "open('up', 'w'); s.accept()[0].sendall(b'hello')"
    )
    await sh(instance, f'{PYTHON} -c "{serve}" & :')
    await until((workspace(instance) / "up").exists)
    call = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0mine'); print(s.recv(9))"
    )
    assert await python(instance, call) == "b'hello'"


# --- the filter --------------------------------------------------------------------------------

CALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall(*[ctypes.c_long(a) for a in {args}])
print(errno.errorcode[ctypes.get_errno()] if result == -1 else 'ok')
"""


async def attempt(instance, *args: int) -> str:
    return await python(instance, CALL.format(args=args))


def number_of(name: str) -> Any:
    column = list(_seccomp.MACHINES).index(os.uname().machine)
    return _seccomp._DENIED[name][column]


DENIED = [
    "add_key",
    "bpf",
    "chroot",
    "fsopen",
    "io_uring_setup",
    "kexec_load",
    "keyctl",
    "mount",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "process_vm_readv",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "settimeofday",
    "swapon",
    "syslog",
    "umount2",
    "userfaultfd",
]


async def test_calls_that_no_program_needs_are_denied(instance):
    """Issue: the filter is in force; a bad argument would tell another error where it is not."""
    said = {name: await attempt(instance, number_of(name), 0, 0, 0, 0, 0) for name in DENIED}
    assert said == dict.fromkeys(DENIED, "EPERM")


async def test_no_namespaces_can_be_made(instance):
    """Issue: neither by unshare nor by clone; clone3, whose flags no filter sees, isn't there."""
    for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x02000000):
        assert await attempt(instance, _seccomp._UNSHARE[_column()], flag) == "EPERM"
        assert await attempt(instance, _seccomp._CLONE[_column()], flag | 17, 0, 0, 0, 0) == "EPERM"
    assert await attempt(instance, _seccomp._CLONE3, 0, 0) == "ENOSYS"
    assert await attempt(instance, _seccomp._UNSHARE[_column()], 0x200) == "ok", "control: CLONE_FS"


def _column() -> int:
    return list(_seccomp.MACHINES).index(os.uname().machine)


@pytest.mark.parametrize("family", [17, 38, 40, 9, 21, 30, 44])
async def test_only_ordinary_sockets_can_be_made(instance, family):
    """Packets, kernel crypto, VM sockets (which no network namespace holds) and the like."""
    program = f"import socket\ntry: socket.socket({family}, 1); print('made')\nexcept OSError as e: print(e.errno)"
    assert await python(instance, program) == "97"


async def test_nothing_can_be_typed_into_a_terminal(instance):
    """TIOCSTI: a guest in a terminal is not to type what the person at it has not."""
    terminal = await instance.open_terminal()
    program = (
        f"{PYTHON} -c \"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')\" "
        "2>&1 | tail -1; exit\n"
    )
    await terminal.send(program.encode())
    assert b"Operation not permitted" in await _read_all(terminal)
    await terminal.aclose()


async def _read_all(terminal) -> bytes:
    import anyio

    data = b""
    with anyio.fail_after(10):
        while True:
            try:
                data += await terminal.receive()
            except anyio.EndOfStream:
                return data


class Machine:
    """Runs a classic BPF program over one system call, as the kernel does."""

    def __init__(self, program: bytes) -> None:
        self.code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]

    def run(self, arch: int, number: int, *args: int) -> Any:
        padded = (args + (0,) * 6)[:6]
        data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
        at = accumulator = 0
        while True:
            code, yes, no, k = self.code[at]
            at += 1
            if code == 0x20:
                accumulator = struct.unpack_from("=I", data, k)[0]
            elif code == 0x06:
                return k
            else:
                holds = {
                    0x15: accumulator == k,
                    0x45: accumulator & k != 0,
                    0x35: accumulator >= k,
                }[code]
                at += yes if holds else no


ALLOW, KILL = 0x7FFF0000, 0x80000000


@pytest.mark.parametrize("machine", _seccomp.MACHINES)
def test_the_filter_of_every_machine_decides_as_it_should(machine):
    """The programs of machines that this is not, run over every number."""
    arch = _seccomp.MACHINES[machine]
    column = list(_seccomp.MACHINES).index(machine)
    bpf = Machine(_seccomp.program(machine))
    denied = {numbers[column] for numbers in _seccomp._DENIED.values()} - {None}
    special = {
        table[column]
        for table in (_seccomp._CLONE, _seccomp._UNSHARE, _seccomp._SOCKET, _seccomp._IOCTL)
    }
    for number in range(600):
        verdict = bpf.run(arch, number)
        if number in denied:
            assert verdict == 0x50001, number
        elif number == 435:
            assert verdict == 0x50026
        elif number not in special:
            assert verdict == ALLOW, number
    other = next(value for value in _seccomp.MACHINES.values() if value != arch)
    assert bpf.run(other, 0) == KILL
    assert bpf.run(0x40000003, 0) == KILL, "i386"
    clone, unshare = _seccomp._CLONE[column], _seccomp._UNSHARE[column]
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert bpf.run(arch, clone, bit | 17) == 0x50001
        assert bpf.run(arch, unshare, bit) == 0x50001
    assert bpf.run(arch, unshare, 0x80) == 0x50001, "CLONE_NEWTIME"
    assert bpf.run(arch, clone, 0x003D0F00) == ALLOW, "a thread"
    socket_, ioctl = _seccomp._SOCKET[column], _seccomp._IOCTL[column]
    assert [f for f in range(64) if bpf.run(arch, socket_, f) == ALLOW] == [1, 2, 10, 16]
    assert bpf.run(arch, ioctl, 0, 0x5412) == bpf.run(arch, ioctl, 0, 0x541C) == 0x50001
    assert bpf.run(arch, ioctl, 0, 0x5401) == ALLOW
    assert bpf.run(arch, ioctl, 0, 0x5412 | 1 << 32) == 0x50001, "the kernel reads the low half"
    if machine == "x86_64":
        assert bpf.run(arch, 0x40000000 | 165) == 0x50026, "x32"


# --- where it can't be had ---------------------------------------------------------------------


@pytest.fixture
def unseen():
    """Looks at the machine are remembered; here they are made anew."""
    _boundary.missing.cache_clear()
    yield
    _boundary.missing.cache_clear()


async def test_without_bubblewrap_the_level_is_unavailable(anyio_backend, unseen, monkeypatch):
    """PR-4, RS-4: with the reason, and never another level in its place."""
    monkeypatch.setenv("PATH", "/nowhere")
    found = await provider.probe()
    assert found.available
    assert found.levels == ("none",)
    assert "bubblewrap" in found.details["native"]
    with pytest.raises(Unavailable, match="bubblewrap"):
        await provider.create(pinned("native"), context())


@pytest.fixture
def fake_bubblewrap(monkeypatch):
    """One that fails as the real one does where user namespaces are switched off."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # not in /tmp, which is covered
        fake = Path(name, "bwrap")
        fake.write_text(
            "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"
        )
        fake.chmod(0o755)
        fake.parent.chmod(0o755)
        monkeypatch.setenv("PATH", f"{name}:{os.environ['PATH']}")
        yield


@pytest.mark.usefixtures("unseen", "fake_bubblewrap")
async def test_where_it_does_not_work_the_reason_is_its_own(anyio_backend, data_home):
    """PR-4: user namespaces may be switched off; what bubblewrap says is passed on."""
    found = await provider.probe()
    assert found.levels == ("none",)
    assert "No permissions to create a new namespace" in found.details["native"]
    with pytest.raises(Unavailable, match="No permissions to create"):
        await provider.create(pinned("native"), context())
    assert [path for path in data_home.rglob("*") if path.is_file()] == []


async def test_without_a_way_to_keep_abstract_sockets_apart_allow_is_refused(
    anyio_backend, monkeypatch
):
    """Issue: then `allow` at native is refused with the reason; deny works."""
    monkeypatch.setattr(_boundary, "can_scope_abstract_sockets", lambda: False)
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "slirp" in name else real(name))
    with pytest.raises(Unavailable, match="abstract sockets"):
        await provider.create(pinned("native", "allow"), context())
    with pytest.raises(Unavailable, match="abstract sockets"):
        await provider.pin(pinned("native", "allow").spec, context())
    found = await provider.probe()
    assert "abstract sockets" in found.details["network_allow"]
    instance = await create("native", "deny")
    assert await out(instance, "echo works") == "works\n"
    await instance.destroy()


async def test_allow_by_a_network_of_its_own(anyio_backend, monkeypatch):
    """Issue: slirp4netns, where Landlock can't: the network is there, the host's loopback not."""
    if shutil.which("slirp4netns") is None:
        pytest.skip("slirp4netns is not installed")
    monkeypatch.setattr(_boundary, "can_scope_abstract_sockets", lambda: False)
    instance = await create("native", "allow")
    try:
        devices = await out(instance, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
        assert sorted(devices.split()) == ["lo", "tap0"]
        assert await out(instance, "cat /etc/resolv.conf") == "nameserver 10.0.2.3\n"
        for host in own_addresses():
            with listener(*INET["tcp"], (host, 0)) as (address, got):
                await reach(instance, *INET["tcp"], address, "guest")
                await until(lambda: b"guest" in got)
        with listener(*INET["tcp"], ("127.0.0.1", 0)) as (address, got):
            for host in ("127.0.0.1", "10.0.2.2"):
                said = await reach(instance, *INET["tcp"], (host, address[1]), "guest")
                assert said == "refused" or got == []
            assert got == []
        name = f"\0pinfold-test-{os.getpid()}"
        with listener(socket.AF_UNIX, socket.SOCK_STREAM, name) as (_, got):
            said = await reach(instance, socket.AF_UNIX, socket.SOCK_STREAM, name, "guest")
            assert said == "refused"
    finally:
        await instance.destroy()


async def test_the_pin_says_how_the_network_is_had(anyio_backend):
    """RS-3: recovery uses the same way, or fails."""
    pins = await provider.pin(pinned("native", "allow").spec, context())
    assert pins.pins["network"] in {"landlock", "slirp4netns"}
    assert "system" in pins.unpinned
    pins = await provider.pin(pinned("native", "deny").spec, context())
    assert pins.pins["network"] == "none"


async def test_modes_of_the_instances_folder(anyio_backend):
    """SP-5: no other user of the machine comes near a workspace, nor a setuid file in it."""
    instance = await create("native")
    try:
        folder = workspace(instance).parent
        assert stat.S_IMODE(folder.stat().st_mode) & 0o007 == 0
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    finally:
        await instance.destroy()
