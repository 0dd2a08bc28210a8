"""`pinfold cp` and `ls`: files, trees and streams, both ways, and how a copy ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from pinfold.cli import _app
from tests.core.cli.durable_support import DEADLINE, PINFOLD, UP, Cli, Terminal, until


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
        until(lambda: quick.row()["generation"] == 3, "the copy has the sandbox")
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


def test_names_that_a_guest_chose_drive_no_terminal(tmp_path, launcher):
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
