"""A sandbox on the command line from up to down: exec, checkpoints, forks, migrations, upkeep."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

from pinfold import blocking
from tests.core.cli.durable_support import DEADLINE, UP, Cli, until

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


def test_a_sandbox_that_no_other_command_can_use_is_told_as_it_is_made(quick):
    """LC-1, LC-4: without `attach` and without a checkpoint nothing outlives the controller."""
    done = quick("up", "box", "--provider", "bashkit", "--durability", "none")
    assert (done.returncode, b"'box' ends with this command" in done.stderr) == (0, True), done
    assert "durability none keeps no copy" in quick.fails("exec", "box", "--", "true")
    quick.ok("up", "other", "--provider", "host", "--durability", "none")  # says nothing: attach
    quick.ok("exec", "other", "--", "true")


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
    until(lambda: ", overdue" in cli.ok("list"), "it is overdue")

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


def test_gc_removes_what_a_killed_run_left_and_nothing_of_the_living(tmp_path, launcher):
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
