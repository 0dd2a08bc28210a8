"""The pytest plugin: `--pinfold-target` runs the conformance checks as tests.

`pytest --pyargs pinfold_conformance.suite --pinfold-target NAME` needs no test file; in a project
of one's own, `from pinfold_conformance.suite.test_conformance import *` in a test file does.
Nothing of the suite is imported unless a target is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pinfold_conformance._session import Planned, Session

__all__: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pinfold", "conformance of pinfold providers")
    group.addoption(
        "--pinfold-target",
        action="append",
        default=[],
        metavar="NAME",
        help="a target to run the conformance checks on; may be repeated",
    )
    group.addoption(
        "--pinfold-profile",
        default="remote",
        metavar="PROFILE",
        help="smoke, remote (default), ci or nightly",
    )
    group.addoption("--pinfold-known", default=None, metavar="FILE", help="known failures")
    group.addoption(
        "--pinfold-only",
        action="append",
        default=[],
        metavar="CHECK",
        help="an id, a clause, or `EX-*`; may be repeated",
    )
    group.addoption("--pinfold-strict", action="store_true", help="underclaims fail")


class Running:
    """The sessions of this pytest run, one for each lane."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._sessions: dict[str, Session] = {}

    def session(self, name: str, lane: Any) -> Session:
        """Return the session of a lane; it starts when it is first asked for."""
        from pinfold_conformance._session import Session

        if name not in self._sessions:
            session = Session(lane, self._options())
            session.__enter__()
            self._sessions[name] = session
        return self._sessions[name]

    def _options(self) -> Any:
        from pinfold_conformance._known import load
        from pinfold_conformance._options import Options
        from pinfold_conformance._profiles import PROFILES
        from pinfold_conformance._surroundings import connections, ledgers

        option = self._config.getoption
        file = option("--pinfold-known")
        return Options(
            connect=connections(),
            ledger=ledgers(),
            profile=PROFILES[option("--pinfold-profile")],
            only=tuple(option("--pinfold-only")),
            strict=option("--pinfold-strict"),
            known=load(Path(file)) if file else (),
        )

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions.values():
            session.__exit__(None, None, None)


@pytest.fixture(scope="session")
def pinfold_running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The sessions of this run."""
    running = Running(request.config)
    yield running
    running.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pinfold_check" not in metafunc.fixturenames:
        return
    from pinfold_conformance._known import KnownFailuresInvalid, load
    from pinfold_conformance._profiles import PROFILES
    from pinfold_conformance._registry import all_checks, find
    from pinfold_conformance._session import Planned
    from pinfold_conformance._targets import NoSuchTarget, find_lanes

    option = metafunc.config.getoption
    profile = PROFILES.get(option("--pinfold-profile"))
    if profile is None:
        raise pytest.UsageError(f"--pinfold-profile is one of {', '.join(PROFILES)}")
    only = option("--pinfold-only")
    try:
        chosen = list(find(only)) if only else list(all_checks())
        lanes = [found for name in option("--pinfold-target") for found in find_lanes(name)]
        if option("--pinfold-known"):
            load(Path(option("--pinfold-known")))
    except (NoSuchTarget, LookupError, KnownFailuresInvalid) as exc:
        raise pytest.UsageError(str(exc)) from exc
    items: list[Any] = []
    for found in lanes:
        if found.lane is None:
            items.append(pytest.param((found, None), id=f"target.loads[{found.name}]"))
            continue
        try:
            count = len(found.lane.specs)
        except Exception:  # noqa: BLE001 - the lane's own code; the session says what it was
            count = 1
        for check in chosen:
            if not only and PROFILES[check.profile].rank > profile.rank:
                continue
            for number in range(count) if check.each_spec else (0,):
                suffix = f"-{number}" if check.each_spec and count > 1 else ""
                planned: Planned | None = Planned(check, number)
                items.append(pytest.param((found, planned), id=f"{check.id}[{found.name}{suffix}]"))
        items.append(pytest.param((found, None), id=f"LC-9.strays[{found.name}]"))
    metafunc.parametrize("pinfold_check", items, scope="session")
