"""Settings of every test run: backends, hypothesis profiles, and no silent skip."""

import os
import signal
from collections.abc import Generator

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.names")

STRICT = os.environ.get("PINFOLD_TEST_STRICT") == "1"

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if STRICT else "dev")
)

# A shell starts background jobs with these ignored, and whatever a test starts would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_number, signal.SIG_DFL)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs on both event loops."""
    backend: str = request.param
    return backend


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Under PINFOLD_TEST_STRICT=1 a skip is a failure; an expected failure stays what it is."""
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"PINFOLD_TEST_STRICT=1 allows no skip: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
