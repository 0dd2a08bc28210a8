"""The verbs of durable sandboxes, end to end: each command in its own process, on real providers."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from pinfold import blocking
from pinfold.cli import _app
from pinfold.errors import Locked, Unavailable
from pinfold.sandbox import Store, Upkeep
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


@pytest.fixture(scope="module", autouse=True)
def _launcher():
    Cli.launcher = Launcher()
    yield
    Cli.launcher.close()


@pytest.fixture(params=UP)
def cli(request, tmp_path):
    return Cli(tmp_path, UP[request.param])


@pytest.fixture
def quick(tmp_path):
    """On bashkit alone, where the provider makes no difference."""
    return Cli(tmp_path, UP["bashkit"])


# --- up, exec, list, view, down ---------------------------------------------------------------------


def test_a_sandbox_lives_from_up_to_down_over_many_processes(cli):
    view = json.loads(cli.ok("up", "box", *cli.up_options, "--json"))
    assert (view["name"], view["observed_state"], view["generation"]) == ("box", "ready", 1)
    assert view["durability"] == "checkpointed"

    done = cli("exec", "box", "--shell", "cat > f; echo out; echo err >&2; exit 7", stdin=b"a\0b")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert cli("exec", "box", "--", "cat", "f").stdout == b"a\0b"
    result = json.loads(cli.ok("exec", "box", "--json", "--", "cat", "f"))
    assert result["exit_code"] == 0
    # Where another process can't take the instance up, each command is given its own (LC-1).
    attach = view["details"]["features"]["attach"]
    generation, state = (1, "ready") if attach else (4, "paused")
    assert result["generation"] == generation

    row = cli.row()
    assert json.loads(cli.ok("list", "--json"))["items"] == [row]
    assert row["sandbox_id"] == view["sandbox_id"]
    assert row["current_checkpoint_id"].startswith("cp_")
    text = cli.ok("list")
    pattern = rf"box  {state}  generation {generation}  .*  checkpointed  sbx_[0-9a-f]{{32}}\n"
    assert re.fullmatch(pattern, text)
    shown = json.loads(cli.ok("view", "box", "--json"))
    assert shown == row
    assert "current_checkpoint_id: cp_" in cli.ok("view", row["sandbox_id"])
    kinds = [json.loads(line)["type"] for line in cli.ok("events", "box", "--json").splitlines()]
    assert kinds == cli.kinds()
    assert kinds[:2] == ["sandbox.created", "sandbox.ready"]
    assert kinds.count("sandbox.resumed") == (0 if attach else 3)

    assert cli.ok("down", "box") == ""
    assert cli.rows() == []
    (row,) = json.loads(cli.ok("list", "--deleted", "--json"))["items"]
    assert row["observed_state"] == "deleted"
    assert "there is no sandbox 'box'" in cli.fails("exec", "box", "--", "true")
    assert cli.kinds(view["sandbox_id"])[-1] == "sandbox.deleted"
    cli.up()
    assert cli.row()["sandbox_id"] != view["sandbox_id"]


def test_the_same_name_twice_is_refused_and_the_first_one_untouched(quick):
    quick.up()
    assert "there is a sandbox 'box' already" in quick.fails("up", "box", "--provider", "bashkit")
    assert quick.row()["generation"] == 1


def test_the_projects_store_is_used_and_keeps_as_many_checkpoints_as_it_says(quick):
    (quick.here / "pinfold.toml").write_text(
        'default = "p"\n[profiles.p]\ntarget = { kind = "vfs" }\n[store]\nkeep = 2\nurl = "kept"\n'
    )
    quick.ok("up", "box")
    for number in range(4):
        quick.ok("cp", "-", "box:/workspace/f", stdin=str(number).encode())
    assert len(quick.ok("checkpoints", "box").splitlines()) == 2
    assert (quick.here / "kept").is_dir()
    assert not (quick.folder / "data" / "pinfold" / "checkpoints").exists()


def test_a_sandbox_without_compute_keeps_files_and_runs_nothing(quick):
    with blocking.open({"target": None}, name="box", store=quick.store):
        pass
    quick.ok("cp", "-", "box:/workspace/f", stdin=b"1")
    assert quick.ok("cp", "box:/workspace/f", "-") == "1"
    assert "no compute" in quick.ok("list")
    assert quick.fails("exec", "box", "--", "true")


# --- cp, ls -----------------------------------------------------------------------------------------


def test_cp_carries_files_trees_and_streams_both_ways(cli):
    tree = cli.here / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "f").write_bytes(os.urandom(300_000))
    (tree / "run").write_bytes(b"#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("sub/f")
    os.mkfifo(tree / "fifo")
    cli.up()

    done = cli("cp", "tree", "box:/workspace")
    assert done.returncode == 0
    assert done.stderr == b"pinfold: skipped, no file or folder: tree/fifo\n"
    (tree / "fifo").unlink()
    cli.ok("cp", "tree/", "box:/workspace/again")
    cli.ok("cp", "tree/.", "box:/workspace/")
    cli.ok("cp", "tree/run", "box:/workspace/sub/")
    cli.ok("cp", "-", "box:/workspace/new/stream", stdin=b"s\0")
    assert "no folder" in cli.fails("cp", "tree/run", "box:/workspace/none/")
    assert "no name" in cli.fails("cp", "-", "box:/workspace/", stdin=b"x")
    assert "is a directory" in cli.fails("cp", "-", "box:/workspace/sub", stdin=b"x")

    assert cli.ok("cp", "box:/workspace/new/stream", "-") == "s\0"
    cli.ok("cp", "box:/workspace/tree", "back")
    cli.ok("cp", "box:/workspace/tree", "back")
    cli.ok("cp", "box:/workspace/sub/run", "back/")
    for root in ("back", "back/tree"):
        assert (cli.here / root / "sub/f").read_bytes() == (tree / "sub/f").read_bytes()
        assert (cli.here / root / "link").readlink() == Path("sub/f")
        assert (cli.here / root / "run").stat().st_mode & 0o777 == 0o755
    assert "no folder" in cli.fails("cp", "box:/workspace/run", "none/")
    assert "is a directory" in cli.fails("cp", "box:/workspace/sub", "-")
    assert cli.fails("cp", "box:/workspace/missing", "-")
    assert cli.fails("cp", "missing", "box:/workspace/")

    listed = cli.ok("ls", "box").splitlines()
    assert [line.split()[2] for line in listed] == ["again", "link", "new", "run", "sub", "tree"]
    assert listed[1].endswith("link -> sub/f")
    assert listed[3].startswith("-0755           10  ")
    (row,) = json.loads(cli.ok("ls", "box", "/workspace/run", "--json"))["items"]
    assert (row["path"], row["type"], row["size"]) == ("/workspace/run", "file", 10)
    assert cli.fails("ls", "box", "/workspace/none")


@pytest.mark.parametrize(
    ("source", "target"),
    [("a", "b"), ("box:/workspace/a", "box:/workspace/b"), ("a", "box:b"), ("-", "-"), ("./box:/x", "y")],
)  # fmt: skip
def test_cp_wants_one_side_in_a_sandbox(quick, source, target):
    assert "NAME:/workspace/PATH" in quick.fails("cp", source, target)


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("exec box -n --shell 'echo ran > ran; echo x' >&-", 125, "standard output is closed"),
        ("exec box -n --shell 'echo ran > ran; echo x' 2>&-", 125, ""),
        ("exec box --shell 'cat > ran' <&-", 0, ""),
        ("exec box -n --json --shell 'echo x' <&- 2>&-", 0, ""),
        ("cp - box:/workspace/f <&-", 125, "standard input is closed"),
        ("cp box:/workspace/f - >&-", 125, "standard output is closed"),
        ("cp box:/workspace/f out <&- >&- 2>&-", 0, ""),
    ],
)
def test_a_standard_stream_may_be_closed(quick, command, code, told):
    """What needs it says so, and does nothing; no file of ours takes its number."""
    quick.up()
    quick.ok("cp", "-", "box:/workspace/f", stdin=b"kept")
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(PINFOLD)} {command}"], capture_output=True, check=False,
        timeout=DEADLINE, cwd=quick.here, env=quick.env, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done
    assert done.stderr.decode() == (
        f"pinfold: {told} (redirect it, if only to /dev/null)\n" if told else ""
    )
    assert quick.ok("cp", "box:/workspace/f", "-") == "kept"
    assert ("ran" in quick.ok("ls", "box")) is ("cat" in command)


def test_cp_into_a_pipe_that_closes_and_onto_a_full_disk_ends_in_one_line(quick):
    quick.up()
    quick.ok("cp", "-", "box:/workspace/f", stdin=bytes(3 << 20))
    script = f"{' '.join(PINFOLD)} cp box:/workspace/f - | head -c 1"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, timeout=DEADLINE, check=False,
        cwd=quick.here, env=quick.env,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"\0", b"")
    with Path("/dev/full").open("wb") as full:
        process = quick.popen("cp", "box:/workspace/f", "-", stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 125
    assert err.startswith(b"pinfold: ")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_cp_from_a_stream_that_never_ends_can_be_interrupted(quick, number, code):
    quick.up()
    quick.ok("cp", "-", "box:/workspace/f", stdin=b"old")
    with quick.popen(
        "cp", "-", "box:/workspace/f", stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"half")
        process.stdin.flush()
        _until(lambda: quick.row()["generation"] == 3, "the copy has the sandbox")
        process.send_signal(number)
        assert process.wait(DEADLINE) == code
        assert process.stderr.read().strip() == b""
    assert quick.ok("cp", "box:/workspace/f", "-") == "old"


def test_a_long_copy_draws_a_bar_on_a_terminal_and_nowhere_else(quick):
    quick.up()
    slow = ["sh", "-c", "head -c 200000 /dev/zero; sleep 2; head -c 200000 /dev/zero"]
    with subprocess.Popen(slow, stdout=subprocess.PIPE) as source:
        done = subprocess.run(
            [*PINFOLD, "cp", "-", "box:/workspace/f"], stdin=source.stdout, capture_output=True,
            check=False, timeout=DEADLINE, cwd=quick.here, env=quick.env,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    with Terminal(quick, "cp", "-", "box:/workspace/f", stdin=slow) as person:
        person.see(rb"kB.*/s")
        assert person.process.wait(DEADLINE) == 0


def test_a_long_checkpoint_and_restore_draw_a_bar_on_a_terminal(quick, monkeypatch, capfd):
    """The same bar, told of the bytes in all."""
    monkeypatch.setattr("pinfold.cli._progress._PATIENCE_SECONDS", -1.0)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, quick.env[name])
    monkeypatch.chdir(quick.here)
    quick.ok("up", "box", "--provider", "host", "--durability", "none")
    quick.ok("cp", "-", "box:/workspace/f", stdin=b"1" * 3000)

    def run(*args: str) -> str:
        assert _app._main(list(args)) == 0
        return str(capfd.readouterr().err)

    assert run("checkpoint", "box", "--tag", "quiet") == ""  # no terminal, no bar
    assert run("restore", "box", "quiet") == ""
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", None)  # as where it is closed
        assert run("restore", "box", "quiet") == ""
    quick.ok("cp", "-", "box:/workspace/f", stdin=b"2" * 4000)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert "4.0/4.0 kB" in run("checkpoint", "box")
    assert "3.0/3.0 kB" in run("restore", "box", "quiet")


def test_names_that_a_guest_chose_drive_no_terminal(tmp_path):
    cli = Cli(tmp_path, UP["host"])
    cli.up()
    script = r"""touch "$(printf '\033[31mred\n2')" && ln -s "$(printf '\033]0;x\007')" l"""
    cli.ok("exec", "box", "-n", "--shell", script)
    text = cli.ok("ls", "box")
    assert r"\x1b[31mred\n2" in text
    assert r"l -> \x1b]0;x\x07" in text
    assert "\x1b" not in text
    names = [row["path"] for row in json.loads(cli.ok("ls", "box", "--json"))["items"]]
    assert "/workspace/\x1b[31mred\n2" in names


# --- checkpoints, forks, migrations -----------------------------------------------------------------


def test_checkpoints_are_taken_listed_tagged_and_restored(cli):
    cli.up()
    cli.ok("cp", "-", "box:/workspace/f", stdin=b"1")
    first = cli.ok("checkpoint", "box", "--tag", "one").strip()
    assert first == cli.row()["current_checkpoint_id"]
    assert cli.ok("checkpoint", "box", "--tag", "uno").strip() == first
    cli.ok("exec", "box", "-n", "--shell", "echo 2 > f; echo new > g")
    second = cli.row()["current_checkpoint_id"]

    lines = cli.ok("checkpoints", "box").splitlines()
    assert [line.split()[0] for line in lines] == [first, "*"]
    assert lines[0].endswith("1 entries  1 bytes  one uno")
    shown = json.loads(cli.ok("checkpoints", "box", "--json"))
    assert [item["checkpoint_id"] for item in shown["items"]] == [first, second]
    assert (shown["current"], shown["tags"]) == (second, {"one": first, "uno": first})

    assert cli.ok("restore", "box", "one") == ""
    assert cli.ok("cp", "box:/workspace/f", "-") == "1"
    assert cli("exec", "box", "-n", "--", "cat", "g").returncode == 1
    assert cli.ok("restore", "box", second) == ""
    assert cli.ok("cp", "box:/workspace/g", "-") == "new\n"
    assert "checkpoint.restored" in cli.kinds()
    assert "did you mean 'one'" in cli.fails("restore", "box", "on")
    assert "checkpoint" in cli.fails("restore", "box", "cp_" + "0" * 32)
    assert "cp_" in cli.fails("restore", "box", "cp_nope")


def test_a_fork_leaves_its_source_alone(cli):
    cli.up()
    cli.ok("cp", "-", "box:/workspace/f", stdin=b"1")
    cli.ok("checkpoint", "box", "--tag", "one")
    cli.ok("cp", "-", "box:/workspace/f", stdin=b"2")

    assert re.fullmatch(r"sbx_[0-9a-f]{32}\n", cli.ok("fork", "box", "now"))
    cli.ok("fork", "box", "then", "--checkpoint", "one")
    cli.ok("cp", "-", "now:/workspace/f", stdin=b"3")

    for name, content in (("box", "2"), ("now", "3"), ("then", "1")):
        assert cli.ok("cp", f"{name}:/workspace/f", "-") == content
    assert "already" in cli.fails("fork", "box", "now")
    assert "can't be called" in cli.fails("fork", "box", "a/b")
    assert cli.kinds().count("sandbox.forked") == 2


def test_a_migration_goes_on_elsewhere_and_drains_its_source(cli):
    other = next(options for options in UP.values() if options != cli.up_options)
    cli.up()
    cli.ok("exec", "box", "-n", "--shell", "mkdir d; echo 1 > d/f; ln -s d/f l; chmod 600 d/f")

    cli.ok("migrate", "box", "moved", *other)

    assert cli.row("moved")["target"]["provider"] == other[1]
    assert cli.ok("cp", "moved:/workspace/l", "-") == "1\n"
    assert cli.ok("ls", "moved").splitlines()[1].endswith("l -> d/f")
    assert cli.row("box")["observed_state"] == "draining"
    assert "draining" in cli.fails("exec", "box", "--", "true")
    cli.ok("fork", "box", "again")
    assert cli.ok("cp", "again:/workspace/d/f", "-") == "1\n"


def test_a_migration_to_what_is_not_there_leaves_the_source_as_it_was(quick):
    quick.up()
    quick.ok("cp", "-", "box:/workspace/f", stdin=b"1")
    assert "not installed" in quick.fails("migrate", "box", "moved", "--provider", "ssh_machine")
    assert [row["name"] for row in quick.rows()] == ["box"]
    assert quick.ok("cp", "box:/workspace/f", "-") == "1"


def test_drain_runs_a_last_command_and_destroys_nothing(cli):
    cli.up()
    cli.ok("drain", "box", "--timeout", "1", "--", "sh", "-c", "echo last > f")

    assert "draining" in cli.fails("exec", "box", "--", "true")
    assert cli.row()["observed_state"] == "draining"
    cli.ok("fork", "box", "again")
    assert cli.ok("cp", "again:/workspace/f", "-") == "last\n"
    cli.ok("down", "box")
    assert "--timeout" in cli.fails("drain", "again", "--timeout", "-1")
    for odd in ("nan", "inf"):
        assert "timeout_seconds" in cli.fails("drain", "again", "--timeout", odd)
    assert cli.row("again")["observed_state"] != "draining"


# --- upkeep -----------------------------------------------------------------------------------------


def test_reap_puts_to_rest_what_a_dead_controller_left_awake(cli):
    """The first controller is killed: nobody acts on the deadline that it stored (LC-7)."""
    (cli.here / "pinfold.toml").write_text(
        "[defaults.lifecycle]\nidle_after_seconds = 1\n", encoding="utf-8"
    )
    cli.up()
    process = cli.popen(
        "exec", "box", "-n", "--shell", "echo kept > f; echo started; sleep 60", stdout=subprocess.PIPE
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    process.kill()
    process.wait()
    process.stdout.close()
    assert cli.row()["observed_state"] == "ready"
    _until(lambda: ", overdue" in cli.ok("list"), "it is overdue")

    watcher = cli.popen("reap", "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watcher.stdout is not None
    told = watcher.stdout.readline().decode()
    row = cli.row()
    assert (told, row["observed_state"]) == (f"put to rest: {row['sandbox_id']}\n", "paused")
    watcher.send_signal(signal.SIGINT)
    out, err = watcher.communicate(timeout=DEADLINE)
    assert (watcher.returncode, out, err.strip()) == (130, b"", b"")
    assert cli.ok("reap") == ""
    assert cli("exec", "box", "-n", "--", "true").returncode == 0


def test_gc_removes_what_a_killed_run_left_and_nothing_of_the_living(tmp_path):
    cli = Cli(tmp_path, UP["host"])
    cli.up("kept")
    cli.ok("cp", "-", "kept:/workspace/f", stdin=b"1")
    process = cli.popen(
        "run", "-n", "--provider", "host", "--shell", "echo $PINFOLD_WORKSPACE; exec sleep 60",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    folder = Path(process.stdout.readline().decode().strip())
    assert folder.is_dir()
    assert cli.ok("gc") == ""
    assert folder.is_dir()
    process.kill()
    process.wait()
    process.stdout.close()

    assert cli.ok("gc").startswith("removed: ")

    assert not folder.exists()
    assert cli.ok("gc") == ""
    assert cli.ok("cp", "kept:/workspace/f", "-") == "1"


def test_events_are_followed_until_the_sandbox_is_deleted(quick):
    quick.up()
    with quick.popen(
        "events", "box", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert b"sandbox.created  generation 0" in follower.stdout.readline()
        quick.ok("cp", "-", "box:/workspace/f", stdin=b"1")
        quick.ok("down", "box")
        seen = follower.stdout.read().decode()
        assert follower.wait(DEADLINE) == 0
        assert follower.stderr.read() == b""
    assert "checkpoint.created" in seen
    assert "sandbox.deleted" in seen.splitlines()[-1]


def test_a_bootstrap_that_fails_tells_what_it_said_and_the_next_command_tries_again(quick):
    (quick.here / "pinfold.toml").write_text(
        'default = "p"\n[profiles.p]\ntarget = { kind = "host" }\ndurability = "checkpointed"\n'
        "[profiles.p.bootstrap]\n"
        "commands = [\"echo first; printf '\\\\033[31m' >&2; echo said $((6 * 7)) >&2; exit 3\"]\n"
    )
    text = quick.fails("up", "box")
    assert "exit code 3" in text
    assert r"\x1b[31msaid 42" in text
    assert "\x1b" not in text
    assert quick.row()["observed_state"] == "failed"
    assert "exit code 3" in quick.fails("exec", "box", "--", "true")
    assert "\x1b" not in quick.ok("events", "box")
    quick.ok("down", "box")


# --- attach, port -----------------------------------------------------------------------------------


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


@pytest.fixture
def host(tmp_path):
    cli = Cli(tmp_path, UP["host"])
    cli.up()
    return cli


def test_attach_is_a_terminal_of_the_right_size_and_ends_with_the_shells_code(host):
    with Terminal(host, "attach", "box") as person:
        person.see(rb"Ctrl-\] leaves")
        person.type(b"tty; stty size; echo typed > f\n")
        person.see(rb"/dev/pts/\d+\r\n30 90\r\n")
        person.resize(41, 101)
        person.type(b"while ! stty size | grep 41; do :; done\n")
        person.see(rb"41 101\r\n")
        person.type(b"sh -c 'echo in for''eground; exec sleep 600'\n")
        person.see(rb"in foreground\r\n")
        person.type(b"\x03exit 7\n")  # Ctrl-C ends what runs in it, not us
        assert person.process.wait(DEADLINE) == 7
        assert person.is_as_it_was()
    assert host.ok("cp", "box:/workspace/f", "-") == "typed\n"


def test_attach_is_left_by_ctrl_bracket_and_ends_what_ran(host):
    with Terminal(host, "attach", "box") as person:
        person.see(rb"leaves")
        person.type(b"echo pid=$$; sleep 600\n")
        pid = int(person.see(rb"pid=(\d+)\r\n")[1])  # a prompt may come between, or not
        person.type(b"\x1d")
        assert person.process.wait(DEADLINE) == 0
        assert person.is_as_it_was()
    _until(lambda: not _runs(pid), "the shell ended")


def _runs(pid: int) -> bool:
    """Whether a process runs; one that was killed may wait for its parent, or for init."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def test_attach_runs_a_command_and_gives_its_code(host):
    with Terminal(
        host, "attach", "box", "--", "sh", "-c", "test -t 0; echo $TERM=$?; exit 5"
    ) as person:
        person.see(rb"\w+=0\r\n")
        assert person.process.wait(DEADLINE) == 5


