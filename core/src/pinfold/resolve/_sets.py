"""Named profiles, and who may choose among them (RS-8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs

from pinfold.errors import InvalidArgument, NotFound, SpecInvalid
from pinfold.faults import Fault, pointer, suggest
from pinfold.plugins import Catalog, TemplateRevision
from pinfold.resolve._layers import Layer
from pinfold.resolve._resolve import AnyLayer, resolve
from pinfold.spec import JsonObject, ResolvedSpec, freeze

__all__ = ["INLINE", "Profile", "ProfileSet", "Selection", "SetMode"]

#: The name of a selection that is no profile of the set.
INLINE = "inline"

MAX_PROFILES = 16


class SetMode(StrEnum):
    """What a session may choose (RS-8)."""

    FIXED = "fixed"
    SELECTABLE = "selectable"
    CONFIGURABLE = "configurable"


def _freeze(value: Mapping[str, Any]) -> JsonObject:
    return freeze(value)


@attrs.frozen(kw_only=True)
class Profile:
    """One named spec of a set.

    Attributes:
        spec: the profile's layer, as JSON.
        template: the template whose current revision lies below it, or null.
    """

    spec: Mapping[str, Any] = attrs.field(converter=_freeze)
    template: str | None = None


@attrs.frozen(kw_only=True)
class Selection:
    """What was chosen: its name and its layers, weakest first."""

    name: str
    layers: tuple[Layer, ...]


@attrs.frozen(kw_only=True)
class ProfileSet:
    """1 to 16 named profiles, a default, and a policy.

    Attributes:
        profiles: name to profile.
        default: the profile that is used when none is chosen.
        mode: fixed, selectable or configurable; null is fixed for one entry, else selectable.
        below: layers that lie below every profile: deployment defaults.
    """

    profiles: Mapping[str, Profile]
    default: str | None = None
    mode: SetMode | None = None
    below: tuple[Layer, ...] = ()

    @property
    def policy(self) -> SetMode:
        """The mode in force."""
        if self.mode is not None:
            return self.mode
        return SetMode.FIXED if len(self.profiles) <= 1 else SetMode.SELECTABLE

    @property
    def default_name(self) -> str | None:
        """The default in force: the one named, or the only one there is."""
        if self.default is None and len(self.profiles) == 1:
            return next(iter(self.profiles))
        return self.default

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the set itself, its entries aside."""
        names = tuple(self.profiles)
        if not 1 <= len(names) <= MAX_PROFILES:
            yield Fault(
                pointer="/profiles",
                code="wrong_count",
                message=f"the set has {len(names)} profiles",
                allowed=(f"1..{MAX_PROFILES} profiles",),
            )
        if self.mode is SetMode.FIXED and len(names) > 1:
            yield Fault(
                pointer="/mode",
                code="conflict",
                message="mode fixed is for one profile",
                allowed=("selectable", "configurable"),
            )
        if self.default_name is None:
            if names:
                yield Fault(
                    pointer="/default",
                    code="required",
                    message="several profiles need a default",
                    allowed=names,
                )
        elif self.default_name not in self.profiles:
            yield Fault(
                pointer="/default",
                code="not_found",
                message="the default names no profile",
                allowed=names,
                suggestion=suggest(self.default_name, names),
            )

    def resolve_all(
        self,
        catalog: Catalog | None = None,
        template: Callable[[str], TemplateRevision | None] = lambda _: None,
    ) -> dict[str, ResolvedSpec]:
        """Resolve every entry, as is done when a set is saved (RS-8).

        Raises:
            SpecInvalid: with all faults of the set and of all entries, under `/profiles/NAME`.
        """
        faults, resolved = list(self.faults()), {}
        for name in self.profiles:
            try:
                resolved[name] = resolve(self._layers(name, template), catalog)
            except SpecInvalid as exc:
                faults += [fault.under(pointer("profiles", name)) for fault in exc.faults]
            except NotFound as exc:
                at = pointer("profiles", name, "template")
                faults.append(Fault(pointer=at, code="not_found", message=str(exc)))
        if faults:
            raise SpecInvalid(faults)
        return resolved

    def select(
        self,
        choice: str | AnyLayer | None = None,
        template: Callable[[str], TemplateRevision | None] = lambda _: None,
        *,
        override: AnyLayer | None = None,
    ) -> Selection:
        """Return the layers for a choice.

        Args:
            choice: a profile's name, an inline spec, or None for the default profile.
            template: name to the current revision of a template.
            override: a session's own layer above the profile; only where the set is configurable.

        Raises:
            InvalidArgument: the policy allows no such choice, or no override.
            NotFound: the name is no profile, or its template is unknown.
            SpecInvalid: the set itself is at fault.
        """
        faults = tuple(self.faults())
        if faults:
            raise SpecInvalid(faults)
        policy = self.policy
        above = () if override is None else (_layer(override),)
        if above and policy is not SetMode.CONFIGURABLE:
            raise InvalidArgument(
                f"this set is {policy}: its profiles can't be overridden",
                hint='leave the overrides out, or write mode = "configurable"',
            )
        if choice is None:
            name = self.default_name or ""
            return Selection(name=name, layers=(*self._layers(name, template), *above))
        if policy is SetMode.FIXED:
            raise InvalidArgument(
                "this set is fixed: nothing can be chosen, not even by name",
                hint="leave the choice out",
            )
        if isinstance(choice, str):
            if choice not in self.profiles:
                raise unknown_profile(choice, tuple(self.profiles))
            return Selection(name=choice, layers=(*self._layers(choice, template), *above))
        if policy is not SetMode.CONFIGURABLE:
            raise InvalidArgument(
                "this set is selectable: a profile is chosen by name, no spec is given",
                hint=f"choose one of {', '.join(self.profiles)}",
            )
        return Selection(name=INLINE, layers=(*self.below, _layer(choice), *above))

    def _layers(
        self, name: str, template: Callable[[str], TemplateRevision | None]
    ) -> tuple[Layer, ...]:
        profile = self.profiles[name]
        layers: Sequence[Layer] = self.below
        if profile.template is not None:
            layers = (*layers, template_layer(profile.template, template))
        return (*layers, Layer(profile.spec, "profile"))


def _layer(value: AnyLayer) -> Layer:
    return value if isinstance(value, Layer) else Layer(value)


def unknown_profile(name: str, known: tuple[str, ...]) -> NotFound:
    """Return the error for a profile that names nothing."""
    near = suggest(name, known)
    return NotFound(
        f"there is no profile {name!r}",
        hint=f"did you mean {near!r}?" if near else f"there is: {', '.join(known) or 'none'}",
        details={"profile": name, "known": list(known)},
    )


def template_layer(name: str, template: Callable[[str], TemplateRevision | None]) -> Layer:
    """Return the layer of a template's current revision.

    Raises:
        NotFound: nobody knows a template of that name.
    """
    revision = template(name)
    if revision is None:
        raise NotFound(
            f"there is no template {name!r}",
            hint=f"add [templates.{name}] to pinfold.toml, or a plugin that knows it",
        )
    return Layer.of_template(revision)
