"""A POSIX shell: dash, busybox, bash and whatever keeps to their common part."""

from __future__ import annotations

import shlex
from typing import Literal

from pinfold_conformance.dialects._base import QUESTION, Dialect, How, Means

__all__ = ["Sh"]

_QUIT = 3
_BLOCK = 65_536


def _path(path: str) -> str:
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _octal(data: bytes) -> str:
    return "".join(f"\\{byte:03o}" for byte in data)


class Sh(Dialect):
    """Only what dash with busybox has: no arrays, no `ps`, no `setsid` unless asked for."""

    name = "sh"

    def seq(self, *scripts: str) -> str:
        return "\n".join(scripts)

    def argv(self, script: str, *args: str) -> tuple[str, ...]:
        return ("sh", "-c", script, "sh", *args)

    def show_args(self, *args: str) -> tuple[str, ...]:
        return self.argv("[ $# -eq 0 ] || printf '%s\\000' \"$@\"", *args)

    def out(self, data: bytes) -> str:
        return f"printf '{_octal(data)}'" if data else ":"

    def err(self, data: bytes) -> str:
        return f"{self.out(data)} >&2"

    def fill(self, count: int, stream: Literal["stdout", "stderr"] = "stdout") -> str:
        blocks, rest = divmod(count, _BLOCK)
        # One block is doubled up to 64 KiB and written again and again: no tool has to count far.
        script = "b=xxxxxxxxxxxxxxxx; " + "b=$b$b; " * 12
        script += f'i=0; while [ $i -lt {blocks} ]; do printf %s "$b"; i=$((i+1)); done; '
        script += f'printf %s "$b" | head -c {rest}' if rest else ":"
        return f"{{ {script}; }}" + (" >&2" if stream == "stderr" else "")

    def exit(self, code: int) -> str:
        return f"exit {code}"

    def die(self, signal: int) -> str:
        if signal == _QUIT:  # bash and busybox ignore it themselves: another takes their place
            return f"(while kill -{signal} $$; do :; done) >/dev/null 2>&1 & exec sleep 5"
        return f"kill -{signal} $$; sleep 5"

    def cat(self) -> str:
        return "cat"

    def count(self) -> str:
        return "wc -c"

    def keep(self, path: str) -> str:
        return f"cat > {_path(path)}"

    def sleep(self, seconds: float) -> str:
        return f"sleep {seconds:g}"

    def spin(self) -> str:
        return "while :; do :; done"

    def beat(self, path: str, every: float = 0.05) -> str:
        return f"while :; do printf x >> {_path(path)}; sleep {every:g}; done"

    def wait_for(self, path: str) -> str:
        return f"while ! [ -e {_path(path)} ]; do sleep 0.02; done"

    def save(self, path: str, data: bytes) -> str:
        return f"{self.out(data)} > {_path(path)}"

    def append(self, path: str, data: bytes) -> str:
        return f"{self.out(data)} >> {_path(path)}"

    def load(self, path: str) -> str:
        return f"cat < {_path(path)}"

    def exists(self, path: str) -> str:
        return f"[ -e {_path(path)} ] || [ -L {_path(path)} ]"

    def remove(self, *paths: str) -> str:
        return f"rm -rf {' '.join(map(_path, paths))}"

    def mkdir(self, path: str) -> str:
        return f"mkdir -p {_path(path)}"

    def rename(self, source: str, target: str) -> str:
        return f"mv {_path(source)} {_path(target)}"

    def link(self, path: str, text: str) -> str:
        return f"ln -s {shlex.quote(text)} {_path(path)}"

    def hardlink(self, path: str, existing: str) -> str:
        return f"ln {_path(existing)} {_path(path)}"

    def fifo(self, path: str) -> str:
        return f"mkfifo {_path(path)}"

    def chmod(self, path: str, mode: int) -> str:
        return f"chmod {mode:o} {_path(path)}"

    def copy_times(self, path: str, reference: str) -> str:
        return f"touch -r {_path(reference)} {_path(path)}"

    def env(self) -> str:
        return "env"

    def var(self, name: str) -> str:
        return f'printf %s "${{{name}-}}"'

    def leak(self) -> str:
        return (
            "leaked_variable=1; export leaked_export=1; leaked_function() { :; }; "
            "alias leaked_alias=true 2>/dev/null; umask 077; set -f; mkdir -p leaked_cwd; "
            "cd leaked_cwd"
        )

    def leaked(self) -> str:
        return (
            'printf %s "${leaked_variable+variable }${leaked_export+export }"; '
            "if command -v leaked_function >/dev/null 2>&1; then printf 'function '; fi; "
            "if alias leaked_alias >/dev/null 2>&1; then printf 'alias '; fi; "
            "case $- in *f*) printf 'option ';; esac; "
            "case $(umask) in *077) printf 'umask ';; esac; "
            "case $(pwd) in *leaked_cwd) printf 'cwd ';; esac"
        )

    def pwd(self) -> str:
        return "pwd -P 2>/dev/null || pwd"

    def uid(self) -> str:
        return "id -u 2>/dev/null"

    def ignore_signals(self) -> str:
        return "trap '' HUP INT TERM"

    def start(self, script: str, how: How) -> str:
        command = f"sh -c {shlex.quote(script)}"
        match how:
            case How.CHILD:
                return command
            case How.HOLDING:
                return f"{command} &"
            case How.QUIET:
                return f"{command} </dev/null >/dev/null 2>&1 &"
            case How.SESSION:
                return f"setsid {command} </dev/null >/dev/null 2>&1 &"
            case How.CLEAN:
                return f"env -i setsid {command} </dev/null >/dev/null 2>&1 &"

    def swap(self, first: str, second: str, count_to: str) -> str:
        a, b, n = _path(first), _path(second), _path(count_to)
        # renameat2 with RENAME_EXCHANGE, a hundred thousand times a second where there is Python;
        # else the same by mv, or three renames, which come close.
        python = (
            "import ctypes, os, sys\n"
            "rename = ctypes.CDLL(None, use_errno=True).renameat2\n"
            f"a, b = os.fsencode({first!r}), os.fsencode({second!r})\n"
            "while True:\n"
            "    for _ in range(100):\n"
            "        if rename(-100, a, -100, b, 2):\n"
            "            sys.exit(1)\n"
            f"    with open({count_to!r}, 'ab') as file:\n"
            "        file.write(b'x' * 100)\n"
        )
        return (
            "if command -v python3 >/dev/null 2>&1 && "
            f"! python3 -c {shlex.quote(python)} 2>/dev/null; then :; fi; "
            f"if mv --exchange -T {a} {b} 2>/dev/null; then "
            f"while :; do mv --exchange -T {a} {b} && printf x >> {n}; done; "
            f"else while :; do mv {a} {a}.t; mv {b} {a}; mv {a}.t {b}; printf x >> {n}; done; fi"
        )

    def connect(self, address: str, port: int, means: Means = "tcp") -> str:
        told = ">/dev/null 2>&1 && echo reached || echo refused; "
        perl = "perl -MIO::Socket::IP -MIO::Socket::UNIX -e"
        script = (
            f"if command -v python3 >/dev/null 2>&1; then "
            f"python3 -c {shlex.quote(_python(address, port, means))} {told}"
            f"elif {perl} 1 2>/dev/null; then "
            f"{perl} {shlex.quote(_perl(address, port, means))} {told}"
        )
        if means == "tcp" and ":" not in address:  # a tool that lacks the means refuses, and lies
            script += (
                "elif command -v nc >/dev/null 2>&1; then "
                f"nc -w 3 {address} {port} </dev/null {told}"
                "elif command -v curl >/dev/null 2>&1; then "
                f"curl -s -m 3 -o /dev/null http://{address}:{port}/ {told}"
                "elif command -v wget >/dev/null 2>&1; then "
                f"wget -q -T 3 -O /dev/null http://{address}:{port}/ {told}"
            )
        elif means == "udp":
            script += (
                "elif nc --help 2>&1 | grep -q -e ' -u'; then "
                f"[ \"$(printf '{_octal(QUESTION)}' | nc -u -w 3 {address} {port} 2>/dev/null "
                f'| head -c 1 | wc -c)" -gt 0 ] {told}'
            )
        return script + "else echo 'no tool'; fi"

    def packages(self) -> str:
        return (
            "m=no; for p in apt-get apk dnf microdnf yum pacman zypper; do "
            "command -v $p >/dev/null 2>&1 && m=yes; done; "
            "{ true > /usr/.probe; } 2>/dev/null && rm -f /usr/.probe || m=no; printf $m"
        )

    def listen(self, port: int, greeting: bytes) -> str:
        python = (
            "import socket\n"
            f"s = socket.create_server(('', {port}))\n"
            "while True:\n"
            "    c, _ = s.accept()\n"
            f"    c.sendall({greeting!r})\n"
            "    c.close()\n"
        )
        return (
            f"if command -v python3 >/dev/null 2>&1; then python3 -c {shlex.quote(python)}; "
            f"elif command -v nc >/dev/null 2>&1; then "
            f"while :; do printf '{_octal(greeting)}' | nc -l -p {port}; done; "
            "else echo 'no tool'; fi"
        )

    def is_tty(self) -> str:
        return "if [ -t 0 ]; then echo tty; else echo no tty; fi"

    @property
    def probe(self) -> tuple[str, bytes]:
        return "printf '%s-%s' \"$((6*7))\" sh", b"42-sh"