def test_attach_gives_the_terminal_back_when_it_is_terminated(host):
    with Terminal(host, "attach", "box") as person:
        person.see(rb"leaves")
        person.type(b"echo re''ady\n")
        person.see(rb"ready\r\n")
        person.process.terminate()
        assert person.process.wait(DEADLINE) == 143
        assert person.is_as_it_was()


def test_attach_needs_a_terminal_on_both_sides(host):
    assert "terminal on both sides" in host.fails("attach", "box")
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(PINFOLD)} attach box <&- >&-"], capture_output=True,
        check=False, timeout=DEADLINE, cwd=host.here, env=host.env,
    )  # fmt: skip
    assert b"terminal on both sides" in done.stderr


def test_where_there_is_no_terminal_and_no_port_it_is_said_and_nothing_is_made(quick):
    quick.up()
    with Terminal(quick, "attach", "box") as person:
        person.see(rb"pinfold: sandbox 'box' has no terminals .*\r\n")
        assert person.process.wait(DEADLINE) == 125
    assert "exposes no ports" in quick.fails("port", "box", "80")
    assert quick.row()["generation"] == 1


# --- what is wrong is one line and 125 --------------------------------------------------------------


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Run what is wrong in this process: 125, and one line that says what."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("PINFOLD_CONFIG", "PINFOLD_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str) -> str:
        code = _app._main(list(args))
        out, err = capfd.readouterr()
        assert (code, out) == (125, ""), (code, out, err)
        assert err.startswith("pinfold: "), err
        assert err.count("\n") == 1, err
        return str(err)

    return run


