"""Opening a sandbox: choose, resolve, pin, create, bootstrap; or leave nothing behind."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import attrs

from pinfold import config
from pinfold.connections import Connection, provider_failure, scrub_error
from pinfold.errors import InvalidArgument, PinfoldError, SpecInvalid, Unavailable
from pinfold.memory import NoCompute
from pinfold.provider import (
    Context,
    Descriptor,
    Instance,
    InstanceRef,
    Owner,
    Provider,
)
from pinfold.resolve import AnyLayer, Layer, Selection, pin, provider_of, resolve, template_layer
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._sandbox import Sandbox
from pinfold.spec import (
    CREATE_TIMEOUT_SECONDS,
    KILL_GRACE_SECONDS,
    PinnedSpec,
    ResolvedSpec,
    Spec,
)
from pinfold.views import ResolvedFrom

__all__ = ["Opening", "open", "select"]

#: The store of what is opened without one: its labels tell it from every real store.
EPHEMERAL = "ephemeral"


def open(  # noqa: A001 - `pinfold.open` reads as what it does
    what: str | Path | Mapping[str, Any] | Spec | ResolvedSpec | None = None,
    *,
    name: str | None = None,
    override: AnyLayer | None = None,
    template: str | None = None,
    runtime: Runtime | None = None,
) -> Opening:
    """Open a sandbox that lives as long as its handle.

    Use it as `async with pinfold.open({"target": {"kind": "vfs"}}) as box:`, or await it and
    `close()` the sandbox yourself.

    Args:
        what: a spec; or a profile's name in the nearest pinfold.toml; or the path of a
            pinfold.toml or of a spec in JSON; None is the default profile.
        name: what to call it; by default the profile's name.
        override: a layer above the profile, where the set's policy allows one (RS-8).
        template: a template whose current revision lies below the spec.
        runtime: plugins, connections, ids and clock; by default what is installed.

    Raises:
        SpecInvalid: with every fault (RS-5); nothing was made.
        NotFound: no such profile, file, template or connection; nothing was made.
        Unavailable, Unauthorized, RateLimited: the provider can't make it now; nothing is left.
    """
    return Opening(what, name=name, override=override, template=template, runtime=runtime)


class Opening:
    """A sandbox about to be opened: await it, or enter it with `async with`."""

    def __init__(
        self,
        what: str | Path | Mapping[str, Any] | Spec | ResolvedSpec | None,
        *,
        name: str | None,
        override: AnyLayer | None,
        template: str | None,
        runtime: Runtime | None,
    ) -> None:
        self._what = what
        self._name = name
        self._override = override
        self._template = template
        self._runtime = runtime
        self._box: Sandbox | None = None

    def __await__(self) -> Generator[Any, Any, Sandbox]:
        return self._open().__await__()

    async def __aenter__(self) -> Sandbox:
        self._box = await self._open()
        return self._box

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._box is not None:
            await self._box.close()

    async def _open(self) -> Sandbox:
        selection, resolved_from, project = select(
            self._what, override=self._override, template=self._template, runtime=self._runtime
        )
        runtime = self._runtime or Runtime(
            connections=project.registered() if project is not None else None
        )
        spec = resolve(selection.layers, runtime.catalog, ephemeral=True)
        return await create(
            spec, name=self._name or selection.name, resolved_from=resolved_from, runtime=runtime
        )


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
        return _with_template(selection, template, sources, hooks), ResolvedFrom.PROFILE, project
    if not isinstance(what, (Mapping, Spec, ResolvedSpec)):
        raise InvalidArgument(f"a spec is an object, not {type(what).__name__}")
    layers = [Layer(what)]
    if override is not None:
        layers.append(override if isinstance(override, Layer) else Layer(override, "override"))
    selection = Selection(name="inline", layers=tuple(layers))
    sources = project or config.Project()
    if template is not None and project is None:
        sources = config.load()
    return _with_template(selection, template, sources, hooks), ResolvedFrom.SPEC, project


def _with_template(
    selection: Selection, template: str | None, project: config.Project, hooks: Any
) -> Selection:
    if template is None:
        return selection
    layer = template_layer(template, lambda asked: project.template(asked, hooks))
    return attrs.evolve(selection, layers=(layer, *selection.layers))


async def create(
    spec: ResolvedSpec, *, name: str, resolved_from: ResolvedFrom, runtime: Runtime
) -> Sandbox:
    """Pin a spec and make a sandbox of it; on failure or cancellation nothing is left."""
    sandbox_id = runtime.ids.make("sbx_")
    made: list[InstanceRef] = []

    async def register(ref: InstanceRef) -> None:
        made.append(ref)

    async def connect(connection_id: str) -> Connection:
        return await runtime.registered.resolve(connection_id)

    ctx = Context(
        owner=Owner(store=EPHEMERAL, sandbox=sandbox_id),
        register=register,
        connect=connect,
        connection_id=spec.target.connection_id if spec.target is not None else None,
    )
    with _typed_errors():
        pinned = await pin(spec, runtime.catalog, ctx)
    descriptor: Descriptor | None = None
    provider: Provider | None = None
    if spec.target is not None:
        provider = provider_of(spec, runtime.catalog).value
        descriptor = provider.descriptor
    instance: Instance | None = None
    try:
        with _typed_errors():
            if provider is None:
                instance = NoCompute(sandbox_id)
            else:
                instance = await _create(provider, pinned, ctx)
            box = Sandbox(
                sandbox_id=sandbox_id,
                name=name,
                pinned=pinned,
                resolved_from=resolved_from,
                descriptor=descriptor,
                instance=instance,
                runtime=runtime,
            )
            await box._begin()  # noqa: SLF001 - its maker
            return box
    except BaseException:
        await _undo(provider, instance, made, ctx)
        raise


async def _create(provider: Provider, pinned: PinnedSpec, ctx: Context) -> Instance:
    try:
        with anyio.fail_after(CREATE_TIMEOUT_SECONDS):
            instance = await provider.create(pinned, ctx)
    except TimeoutError:
        raise Unavailable(
            f"{provider.descriptor.name} made nothing within {CREATE_TIMEOUT_SECONDS:g} seconds",
            hint="see `pinfold targets`",
        ) from None
    missing = instance.features.missing(provider.descriptor.features(pinned.spec))
    if missing:
        await instance.destroy()
        raise Unavailable(
            f"{provider.descriptor.name} promised {', '.join(missing)}, and this instance lacks it",
            hint="choose a level or target that needs less, or mend the target",
            retryable=False,
            details={"missing": list(missing)},
        )
    return instance


async def _undo(
    provider: Provider | None,
    instance: Instance | None,
    made: list[InstanceRef],
    ctx: Context,
) -> None:
    with anyio.move_on_after(KILL_GRACE_SECONDS * 6, shield=True):
        # The first error is the one to be seen; what can't be undone now, gc finds by its labels.
        if instance is not None:
            with suppress(Exception):
                await instance.destroy()
        for ref in reversed(made):
            if provider is not None and (instance is None or ref != instance.ref):
                with suppress(Exception):
                    await provider.destroy(ref, ctx)


class _typed_errors:  # noqa: N801 - reads as a statement
    """Nothing but typed errors come out of a provider, and no secret in them (PR-5)."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, SpecInvalid):
            return
        if isinstance(error, PinfoldError):
            scrub_error(error)
        elif isinstance(error, Exception):
            failure = provider_failure(error)
            raise failure from failure.__cause__
