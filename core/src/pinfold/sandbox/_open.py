"""Opening a sandbox: choose, resolve, pin, create, bootstrap; or leave nothing behind."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from pinfold import config
from pinfold.errors import InvalidArgument
from pinfold.provider import Descriptor
from pinfold.resolve import AnyLayer, Layer, Selection, provider_of, resolve, template_layer
from pinfold.sandbox._ephemeral import EphemeralLife
from pinfold.sandbox._runtime import Runtime
from pinfold.sandbox._sandbox import Sandbox
from pinfold.spec import ResolvedSpec, Spec
from pinfold.views import ResolvedFrom

__all__ = ["Opening", "open", "select"]


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
        sandbox_id = runtime.ids.make("sbx_")
        life = await EphemeralLife.begin(spec, sandbox_id, runtime)
        return Sandbox(
            sandbox_id=sandbox_id,
            name=self._name or selection.name,
            pinned=life.pinned,
            resolved_from=resolved_from,
            descriptor=descriptor_of(spec, runtime),
            life=life,
            runtime=runtime,
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


def descriptor_of(spec: ResolvedSpec, runtime: Runtime) -> Descriptor | None:
    """Return the descriptor of a spec's provider, or None without compute."""
    if spec.target is None:
        return None
    descriptor: Descriptor = provider_of(spec, runtime.catalog).value.descriptor
    return descriptor
