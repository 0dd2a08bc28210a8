"""The pinned spec: resolved, plus what the provider pinned at creation (RS-3)."""

from __future__ import annotations

from hashlib import sha256

import attrs

from pinfold.spec._convert import CONTRACT, to_canonical
from pinfold.spec._json import JsonObject, freeze
from pinfold.spec._model import ResolvedSpec

__all__ = ["PinnedSpec"]


@attrs.frozen(kw_only=True)
class PinnedSpec:
    """Immutable for the life of a sandbox; recovery, restore and fork use the same pins or fail.

    Attributes:
        spec: every field decided.
        pins: name of the pin (`image_digest`, `host_key`, ...) to what it was pinned to.
        unpinned: what could not be pinned, and why.
        provider: the provider's name; null without compute.
        provider_version: the version of the dist that provided it; null without compute.
        contract: the contract version that it was pinned under.
    """

    spec: ResolvedSpec
    pins: JsonObject = attrs.field(factory=lambda: freeze({}), converter=freeze)
    unpinned: JsonObject = attrs.field(factory=lambda: freeze({}), converter=freeze)
    provider: str | None = None
    provider_version: str | None = None
    contract: str = CONTRACT

    @property
    def digest(self) -> str:
        """`sha256:` and the hex digest over the canonical JSON of all of it (SP-3)."""
        return "sha256:" + sha256(to_canonical(self)).hexdigest()
