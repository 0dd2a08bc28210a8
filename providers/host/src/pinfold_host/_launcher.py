"""Starts commands inside one native sandbox: a program of its own, not imported by the provider.

The provider runs this file once per sandbox (`python -I -S _launcher.py FD`) and talks to it over
a SOCK_SEQPACKET socket. Three kinds of process come of it::

    launcher   drops to an unprivileged uid where the controller is root; starts bubblewrap, which
      |        builds the boundary (namespaces, mounts) and holds it; then enters that boundary
    server     inside the sandbox's pid namespace; answers one request per exec
      |
    init       pid 1 of an exec's own pid namespace: mounts its /proc, forks the command, passes on
      |        its wait status, reaps what the command leaves, and ends with the last of it
    command    without capabilities, under the seccomp filter, as uid 1000

A background job so lives on after its exec, and to kill `init` is to kill the exec's whole tree,
by the kernel's guarantee. When the controller goes, however it goes, the socket ends, the server
ends, and the launcher takes the outer pid namespace down.

Only the standard library is used, and all of it is imported up front: once inside, the
interpreter's own folders are out of sight.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pty
import resource
import select
import signal
import socket
import stat
import struct
import sys
import termios
from typing import Any, NamedTuple, NoReturn

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_CLONE_PIDFD = 0x00001000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_NS_GET_USERNS = 0xB701
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_CLOSE_RANGE = 436
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_RESTRICT_SELF = 444, 446
_CLOSE_RANGE_CLOEXEC = 4
_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, _LANDLOCK_SCOPE_SIGNAL = 1, 2

# PyDLL keeps the interpreter locked, so that a raw clone finds it in order in the child.
_libc = ctypes.PyDLL(None, use_errno=True)


def _long(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _checked(what: str, result: int) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(what: str, number: int, *args: Any) -> int:
    return _checked(what, _libc.syscall(*map(_long, (number, *args))))


def _prctl(what: str, *args: Any) -> None:
    padded = (*args, 0, 0, 0, 0)[:5]
    _checked(what, _libc.prctl(*map(_long, padded)))


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int) -> None:
    what = f"mount on {os.fsdecode(target)}"
    _checked(what, _libc.mount(source, target, kind, ctypes.c_ulong(flags), None))


def main() -> None:
    """Build the sandbox, serve it, and take it down when the controller is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(control.recv(1 << 20))
    _hide_own_arguments()
    try:
        if config["uid"] is not None:
            _leave_mounts()
            if config["slirp"] is not None:
                _lend_tun(config["uid"])
            _become(config["uid"], os.fsencode(config["folder"]), os.fsencode(config["seen_at"]))
        monitor, first, leash = _start_bubblewrap(config["bwrap"])
        spaces = {
            name: os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
        }
        owner: int = fcntl.ioctl(spaces["mnt"], _NS_GET_USERNS)
        helper = _start_helper(config["slirp"], owner, spaces["net"])
        _enter(owner, spaces)
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    server = os.fork()
    if server == 0:
        inner = None if os.path.sameopenfile(owner, spaces["user"]) else spaces["user"]
        _serve(control, inner, config)
    control.close()
    os.waitpid(server, 0)
    os.kill(first, signal.SIGKILL)  # the outer pid namespace, and all that is in it
    for child in filter(None, (monitor, helper)):
        if child == helper:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(leash)


