"""Each dist that `make venv` installs is held to the layers: none is forgotten by the linters."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def settings(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]


@pytest.fixture(scope="module")
def installed(root):
    """The folders of the dists that `make venv` installs."""
    (line,) = re.findall(r"^DISTS\s*:=(.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    return line.split()


def packages(folders) -> set[str]:
    return {"pinfold" if f == "core" else f"pinfold_{f.split('/')[-1]}" for f in folders}


def test_every_installed_dist_is_type_checked_and_linted_for_its_imports(settings, installed):
    assert "core" in installed
    assert packages(installed) == set(settings["importlinter"]["root_packages"])
    paths = {path.partition("/")[2] for path in settings["mypy"]["mypy_path"]}
    assert paths >= {f"{folder}/src" for folder in installed}


def test_neither_core_nor_a_provider_may_import_a_provider(settings, installed, root):
    providers = {f"pinfold_{p.parent.name}" for p in root.glob("providers/*/pyproject.toml")}
    forbidden = {
        contract["source_modules"][0]: set(contract["forbidden_modules"])
        for contract in settings["importlinter"]["contracts"]
        if contract["type"] == "forbidden"
    }
    sources = packages(installed) - {"pinfold_conformance", "pinfold_helper"}
    assert set(forbidden) >= sources
    for source in sources:
        assert forbidden[source] >= (providers | {"pinfold_conformance"}) - {source}, source
