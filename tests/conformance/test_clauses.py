"""Every clause of the contract has a check, or a reason why it has none."""

import re

import pytest

from pinfold_conformance import Kind, all_checks, check
from pinfold_conformance._clauses import CLAUSES, REASONS, by_clause, table
from pinfold_conformance._registry import CHECK_MODULES, RETIRED
from pinfold_conformance.mutants import table as mutants_table


def test_every_clause_has_a_check_or_a_stated_reason():
    checks = by_clause()
    without = {clause for clause, found in checks.items() if not found}
    assert without == set(REASONS)
    assert all(REASONS.values())


def test_the_clauses_are_those_of_the_contract(root):
    page = (root / "docs/contract.md").read_text()
    stated = re.findall(r"^#### ([A-Z]{2}-\d+) \S", page, re.MULTILINE)
    assert sorted(stated) == sorted(CLAUSES)


def test_no_normative_text_of_the_contract_is_without_a_clause(root):
    """Words that bind stand below a clause's heading, or in the sections that a clause covers."""
    page = (root / "docs/contract.md").read_text()
    covered, heading, loose = False, "", []
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line
            covered = bool(re.match(r"^#### [A-Z]{2}-\d+", line)) or not line.startswith("####")
        elif re.search(r"\b(MUST|SHALL|REQUIRED)\b", line) and not covered:
            loose.append(f"{heading}: {line}")
    assert loose == []


def test_ids_are_of_one_form_and_none_is_retired():
    ids = [one.id for one in all_checks()]
    assert len(ids) == len(set(ids)) > 150
    assert not set(ids) & RETIRED
    for one in all_checks():
        assert set(one.clauses) <= set(CLAUSES), one.id
        assert one.clauses, one.id
        assert len(one.title) <= 100, one.id


def test_scripts_come_first():
    kinds = [one.kind is Kind.SCRIPT for one in all_checks()]
    assert kinds == sorted(kinds, reverse=True)
    assert sum(kinds) == 5


def test_every_module_of_checks_is_in_the_list(root):
    folder = root / "conformance/src/pinfold_conformance/checks"
    modules = {path.stem for path in folder.glob("[a-z]*.py")}
    assert modules == set(CHECK_MODULES)


def test_every_claim_is_proved_and_refuted():
    from pinfold_conformance._needs import claims

    needs = [need for one in all_checks() for need in one.needs]
    for claim in claims():
        if claim == "cap:network_enforced":  # proved by what each mode does
            assert {"network:deny", "network:allow"} <= set(needs)
            continue
        assert claim in needs, f"nothing proves {claim}"
        assert f"!{claim}" in needs, f"nothing refutes {claim}"


@pytest.mark.parametrize(
    ("check_id", "told"),
    [("EX-2.codes", "never reused"), ("nonsense", "CLAUSE.slug"), ("EX-2.Codes", "CLAUSE.slug")],
)
def test_an_id_is_given_once_and_well_formed(check_id, told):
    async def function(case):
        """A title."""

    with pytest.raises(ValueError, match=re.escape(told)):
        check(check_id)(function)


def test_the_table_names_every_clause():
    text = table()
    assert all(f"| {clause} |" in text for clause in CLAUSES)
    assert "?" not in text


@pytest.mark.parametrize(
    ("page", "make"), [("conformance-clauses", table), ("kill-matrix", mutants_table)]
)
def test_a_generated_page_is_up_to_date(page, make, root):
    text = (root / f"docs/{page}.md").read_text()
    assert text.endswith(f"\n\n{make()}\n"), f"generate docs/{page}.md anew"
