"""`pinfold conform`, the pytest plugin, `pinfold new-provider`."""

import ast
import json
import subprocess
import sys
import uuid
from pathlib import Path

import attrs
import pytest

from pinfold_conformance import _registry, all_checks
from pinfold_conformance._template import FLAVOURS, NameInvalid, write_project

REFERENCE = "pinfold_conformance.adapters.toy:ToyLane"
NO_LANE = "pinfold_conformance.adapters.toy:ToyProvider"


def test_a_conformant_target_exits_0_and_its_certificate_verifies(cli, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = cli("conform", REFERENCE, "--profile", "smoke", "--out", str(out))
    assert code == 0
    assert "CONFORMANT (6 pass)" in stdout
    code, stdout, _ = cli("conform", "--verify", str(out / "certificate.json"))
    assert (code, "holds together" in stdout) == (0, True)
    form = json.loads((out / "certificate.json").read_text())
    form["outcomes"].pop()
    (out / "certificate.json").write_text(json.dumps(form))
    code, stdout, _ = cli("conform", "--verify", str(out / "certificate.json"))
    assert (code, "was changed" in stdout) == (1, True)


def test_a_lane_that_can_not_be_loaded_is_a_verdict(cli):
    code, stdout, _ = cli("conform", "no_such_module:lane")
    assert code == 1
    assert "no_such_module" in stdout
    code, stdout, _ = cli("conform", NO_LANE)
    assert code == 1
    assert "not a pinfold.testing.Lane" in stdout


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A target whose exit codes are wrong."""
    (tmp_path / "broken_target.py").write_text(
        "from pinfold_conformance.mutants import mutants\n"
        "lane = next(m for m in mutants() if m.kills == 'EX-2.codes').lane()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_target", raising=False)
    return "broken_target:lane"


def test_a_target_that_breaks_a_clause_exits_1_and_so_does_its_certificate(cli, broken, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = cli("conform", broken, "--profile", "smoke", "--out", str(out))
    assert (code, ": NOT CONFORMANT (" in stdout) == (1, True)
    code, stdout, _ = cli("conform", "--verify", str(out / "certificate.json"))
    assert (code, "is not conformant" in stdout) == (1, True)


def test_of_several_targets_the_worst_decides(cli, broken):
    for targets in ((REFERENCE, broken), (broken, REFERENCE)):
        code, stdout, _ = cli("conform", *targets, "--only", "EX-2.codes")
        assert (code, ": CONFORMANT" in stdout, "NOT CONFORMANT" in stdout) == (1, True, True)


def test_a_known_failure_is_partial_and_one_that_passes_fails(cli, broken, tmp_path):
    (tmp_path / "known.toml").write_text(
        '[[failure]]\ncheck = "EX-2.codes"\nreason = "it counts wrong"\nissue = "one"\n'
        'expires = 2999-01-01\nmatch = "exit_code"\n'
    )
    known = ("--only", "EX-2.codes", "--known", str(tmp_path / "known.toml"))
    code, stdout, _ = cli("conform", broken, *known)
    assert (code, "known-failure" in stdout) == (4, True)
    code, stdout, _ = cli("conform", broken, *known, "--json")
    assert " ".join(known) in json.loads(stdout)["reproduce"]  # else it would come to another end
    code, stdout, _ = cli("conform", REFERENCE, *known)
    assert (code, "NOT CONFORMANT" in stdout) == (1, True)


def test_partial_exits_4(cli):
    code, stdout, _ = cli("conform", REFERENCE, "--only", "FS-2.race", "--no-attack")
    assert (code, "PARTIAL" in stdout) == (4, True)


def test_a_fault_of_the_suite_itself_exits_3(cli, monkeypatch):
    async def broken(case):
        raise ZeroDivisionError("a bug of the suite")

    one = next(one for one in all_checks() if one.id == "FS-3.ranges")
    monkeypatch.setitem(_registry._registry, one.id, attrs.evolve(one, run=broken))
    code, stdout, _ = cli("conform", REFERENCE, "--only", "FS-3.ranges")
    assert (code, "engine-error" in stdout, "a bug of the suite" in stdout) == (3, True, True)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["conform"], "which target"),
        (["conform", "nobody"], "no lane is named 'nobody'"),
        (["conform", REFERENCE, "--only", "EX-none"], "no check is named"),
        (["conform", REFERENCE, "--profile", "tiny"], "'tiny' is not one of"),
        (["conform", REFERENCE, "--known", "/no/such/file"], "No such file"),
        (["conform", REFERENCE, "--scale", "0"], "--scale"),
        (["conform", "--verify", "/no/such/file"], "No such file"),
        (["conform", REFERENCE, "--replay", "/no/such/file"], "No such file"),
        (["conform", REFERENCE, "--wrong"], "No such option"),
        (["conform", REFERENCE, "--with", "nobody"], "no lane is named"),
    ],
)
def test_usage_errors_exit_2_with_one_line(cli, args, told):
    code, stdout, stderr = cli(*args)
    assert code == 2
    assert told in stderr
    assert len(stderr.splitlines()) == 1
    assert stdout == ""


def test_json_is_all_that_stdout_has(cli):
    code, stdout, _ = cli("conform", REFERENCE, "--profile", "smoke", "--json")
    assert code == 0
    assert json.loads(stdout)["result"] == "conformant"


def test_lists(cli):
    code, stdout, _ = cli("conform", "--list", "--only", "EX-4")
    assert code == 0
    assert "EX-4.timeout" in stdout
    code, stdout, _ = cli("conform", "--clauses")
    assert code == 0
    assert "| EX-4 | `EX-4.timeout`" in stdout


def crashed(state, target):
    """The ledger of a run whose process is gone: no process has a number that large."""
    ledger = state / "pinfold" / "conformance" / f"{target}.json"
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ref = {"provider": "bashkit", "id": "gone", "data": {}}
    ledger.write_text(
        json.dumps({"run": str(uuid.uuid4()), "target": target, "pid": 2**30, "refs": [ref]})
    )
    return ledger


def test_a_sweep_exits_0_when_nothing_is_left_and_4_when_something_stays(cli, tmp_path):
    code, stdout, _ = cli("conform", "--sweep")
    assert (code, stdout) == (0, "nothing is left behind\n")
    swept = crashed(tmp_path / "state", "bashkit")
    code, stdout, _ = cli("conform", "--sweep")
    assert (code, "1 removed" in stdout, swept.exists()) == (0, True, False)
    stays, swept = crashed(tmp_path / "state", "nobody"), crashed(tmp_path / "state", "bashkit")
    code, stdout, _ = cli("conform", "--sweep")
    assert (code, "the lane 'nobody' is not installed" in stdout) == (4, True)
    assert (stays.exists(), swept.exists()) == (True, False)


def test_a_sweep_finds_a_lane_that_is_named_beside_it(cli, tmp_path):
    swept = crashed(tmp_path / "state", "reference")
    assert cli("conform", "--sweep")[0] == 4
    code, stdout, _ = cli("conform", "--sweep", REFERENCE)
    assert (code, "reference: 1 removed" in stdout, swept.exists()) == (0, True, False)


def pytest_with(args, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_plugin_runs_checks_from_the_installed_package(tmp_path):
    args = ["--pyargs", "pinfold_conformance.suite", "--pinfold-target", REFERENCE,
            "--pinfold-only", "EX-1", "--pinfold-only", "FS-3"]  # fmt: skip
    code, output = pytest_with(args, tmp_path)
    assert code == 0, output
    assert "passed" in output


def test_the_plugin_fails_what_fails(tmp_path):
    (tmp_path / "broken.py").write_text(
        "from pinfold_conformance.mutants import mutants\n"
        "lane = next(m for m in mutants() if m.kills == 'EX-2.codes').lane()\n"
    )
    args = ["--pyargs", "pinfold_conformance.suite", "--pinfold-target", "broken:lane",
            "--pinfold-only", "EX-2.codes", "-p", "broken"]  # fmt: skip
    code, output = pytest_with(args, tmp_path)
    assert code == 1, output
    assert "exit_code of exit" in output


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--pinfold-target", "nobody"], "no lane is named"),
        (
            ["--pinfold-target", REFERENCE, "--pinfold-profile", "tiny"],
            "--pinfold-profile is one of",
        ),
        (["--pinfold-target", REFERENCE, "--pinfold-only", "EX-none"], "no check is named"),
        (["--pinfold-target", REFERENCE, "--pinfold-known", "/no/such/file"], "No such file"),
    ],
)
def test_the_plugin_tells_usage_errors(tmp_path, args, told):
    code, output = pytest_with(["--pyargs", "pinfold_conformance.suite", *args], tmp_path)
    assert code != 0
    assert told in output
    assert "Traceback" not in output


def test_the_plugin_imports_nothing_of_the_suite_unless_asked():
    program = (
        "import sys, pinfold_conformance.plugin as p; "
        "print(sorted(m for m in sys.modules if m.startswith('hypothesis')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- new-provider ---------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_new_project_is_conformant_as_it_is(flavour, tmp_path):
    folder = write_project("my-place", flavour, tmp_path)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "README.md", "tests/test_conformance.py",
            ".github/workflows/conformance.yml", "src/pinfold_my_place/lane.py"} <= names  # fmt: skip
    assert not [name for name in names if "acme" in (folder / name).read_text().lower()]
    program = (
        "from pinfold_my_place.lane import lane\n"
        "from pinfold_conformance import *\n"
        "report = run(lane, Options(profile=PROFILES['smoke']))\n"
        "print(report.result, [o for o in report.outcomes if o.verdict != 'pass'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder / "src", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "conformant []", done.stdout + done.stderr


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_new_project_is_typed_and_tidy(flavour, tmp_path, root):
    folder = write_project("my-place", flavour, tmp_path)
    for command in (
        ["mypy", "--strict", "src"],
        ["ruff", "check", "--isolated", "--select", "E,F,I,B,UP", "--line-length", "100", "src"],
        ["ruff", "format", "--isolated", "--line-length", "100", "--check", "src"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def code_lines(module: Path) -> int:
    """Count what has to be thought of: no blank lines, no imports, no docstrings."""
    text = module.read_text()
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    for node in ast.walk(ast.parse(text)):
        aside: ast.AST | None = node if isinstance(node, ast.Import | ast.ImportFrom) else None
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                aside = node.body[0] if ast.get_docstring(node) else None
        if isinstance(aside, ast.stmt):
            lines -= set(range(aside.lineno, (aside.end_lineno or aside.lineno) + 1))
    return len(lines)


def test_the_posix_flavour_is_a_provider_in_120_lines(tmp_path):
    """All but its lane, which only tests need."""
    folder = write_project("my-place", "posix", tmp_path) / "src/pinfold_my_place"
    modules = {module.name for module in folder.glob("*.py")}
    assert modules == {"__init__.py", "_guest.py", "lane.py"}
    assert sum(code_lines(folder / name) for name in modules - {"lane.py"}) <= 120


@pytest.mark.parametrize(
    "name", ["", "Acme", "a b", "1a", "a_b", "a--b", "-a", "a/b", "import", "x" * 41]
)
def test_a_name_that_can_not_be_is_refused(name, tmp_path):
    with pytest.raises(NameInvalid, match="lower-case"):
        write_project(name, "posix", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "pinfold-acme2").mkdir()
    with pytest.raises(FileExistsError, match="nothing was written"):
        write_project("acme2", "posix", tmp_path)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_new_provider_from_the_command_line(flavour, cli, tmp_path):
    call = ("new-provider", "widget", "--flavour", flavour, "--into", str(tmp_path))
    code, stdout, _ = cli(*call)
    assert code == 0
    assert "pinfold conform widget" in stdout
    written = tmp_path / "pinfold-widget" / "src" / "pinfold_widget"
    assert (written / "_service.py").exists() == (flavour == "generic")
    code, _, stderr = cli(*call)
    assert code == 125
    assert "is there already" in stderr


def test_an_unknown_flavour_is_refused_with_those_that_there_are(cli, tmp_path):
    code, _, stderr = cli("new-provider", "widget", "--flavour", "vfs", "--into", str(tmp_path))
    assert code == 125
    assert all(flavour in stderr for flavour in FLAVOURS)
    assert list(tmp_path.iterdir()) == []


def test_without_a_flavour_it_is_posix(cli, tmp_path):
    code, _, _ = cli("new-provider", "widget", "--into", str(tmp_path))
    assert code == 0
    assert (tmp_path / "pinfold-widget/src/pinfold_widget/_guest.py").exists()
