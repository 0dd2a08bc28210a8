"""Opening sandboxes, and what needs none, without async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pinfold import sandbox
from pinfold.blocking._portal import no_running_loop, portals
from pinfold.blocking._sandbox import BlockingSandbox
from pinfold.plugins import Catalog
from pinfold.resolve import AnyLayer, TargetInfo
from pinfold.resolve import targets as _targets
from pinfold.sandbox import Opening, Runtime, Sandbox, Store
from pinfold.spec import ResolvedSpec, Spec
from pinfold.views import SandboxView

if TYPE_CHECKING:
    from pinfold.blocking._durable import BlockingDurableSandbox
    from pinfold.sandbox import DurableSandbox, Upkeep

__all__ = ["gc", "list", "open", "reap", "reopen", "targets"]

R = TypeVar("R")
What = str | Path | Mapping[str, Any] | Spec | ResolvedSpec | None


@overload
def open(  # noqa: A001 - `blocking.open` reads as what it does
    what: What = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    store: None = None,
    runtime: Runtime | None = None,
) -> AbstractContextManager[BlockingSandbox]: ...


@overload
def open(  # noqa: A001 - `blocking.open` reads as what it does
    what: What = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    store: Store,
    runtime: Runtime | None = None,
) -> AbstractContextManager[BlockingDurableSandbox]: ...


def open(  # noqa: A001 - `blocking.open` reads as what it does
    what: What = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    store: Store | None = None,
    runtime: Runtime | None = None,
) -> AbstractContextManager[Any]:
    """Open a sandbox for the length of a block; see `pinfold.open`.

    Raises:
        InvalidArgument: a loop runs in this thread. Otherwise as `pinfold.open`.
    """
    more: dict[str, Any] = {"override": override, "template": template, "runtime": runtime}
    if store is None:
        return _ephemeral(sandbox.open(what, name=name, **more))
    return _durable(sandbox.open(what, name=name, store=store, **more))


def reopen(
    id_or_name: str, *, store: Store, runtime: Runtime | None = None
) -> AbstractContextManager[BlockingDurableSandbox]:
    """Take up a durable sandbox again for the length of a block; see `pinfold.reopen`.

    Raises:
        InvalidArgument: a loop runs in this thread. Otherwise as `pinfold.reopen`.
    """
    return _durable(sandbox.reopen(id_or_name, store=store, runtime=runtime))


@contextmanager
def _ephemeral(opening: Opening[Sandbox]) -> Iterator[BlockingSandbox]:
    no_running_loop()
    with portals as portal, portal.wrap_async_context_manager(opening) as box:
        yield BlockingSandbox(portal, box)


@contextmanager
def _durable(opening: Opening[DurableSandbox]) -> Iterator[BlockingDurableSandbox]:
    from pinfold.blocking._durable import BlockingDurableSandbox

    no_running_loop()
    with portals as portal, portal.wrap_async_context_manager(_with_others(opening)) as held:
        yield BlockingDurableSandbox(portal, *held)


@asynccontextmanager
async def _with_others(
    opening: Opening[DurableSandbox],
) -> AsyncIterator[tuple[DurableSandbox, AsyncExitStack]]:
    async with AsyncExitStack() as others, opening as box:
        yield box, others


def _once(work: Callable[[], Awaitable[R]]) -> R:
    no_running_loop()
    with portals as portal:
        return portal.call(work)


def list(  # noqa: A001 - `blocking.list` reads as what it does
    *, store: Store, deleted: bool = False, runtime: Runtime | None = None
) -> Sequence[SandboxView]:
    """Return the views of a store's sandboxes; see `pinfold.list`."""
    return _once(lambda: sandbox.list(store=store, deleted=deleted, runtime=runtime))


def gc(store: Store, runtime: Runtime | None = None) -> Upkeep:
    """Remove instances without a live sandbox in this store; see `pinfold.gc`."""
    return _once(lambda: sandbox.gc(store, runtime))


def reap(
    store: Store,
    runtime: Runtime | None = None,
    *,
    told: Callable[[str], object] = lambda _: None,
) -> Upkeep:
    """Do what is overdue for idle sandboxes; see `pinfold.reap`."""
    return _once(lambda: sandbox.reap(store, runtime, told=told))


def targets(catalog: Catalog | None = None, *, probe: bool = True) -> Sequence[TargetInfo]:
    """Describe every installed provider; see `pinfold.targets`."""
    return _once(lambda: _targets(catalog, probe=probe))
