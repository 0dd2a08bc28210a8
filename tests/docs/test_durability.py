"""docs/durability.md says what survives what: each column is found out anew."""

import re

import pytest

from pinfold.plugins import Loaded, installed
from tests.docs import survival


@pytest.fixture(scope="module")
def page():
    return survival.shown(survival.PAGE.read_text(encoding="utf-8"))


def test_the_table_has_every_durability_of_every_provider(page):
    offered = {
        f"{item.name}, {durability}"
        for item in installed().describe()
        if isinstance(item, Loaded)
        for durability in item.value.descriptor.durabilities
    }
    assert set(page) == {column.name for column in survival.COLUMNS} >= offered
    assert all(cell and cell != "?" for cells in page.values() for cell in cells)


@pytest.mark.parametrize("column", survival.COLUMNS, ids=lambda column: column.name)
def test_the_table_says_what_happens(page, column):
    if not survival.is_there(column):
        pytest.skip("no Docker engine answers here: python -m tools.docker_engine ...")
    found = dict(zip(survival.ROWS, survival.cells(column), strict=True))
    assert found == dict(zip(survival.ROWS, page[column.name], strict=True)), "run `make docs`"


def test_a_page_that_says_otherwise_would_be_found_out(page):
    text = survival.PAGE.read_text(encoding="utf-8")
    assert survival.table(page) in text
    wrong = text.replace("lost, and said so", "files", 1)
    assert survival.shown(wrong) != page
    with pytest.raises((AssertionError, ValueError)):
        survival.shown(re.sub(r"^\| a command ends .*\n", "", text, flags=re.MULTILINE))