def _hide_own_arguments() -> None:
    """Blank the command line: /proc/1/cmdline would show a guest where this file lives."""
    with open("/proc/self/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)


def _leave_mounts() -> None:
    """Take a mount namespace of our own: what is mounted from here on, nobody else sees."""
    _checked("unshare", _libc.unshare(_CLONE_NEWNS))
    _mount(None, b"/", None, _MS_REC | _MS_PRIVATE)


def _lend_tun(uid: int) -> None:
    """Let slirp4netns open /dev/net/tun without root: by a node in this mount namespace alone.

    The device is open to all on most systems: its users are told apart by their namespaces.
    """
    device = os.stat("/dev/net/tun")
    if device.st_mode & 0o006 != 0o006:
        _mount(b"tmpfs", b"/dev/net", b"tmpfs", _MS_NOSUID | _MS_NOEXEC)
        os.mknod("/dev/net/tun", stat.S_IFCHR | 0o600, device.st_rdev)
        os.chown("/dev/net/tun", uid, uid)


def _become(uid: int, folder: bytes, seen_at: bytes) -> None:
    """Give up root for good, keeping one folder within reach though root alone could get there."""
    _mount(folder, seen_at, None, _MS_BIND)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _start_bubblewrap(argv: list[str]) -> tuple[int, int, int]:
    """Return the monitor's pid, that of pid 1 inside, and a descriptor whose end ends it."""
    status_in, status_out = os.pipe()
    ready_in, ready_out = os.pipe()
    leash_in, leash_out = os.pipe()
    complaints = os.memfd_create("complaints")
    for fd in (status_out, ready_out):
        os.set_inheritable(fd, True)
    argv = [
        *(argv[0], "--json-status-fd", str(status_out), *argv[1:], "--"),
        *("/bin/sh", "-c", f"echo >&{ready_out}; exec {ready_out}>&- {status_out}>&-; read _"),
    ]
    actions = [
        (os.POSIX_SPAWN_DUP2, leash_in, 0),
        (os.POSIX_SPAWN_DUP2, complaints, 1),
        (os.POSIX_SPAWN_DUP2, complaints, 2),
    ]
    monitor = os.posix_spawn(argv[0], argv, {}, file_actions=actions)
    for fd in (status_out, ready_out, leash_in):
        os.close(fd)
    ready = os.read(ready_in, 1)
    status = os.read(status_in, 4096) if ready else b""
    os.close(ready_in)
    os.close(status_in)
    if not ready:
        os.waitpid(monitor, 0)
        said = os.pread(complaints, 4096, 0).decode(errors="replace").strip()
        raise OSError(errno.EPERM, said or "bubblewrap ended without a word")
    os.close(complaints)
    return monitor, json.loads(status.splitlines()[0])["child-pid"], leash_out


def _start_helper(argv: list[str] | None, user: int, net: int) -> int | None:
    """Give the network namespace a way out, where it is to have one (slirp4netns)."""
    if argv is None:
        return None
    ready_in, ready_out = os.pipe()
    life_in, _ = os.pipe()  # its other end is this process's, and ends with it
    for fd in (ready_out, life_in, user, net):
        os.set_inheritable(fd, True)
    words = {
        "{user}": f"/proc/self/fd/{user}",
        "{net}": f"/proc/self/fd/{net}",
        "{ready}": str(ready_out),
        "{life}": str(life_in),
    }
    argv = [words.get(word, word) for word in argv]
    helper = os.posix_spawn(argv[0], argv, {})
    os.close(ready_out)
    os.close(life_in)
    ready = os.read(ready_in, 1)
    os.close(ready_in)
    if not ready:
        os.waitpid(helper, 0)
        raise OSError(errno.ENETDOWN, "slirp4netns could not set the network up")
    return helper


def _enter(owner: int, spaces: dict[str, int]) -> None:
    _checked("setns user", _libc.setns(owner, 0))
    for name in ("net", "ipc", "uts", "cgroup", "pid", "mnt"):
        # What is shared with the host needs no entering, and would not be allowed.
        if not os.path.samestat(os.fstat(spaces[name]), os.stat(f"/proc/self/ns/{name}")):
            _checked(f"setns {name}", _libc.setns(spaces[name], 0))
    os.chdir("/")
    # What of this program a guest can see (its init) is not the guest's to trace or read.
    _prctl("prctl dumpable", _PR_SET_DUMPABLE, 0)


def _serve(control: socket.socket, inner: int | None, config: dict[str, Any]) -> NoReturn:
    """Answer requests until the controller is gone."""
    keep = {0, 1, 2, control.fileno(), inner}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            _close(int(name))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # inits are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if config["landlock"]:
        _scope_abstract_sockets()
    control.send(b"{}")
    flags = _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_PIDFD | signal.SIGCHLD
    clone = _SYS_CLONE[os.uname().machine]
    program = bytes.fromhex(config["seccomp"])
    pidfd = ctypes.c_int(-1)
    while True:
        data, fds, *_ = socket.recv_fds(control, 16, 8)
        if not data:
            os._exit(0)
        request, channel, *streams = fds
        talk = socket.socket(fileno=channel)
        try:
            pid = _syscall("clone", clone, flags, None, ctypes.byref(pidfd), None, None)
        except OSError as error:
            _tell(talk, _failure(b"f", error))
        else:
            if pid == 0:
                control.close()
                _init(talk, (request, streams), inner, program)
            _tell(talk, b"p", pidfd.value)
            os.close(pidfd.value)
        talk.close()
        for fd in (request, *streams):
            os.close(fd)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError as error:
        if error.errno != errno.EBADF:  # listdir's own
            raise


def _tell(talk: socket.socket, message: bytes, *fds: int) -> None:
    """Send a message, unless whoever would hear it has gone away: nobody here is to die of that."""
    with contextlib.suppress(OSError):
        socket.send_fds(talk, [message], fds)


def _failure(kind: bytes, error: OSError) -> bytes:
    text = str(error.strerror or error).encode(errors="replace")[:1000]
    return kind + struct.pack("=i", error.errno or 0) + text


def _scope_abstract_sockets() -> None:
    """Keep abstract sockets and processes of the host out of reach though its network is shared."""
    scopes = _LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | _LANDLOCK_SCOPE_SIGNAL
    rules = struct.pack("=QQQ", 0, 0, scopes)
    fd = _syscall("landlock", _SYS_LANDLOCK_CREATE_RULESET, rules, len(rules), 0)
    _syscall("landlock", _SYS_LANDLOCK_RESTRICT_SELF, fd, 0)
    os.close(fd)


class _Job(NamedTuple):
    """What one exec is started with."""

    request: dict[str, Any]
    streams: list[int]
    cwd: int
    inner: int | None
    program: bytes


def _init(
    talk: socket.socket, fds: tuple[int, list[int]], inner: int | None, program: bytes
) -> NoReturn:
    try:
        _mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        with open(fds[0], "rb") as stream:
            request = json.loads(stream.read())
        cwd = _open_cwd(request, talk)
        streams, unused = fds[1], {0, 1, 2, cwd, *fds[1]}
        masters = []
        if request["size"] is not None:
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *request["size"], 0, 0))
            streams, masters = [slave] * 3, [master]
            unused |= {master, slave}
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        trouble_in, trouble_out = os.pipe()
        command = os.fork()
        if command == 0:
            _command(_Job(request, streams, cwd, inner, program), trouble_out)
        os.close(trouble_out)
        trouble = os.read(trouble_in, 4096)  # ends, empty, with the exec that succeeds
        if trouble:
            _tell(talk, trouble)
            os._exit(125)
        _tell(talk, b"r", *masters)
        for fd in {*unused, trouble_in}:
            os.close(fd)
        _reap(talk, command, wake_in)
    except OSError as error:
        _tell(talk, _failure(b"f", error))
    os._exit(125)