@pytest.mark.parametrize(
    "args",
    [
        ["exec", "-n", "none", "--", "x"],
        ["cp", "none:/workspace/f", "-"],
        ["cp", "-", "none:/workspace/f"],
        ["ls", "none"],
        ["view", "none"],
        ["attach", "none"],
        ["port", "none", "80"],
        ["checkpoint", "none"],
        ["checkpoints", "none"],
        ["restore", "none", "x"],
        ["fork", "none", "x"],
        ["migrate", "none", "x", "--provider", "bashkit"],
        ["drain", "none"],
        ["down", "none"],
        ["events", "none"],
        ["events", "--follow", "none"],
        ["exec", "-n", "sbx_" + "0" * 32, "--", "x"],
        ["exec", "-n", "", "--", "x"],
        ["ls", "a\nb"],
        ["view", "x" * 300],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_said_in_one_line(refused, args):
    assert "there is no sandbox" in refused(*args)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["up"], "NAME"),
        (["up", "a/b", "--provider", "bashkit"], "can't be called 'a/b'"),
        (["up", "a\nb", "--provider", "bashkit"], r"can't be called 'a\nb'"),
        (["exec", "box"], "give a command"),
        (["port", "box", "http"], "http"),
        (["restore", "box"], "CHECKPOINT"),
        (["cp", "x"], "TARGET"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_in_one_line(refused, args, text):
    assert text in refused(*args)


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "file"])
@pytest.mark.parametrize(
    "verb", [["list"], ["up", "box", "--provider", "bashkit"], ["gc"]], ids=str
)
def test_a_data_folder_that_cannot_be_is_said_in_one_line(
    refused, tmp_path, monkeypatch, place, verb
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / place))  # an absolute one stays as it is
    refused(*verb)


