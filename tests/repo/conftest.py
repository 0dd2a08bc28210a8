"""What tests of the repository look at: its tracked files and its dists."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

ROOT = Path(__file__).parents[2]


@attrs.frozen(kw_only=True)
class Dist:
    """One folder with a pyproject.toml that builds a wheel."""

    folder: Path
    project: dict[str, Any]
    package: str

    @classmethod
    def at(cls, folder: Path) -> "Dist":
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        return cls(folder=folder, project=project, package=project["name"].replace("-", "_"))


def providers() -> list[Dist]:
    return [Dist.at(path.parent) for path in sorted(ROOT.glob("providers/*/pyproject.toml"))]


def dists() -> list[Dist]:
    others = [ROOT / name for name in ("core", "conformance", "helper")]
    return [
        Dist.at(folder) for folder in others if (folder / "pyproject.toml").exists()
    ] + providers()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, find in (("dist", dists), ("provider", providers)):
        if name in metafunc.fixturenames:
            found = find()
            ids = [dist.project["name"] for dist in found]
            metafunc.parametrize(name, found, ids=ids, scope="module")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Every file that git tracks and that the work tree still holds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(files) > 10
    return [file for file in files if file.is_file()]
