"""The command language of the reference adapter (`adapters.toy`).

A script is lines; a line is a command and its words, with one space between. A word is
percent-encoded, so that it has no space, newline or quotation; the empty word is `%`. The commands
are the methods of `Dialect`; each does what its docstring there says.

As programs (argv) there are `run SCRIPT ARG…` and `args ARG…`, which writes each argument and a
NUL; a path runs that file as a script when it is executable.
"""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pinfold_conformance.dialects._base import Dialect, How, Means

__all__ = ["Toy", "decode", "encode"]


def encode(word: str | bytes) -> str:
    """Return a word as it stands in a script."""
    data = os.fsencode(word) if isinstance(word, str) else word
    return quote_from_bytes(data, safe="/:@,+=") or "%"


def decode(word: str) -> bytes:
    """Return what a word in a script stands for."""
    return b"" if word == "%" else unquote_to_bytes(word)


def _line(command: str, *words: str | bytes) -> str:
    return " ".join((command, *map(encode, words)))


class Toy(Dialect):
    """Scripts for model processes."""

    name = "toy"

    def seq(self, *scripts: str) -> str:
        return "\n".join(scripts)

    def argv(self, script: str, *args: str) -> tuple[str, ...]:
        return ("run", script, *args)

    def show_args(self, *args: str) -> tuple[str, ...]:
        return ("args", *args)

    def out(self, data: bytes) -> str:
        return _line("out", data)

    def err(self, data: bytes) -> str:
        return _line("err", data)

    def fill(self, count: int, stream: Literal["stdout", "stderr"] = "stdout") -> str:
        return _line("fill", str(count), stream)

    def exit(self, code: int) -> str:
        return _line("exit", str(code))

    def die(self, signal: int) -> str:
        return _line("die", str(signal))

    def cat(self) -> str:
        return "cat"

    def count(self) -> str:
        return "count"

    def keep(self, path: str) -> str:
        return _line("keep", path)

    def sleep(self, seconds: float) -> str:
        return _line("sleep", f"{seconds:g}")

    def spin(self) -> str:
        return "spin"

    def beat(self, path: str, every: float = 0.05) -> str:
        return _line("beat", path, f"{every:g}")

    def wait_for(self, path: str) -> str:
        return _line("wait_for", path)

    def save(self, path: str, data: bytes) -> str:
        return _line("save", path, data)

    def append(self, path: str, data: bytes) -> str:
        return _line("append", path, data)

    def load(self, path: str) -> str:
        return _line("load", path)

    def exists(self, path: str) -> str:
        return _line("exists", path)

    def remove(self, *paths: str) -> str:
        return self.seq(*[_line("remove", path) for path in paths])

    def mkdir(self, path: str) -> str:
        return _line("mkdir", path)

    def rename(self, source: str, target: str) -> str:
        return _line("rename", source, target)

    def link(self, path: str, text: str) -> str:
        return _line("link", path, text)

    def hardlink(self, path: str, existing: str) -> str:
        return _line("hardlink", path, existing)

    def fifo(self, path: str) -> str:
        return _line("fifo", path)

    def chmod(self, path: str, mode: int) -> str:
        return _line("chmod", path, f"{mode:o}")

    def copy_times(self, path: str, reference: str) -> str:
        return _line("copy_times", path, reference)

    def env(self) -> str:
        return "env"

    def var(self, name: str) -> str:
        return _line("var", name)

    def leak(self) -> str:
        return "leak"

    def leaked(self) -> str:
        return "leaked"

    def pwd(self) -> str:
        return "pwd"

    def uid(self) -> str:
        return "uid"

    def ignore_signals(self) -> str:
        return "ignore_signals"

    def start(self, script: str, how: How) -> str:
        return _line("start", script, str(how))

    def swap(self, first: str, second: str, count_to: str) -> str:
        return _line("swap", first, second, count_to)

    def connect(self, address: str, port: int, means: Means = "tcp") -> str:
        return _line("connect", address, str(port), means)

    def packages(self) -> str:
        return "out no"

    def listen(self, port: int, greeting: bytes) -> str:
        return _line("out", b"no tool")

    def is_tty(self) -> str:
        return _line("out", b"no tty")

    @property
    def probe(self) -> tuple[str, bytes]:
        return "out 42-toy", b"42-toy"
