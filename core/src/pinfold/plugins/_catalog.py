"""The providers that are there (PR-1, PR-2, PR-3)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import attrs

from pinfold.plugins._entries import Entries, Loaded, Problem, contract_problem
from pinfold.provider import Descriptor, Provider
from pinfold.spec import Kind

__all__ = ["KNOWN_DISTS", "Catalog", "installed"]

#: What to install for a provider that is not there. Names only: core imports none of them.
KNOWN_DISTS = {
    "bashkit": "pinfold-bashkit",
    "host": "pinfold-host",
    "docker": "pinfold-docker",
    "ssh_machine": "pinfold-ssh-machine",
    "daytona": "pinfold-daytona",
}


def _validate(name: str, value: Any) -> Problem | None:
    def invalid(message: str, hint: str = "") -> Problem:
        return Problem(name=name, code="invalid", message=message, hint=hint)

    if not isinstance(value, Provider):
        return invalid(
            f"the entry point gives {type(value).__name__}, not a pinfold.provider.Provider",
            "point it at an object, not at a class",
        )
    descriptor = getattr(value, "descriptor", None)
    if not isinstance(descriptor, Descriptor):
        return invalid("it has no descriptor")
    if descriptor.name != name:
        return invalid(f"its descriptor says {descriptor.name!r}, its entry point {name!r}")
    if not descriptor.kinds or not descriptor.containment or not descriptor.durabilities:
        return invalid("its descriptor lists no kind, no level or no durability")
    if not attrs.has(descriptor.options):
        return invalid("its option class is not an attrs class")
    return contract_problem(name, descriptor.contract)


class Catalog:
    """Providers by name: those given, or those that are installed.

    Args:
        providers: these and no others; None is whatever is installed.
    """

    def __init__(self, providers: Iterable[Provider] | None = None) -> None:
        self._given: dict[str, Loaded | Problem] | None = None
        self._entries: Entries | None = None
        if providers is None:
            self._entries = Entries("pinfold.providers", _validate)
        else:
            self._given = {}
            for provider in providers:
                name = provider.descriptor.name
                loaded = Loaded(name=name, value=provider, dist=provider.descriptor.dist)
                self._given[name] = _validate(name, provider) or loaded

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted; nothing is imported for it."""
        if self._entries is not None:
            return self._entries.names
        return tuple(sorted(self._given or ()))

    def find(self, name: str) -> Loaded | Problem | None:
        """Return a provider, or what is wrong with it, or None where none has that name."""
        if self._entries is not None:
            return self._entries.load(name)
        return (self._given or {}).get(name)

    def describe(self) -> list[Loaded | Problem]:
        """Return every provider, or what is wrong with it, sorted by name."""
        if self._entries is not None:
            return self._entries.load_all()
        given = self._given or {}
        return [given[name] for name in sorted(given)]

    def of_kind(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of the usable providers of a kind, sorted.

        No deadline here: what is resolved must not depend on the speed of an import (RS-2).
        """
        found = (self.find(name) for name in self.names)
        return tuple(
            item.name
            for item in found
            if isinstance(item, Loaded) and kind in item.value.descriptor.kinds
        )


@cache
def installed() -> Catalog:
    """Return the catalog of what is installed; read once per process."""
    return Catalog()