def _python(address: str, port: int, means: Means) -> str:
    if means == "unix":
        family, place = "AF_UNIX", repr(address.replace("@", "\0", 1))
    else:
        family = "AF_INET6" if ":" in address else "AF_INET"
        place = repr((address, port))
    kind = "SOCK_DGRAM" if means == "udp" else "SOCK_STREAM"
    ask = f"s.send({QUESTION!r}); s.recv(512)" if means == "udp" else ""
    return (
        f"import socket; s = socket.socket(socket.{family}, socket.{kind}); s.settimeout(3); "
        f"s.connect({place}); {ask}"
    )


def _perl(address: str, port: int, means: Means) -> str:
    if means == "unix":
        path = address.replace("@", "\\0", 1)
        return f'exit(IO::Socket::UNIX->new(Peer => "{path}") ? 0 : 1)'
    made = f'IO::Socket::IP->new(PeerHost => "{address}", PeerPort => {port}, Timeout => 3'
    if means == "tcp":
        return f"exit({made}) ? 0 : 1)"
    question = "".join(f"\\x{byte:02x}" for byte in QUESTION)
    return (
        f'alarm 3; my $s = {made}, Proto => "udp") or exit 1; $s->send("{question}"); '
        "my $d; $s->recv($d, 512); exit(length $d ? 0 : 1)"
    )
