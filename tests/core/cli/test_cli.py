"""The command line: the command's own exit code, 125 for ours, one line for what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import click
import jsonschema
import pytest

from pinfold.cli import _app
from pinfold.plugins import Problem, _entries
from pinfold.spec import from_json
from pinfold.views import EnvironmentView

PINFOLD = [sys.executable, "-m", "pinfold"]


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A folder without a project, and no user file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    for name in ("PINFOLD_CONFIG", "PINFOLD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cli(capfd):
    """Run the command line in this process; return its code, stdout and stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        code = _app._main(list(args))
        out, err = capfd.readouterr()
        return code, out, err

    return run


def pinfold(*args: str, stdin: bytes = b"", **kwargs) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*PINFOLD, *args], input=stdin, capture_output=True, timeout=60, check=False, **kwargs
    )


# --- run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 124, 125, 126, 127, 255])
def test_run_exits_with_the_commands_own_code(code):
    assert pinfold("run", "--shell", f"exit {code}").returncode == code


def test_run_streams_both_outputs_byte_exact_and_passes_stdin_on():
    done = pinfold("run", "--shell", "cat; echo oops >&2", stdin=b"a\x00\xff\r\nb")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\x00\xff\r\nb", b"oops\n")


def test_run_gives_the_command_its_arguments_exactly_and_none_of_them_to_us():
    done = pinfold("run", "-n", "--", "printf", "<%s>", "a b", "", "--help", "$HOME", "é")

    assert (done.returncode, done.stdout.decode()) == (0, "<a b><><--help><$HOME><é>")


def test_run_sets_variables_and_the_folder():
    done = pinfold(
        "run", "-e", "A=1=2", "--env", "B=", "--shell", 'echo "$A|$B|$(pwd)"', "--cwd", "/workspace"
    )

    assert done.stdout == b"1=2||/workspace\n"


def test_run_ends_the_command_at_its_timeout_and_says_so():
    done = pinfold("run", "--timeout", "0.5", "--shell", "echo early; sleep 30")

    assert (done.returncode, done.stdout) == (124, b"early\n")
    assert b"timeout" in done.stderr


def test_run_prints_the_result_as_json():
    done = pinfold("run", "--json", "--shell", "echo out; echo err >&2; exit 3")

    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert result["truncated"] is False


def test_run_says_what_was_not_passed_on():
    done = pinfold("run", "-e", "PINFOLD_X=1", "--shell", "true")

    assert done.returncode == 0
    assert b"PINFOLD_X" in done.stderr


def test_run_uses_a_profile_of_the_project(nowhere):
    (nowhere / "pinfold.toml").write_text(
        'default = "a"\n[profiles.a]\ntarget = { kind = "vfs" }\n[profiles.b]\ntarget = { kind = "vsf" }\n'
    )

    assert pinfold("run", "--", "true").returncode == 0
    assert pinfold("run", "--profile", "a", "--", "true").returncode == 0
    bad = pinfold("run", "--profile", "b", "--", "true")
    assert (bad.returncode, b"did you mean 'vfs'" in bad.stderr) == (125, True)


