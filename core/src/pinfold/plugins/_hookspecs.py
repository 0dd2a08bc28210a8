"""The hooks that an embedder may implement (PR-1), through the group `pinfold.plugins`.

An implementation is any object, module included, with functions of these names, marked with
`pinfold.plugins.hookimpl`. It is called in the thread of the caller and must return quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

if TYPE_CHECKING:
    from pinfold.connections import Secret
    from pinfold.events import AuditRecord, Event

__all__ = ["PROJECT", "HookSpecs", "TemplateRevision", "hookimpl"]

PROJECT = "pinfold"

hookspec = pluggy.HookspecMarker(PROJECT)

#: Marks an embedder's function as the implementation of the hook of its name.
hookimpl = pluggy.HookimplMarker(PROJECT)


@attrs.frozen(kw_only=True)
class TemplateRevision:
    """One revision of a reusable template (contract section 0).

    Attributes:
        name: the template's name.
        revision_id: pinned into every spec made from it; another content, another id.
        spec: the layer that it brings, as JSON.
    """

    name: str
    revision_id: str
    spec: Mapping[str, Any]


class HookSpecs:
    """The specifications; pluggy holds implementations to their names and arguments."""

    @hookspec(firstresult=True)
    def pinfold_connection(self, name: str) -> Mapping[str, str | Secret] | None:
        """Return the values or references of a connection, or None for one that is not yours."""

    @hookspec(firstresult=True)
    def pinfold_template(self, name: str) -> TemplateRevision | None:
        """Return the current revision of a template, or None for one that is not yours."""

    @hookspec
    def pinfold_event(self, event: Event) -> None:
        """Take note of an event (EV-1). What this raises is logged, and no more."""

    @hookspec
    def pinfold_audit(self, record: AuditRecord) -> None:
        """Take note of what a caller did (EV-2). What this raises is logged, and no more."""
