"""`pinfold attach`: a person's terminal on a terminal in a sandbox."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import click
from anyio import to_thread

from pinfold.cli._stores import again
from pinfold.errors import InvalidArgument
from pinfold.provider import Terminal, TerminalSize

__all__ = ["attach"]

#: Ctrl-], as telnet has it.
DETACH: Final = b"\x1d"


@click.command()
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def attach(name: str, command: tuple[str, ...]) -> int:
    """Open a shell, or CMD, in a terminal of the sandbox NAME; Ctrl-] leaves it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument(
            "attach needs a terminal on both sides", hint="use `pinfold exec` for commands"
        )
    return anyio.run(_attach, name, list(command) or None)


async def _attach(name: str, command: list[str] | None) -> int:
    async with (
        again(name) as box,
        box.terminal(command, env={"TERM": os.environ.get("TERM", "xterm")}, size=_size()) as term,
    ):
        click.echo("(Ctrl-] leaves)", err=True)
        with _raw(sys.stdin.fileno()):
            async with anyio.create_task_group() as group:
                group.start_soon(_type, term, group.cancel_scope)
                group.start_soon(_follow_size, term)
                code = await _show(term)
                group.cancel_scope.cancel()
    return code


async def _show(term: Terminal) -> int:
    while True:
        try:
            data = await term.receive()
        except anyio.EndOfStream:
            return await term.wait()
        await to_thread.run_sync(os.write, sys.stdout.fileno(), data)


async def _type(term: Terminal, scope: anyio.CancelScope) -> None:
    keys = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(keys)
        data = os.read(keys, 65_536)
        before, detach, _ = data.partition(DETACH)
        if before:
            await term.send(before)
        if detach or not data:
            scope.cancel()
            return


async def _follow_size(term: Terminal) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            await term.resize(_size())


def _size() -> TerminalSize:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(rows, columns)


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    import termios
    import tty

    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