def test_run_ends_what_it_started_on_sigterm(nowhere):
    with subprocess.Popen(
        [*PINFOLD, "run", "-n", "--shell", "echo started; sleep 60"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert time.monotonic() - start < 20


def test_run_ends_what_it_started_on_ctrl_c(nowhere):
    with subprocess.Popen(
        [*PINFOLD, "run", "-n", "--shell", "echo started; sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_run_into_a_closed_pipe_ends_quietly():
    script = (
        f"{' '.join(PINFOLD)} run -n --shell 'while true; do echo x; done' --timeout 20 | head -c 1"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False)

    assert done.stdout == b"x"
    assert b"Traceback" not in done.stderr


# --- what is wrong is one line and 125 -----------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["nope"], "no such command 'nope'"),
        (["rn"], "did you mean 'run'"),
        (["--bogus"], "No such option"),
        (["run"], "give a command"),
        (["run", "--shell", "x", "--", "y"], "give a command"),
        (["run", "--bogus", "--", "x"], "No such option"),
        (["run", "--timeout", "soon", "--", "x"], "--timeout"),
        (["run", "-n", "--timeout", "-1", "--", "x"], "above 0"),
        (["run", "-n", "--env", "A", "--", "x"], "NAME=VALUE"),
        (["run", "-n", "--env", "1A=x", "--", "x"], "'1A'"),
        (["run", "-n", "--option", "x", "--", "x"], "KEY=VALUE"),
        (["run", "-n", "--cwd", "/etc", "--", "x"], "outside the workspace"),
        (["run", "-n", "--provider", "dockr", "--", "x"], "did you mean 'docker'"),
        (["run", "-n", "--provider", "ssh_machine", "--", "x"], "pip install pinfold-ssh-machine"),
        (["run", "-n", "--profile", "p", "--provider", "bashkit", "--", "x"], "--profile"),
        (["run", "-n", "--profile", "p", "--", "x"], "no profile"),
        (["run", "-n", "--template", "t", "--", "x"], "no template 't'"),
        (["resolve", "missing.json"], "missing.json"),
        (["schema", "nope"], "nope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_in_one_line_with_125(cli, args, text):
    code, out, err = cli(*args)

    assert (code, out) == (125, "")
    assert text in err
    assert err.count("\n") == 1
    assert err.startswith("pinfold: ")


@pytest.mark.parametrize(
    ("args", "pointer"),
    [
        (["--network", "denyy"], "/containment/network/mode"),
        (["--network", "allow"], "/containment/network/mode"),
        (["--level", "native"], "/containment/level"),
        (["--option", "nope=1"], "/target/options/nope"),
        (["--connection", "c"], "/target/connection_id"),
        (["--durability", "checkpointed"], "/durability"),
        (["--allow-host", "http://x"], "/containment/network/allowed_hosts/0"),
        (["--allow-host", "*.x.example"], "/containment/network/allowed_hosts"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_fault_is_shown_with_its_pointer(cli, args, pointer):
    code, out, err = cli("run", "-n", "--provider", "bashkit", *args, "--", "x")

    assert (code, out) == (125, "")
    assert f"{pointer}:" in err or f"{pointer} [" in err


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("pinfold.toml", "a = = 1", "line 1, column 5"),
        ("pinfold.toml", "[profiles", "line 1"),
        ("s.json", '{"a": }', "line 1, column 7"),
    ],
    ids=["toml", "end", "json"],
)
def test_a_syntax_error_has_line_and_column(cli, nowhere, name, text, where):
    (nowhere / name).write_text(text)

    code, _, err = cli("resolve", name)

    assert (code, where in err) == (125, True)


# --- targets, resolve, view, schema ----------------------------------------------------------


def test_targets_lists_what_is_installed_and_what_it_can_do(cli):
    code, out, _ = cli("targets", "--json")

    rows = {row["provider"]: row for row in json.loads(out)["items"]}
    assert code == 0
    assert rows["bashkit"]["available"] is True
    assert rows["bashkit"]["capabilities"]["portable_checkpoint"] is True
    code, out, _ = cli("targets", "--no-probe")
    assert "bashkit (vfs): not probed" in out


def test_targets_shows_a_broken_plugin_and_goes_on(cli, monkeypatch):
    load = _entries.Entries.load_all

    def with_problem(self, *args):
        return [
            Problem(name="bad", code="broken", message="kaput", hint="mend it"),
            *load(self, *args),
        ]

    monkeypatch.setattr(_entries.Entries, "load_all", with_problem)

    code, out, _ = cli("targets")

    assert code == 0
    assert "bad: unavailable" in out
    assert "kaput" in out
    assert "bashkit (vfs): available" in out


def test_resolve_prints_the_complete_spec_and_its_digest(cli, nowhere):
    (nowhere / "spec.json").write_text('{"target": {"kind": "vfs"}}')

    code, out, _ = cli("resolve", "spec.json")

    shown = json.loads(out)
    assert code == 0
    assert shown["spec"]["durability"] == "checkpointed"
    assert shown["digest"].startswith("sha256:")
    _, out, _ = cli("resolve", "spec.json", "--ephemeral")
    assert json.loads(out)["spec"]["durability"] == "none"
    (nowhere / "again.json").write_text(json.dumps(shown["spec"]))
    assert json.loads(cli("resolve", "again.json")[1])["digest"] == shown["digest"]


def test_resolve_prints_every_fault(cli, nowhere):
    (nowhere / "spec.json").write_text(
        '{"target": {"kind": "vsf"}, "durabilty": 1, "lifecycle": {"x": 1}}'
    )

    code, out, err = cli("resolve", "spec.json")
    assert (code, out) == (125, "")
    assert "3 faults" in err
    code, out, _ = cli("resolve", "spec.json", "--json")
    assert code == 125
    assert {fault["pointer"] for fault in json.loads(out)["faults"]} == {
        "/target/kind",
        "/durabilty",
        "/lifecycle/x",
    }


def test_rs8_resolve_all_judges_every_profile_of_the_project(cli, nowhere):
    good = 'default = "a"\n[profiles.a.target]\nkind = "vfs"\n[profiles.b]\ntemplate = "t"\n'
    template = '[templates.t.target]\nkind = "vfs"\n'
    (nowhere / "pinfold.toml").write_text(good + template)
    code, out, _ = cli("resolve", "--all")
    shown = json.loads(out)
    assert (code, shown["default"], list(shown["profiles"])) == (0, "a", ["a", "b"])
    for name, profile in shown["profiles"].items():
        alone = json.loads(cli("resolve", "--profile", name)[1])
        assert profile == {key: alone[key] for key in ("spec", "digest")}
    assert json.loads(cli("resolve", "pinfold.toml", "--all")[1]) == shown

    (nowhere / "bad.toml").write_text(good + '[profiles.c.target]\nkind = "vf"\n')
    code, out, err = cli("resolve", "bad.toml", "--all")
    assert (code, out) == (125, "")
    assert "/profiles/b/template" in err
    assert "/profiles/c/target/kind" in err
    code, out, _ = cli("resolve", "bad.toml", "--all", "--json")
    assert (code, len(json.loads(out)["faults"])) == (125, 2)


@pytest.mark.parametrize(
    "more", [["--profile", "a"], ["--ephemeral"], ["--network", "deny"], ["spec.json"]]
)
def test_resolve_all_goes_with_no_choice(cli, nowhere, more):
    code, _, err = cli("resolve", "--all", *more)
    assert code == 125
    assert "--all" in err


def test_resolve_reads_templates_and_policies_of_the_project(cli, nowhere):
    (nowhere / "pinfold.toml").write_text(
        'default = "p"\nmode = "selectable"\n[profiles.p]\ntemplate = "t"\n[profiles.q]\ntarget = { kind = "vfs" }\n'
        '[templates.t]\ntarget = { kind = "vfs" }\n'
    )

    _, out, _ = cli("resolve")
    assert json.loads(out)["spec"]["template_revision_id"].startswith("tr_")
    assert json.loads(out)["name"] == "p"
    code, _, err = cli("resolve", "--network", "deny")
    assert (code, "selectable" in err) == (125, True)


@pytest.mark.parametrize(
    "args",
    [["--provider", "bashkit"], ["spec.json"], [], ["--profile", "p"]],
    ids=["provider", "file", "embedded", "profile"],
)
def test_rs_a_template_lies_over_the_deployments_defaults_however_the_spec_is_named(
    cli, nowhere, args
):
    (nowhere / "spec.json").write_text('{"target": {"kind": "vfs"}}')
    (nowhere / "pinfold.toml").write_text(
        'mode = "configurable"\n'
        '[defaults]\ndurability = "none"\nlifecycle.idle_after_seconds = 42\n'
        "[templates.t]\nlifecycle.idle_after_seconds = 77\n"
        + ('[profiles.p]\ntarget = { kind = "vfs" }\n' if "--profile" in args else "")
    )

    for more, seconds in (([], 42), (["--template", "t"], 77)):
        code, out, _ = cli("resolve", *args, *more)
        assert code == 0
        spec = json.loads(out)["spec"]
        assert (spec["durability"], spec["lifecycle"]["idle_after_seconds"]) == ("none", seconds)
        assert ("template_revision_id" in spec) is bool(more)
    code, _, err = cli("resolve", *args, "--template", "nope")
    assert (code, "no template 'nope'" in err) == (125, True)


def test_view_shows_the_environment_of_a_spec(cli):
    code, out, _ = cli("view", "--provider", "bashkit", "--json")

    assert code == 0
    assert from_json(json.loads(out), EnvironmentView).containment.network == "deny"
    _, text, _ = cli("view", "--provider", "bashkit")
    assert "native_processes: no" in text


def test_schema_is_sound_and_knows_the_installed_options(cli):
    code, out, _ = cli("schema")

    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    assert code == 0
    assert judge.is_valid({"target": {"kind": "vfs", "provider": "bashkit"}})
    assert not judge.is_valid(
        {"target": {"kind": "vfs", "provider": "bashkit", "options": {"bogus": 1}}}
    )
    for name in ("resolved", "pinned"):
        jsonschema.Draft202012Validator.check_schema(json.loads(cli("schema", name)[1]))


def test_version_and_help(cli):
    assert cli("--version") == (0, "pinfold 1.0.0a1\n", "")
    code, out, _ = cli("--help")
    assert code == 0
    assert all(verb in out for verb in ("run", "targets", "resolve", "view", "schema"))


# --- plugins' verbs ------------------------------------------------------------------------


@pytest.fixture
def verbs(monkeypatch):
    """Stand in for the entry points of `pinfold.commands`."""

    @click.command()
    def hello():
        """Say hello."""
        click.echo("hello")

    points = {"hello": hello, "broken": None, "wrong": 3}

    class Stand:
        names = tuple(points)

        def __init__(self, group):
            assert group == "pinfold.commands"

        def load(self, name):
            if name == "broken":
                return Problem(name=name, code="broken", message="kaput")
            value = points.get(name)
            return None if value is None else _entries.Loaded(name=name, value=value)

    monkeypatch.setattr("pinfold.plugins.Entries", Stand)


def test_pr1_a_plugin_brings_a_verb_and_a_broken_one_hides_nobody(cli, verbs):
    assert cli("hello")[:2] == (0, "hello\n")
    code, out, _ = cli("--help")
    assert code == 0
    assert "hello" in out
    assert "kaput" in out
    assert cli("broken", "--any", "thing")[0] == 125
    assert cli("wrong")[0] == 125