def test_a_store_that_cannot_be_is_said_in_one_line(refused, tmp_path):
    (tmp_path / "pinfold.toml").write_text('[store]\nurl = "nope://x"\n')
    assert "nope" in refused("list")


def test_a_store_that_is_away_for_a_while_ends_no_watch(tmp_path, monkeypatch, capfd):
    """LC-7: what reaps goes on when the store does; the same trouble is told once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    rounds = [Locked("busy"), Locked("busy"), Upkeep(done=("sbx_1",)), Unavailable("away")]

    async def reap(*_):
        if not rounds:
            raise Unavailable("it is no store", retryable=False)
        outcome = rounds.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("pinfold.sandbox.reap", reap)
    monkeypatch.setattr("pinfold.cli._upkeep.PAUSE_SECONDS", 0.0)
    assert _app._main(["reap", "--watch"]) == 125
    out, err = capfd.readouterr()
    assert out == "put to rest: sbx_1\n"
    assert err == ("pinfold: the store: busy\npinfold: the store: away\npinfold: it is no store\n")


def test_damaged_state_is_said_in_one_line(refused, tmp_path, capfd):
    assert _app._main(["list"]) == 0
    (state,) = (tmp_path / "data" / "pinfold").glob("*.sqlite")
    for path in state.parent.glob("*.sqlite*"):
        path.write_bytes(b"not a database" * 1000)
    refused("list")


def _until(condition, what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:g} s: {what}"
        time.sleep(0.05)
