"""`pinfold checkpoint`, `checkpoints`, `restore`, `fork`, `migrate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from pinfold.checkpoint import CheckpointRecord
from pinfold.cli import _session as session
from pinfold.cli._choice import Choice, choice_options
from pinfold.cli._progress import Progress
from pinfold.cli._stores import again
from pinfold.cli._text import shown
from pinfold.errors import NotFound
from pinfold.faults import suggest
from pinfold.resolve import resolve
from pinfold.sandbox import Runtime

if TYPE_CHECKING:
    from pinfold.sandbox import DurableSandbox

__all__ = ["checkpoint", "checkpoints", "fork", "migrate", "restore"]


@click.command()
@click.argument("name")
@click.option("--tag", metavar="TAG", help="Keep it until another is tagged so.")
def checkpoint(name: str, tag: str | None) -> int:
    """Take a checkpoint of the sandbox NAME and print its id."""

    async def run() -> CheckpointRecord:
        with Progress() as progress:
            async with again(name) as box:
                return await box.checkpoint(tag, progress=progress.at)

    record = session.run(run)
    click.echo(record.checkpoint_id)
    for what in ("skipped", "unsettled"):
        for path in getattr(record, what):
            click.echo(f"pinfold: {what}: {shown(path)}", err=True)
    return 0


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def checkpoints(name: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List the checkpoints of the sandbox NAME, the oldest first; * is the current one."""

    async def run() -> tuple[list[CheckpointRecord], str | None, Mapping[str, str]]:
        async with again(name) as box:
            tags = await box.store.checkpoints.tags(box.id)
            current = (await box.view()).current_checkpoint_id
            return list(await box.checkpoints()), current, tags

    records, current, tags = session.run(run)
    if as_json:
        items: list[dict[str, Any]] = [attrs.asdict(record) for record in records]
        shown_tags = dict(sorted(tags.items()))
        click.echo(json.dumps({"items": items, "current": current, "tags": shown_tags}, indent=2))
        return 0
    for record in records:
        mark = "*" if record.checkpoint_id == current else " "
        names = " ".join(sorted(tag for tag, it in tags.items() if it == record.checkpoint_id))
        when = Runtime.rfc3339(record.created_ns)
        click.echo(
            f"{mark} {record.checkpoint_id}  {when}  generation {record.generation}"
            f"  {record.entries} entries  {record.total_bytes} bytes  {names}".rstrip()
        )
    return 0


@click.command()
@click.argument("name")
@click.argument("checkpoint")
def restore(name: str, checkpoint: str) -> int:
    """Bring the sandbox NAME back to a CHECKPOINT of its own: an id, or a tag."""

    async def run() -> None:
        with Progress() as progress:
            async with again(name) as box:
                wanted = await _checkpoint_id(box, checkpoint)
                await box.restore(wanted, progress=progress.at)

    session.run(run)
    return 0


async def _checkpoint_id(box: DurableSandbox, asked: str) -> str:
    tags = await box.store.checkpoints.tags(box.id)
    if asked in tags:
        return tags[asked]
    if asked.startswith("cp_"):
        return asked
    near = suggest(asked, tags)
    raise NotFound(
        f"sandbox {box.name!r} has no checkpoint tagged {asked!r}",
        hint=f"did you mean {near!r}?" if near else f"see `pinfold checkpoints {box.name}`",
    )


@click.command()
@click.argument("name")
@click.argument("new_name")
@click.option("--checkpoint", metavar="ID", help="An id or a tag; by default one taken now.")
def fork(name: str, new_name: str, checkpoint: str | None) -> int:
    """Make the sandbox NEW_NAME from a checkpoint of NAME, and print its id."""

    async def run() -> str:
        async with again(name) as box:
            source = None if checkpoint is None else await _checkpoint_id(box, checkpoint)
            async with await box.fork(name=new_name, checkpoint_id=source) as other:
                return other.id

    click.echo(session.run(run))
    return 0


@click.command()
@click.argument("name")
@click.argument("new_name")
@choice_options
def migrate(name: str, new_name: str, choice: Choice) -> int:
    """Go on as NEW_NAME elsewhere, and drain NAME; print the new id."""

    async def run() -> str:
        selection, _, _ = choice.select()
        async with (
            again(name) as box,
            await box.migrate(resolve(selection.layers), name=new_name) as other,
        ):
            return other.id

    click.echo(session.run(run))
    return 0
