"""`pinfold cp` and `ls`: files of durable sandboxes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import attrs
import click

from pinfold.cli._progress import Progress
from pinfold.cli._stores import again
from pinfold.errors import InvalidArgument
from pinfold.provider import FileStat, FileType
from pinfold.transfer import get, get_to, put, put_from

__all__ = ["cp", "ls"]

_LETTER = {FileType.FILE: "-", FileType.DIRECTORY: "d", FileType.SYMLINK: "l", FileType.OTHER: "?"}


@click.command()
@click.argument("name")
@click.argument("path", default="/workspace")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(name: str, path: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List a folder of the sandbox NAME."""

    async def run() -> list[FileStat]:
        async with again(name) as box:
            return list(await box.files.list(path))

    entries = anyio.run(run)
    if as_json:
        rows: list[dict[str, Any]] = [
            {**attrs.asdict(entry), "path": _shown(str(entry.path)), "type": str(entry.type)}
            for entry in entries
        ]
        click.echo(json.dumps({"items": rows}, indent=2))
        return 0
    for entry in entries:
        arrow = f" -> {_shown(entry.link)}" if entry.link is not None else ""
        facts = f"{_LETTER[entry.type]}{entry.mode:04o} {entry.size:>12}"
        click.echo(f"{facts}  {_shown(entry.path.name)}{arrow}")
    return 0


def _shown(name: str) -> str:
    # A guest chooses its names: none of them may drive the operator's terminal.
    return name if name.isprintable() else repr(name)


@click.command()
@click.argument("source")
@click.argument("target")
def cp(source: str, target: str) -> int:
    """Copy a file or a tree between this machine and a sandbox, in either direction.

    One side is NAME:/workspace/PATH. A target that ends in / or is a folder takes the source's
    name; - is standard input or output.
    """
    (from_box, inside), (to_box, outside) = _side(source), _side(target)
    if (from_box is None) == (to_box is None):
        raise click.UsageError("one side, and one only, is NAME:/workspace/PATH")
    anyio.run(_cp, from_box, inside, to_box, outside)
    return 0


def _side(text: str) -> tuple[str | None, str]:
    name, colon, path = text.partition(":")
    if colon and name and "/" not in name and path.startswith("/"):
        return name, path
    return None, text


async def _cp(from_box: str | None, source: str, to_box: str | None, target: str) -> None:
    with Progress() as progress:
        if from_box is not None:
            async with again(from_box) as box:
                if target == "-":
                    await get_to(box.files, source, sys.stdout.buffer, told=progress)
                else:
                    await get(box.files, source, _local(target), told=progress)
            return
        assert to_box is not None  # noqa: S101 - one of both is
        async with again(to_box) as box:
            if source == "-":
                if target.endswith("/"):
                    raise InvalidArgument("standard input has no name: give the whole target")
                await put_from(box.files, sys.stdin.buffer, target, told=progress)
            else:
                await put(box.files, Path(source), target, told=progress)


def _local(target: str) -> Path | str:
    # A trailing slash says "into this folder"; a Path would forget it.
    return target if target.endswith("/") else Path(target)
