"""Every code block of the README and of docs/ does what its page says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.walk import Walk, this_bin

ROOT = Path(__file__).parents[2]

#: Walked in a fresh environment, by tests/downstream.
ELSEWHERE = {"docs/write-a-provider.md"}

PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]


@pytest.fixture
def folder(tmp_path):
    """An empty folder, with a neighbour to be at home in."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", [name for name in PAGES if name not in {"README.md", *ELSEWHERE}])
def test_a_page_holds(name, folder):
    Walk(folder, this_bin()).run(read_blocks(ROOT / name, name))


def clone(folder: Path) -> None:
    """Give a folder what a fresh clone has, and an environment that is set up."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    venv = folder / ".venv"
    venv.mkdir()
    for entry in this_bin().parent.iterdir():
        if entry.name != ".ready":
            (venv / entry.name).symlink_to(entry)
    (venv / ".ready").touch()  # newer than all: make has nothing to set up


def test_a_newcomers_walk_through_the_readme_has_no_step_that_fails(folder):
    clone(folder)
    Walk(folder, this_bin()).run(read_blocks(ROOT / "README.md", "README.md"))
    assert (folder / "build/demo/report.json").is_file()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and its kin make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        text = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_within_the_repository_lead_somewhere(name):
    page = ROOT / name
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_index():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/index.md").read_text()))
    assert linked == {page.name for page in ROOT.glob("docs/*.md")} - {"index.md"}