def _open_cwd(request: dict[str, Any], talk: socket.socket) -> int:
    """Open the working directory, then ask what was opened: a link may have led elsewhere."""
    try:
        fd = os.open(os.fsencode(request["cwd"]), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        place = os.readlink(f"/proc/self/fd/{fd}")
        if not any(place == root or place.startswith(root + "/") for root in request["roots"]):
            raise OSError(errno.EXDEV, "it leads out of the workspace")
        os.fchdir(fd)
    except OSError as error:
        _tell(talk, _failure(b"n", error))
        os._exit(125)
    return fd


def _reap(talk: socket.socket, command: int, wake: int) -> NoReturn:
    """Wait for the command and for all it leaves; pass signals on to its group meanwhile."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(talk, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == talk.fileno():
                word = talk.recv(1)
                if not word:
                    poll.unregister(talk)
                else:
                    _signal(command, word[0])
            else:
                os.read(wake, 512)
                _collect(talk, command)


def _signal(command: int, word: int) -> None:
    """Signal the command's group, or, with the high bit set, all that the exec started."""
    number = word & 0x7F
    with contextlib.suppress(ProcessLookupError):
        if word & 0x80:
            os.kill(-1, number)  # everyone in this pid namespace but its init
        else:
            os.killpg(command, number)


def _collect(talk: socket.socket, command: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(0)
        if pid == 0:
            return
        if pid == command:
            _tell(talk, b"x" + struct.pack("=i", status))


def _command(job: _Job, trouble: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for target, fd in enumerate(job.streams):
            os.dup2(fd, target)
        if job.request["size"] is not None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _syscall("close_range", _SYS_CLOSE_RANGE, 3, 0x7FFFFFFF, _CLOSE_RANGE_CLOEXEC)
        if job.inner is not None:
            _checked("setns user", _libc.setns(job.inner, 0))
        os.fchdir(job.cwd)
        os.umask(0o022)
        for name, (soft, hard) in job.request["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (soft, hard))
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        argv = [os.fsencode(word) for word in job.request["argv"]]
        env = {os.fsencode(k): os.fsencode(v) for k, v in job.request["env"].items()}
        _give_up_privileges(job.program)
        code = _execute(argv, env)
        if code == errno.E2BIG:
            raise OSError(code, os.strerror(code))
        with contextlib.suppress(OSError):
            os.write(2, argv[0] + b": " + os.strerror(code).encode() + b"\n")
        os._exit(127 if code in (errno.ENOENT, errno.ENOTDIR) else 126)
    except (OSError, ValueError) as error:
        told = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
        os.write(trouble, _failure(b"f", told))
    os._exit(125)


def _give_up_privileges(program: bytes) -> None:
    capability = 0
    while _libc.prctl(*map(_long, (_PR_CAPBSET_DROP, capability, 0, 0, 0))) == 0:
        capability += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked("capset", _libc.capset(header, bytes(24)))
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)
    code = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    _prctl("seccomp", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filters)


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """Execute as execvp does, searching the command's own PATH; return why it failed."""
    name = argv[0]
    folders = [b""] if b"/" in name else env.get(b"PATH", b"/usr/bin:/bin").split(b":")
    failure = errno.ENOENT
    if not name:
        return failure
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name), argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or b"/" in name:
                failure = error.errno or failure
    return failure


if __name__ == "__main__":
    main()
