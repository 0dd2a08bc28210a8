"""`pinfold attach` and `port`: a terminal that is a terminal, and is given back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.core.cli.durable_support import DEADLINE, PINFOLD, UP, Cli, Terminal, until


@pytest.fixture
def host(tmp_path, launcher):
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
    until(lambda: not _runs(pid), "the shell ended")


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
