"""`pinfold cp` and `ls`: files of durable sandboxes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import click

from pinfold.cli import _session as session
from pinfold.cli._progress import Progress
from pinfold.cli._stores import again
from pinfold.cli._text import shown
from pinfold.errors import NotADirectory
from pinfold.provider import FileStat, FileType
from pinfold.transfer import get, get_to, put, put_from

__all__ = ["cp", "ls"]

_LETTER = {FileType.FILE: "-", FileType.DIRECTORY: "d", FileType.SYMLINK: "l", FileType.OTHER: "?"}


@click.command()
@click.argument("name")
@click.argument("path", default="/workspace")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(name: str, path: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List a folder, or show a file, of the sandbox NAME."""

    async def run() -> list[FileStat]:
        async with again(name) as box:
            try:
                return list(await box.files.list(path))
            except NotADirectory:
                return [await box.files.stat(path)]

    entries = session.run(run)
    if as_json:
        rows: list[dict[str, Any]] = [
            {**attrs.asdict(entry), "path": str(entry.path), "type": str(entry.type)}
            for entry in entries
        ]
        click.echo(json.dumps({"items": rows}, indent=2))
        return 0
    for entry in entries:
        arrow = f" -> {shown(entry.link)}" if entry.link is not None else ""
        facts = f"{_LETTER[entry.type]}{entry.mode:04o} {entry.size:>12}"
        click.echo(f"{facts}  {shown(entry.path.name)}{arrow}")
    return 0


@click.command()
@click.argument("source")
@click.argument("target")
def cp(source: str, target: str) -> int:
    """Copy a file or a tree between this machine and a sandbox, in either direction.

    One side is NAME:/workspace/PATH. A copy to a folder that is there goes into it under the
    source's name, or, where that ends in /., its content does; - is standard input or output.
    """
    (from_box, inside), (to_box, outside) = _side(source), _side(target)
    if (from_box is None) == (to_box is None):
        raise click.UsageError("one side, and one only, is NAME:/workspace/PATH")
    if from_box is not None:
        session.run(lambda: _out(from_box, inside, target))
    elif to_box is not None:
        session.run(lambda: _in(source, to_box, outside))
    return 0


def _side(text: str) -> tuple[str | None, str]:
    name, colon, path = text.partition(":")
    if colon and name and "/" not in name and path.startswith("/"):
        return name, path
    return None, text


async def _out(name: str, source: str, target: str) -> None:
    stream = _unbuffered(sys.stdout, "standard output") if target == "-" else None
    with Progress() as progress:
        async with again(name) as box:
            if stream is not None:
                await get_to(box.files, source, stream, told=progress)
            else:
                await get(box.files, source, target, told=progress)


async def _in(source: str, name: str, target: str) -> None:
    stream = _unbuffered(sys.stdin, "standard input") if source == "-" else None
    with Progress() as progress:
        async with again(name) as box:
            if stream is not None:
                await put_from(box.files, stream, target, told=progress)
            else:
                await put(box.files, source, target, told=progress, skipped=_skipped)


def _unbuffered(stream: Any, name: str) -> BinaryIO:
    # It can be left while it waits, and holds back nothing when we are to end.
    buffered = session.bytes_of(stream, name)
    raw: BinaryIO = getattr(buffered, "raw", buffered)
    return raw


def _skipped(path: Path) -> None:
    click.echo(f"pinfold: skipped, no file or folder: {shown(str(path))}", err=True)
