"""Walks through a page as a reader would: writes its files, runs its blocks in order."""

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.blocks import Block

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120.0

# One namespace for all Python blocks of a page; after each, its mark and 0 or 1 on a line.
_PYTHON = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    job = json.loads(line)
    try:
        exec(compile(job["code"], job["name"], "exec"), names)
        failed = 0
    except BaseException:
        traceback.print_exc()
        failed = 1
    sys.stderr.flush()
    print(f"\\n{job['mark']} {failed}", flush=True)
"""


class BlockFailed(AssertionError):
    """A block did not do what the page says."""


class Walk:
    """One page's folder and processes.

    Args:
        folder: where the blocks run.
        bin: the folder of `python` and `pinfold` of the environment that the reader is in.
        env: variables besides.
    """

    def __init__(self, folder: Path, bin: Path, env: dict[str, str] | None = None) -> None:  # noqa: A002
        self.folder = folder
        home = folder.parent / "home"
        home.mkdir(exist_ok=True)
        keep = {"LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE"}
        self.env = {
            **{name: value for name, value in os.environ.items() if name in keep},
            "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "80",
            **(env or {}),
        }
        self._python = bin / "python"
        self._child: subprocess.Popen[str] | None = None
        self._printed: str | None = None

    def run(self, blocks: list[Block]) -> None:
        """Run blocks in order.

        Raises:
            BlockFailed: at the first that does not hold, naming page and line.
        """
        try:
            for block in blocks:
                self._step(block)
        finally:
            if self._child is not None:
                self._child.kill()
                self._child.communicate()

    def _step(self, block: Block) -> None:
        if block.output:
            if self._printed is None:
                raise BlockFailed(f"{block}: no block before it printed anything")
            _compare(block, block.text, self._printed)
        elif block.file is not None:
            self._write(block, block.file)
        elif block.source is not None:
            self._quote(block, block.source)
        elif block.language == "python":
            self._printed = self._run_python(block)
        elif block.language == "bash":
            self._printed = self._run_bash(block)
        elif block.language == "console":
            self._run_console(block)
        else:
            _parse(block)

    def _write(self, block: Block, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        if path.suffix == ".py":
            compile(block.text, str(block), "exec")
        _parse(block)

    def _quote(self, block: Block, name: str) -> None:
        if not (self.folder / name).is_file():
            raise BlockFailed(f"{block}: there is no file {name}")
        lines = (self.folder / name).read_text(encoding="utf-8").splitlines()
        piece = block.text.splitlines()
        if not any(piece):
            raise BlockFailed(f"{block}: the piece of {name} is empty")
        for start in range(len(lines) - len(piece) + 1):
            found = textwrap.dedent("\n".join(lines[start : start + len(piece)])).splitlines()
            if found == piece:
                return
        raise BlockFailed(f"{block}: this is no piece of {name}")

    def _run_python(self, block: Block) -> str:
        if self._child is None:
            self._child = subprocess.Popen(
                [self._python, "-W", "error", "-c", _PYTHON],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
            )
        child = self._child
        assert child.stdin
        assert child.stdout
        mark = uuid.uuid4().hex
        # Empty lines in front, so that a traceback has the page's own line numbers.
        job = {"code": "\n" * (block.line - 1) + block.text, "name": block.page, "mark": mark}
        child.stdin.write(json.dumps(job) + "\n")
        child.stdin.flush()
        output = ""
        with _killed_after(child, DEADLINE_SECONDS):
            for line in child.stdout:
                if line.startswith(mark):
                    if line.split()[1] != "0":
                        raise BlockFailed(f"{block}:\n{output}")
                    return output.removesuffix("\n")
                output += line
        raise BlockFailed(f"{block}: Python ended:\n{output}")

    def _bash(self, block: Block, script: str, *, strict: bool) -> tuple[int, str]:
        env, folder = dict(self.env), self.folder
        if block.dry_run:
            lines = [line for line in script.splitlines() if line]
            if not all(re.match(r"make [a-z]+( *#.*)?$", line) for line in lines):
                raise BlockFailed(f"{block}: only `make TARGET` can be run dry")
            env["MAKEFLAGS"] = "n"
            folder = ROOT
        done = subprocess.run(
            ["bash", *(["-euo", "pipefail"] if strict else []), "-c", script],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout

    def _run_bash(self, block: Block) -> str:
        code, output = self._bash(block, block.text, strict=True)
        if code != 0:
            raise BlockFailed(f"{block}: exit code {code}\n{output}")
        return output

    def _run_console(self, block: Block) -> None:
        mark = uuid.uuid4().hex
        steps = _steps(block)
        script = "".join(
            f"{command}\n_code=$?; printf '\\n{mark} %s\\n' \"$_code\"; (exit $_code)\n"
            for command, _ in steps
        )
        _, output = self._bash(block, script, strict=False)
        parts = re.split(rf"\n{mark} (\d+)\n", output)
        shown, codes = parts[0:-1:2], [int(code) for code in parts[1::2]]
        for index, (command, expected) in enumerate(steps):
            if index >= len(codes):
                raise BlockFailed(f"{block}: `{command}` ended the shell:\n{parts[-1]}")
            asked = index + 1 < len(steps) and "$?" in steps[index + 1][0]
            if codes[index] != 0 and not asked:
                raise BlockFailed(f"{block}: `{command}`: exit code {codes[index]}\n{shown[index]}")
            _compare(block, expected, shown[index], f"`{command}`: ")


def _parse(block: Block) -> None:
    """Hold a document to its language."""
    try:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
    except ValueError as exc:
        raise BlockFailed(f"{block}: {exc}") from None


def _steps(block: Block) -> list[tuple[str, str]]:
    """Split a console block: `$ ` begins a command, `> ` goes on with it, the rest is output."""
    steps: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif not steps:
            raise BlockFailed(f"{block}: a console block begins with `$ `")
        elif line.startswith("> ") and not steps[-1][1]:
            steps[-1] = (f"{steps[-1][0]}\n{line[2:]}", "")
        else:
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
    if not steps:
        raise BlockFailed(f"{block}: a console block without a command")
    return steps


def _compare(block: Block, expected: str, printed: str, what: str = "") -> None:
    lines = []
    for line in expected.rstrip("\n").split("\n"):
        if line == "...":
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            lines.append(r"[^\n]*".join(map(re.escape, line.split("..."))) + r"\n")
    if re.fullmatch("".join(lines), printed.rstrip("\n") + "\n") is None:
        raise BlockFailed(f"{block}: {what}the page shows\n{expected}\nand it printed\n{printed}")


@contextmanager
def _killed_after(child: "subprocess.Popen[str]", seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def this_bin() -> Path:
    """Return the folder of the programs of the environment that the tests run in."""
    return Path(sys.prefix) / "bin"
