"""docs/contract.md has every clause, once; and no file cites a clause that it does not have."""

import re
from collections import Counter

import pytest

#: Area to the numbers of its clauses. A clause is added here, to the page and to the tests at once.
CLAUSES = {
    "SP": range(6),
    "RS": range(1, 10),
    "PR": range(1, 8),
    "EX": range(1, 16),
    "FS": range(1, 8),
    "CP": range(1, 11),
    "LC": range(1, 10),
    "ER": range(1, 4),
    "EV": range(1, 4),
    "TR": range(1, 3),
}
IDS = [f"{area}-{number}" for area, numbers in CLAUSES.items() for number in numbers]
CITED = re.compile(rf"(?<![\w-])(?:{'|'.join(CLAUSES)})-\d+(?![\w-])")


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/contract.md").read_text()


def test_the_page_states_every_clause_once(page):
    stated = re.findall(r"^#### ([A-Z]{2}-\d+) \S", page, re.MULTILINE)
    assert Counter(stated) == Counter(IDS)


def test_no_clause_is_empty(page):
    bodies = re.split(r"^#{2,4} .*$", page, flags=re.MULTILINE)
    headings = re.findall(r"^#{2,4} (.*)$", page, re.MULTILINE)
    empty = [
        heading
        for heading, body in zip(headings, bodies[1:], strict=True)
        if CITED.match(heading) and len(body.split()) < 5
    ]
    assert empty == []


def test_no_file_cites_a_clause_that_does_not_exist(tracked, root):
    # Spelled in parts, so that this file passes its own test.
    assert CITED.findall("see EX" + "-99, not X-EX" + "-99-a") == ["EX" + "-99"]
    unknown = [
        f"{file.relative_to(root)}: {cited}"
        for file in tracked
        if file.suffix in {".py", ".md", ".sh", ".c", ".h", ".toml"}
        for cited in CITED.findall(file.read_text(encoding="utf-8"))
        if cited not in IDS
    ]
    assert unknown == []
