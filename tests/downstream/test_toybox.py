"""A plugin written from docs/write-a-provider.md alone is found, listed and used (PR-1, PR-4)."""

import json
import os
import subprocess
import sys

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.walk import Walk, this_bin
from tests.downstream import fresh

NAME = "docs/write-a-provider.md"


@pytest.fixture
def page():
    return read_blocks(fresh.ROOT / NAME, NAME)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_the_page_holds_in_a_fresh_environment(page, environment, folder):
    Walk(folder, environment, fresh.PIP).run(page)


def test_the_plugin_is_sound_to_a_type_checker(page, folder, tmp_path):
    """So that no signature of the page lags behind the plugin contract."""
    Walk(folder, this_bin()).run([block for block in page if block.file])
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache"]
    checked = subprocess.run(
        [*mypy, "-p", "pinfold_toybox"],
        env={**os.environ, "MYPYPATH": f"{folder}/pinfold-toybox/src:{fresh.ROOT}/core/src"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def wheel(page, environment, folder, tmp_path):
    """The plugin's wheel, built from the page's files and nothing else."""
    Walk(folder, environment).run([block for block in page if block.file])
    return fresh.build(folder / "pinfold-toybox", tmp_path)


def test_the_plugin_works_from_its_wheel(wheel, environment, folder):
    def ask(*command):
        return subprocess.run(
            [environment / command[0], *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    ran = ask("pinfold", "run", "--provider", "toybox", "--", "echo")
    assert ran.returncode == 125
    assert "provider 'toybox' is not installed" in ran.stderr

    fresh.install(environment, [wheel])

    # Nothing of the tree is in sight: everything of ours comes from a wheel.
    where = ask(
        "python", "-c", "import pinfold, pinfold_toybox as t; print(pinfold.__file__, t.__file__)"
    )
    assert [str(environment.parent) in path for path in where.stdout.split()] == [True, True]

    listed = json.loads(ask("pinfold", "targets", "--json").stdout)["items"]
    assert [row["provider"] for row in listed] == ["bashkit", "toybox"]
    (row,) = [row for row in listed if row["provider"] == "toybox"]
    assert (row["available"], row["kind"], row["version"]) == (True, "vfs", "0.1.0")

    ran = ask("pinfold", "run", "--provider", "toybox", "--", "echo", "a b", "$HOME")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "a b $HOME\n", "")
    ran = ask("pinfold", "run", "--provider", "toybox", "--", "false")
    assert ran.returncode == 1

    # Two providers make kind vfs now: none is implied, and the fault names both (SP-0).
    ran = ask("pinfold", "run", "--", "true")
    assert ran.returncode == 125
    assert "allowed: bashkit, toybox" in ran.stderr

    used = ask(
        "python",
        "-c",
        "import anyio, pinfold\n"
        "async def main():\n"
        "    async with pinfold.open({'target': {'kind': 'vfs', 'provider': 'toybox'}}) as box:\n"
        "        await box.files.write('/workspace/a', bytes(range(256)))\n"
        "        result = await box.exec(['cat', 'a'])\n"
        "        print(result.exit_code, result.stdout == bytes(range(256)))\n"
        "anyio.run(main)\n",
    )
    assert (used.stdout, used.stderr) == ("0 True\n", "")
