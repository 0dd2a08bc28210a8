"""Entry points of one group: names without importing, objects under guard (PR-1, PR-2)."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from pinfold.spec import CONTRACT

__all__ = ["IMPORT_DEADLINE_SECONDS", "Entries", "Loaded", "Problem", "contract_problem"]

#: What nearly every plugin says.
_USUAL = ">=1.0,<2"

#: How long a listing waits for a plugin's import before it says so and goes on.
IMPORT_DEADLINE_SECONDS = 5.0


@attrs.frozen(kw_only=True)
class Problem:
    """Why a plugin can't be used; others are not affected (PR-2).

    Attributes:
        name: the entry point's name.
        code: broken, duplicate, slow, incompatible or invalid.
        message: the plugin's own error, for people.
        hint: what to do.
        dists: the distributions that it comes from.
    """

    name: str
    code: str
    message: str
    hint: str = ""
    dists: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@attrs.frozen(kw_only=True)
class Loaded:
    """A plugin's object and where it came from."""

    name: str
    value: Any
    dist: str = ""
    version: str = ""


class Entries:
    """The entry points of one group.

    Args:
        group: the group's name.
        validate: an object and its name to what is wrong with it, or None.
    """

    def __init__(
        self, group: str, validate: Callable[[str, Any], Problem | None] = lambda *_: None
    ) -> None:
        from importlib.metadata import entry_points

        self.group = group
        self._validate = validate
        self._points: dict[str, list[Any]] = defaultdict(list)
        for point in entry_points(group=group):
            self._points[point.name].append(point)
        self._results: dict[str, Loaded | Problem] = {}
        self._lock = threading.RLock()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name in the metadata, sorted; nothing is imported for it."""
        return tuple(sorted(self._points))

    def load(self, name: str) -> Loaded | Problem | None:
        """Import one plugin by name and return it, or what is wrong with it, or None."""
        result = self._results.get(name)
        if result is not None or name not in self._points:
            return result
        result = self._load(name, self._points[name])
        with self._lock:
            return self._results.setdefault(name, result)

    def load_all(self, deadline: float = IMPORT_DEADLINE_SECONDS) -> list[Loaded | Problem]:
        """Import every plugin, each under its own guard and all under one deadline.

        A plugin whose import takes longer is reported as slow; its import goes on behind.
        """
        pending = {name: self._start(name) for name in self.names if name not in self._results}
        end = time.monotonic() + deadline
        for thread in pending.values():
            thread.join(max(0.0, end - time.monotonic()))
        return [self._results.get(name) or self._slow(name, deadline) for name in self.names]

    def _start(self, name: str) -> threading.Thread:
        # A daemon: an import that never ends must not keep the interpreter from ending.
        thread = threading.Thread(target=self.load, args=(name,), name=f"load {name}", daemon=True)
        thread.start()
        return thread

    def _slow(self, name: str, deadline: float) -> Problem:
        return Problem(
            name=name,
            code="slow",
            message=f"its import takes longer than {deadline:g} seconds",
            hint="a plugin imports its vendor's SDK when it is used, not when it is imported",
            dists=_dists(self._points[name]),
        )

    def _load(self, name: str, points: list[Any]) -> Loaded | Problem:
        dists = _dists(points)
        if len(points) > 1:
            return Problem(
                name=name,
                code="duplicate",
                message=f"{' and '.join(dists)} both provide {name!r} in {self.group}",
                hint="uninstall one of them",
                dists=dists,
            )
        (point,) = points
        doing = "imported"
        try:
            value = point.load()
            doing = "looked at"  # its properties are its own code too
            problem = self._validate(name, value)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # noqa: BLE001 - a plugin may raise anything, SystemExit too
            return Problem(
                name=name,
                code="broken",
                message=f"{point.value} can't be {doing}: {type(exc).__name__}: {exc}",
                hint=f"mend or uninstall {dists[0]}",
                dists=dists,
            )
        if problem is not None:
            return attrs.evolve(problem, dists=dists)
        dist = getattr(point, "dist", None)
        return Loaded(name=name, value=value, dist=dists[0], version=dist.version if dist else "")


def _dists(points: Iterable[Any]) -> tuple[str, ...]:
    return tuple(
        sorted(point.dist.name if getattr(point, "dist", None) else point.value for point in points)
    )


def contract_problem(name: str, contract: str) -> Problem | None:
    """Say whether a plugin built for `contract`, a version specifier, fits this core (PR-6)."""
    if contract == _USUAL:  # spares every start-up the import
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(contract).contains(CONTRACT)
    except InvalidSpecifier:
        return Problem(
            name=name,
            code="invalid",
            message=f"its contract {contract!r} is not a version specifier",
            hint="write it as '>=1.0,<2'",
        )
    if fits:
        return None
    return Problem(
        name=name,
        code="incompatible",
        message=f"it was built for contract {contract}; this core keeps {CONTRACT}",
        hint="install a version of it, or of pinfold, that fits",
    )
