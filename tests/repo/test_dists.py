"""Every dist builds, holds its package and nothing else, and looks like its neighbours."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement


@pytest.fixture(scope="module")
def built(dist, tmp_path_factory):
    """A folder with the dist's sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, dist.folder],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def names_in(archive: Path) -> list[str]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sdist:
        return [name.split("/", 1)[1] for name in sdist.getnames()]


def test_a_wheel_holds_one_package_its_marker_and_its_licence(dist, built):
    (wheel,) = built.glob("*.whl")
    names = names_in(wheel)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {dist.package}
    assert f"{dist.package}/__init__.py" in names
    assert f"{dist.package}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_a_wheel_holds_every_module_of_its_package_and_no_test(dist, built):
    (wheel,) = built.glob("*.whl")
    names = names_in(wheel)
    source = dist.folder / "src"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    # The suite and the project that it writes for others are tests, and are what it ships.
    own = [
        name
        for name in names
        if not name.startswith(("pinfold_conformance/suite/", "pinfold_conformance/_template/"))
    ]
    assert not [name for name in own if re.search(r"(^|/)(tests?|conftest)(/|\.py|_)", name)]
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_an_sdist_holds_sources_and_metadata_alone(dist, built):
    (sdist,) = built.glob("*.tar.gz")
    tops = {name.split("/")[0] for name in names_in(sdist)}
    assert tops == {"src", "pyproject.toml", "PKG-INFO", "LICENSE", ".gitignore"}


def test_the_licence_of_a_dist_is_the_repositorys(dist, root):
    assert (dist.folder / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()


def test_all_dists_share_version_python_and_licence(dist, root):
    core = tomllib.loads((root / "core/pyproject.toml").read_text())["project"]
    for key in ("version", "requires-python", "license"):
        assert dist.project[key] == core[key], key


def test_dependencies_are_ranges_never_pins(dist):
    for text in dist.project["dependencies"]:
        requirement = Requirement(text)
        operators = {specifier.operator for specifier in requirement.specifier}
        assert ">=" in operators, text
        assert not operators & {"==", "===", "~="}, text
        if requirement.name == "pinfold":
            assert not requirement.specifier.contains("2.0"), text
            assert requirement.specifier.contains("1.99"), text


def test_every_provider_folder_has_the_same_shape(provider):
    name = provider.folder.name
    assert {path.name for path in provider.folder.iterdir()} == {"LICENSE", "pyproject.toml", "src"}
    assert {path.name for path in (provider.folder / "src").iterdir()} == {f"pinfold_{name}"}
    assert provider.project["name"] == f"pinfold-{name.replace('_', '-')}"
    assert "pinfold" in {Requirement(text).name for text in provider.project["dependencies"]}


def test_every_provider_registers_itself_and_its_lanes(provider):
    name = provider.folder.name
    entries = provider.project["entry-points"]
    assert set(entries) == {"pinfold.lanes", "pinfold.providers"}
    ((entry, target),) = entries["pinfold.providers"].items()
    assert entry.replace("-", "_") == name
    assert target == f"pinfold_{name}:provider"
    assert entries["pinfold.lanes"]
    for lane, target in entries["pinfold.lanes"].items():
        assert lane == entry or lane.startswith(f"{entry}-")
        assert target.startswith(f"pinfold_{name}.lane:")
