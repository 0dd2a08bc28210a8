"""`pinfold attach`: a person's terminal on a terminal in a sandbox."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import anyio
import click
from anyio import to_thread

from pinfold._tasks import background
from pinfold.cli import _session as session
from pinfold.cli._stores import again
from pinfold.errors import InvalidArgument, PinfoldError, Unimplemented
from pinfold.provider import Terminal, TerminalSize

__all__ = ["attach"]

#: Ctrl-], as telnet has it.
DETACH: Final = b"\x1d"


@click.command()
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def attach(name: str, command: tuple[str, ...]) -> int:
    """Open a shell, or CMD, in a terminal of the sandbox NAME; Ctrl-] leaves and ends it."""
    return session.run(lambda: _attach(name, list(command) or None))


async def _attach(name: str, command: list[str] | None) -> int:
    async with again(name) as box:
        if not box.capabilities.pty:
            raise Unimplemented(
                f"sandbox {box.name!r} has no terminals", hint="use `pinfold exec` for commands"
            )
        if not (session.is_terminal(sys.stdin) and session.is_terminal(sys.stdout)):
            raise InvalidArgument(
                "attach needs a terminal on both sides", hint="use `pinfold exec` for commands"
            )
        env = {"TERM": os.environ.get("TERM", "xterm")}
        async with box.terminal(command, env=env, size=_size()) as term:
            with _raw(sys.stdin.fileno()):
                click.echo("(Ctrl-] leaves)\r", err=True)
                return await _converse(term)


async def _converse(term: Terminal) -> int:
    """Carry bytes both ways until the shell ends, or the person leaves; return the exit code."""
    code: int | None = None

    async def typing() -> None:
        await _type(term, left)

    async with background(lambda: _follow_size(term)), background(typing) as left:
        code = await _show(term)
    return 0 if code is None else code


async def _show(term: Terminal) -> int:
    while True:
        try:
            data = await term.receive()
        except anyio.EndOfStream:
            return await term.wait()
        await to_thread.run_sync(_write, data)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


async def _type(term: Terminal, scope: anyio.CancelScope) -> None:
    keys = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(keys)
        data = os.read(keys, 65_536)
        before, detach, _ = data.partition(DETACH)
        if before:
            try:
                await term.send(before)
            except (anyio.BrokenResourceError, PinfoldError):
                return  # the shell has ended: what it said last, and its code, are still read
        if detach or not data:
            scope.cancel()
            return


async def _follow_size(term: Terminal) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            with suppress(anyio.BrokenResourceError, PinfoldError):
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
        tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead is kept
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
