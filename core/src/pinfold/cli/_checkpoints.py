"""`pinfold checkpoint`, `checkpoints`, `restore`, `fork`, `migrate`."""

from __future__ import annotations

import json
from typing import Any

import anyio
import attrs
import click

from pinfold.checkpoint import CheckpointRecord
from pinfold.cli._choice import Choice, choice_options
from pinfold.cli._stores import again
from pinfold.resolve import resolve
from pinfold.sandbox import Runtime

__all__ = ["checkpoint", "checkpoints", "fork", "migrate", "restore"]


@click.command()
@click.argument("name")
@click.option("--tag", metavar="TAG", help="Keep it until another is tagged so.")
def checkpoint(name: str, tag: str | None) -> int:
    """Take a checkpoint of the sandbox NAME and print its id."""

    async def run() -> CheckpointRecord:
        async with again(name) as box:
            return await box.checkpoint(tag)

    record = anyio.run(run)
    click.echo(record.checkpoint_id)
    for what in ("skipped", "unsettled"):
        for path in getattr(record, what):
            click.echo(f"pinfold: {what}: {path!r}", err=True)
    return 0


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def checkpoints(name: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List the checkpoints of the sandbox NAME, the oldest first; * is the current one."""

    async def run() -> tuple[list[CheckpointRecord], str | None, dict[str, str]]:
        async with again(name) as box:
            tags = await box.store.checkpoints.tags(box.id)
            current = (await box.view()).current_checkpoint_id
            return list(await box.checkpoints()), current, {v: k for k, v in tags.items()}

    records, current, tags = anyio.run(run)
    if as_json:
        items: list[dict[str, Any]] = [attrs.asdict(record) for record in records]
        click.echo(json.dumps({"items": items, "current": current, "tags": tags}, indent=2))
        return 0
    for record in records:
        mark = "*" if record.checkpoint_id == current else " "
        tag = tags.get(record.checkpoint_id, "")
        when = Runtime.rfc3339(record.created_ns)
        click.echo(
            f"{mark} {record.checkpoint_id}  {when}  generation {record.generation}"
            f"  {record.entries} entries  {record.total_bytes} bytes  {tag}".rstrip()
        )
    return 0


@click.command()
@click.argument("name")
@click.argument("checkpoint_id")
def restore(name: str, checkpoint_id: str) -> int:
    """Bring the sandbox NAME back to a checkpoint of its own, or to a tag."""

    async def run() -> None:
        async with again(name) as box:
            tags = await box.store.checkpoints.tags(box.id)
            await box.restore(tags.get(checkpoint_id, checkpoint_id))

    anyio.run(run)
    return 0


@click.command()
@click.argument("name")
@click.argument("new_name")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="By default one taken now.")
def fork(name: str, new_name: str, checkpoint_id: str | None) -> int:
    """Make the sandbox NEW_NAME from a checkpoint of NAME, and print its id."""

    async def run() -> str:
        async with again(name) as box:
            other = await box.fork(name=new_name, checkpoint_id=checkpoint_id)
            await other.close()
            return other.id

    click.echo(anyio.run(run))
    return 0


@click.command()
@click.argument("name")
@click.argument("new_name")
@choice_options
def migrate(name: str, new_name: str, choice: Choice) -> int:
    """Go on as NEW_NAME elsewhere, and drain NAME; print the new id."""

    async def run() -> str:
        selection, _, _ = choice.select()
        async with again(name) as box:
            other = await box.migrate(resolve(selection.layers), name=new_name)
            await other.close()
            return other.id

    click.echo(anyio.run(run))
    return 0
