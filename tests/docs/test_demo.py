"""The demo's data is sound, and its outcome is what the data says."""

import csv
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELEMENTS = ROOT / "examples" / "elements"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with (ELEMENTS / "elements.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_elements_are_those_of_the_periodic_table(rows):
    assert [int(row["number"]) for row in rows] == list(range(1, 119))
    assert Counter(row["period"] for row in rows) == {
        "1": 2, "2": 8, "3": 8, "4": 18, "5": 18, "6": 32, "7": 32,
    }  # fmt: skip
    for column in ("symbol", "name"):
        assert len({row[column] for row in rows}) == 118
    assert all(re.fullmatch(r"[A-Z][a-z]?", row["symbol"]) for row in rows)
    assert {row["state"] for row in rows} == {"solid", "liquid", "gas", ""}
    # A group's members stand below one another; the first period has two groups.
    groups = Counter(row["group"] for row in rows)
    assert groups.pop("") == 30
    assert groups == {
        str(group): 7 if group in (1, 18) else 6 if group == 2 or group > 12 else 4 for group in range(1, 19)
    } | {"3": 2}  # fmt: skip


def test_weights_rise_with_the_number_but_for_the_known_exceptions(rows):
    weighed = [row for row in rows if row["weight"]]
    falls = [
        (a["symbol"], b["symbol"])
        for a, b in pairwise(weighed)
        if float(a["weight"]) > float(b["weight"])
    ]
    assert falls == [("Ar", "K"), ("Co", "Ni"), ("Te", "I"), ("Th", "Pa")]


def test_the_data_has_its_licence():
    assert "CC0-1.0" in (ELEMENTS / "LICENSE").read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[str, Path]:
    """What the demo prints, and the folder with its outcome."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "demo.py", folder],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, folder


def test_the_demo_shows_the_view_before_anything_runs(demo):
    printed, _ = demo
    view, _, rest = printed.partition("\nuploaded ")
    assert rest
    shown = json.loads(view.partition("\n")[2])
    assert shown["target"] == {"kind": "vfs", "provider": "bashkit"}
    assert shown["containment"] == {"level": "isolated", "network": "deny"}
    assert shown["capabilities"]["native_processes"] is False


def test_the_demo_shows_result_exit_code_and_time(demo, rows):
    printed, _ = demo
    assert re.search(r"^exit code   0$", printed, re.MULTILINE)
    assert re.search(r"^time        \d+ ms in the sandbox$", printed, re.MULTILINE)
    for period in "1234567":
        members = [row for row in rows if row["period"] == period]
        weighed = sorted(
            (row for row in members if row["weight"]), key=lambda r: float(r["weight"])
        )
        line = [period, str(len(members)), str(len(members) - len(weighed))]
        line += [weighed[0]["name"], weighed[-1]["name"]]
        assert line in [printed_line.split() for printed_line in printed.splitlines()]


def test_the_demo_copies_its_outcome_out_and_shows_it(demo, rows):
    printed, folder = demo
    outcome = (folder / "report.json").read_text()
    assert printed.partition("\nA durable sandbox")[0].endswith(outcome)
    by_name = sorted(rows, key=lambda row: row["name"])
    assert json.loads(outcome) == {
        "gases": [row["symbol"] for row in by_name if row["state"] == "gas"],
        "liquids": [row["name"] for row in by_name if row["state"] == "liquid"],
    }


def test_the_demo_shows_a_sandbox_that_comes_back(demo):
    _, _, shown = demo[0].partition("\nA durable sandbox on this machine:\n")
    place = re.search(r"^deleted +(/.*), from outside$", shown, re.MULTILINE)
    assert place
    assert not Path(place[1]).exists()
    assert re.search(
        r"^exit code   0\nsame file   yes\ngeneration  1, then 2$", shown, re.MULTILINE
    )
    events = re.findall(r"^ +((?:sandbox|checkpoint)\.\w+)$", shown, re.MULTILINE)
    assert events == [
        "sandbox.created", "sandbox.ready", "checkpoint.created",
        "sandbox.instance_lost", "sandbox.recovered",
    ]  # fmt: skip


def test_the_readme_lists_the_providers_that_are_installed():
    """Each that `make venv` installs, and none that is not in this repository."""
    (dists,) = re.findall(r"^DISTS\s*:=(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    installed = {name.split("/")[1] for name in dists.split() if name.startswith("providers/")}
    table = (ROOT / "README.md").read_text().partition("\n## Providers\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| ([a-z_]+) \| `([\w-]+)` \|", table, re.MULTILINE))
    assert installed <= set(listed)
    for name, dist in listed.items():
        project = tomllib.loads((ROOT / "providers" / name / "pyproject.toml").read_text())
        assert project["project"]["name"] == dist
