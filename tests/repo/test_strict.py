"""On CI no test is skipped in silence: PINFOLD_TEST_STRICT=1 makes each kind of skip a failure."""

import os
import subprocess
import sys

import pytest

SKIPS = {
    "call": "def test(): pytest.skip('why')",
    "mark": "@pytest.mark.skip(reason='why')\ndef test(): pass",
    "fixture": "@pytest.fixture\ndef f(): pytest.skip('why')\ndef test(f): pass",
    "module": "pytest.skip('why', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_module', reason='why')",
    "expected": "@pytest.mark.xfail(reason='why')\ndef test(): raise ValueError",
}


@pytest.fixture
def run(root, tmp_path):
    """Runs pytest on one test of each kind, with the repository's own conftest."""
    (tmp_path / "conftest.py").write_text((root / "conftest.py").read_text())
    for kind, text in SKIPS.items():
        (tmp_path / f"test_{kind}.py").write_text(f"import pytest\n{text}\n")

    def run(*, strict: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rA", "--continue-on-collection-errors"],
            cwd=tmp_path,
            env=os.environ | {"PINFOLD_TEST_STRICT": strict},
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout

    return run


def test_every_kind_of_skip_fails_under_strict_and_an_expected_failure_does_not(run):
    output = run(strict="1")
    assert output.count("PINFOLD_TEST_STRICT=1 allows no skip: ") >= 5, output
    assert " 1 failed, 1 xfailed, 4 errors in " in output.splitlines()[-1], output


def test_a_skip_is_a_skip_elsewhere(run):
    output = run(strict="0")
    assert " 5 skipped, 1 xfailed in " in output.splitlines()[-1], output
