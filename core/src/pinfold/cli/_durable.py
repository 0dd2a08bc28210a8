"""`pinfold up`, `list`, `events`, `port`, `drain`, `down`: the life of durable sandboxes."""

from __future__ import annotations

import json
from typing import Any

import anyio
import click

from pinfold import sandbox
from pinfold.cli import _session as session
from pinfold.cli._choice import Choice, choice_options
from pinfold.cli._specs import lines
from pinfold.cli._stores import again, surroundings
from pinfold.cli._text import shown
from pinfold.events import Event, EventType
from pinfold.resolve import resolve
from pinfold.sandbox import Runtime, Store
from pinfold.spec import Durability, to_json

__all__ = ["down", "drain", "events", "list_", "port", "up"]


@click.command()
@click.argument("name")
@choice_options
@click.option("--json", "as_json", is_flag=True, help="Print the view as JSON.")
def up(name: str, choice: Choice, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Make the durable sandbox NAME, have its compute ready, and show it."""
    view = session.run(lambda: _up(name, choice))
    click.echo(json.dumps(view, indent=2) if as_json else "\n".join(lines(view)))
    features = view.get("details", {}).get("features", {})
    if view["durability"] == Durability.NONE and features.get("attach") is False:
        click.echo(
            f"pinfold: '{shown(name)}' ends with this command: its compute can't be taken up again,"
            " and durability none keeps no files (--durability checkpointed does)",
            err=True,
        )
    return 0


async def _up(name: str, choice: Choice) -> dict[str, Any]:
    selection, resolved_from, project = choice.select()
    runtime = Runtime(connections=project.registered())
    spec = resolve(selection.layers, runtime.catalog)
    store = Store.configured(project.store)
    from pinfold.sandbox._durable_sandbox import create

    box = await create(spec, name=name, resolved_from=resolved_from, store=store, runtime=runtime)
    async with box:
        await box.start()
        view: dict[str, Any] = (await box.view()).to_dict()
        return view


@click.command("list")
@click.option("--deleted", is_flag=True, help="Those that were deleted, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(deleted: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List the durable sandboxes of the store."""
    store, runtime = surroundings()

    async def read() -> list[dict[str, Any]]:
        views = await sandbox.list(store=store, deleted=deleted, runtime=runtime)
        return [view.to_dict() for view in views]

    rows = session.run(read)
    if as_json:
        click.echo(json.dumps({"items": rows}, indent=2))
        return 0
    for row in rows:
        target = row.get("target", {})
        overdue = ", overdue" if row.get("details", {}).get("overdue") else ""
        click.echo(
            f"{row['name']}  {row['observed_state']}{overdue}  generation {row['generation']}"
            f"  {target.get('provider', 'no compute')}  {row['durability']}  {row['sandbox_id']}"
        )
    return 0


@click.command()
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Go on, until it is deleted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, an event a line.")
def events(name: str, follow: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Print the journal of the sandbox NAME."""
    session.run(lambda: _events(name, follow, as_json))
    return 0


async def _events(name: str, follow: bool, as_json: bool) -> None:  # noqa: FBT001
    after = ""
    async with again(name) as box:
        while True:
            for event in await box.events(after=after):
                click.echo(json.dumps(to_json(event)) if as_json else _line(event))
                after = event.id
                follow = follow and event.type is not EventType.DELETED
            if not follow:
                return
            await anyio.sleep(0.25)


def _line(event: Event) -> str:
    facts = " ".join(f"{key}={value}" for key, value in event.data.items() if value is not None)
    return shown(f"{event.time}  {event.type}  generation {event.generation}  {facts}".rstrip())


@click.command()
@click.argument("name")
@click.argument("number", metavar="PORT", type=int)
def port(name: str, number: int) -> int:
    """Make a port of the sandbox NAME reachable, and print where."""

    async def expose() -> str:
        async with again(name) as box:
            return (await box.expose(number)).url

    click.echo(session.run(expose))
    return 0


@click.command()
@click.argument("name")
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=0), default=60.0, show_default=True
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def drain(name: str, timeout: float, command: tuple[str, ...]) -> int:
    """Let the sandbox NAME take no new work; run CMD, if one is given, at the end."""

    async def run() -> bool:
        async with again(name) as box:
            return await box.drain(timeout_seconds=timeout, command=list(command) or None)

    if not session.run(run):
        click.echo("pinfold: some work still ran at the deadline", err=True)
    return 0


@click.command()
@click.argument("name")
def down(name: str) -> int:
    """End the sandbox NAME: its compute, its checkpoints, its name."""

    async def run() -> None:
        async with again(name) as box:
            await box.delete()

    session.run(run)
    return 0
