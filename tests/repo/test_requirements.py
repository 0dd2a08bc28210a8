"""requirements.txt is a whole, hash-locked answer to requirements.in and to every dist."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def locked(root) -> dict[str, tuple[Requirement, list[str]]]:
    """Each requirement of requirements.txt with its hashes, by canonical name."""
    text = (root / "requirements.txt").read_text().replace("\\\n", " ")
    found: dict[str, tuple[Requirement, list[str]]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=", line.strip())
            parsed = Requirement(requirement)
            found[canonicalize_name(parsed.name)] = parsed, hashes
    return found


def wanted(root) -> list[Requirement]:
    lines = (root / "requirements.in").read_text().splitlines()
    stated = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return [Requirement(line) for line in stated if line]


def test_every_requirement_is_one_version_with_hashes(locked):
    assert len(locked) > 30
    for requirement, hashes in locked.values():
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


def test_the_lock_names_no_index(root):
    text = (root / "requirements.txt").read_text()
    assert "://" not in text
    assert "index-url" not in text


def test_the_lock_answers_requirements_in(locked, root):
    for requirement in wanted(root):
        answer, _ = locked[canonicalize_name(requirement.name)]
        (specifier,) = answer.specifier
        assert requirement.specifier.contains(specifier.version), requirement


def test_the_lock_answers_every_dist(locked, dist):
    texts = list(dist.project["dependencies"])
    for extra in dist.project.get("optional-dependencies", {}).values():
        texts += extra
    with (dist.folder / "pyproject.toml").open("rb") as file:
        texts += tomllib.load(file)["build-system"]["requires"]
    for requirement in map(Requirement, texts):
        if canonicalize_name(requirement.name).startswith("pinfold"):
            continue
        answer, _ = locked[canonicalize_name(requirement.name)]
        (specifier,) = answer.specifier
        assert requirement.specifier.contains(specifier.version, prereleases=True), requirement
