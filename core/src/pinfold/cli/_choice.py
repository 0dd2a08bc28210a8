"""The options by which a caller says which sandbox is meant, shared by the verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from pinfold import config
from pinfold.errors import InvalidArgument, NotFound
from pinfold.faults import suggest
from pinfold.plugins import KNOWN_DISTS, Loaded, installed
from pinfold.resolve import Layer, Selection
from pinfold.sandbox import select
from pinfold.spec import Kind
from pinfold.views import ResolvedFrom

__all__ = ["Choice", "choice_options"]


@attrs.frozen(kw_only=True)
class Choice:
    """What the options say."""

    profile: str | None
    provider: str | None
    template: str | None
    level: str | None
    network: str | None
    allowed_hosts: tuple[str, ...]
    options: tuple[str, ...]
    connection: str | None
    durability: str | None
    file: Path | None = None

    def select(self) -> tuple[Selection, ResolvedFrom, config.Project]:
        """Return the layers, where they come from, and the project they belong to.

        A file, a provider or a profile is named; else the project's default profile counts, and
        without a project the embedded kind, vfs.

        Raises:
            InvalidArgument, NotFound, SpecInvalid: as `pinfold.open`.
        """
        if self.profile is not None and (self.provider is not None or self.file is not None):
            raise InvalidArgument("--profile goes with neither --provider nor a file")
        project = config.load(self._project_file())
        override = self._override()
        what: Any = self.profile
        if self.provider is not None:
            override.setdefault("target", {})
            what = {"target": {"kind": _kind_of(self.provider), "provider": self.provider}}
        elif self.file is not None and self.file.suffix != ".toml":
            what = self.file
        elif self.profile is None and not project.profiles:
            what = {"target": {"kind": str(Kind.VFS)}}
        if isinstance(what, Mapping):
            # One layer: flags over the flags' own target are no override of anybody's profile.
            what = _laid_over(what, override)
            override = {}
        selection, resolved_from, _ = select(
            what,
            override=Layer(override, "flags") if override else None,
            template=self.template,
            project=project,
        )
        return selection, resolved_from, project

    @property
    def is_of_a_project(self) -> bool:
        """Nothing is said but, perhaps, which project's file is meant."""
        said = {field.name for field in attrs.fields(Choice) if getattr(self, field.name)}
        return not said or (said == {"file"} and self._project_file() is not None)

    def _project_file(self) -> Path | None:
        return self.file if self.file is not None and self.file.suffix == ".toml" else None

    def _override(self) -> dict[str, Any]:
        layer: dict[str, Any] = {}
        target: dict[str, Any] = {}
        if self.options:
            target["options"] = dict(_option(text) for text in self.options)
        if self.connection is not None:
            target["connection_id"] = self.connection
        if target:
            layer["target"] = target
        containment: dict[str, Any] = {}
        if self.level is not None:
            containment["level"] = self.level
        if self.network is not None or self.allowed_hosts:
            mode = self.network or "allowlist"
            containment["network"] = {"mode": mode}
            if self.allowed_hosts:
                containment["network"]["allowed_hosts"] = list(self.allowed_hosts)
        if containment:
            layer["containment"] = containment
        if self.durability is not None:
            layer["durability"] = self.durability
        return layer


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    target = {**below["target"], **above.get("target", {})}
    return {**below, **above, "target": target}


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError("--option is KEY=VALUE")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def _kind_of(name: str) -> str:
    found = installed().find(name)
    if isinstance(found, Loaded):
        kinds: tuple[Kind, ...] = found.value.descriptor.kinds
        return str(kinds[0])
    if found is not None:
        raise InvalidArgument(f"provider {name} can't be used: {found.message}", hint=found.hint)
    dist = KNOWN_DISTS.get(name)
    near = suggest(name, (*installed().names, *KNOWN_DISTS))
    raise NotFound(
        f"provider {name!r} is not installed",
        hint=f"pip install {dist}"
        if dist
        else (f"did you mean {near!r}?" if near else "see `pinfold targets`"),
    )


def choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a click command, which gets them as one `choice`."""
    from functools import wraps

    fields = [field.name for field in attrs.fields(Choice)]

    @wraps(function)
    def command(**kwargs: Any) -> Any:
        choice = Choice(**{name: kwargs.pop(name) for name in fields if name in kwargs})
        return function(choice=choice, **kwargs)

    for option in reversed(
        (
            click.option("--profile", metavar="NAME", help="A profile of pinfold.toml."),
            click.option("--provider", metavar="NAME", help="A provider, see `pinfold targets`."),
            click.option("--template", metavar="NAME", help="A template to lie below the spec."),
            click.option("--level", metavar="LEVEL", help="none, native or isolated."),
            click.option("--network", metavar="MODE", help="deny, allowlist or allow."),
            click.option(
                "--allow-host",
                "allowed_hosts",
                metavar="HOST",
                multiple=True,
                help="A host of the allowlist; may stand several times.",
            ),
            click.option(
                "--option",
                "options",
                metavar="KEY=VALUE",
                multiple=True,
                help="An option of the provider; VALUE is JSON, else text.",
            ),
            click.option("--connection", metavar="ID", help="A registered connection."),
            click.option(
                "--durability", metavar="MODE", help="checkpointed, provider_snapshot or none."
            ),
        )
    ):
        command = option(command)
    return command
