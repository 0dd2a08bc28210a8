"""Opening a sandbox: choose, resolve, pin, create, bootstrap; or leave nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import attrs

from pinfold import config
from pinfold.errors import InvalidArgument, SpecInvalid
from pinfold.provider import Descriptor
from pinfold.resolve import AnyLayer, Layer, Selection, provider_of, resolve, template_layer
from pinfold.sandbox._ephemeral import EphemeralLife
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._sandbox import Sandbox, sandbox_view
from pinfold.sandbox._states import ObservedState
from pinfold.spec import ResolvedSpec, Spec
from pinfold.views import ResolvedFrom, SandboxView

if TYPE_CHECKING:
    from pinfold.sandbox._durable_sandbox import DurableSandbox
    from pinfold.sandbox._store import Store

__all__ = ["Opening", "list", "open", "reopen", "select"]

S = TypeVar("S", bound=Sandbox)
What = str | Path | Mapping[str, Any] | Spec | ResolvedSpec | None


@overload
def open(  # noqa: A001 - `pinfold.open` reads as what it does
    what: What = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    store: None = None,
    runtime: Runtime | None = None,
) -> Opening[Sandbox]: ...


@overload
def open(  # noqa: A001 - `pinfold.open` reads as what it does
    what: What = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    store: Store,
    runtime: Runtime | None = None,
) -> Opening[DurableSandbox]: ...


def open(  # noqa: A001 - `pinfold.open` reads as what it does
    what: What = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    store: Store | None = None,
    runtime: Runtime | None = None,
) -> Opening[Any]:
    """Open a sandbox: one that lives as long as its handle, or, with a store, a durable one.

    Use it as `async with pinfold.open({"target": {"kind": "vfs"}}) as box:`, or await it and
    `close()` the sandbox yourself. A durable sandbox is left as it is when its handle is closed;
    inside `async with` its idle policy is kept by this process (LC-7).

    Args:
        what: a spec; or a profile's name in the nearest pinfold.toml; or the path of a
            pinfold.toml or of a spec in JSON; None is the default profile.
        name: what to call it; in a store it is unique there: letters, digits, `.`, `_` and `-`.
        override: a layer above the profile, where the set's policy allows one (RS-8).
        template: a template whose current revision lies below the spec.
        store: where a durable sandbox is kept; None is an ephemeral one.
        runtime: plugins, connections, ids and clock; by default what is installed.

    Raises:
        SpecInvalid: with every fault (RS-5); nothing was made.
        NotFound: no such profile, file, template or connection; nothing was made.
        AlreadyExists: the store has a sandbox of that name.
        Unavailable, Unauthorized, RateLimited: the provider can't make it now; nothing is left.
    """

    async def begin() -> Sandbox:
        await (runtime or Runtime()).ready()
        selection, resolved_from, project = select(
            what, override=override, template=template, runtime=runtime
        )
        surroundings = runtime or Runtime(
            connections=project.registered() if project is not None else None
        )
        spec = resolve(selection.layers, surroundings.catalog, ephemeral=store is None)
        if runtime is None and project is None and spec.target and spec.target.connection_id:
            surroundings = Runtime(connections=config.load().registered())
        if store is not None:
            from pinfold.sandbox._durable_sandbox import create

            return await create(
                spec, name=name, resolved_from=resolved_from, store=store, runtime=surroundings
            )
        sandbox_id = surroundings.ids.make("sbx_")
        life = await EphemeralLife.begin(spec, sandbox_id, surroundings)
        return Sandbox(
            sandbox_id=sandbox_id,
            name=name or selection.name,
            pinned=life.pinned,
            resolved_from=resolved_from,
            descriptor=descriptor_of(spec, surroundings),
            life=life,
            runtime=surroundings,
        )

    return Opening(begin)


def reopen(
    id_or_name: str, *, store: Store, runtime: Runtime | None = None
) -> Opening[DurableSandbox]:
    """Take up a durable sandbox again, in this process or any other.

    Raises:
        NotFound: the store has none of that id or name.
    """

    async def begin() -> DurableSandbox:
        from pinfold.sandbox._durable_sandbox import DurableSandbox
        from pinfold.sandbox._record import Records

        surroundings = runtime or Runtime(connections=config.load().registered())
        await surroundings.ready()
        stored = await Records(store.state, surroundings).find(id_or_name)
        return DurableSandbox(stored.record, store, surroundings)

    return Opening(begin)


async def list(  # noqa: A001 - `pinfold.list` reads as what it does
    *, store: Store, deleted: bool = False, runtime: Runtime | None = None
) -> Sequence[SandboxView]:
    """Return the views of a store's sandboxes, the oldest first; touches no compute.

    Args:
        store: which.
        deleted: those that were deleted, too.
        runtime: plugins and clock.
    """
    from pinfold.sandbox._record import Records, live_state

    surroundings = runtime or Runtime()
    views = []
    for stored in await Records(store.state, surroundings).all():
        record = stored.record
        if record.observed is ObservedState.DELETED and not deleted:
            continue
        try:
            descriptor = descriptor_of(record.pinned.spec, surroundings)
        except SpecInvalid:
            descriptor = None  # its provider is not installed here; the rest is still true
        views.append(
            sandbox_view(
                live_state(record, surroundings),
                sandbox_id=record.id,
                name=record.name,
                pinned=record.pinned,
                descriptor=descriptor,
                resolved_from=record.resolved_from,
            )
        )
    return views


class Opening(Generic[S]):
    """A sandbox about to be opened: await it, or enter it with `async with`."""

    def __init__(self, begin: Callable[[], Awaitable[S]]) -> None:
        self._begin = begin
        self._stack = AsyncExitStack()

    def __await__(self) -> Generator[Any, Any, S]:
        return self._begin().__await__()

    async def __aenter__(self) -> S:
        box = await self._begin()
        try:
            await self._stack.enter_async_context(box._kept())  # noqa: SLF001 - its opener
        except BaseException:
            await box.close()
            raise
        return box

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)


def select(
    what: str | Path | Mapping[str, Any] | Spec | ResolvedSpec | None,
    *,
    override: AnyLayer | None = None,
    template: str | None = None,
    runtime: Runtime | None = None,
    project: config.Project | None = None,
) -> tuple[Selection, ResolvedFrom, config.Project | None]:
    """Find the layers that a caller means; `open` says how `what` is read.

    Returns:
        The layers, where they came from, and the project file that was read, if one was.
    """
    hooks = runtime.hooks if runtime is not None else None
    if isinstance(what, str) and (what.endswith((".toml", ".json")) or "/" in what):
        what = Path(what)
    if isinstance(what, Path) and what.suffix != ".toml":
        what = config.read_document(what)
    if what is None or isinstance(what, (str, Path)):
        if project is None:
            project = config.load(what if isinstance(what, Path) else None)
        if not project.profiles:
            raise InvalidArgument(
                "there is no profile to open",
                hint=f"give a spec, or write [profiles.NAME] into {config.FILE_NAME}",
            )
        choice = what if isinstance(what, str) else None
        sources = project
        selection = project.profile_set.select(
            choice, lambda asked: sources.template(asked, hooks), override=override
        )
        selection = _with_template(selection, template, sources, hooks, len(sources.defaults))
        return selection, ResolvedFrom.PROFILE, project
    if not isinstance(what, (Mapping, Spec, ResolvedSpec)):
        raise InvalidArgument(f"a spec is an object, not {type(what).__name__}")
    below = project.defaults if project is not None else ()
    layers = [*below, Layer(what)]
    if override is not None:
        layers.append(override if isinstance(override, Layer) else Layer(override, "override"))
    selection = Selection(name="inline", layers=tuple(layers))
    sources = project or config.Project()
    if template is not None and project is None:
        sources = config.load()
    selection = _with_template(selection, template, sources, hooks, len(below))
    return selection, ResolvedFrom.SPEC, project


def _with_template(
    selection: Selection, template: str | None, project: config.Project, hooks: Any, below: int
) -> Selection:
    """Lay a template over the first `below` layers, which are the deployment's."""
    if template is None:
        return selection
    if any(layer.revision_id is not None for layer in selection.layers):
        raise InvalidArgument(
            f"profile {selection.name!r} has a template of its own: two can't be pinned",
            hint="leave template out, or choose a profile without one",
        )
    layer = template_layer(template, lambda asked: project.template(asked, hooks))
    layers = selection.layers
    return attrs.evolve(selection, layers=(*layers[:below], layer, *layers[below:]))


def descriptor_of(spec: ResolvedSpec, runtime: Runtime) -> Descriptor | None:
    """Return the descriptor of a spec's provider, or None without compute."""
    if spec.target is None:
        return None
    descriptor: Descriptor = provider_of(spec, runtime.catalog).value.descriptor
    return descriptor
