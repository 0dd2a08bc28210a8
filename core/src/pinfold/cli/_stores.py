"""The store and the sandboxes that the durable verbs mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinfold import config, sandbox
from pinfold.sandbox import Opening, Runtime, Store

if TYPE_CHECKING:
    from pinfold.sandbox import DurableSandbox

__all__ = ["again", "surroundings"]


def surroundings() -> tuple[Store, Runtime]:
    """Return the project's store, or the default one, and the project's connections."""
    project = config.load()
    return Store.configured(project.store), Runtime(connections=project.registered())


def again(name: str) -> Opening[DurableSandbox]:
    """Take up a durable sandbox of the project's store by name or id."""
    store, runtime = surroundings()
    return sandbox.reopen(name, store=store, runtime=runtime)
