"""`pinfold resolve`, `view` and `schema`: specs without a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pinfold import config
from pinfold.cli import _session as session
from pinfold.cli._app import FAILURE
from pinfold.cli._choice import Choice, choice_options
from pinfold.cli._stores import again
from pinfold.errors import SpecInvalid
from pinfold.plugins import Loaded, installed
from pinfold.resolve import provider_of
from pinfold.resolve import resolve as resolve_layers
from pinfold.spec import (
    PinnedSpec,
    ResolvedSpec,
    Spec,
    digest_of,
    json_schema,
    to_json,
)
from pinfold.views import environment_view

__all__ = ["resolve", "schema", "view"]

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path))


@click.command()
@choice_options
@_FILE
@click.option("--ephemeral", is_flag=True, help="As for a sandbox without a store.")
@click.option("--all", "every", is_flag=True, help="Every profile of the project, as it is saved.")
@click.option("--json", "as_json", is_flag=True, help="Print faults as JSON too.")
def resolve(choice: Choice, ephemeral: bool, every: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Print the resolved spec and its digest, or every fault.

    FILE is a pinfold.toml or a spec in JSON. Nothing is asked of the provider: that is `pin`, when
    a sandbox is made.
    """
    try:
        shown = _resolved_all(choice, ephemeral) if every else _resolved(choice, ephemeral)
    except SpecInvalid as exc:
        if not as_json:
            raise
        click.echo(json.dumps({"faults": [fault.to_dict() for fault in exc.faults]}, indent=2))
        return FAILURE
    click.echo(json.dumps(shown, indent=2))
    return 0


def _resolved(choice: Choice, ephemeral: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller
    selection, resolved_from, _ = choice.select()
    spec = resolve_layers(selection.layers, ephemeral=ephemeral)
    return {"name": selection.name, "resolved_from": str(resolved_from), **_form(spec)}


def _resolved_all(choice: Choice, ephemeral: bool) -> dict[str, Any]:  # noqa: FBT001 - one caller
    if ephemeral or not choice.is_of_a_project:
        raise click.UsageError("--all is for a pinfold.toml as it is: no other option goes with it")
    project = config.load(choice.file)
    resolved = project.profile_set.resolve_all(template=project.template)
    return {
        "default": project.profile_set.default_name,
        "profiles": {name: _form(spec) for name, spec in resolved.items()},
    }


def _form(spec: ResolvedSpec) -> dict[str, Any]:
    form = to_json(spec)
    return {"spec": form, "digest": digest_of(form)}


@click.command()
@choice_options
@_FILE
@click.option("--ephemeral", is_flag=True, help="As for a sandbox without a store.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def view(choice: Choice, ephemeral: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Show a durable sandbox, or what a spec or profile gives.

    FILE is the name or id of a sandbox, or a pinfold.toml, or a spec in JSON.
    """
    file = choice.file
    if file is not None and file.suffix not in (".toml", ".json"):
        shown = session.run(lambda: _live(str(file)))
        click.echo(json.dumps(shown, indent=2) if as_json else "\n".join(lines(shown)))
        return 0
    selection, resolved_from, _ = choice.select()
    spec = resolve_layers(selection.layers, ephemeral=ephemeral)
    descriptor = None if spec.target is None else provider_of(spec).value.descriptor
    shown = environment_view(spec, descriptor, resolved_from).to_dict()
    click.echo(json.dumps(shown, indent=2) if as_json else "\n".join(lines(shown)))
    return 0


async def _live(name: str) -> dict[str, Any]:
    async with again(name) as box:
        view: dict[str, Any] = (await box.view()).to_dict()
        return view


def lines(shown: dict[str, Any], indent: str = "") -> list[str]:
    """Return a view as lines for people."""
    result = []
    for key, value in shown.items():
        if isinstance(value, dict):
            result += [f"{indent}{key}:", *lines(value, indent + "  ")]
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else _word(value)
            result.append(f"{indent}{key}: {text}")
    return result


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


_CLASSES = {"spec": Spec, "resolved": ResolvedSpec, "pinned": PinnedSpec}


@click.command()
@click.argument("name", required=False, default="spec", type=click.Choice(list(_CLASSES)))
def schema(name: str) -> int:
    """Print the JSON Schema of a spec, with the options of the installed providers."""
    options = {}
    if name == "spec":
        for item in installed().describe():
            if isinstance(item, Loaded):
                options[item.name] = item.value.descriptor.options
    click.echo(json.dumps(json_schema(_CLASSES[name], options=options), indent=2))
    return 0
