"""The command line in processes of its own, a terminal for it, and patience."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from pinfold import blocking
from pinfold.sandbox import Store
from tests.core.cli.launcher import Launcher

PINFOLD = [sys.executable, "-W", "error", "-m", "pinfold"]
DEADLINE = 60.0
UP = {
    "bashkit": ("--provider", "bashkit"),
    "host": ("--provider", "host", "--durability", "checkpointed"),
}


class Cli:
    """The command line, with a data folder and a working folder of its own."""

    launcher: Launcher

    def __init__(self, folder: Path, up: tuple[str, ...]):
        self.folder = folder
        self.up_options = up
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PINFOLD_")},
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.here = folder / "here"
        self.here.mkdir()

    def __call__(self, *args: str, stdin: bytes = b"", **env: str):
        return self.launcher.run(list(args), stdin, self.here, {**self.env, **env}, DEADLINE)

    def ok(self, *args: str, stdin: bytes = b"") -> str:
        done = self(*args, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), done
        return str(done.stdout, "utf-8")

    def fails(self, *args: str, stdin: bytes = b"", **env: str) -> str:
        """Run what is wrong: 125, and one line that says what."""
        done = self(*args, stdin=stdin, **env)
        assert (done.returncode, done.stdout) == (125, b""), done
        text = str(done.stderr, "utf-8")
        assert text.startswith("pinfold: "), text
        assert text.count("\n") == 1, text
        return text

    def up(self, name: str = "box", *args: str) -> None:
        self.ok("up", name, *self.up_options, *args)

    def popen(self, *args: str, **more) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*PINFOLD, *args], cwd=self.here, env=self.env, **more)

    # What a command did is looked at from this process, which saves many another.

    @property
    def store(self) -> Store:
        return Store(self.folder / "data" / "pinfold" / "checkpoints")

    def rows(self) -> list[dict[str, Any]]:
        return [view.to_dict() for view in blocking.list(store=self.store)]

    def row(self, name: str = "box") -> dict[str, Any]:
        return next(row for row in self.rows() if row["name"] == name)

    def kinds(self, name: str = "box") -> list[str]:
        with blocking.reopen(name, store=self.store) as box:
            return [str(event.type) for event in box.events()]


class Terminal:
    """A person at a terminal that runs one command."""

    def __init__(self, cli: Cli, *args: str, stdin: list[str] | None = None):
        self.seen = b""
        self.source = None if stdin is None else subprocess.Popen(stdin, stdout=subprocess.PIPE)
        self.master, slave = pty.openpty()
        self.resize(30, 90)
        self.before = termios.tcgetattr(slave)
        self.slave = slave

        def control() -> None:  # so that the terminal is the child's own, and tells it its size
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)

        self.process = cli.popen(
            *args, stdin=slave if self.source is None else self.source.stdout, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=control,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in filter(None, (self.process, self.source)):
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def see(self, pattern: bytes) -> re.Match[bytes]:
        """Read until the screen shows it, and forget all before its end."""
        end = time.monotonic() + DEADLINE
        while (found := re.search(pattern, self.seen)) is None:
            ended = self.process.poll() is not None or time.monotonic() > end
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65_536)
            else:
                assert not ended, self.seen.decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found

    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before


def until(condition, what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:g} s: {what}"
        time.sleep(0.05)
