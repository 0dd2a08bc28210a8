"""Pinning: the one question that resolution puts to a provider (RS-2, RS-3)."""

from __future__ import annotations

from pinfold.errors import Internal, SpecInvalid, Unavailable
from pinfold.faults import Fault
from pinfold.plugins import Catalog, Loaded, installed
from pinfold.provider import Context, Owner, Provider
from pinfold.spec import CREATE_TIMEOUT_SECONDS, PinnedSpec, ResolvedSpec, freeze

__all__ = ["pin", "provider_of"]


def provider_of(spec: ResolvedSpec, catalog: Catalog | None = None) -> Loaded:
    """Return the provider that a resolved spec names.

    Raises:
        SpecInvalid: it is not installed, or can't be used; no other ever stands in (RS-4).
    """
    if spec.target is None:
        raise Internal("a spec without a target has no provider")
    name = spec.target.provider
    found = (catalog or installed()).find(name)
    if isinstance(found, Loaded):
        return found
    message = "is not installed" if found is None else f"can't be used: {found.message}"
    raise SpecInvalid(
        [Fault(pointer="/target/provider", code="not_installed", message=f"{name} {message}")]
    )


async def pin(
    spec: ResolvedSpec, catalog: Catalog | None = None, ctx: Context | None = None
) -> PinnedSpec:
    """Pin a resolved spec: ask its provider, once, what can be pinned.

    Raises:
        SpecInvalid: the provider is not installed.
        Unavailable: it did not answer in time, or can't be asked now.
        NotFound: what is to be pinned is not there.
    """
    if spec.target is None:
        return PinnedSpec(spec=spec)
    import anyio

    loaded = provider_of(spec, catalog)
    provider: Provider = loaded.value
    try:
        with anyio.fail_after(CREATE_TIMEOUT_SECONDS):
            pins = await provider.pin(spec, ctx or Context(owner=Owner(store="")))
    except TimeoutError:
        raise Unavailable(
            f"provider {loaded.name} did not answer within {CREATE_TIMEOUT_SECONDS:g} seconds",
            hint="see `pinfold targets`",
        ) from None
    return PinnedSpec(
        spec=spec,
        pins=freeze(pins.pins),
        unpinned=freeze(pins.unpinned),
        provider=loaded.name,
        provider_version=loaded.version or None,
    )
