"""`pinfold run` and `exec`: one command, in a sandbox that ends with it or in a durable one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, BinaryIO

import click
from anyio import to_thread

from pinfold import sandbox
from pinfold.cli import _session as session
from pinfold.cli._choice import Choice, choice_options
from pinfold.cli._stores import again
from pinfold.errors import TooLarge
from pinfold.provider import ExecResult, OutputStream
from pinfold.resolve import resolve
from pinfold.sandbox import Opening, Runtime, Sandbox
from pinfold.spec import EXEC_TIMEOUT_SECONDS, Limits

__all__ = ["exec_", "run"]


def _request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of one command to a click command, which gets them as one `request`."""

    @wraps(function)
    def command(**kwargs: Any) -> Any:
        env, cwd, timeout, shell, no_stdin, argv = (
            kwargs.pop(name) for name in ("env", "cwd", "timeout", "shell", "no_stdin", "command")
        )
        if bool(argv) == (shell is not None):
            raise click.UsageError("give a command after --, or --shell SCRIPT")
        request = {
            "argv": list(argv) or None,
            "shell": shell,
            "cwd": cwd,
            "env": dict(_variable(text) for text in env),
            "timeout_seconds": _seconds(timeout),
        }
        stdin = b""
        if not no_stdin and sys.stdin is not None and not sys.stdin.isatty():
            stdin = _read(sys.stdin.buffer)
        return function(request={**request, "stdin": stdin}, **kwargs)

    for option in reversed(
        (
            click.option(
                "--env", "-e", "env", metavar="NAME=VALUE", multiple=True, help="A variable."
            ),
            click.option("--cwd", metavar="DIR", default="/workspace", help="Where it runs."),
            click.option(
                "--timeout",
                metavar="SECONDS",
                default=str(int(EXEC_TIMEOUT_SECONDS)),
                help="Ends it, with exit code 124; 'none' is unlimited.",
                show_default=True,
            ),
            click.option("--shell", metavar="SCRIPT", help="A script for the target's shell."),
            click.option("--no-stdin", "-n", is_flag=True, help="Give it an empty stdin."),
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
            click.argument("command", nargs=-1, type=click.UNPROCESSED),
        )
    ):
        command = option(command)
    return command


@click.command()
@choice_options
@_request_options
def run(choice: Choice, request: dict[str, Any], as_json: bool) -> int:  # noqa: FBT001 - click's
    """Run CMD in a sandbox, stream its output, and exit with its code.

    Put -- before the command, so that its options are not read as ours. Without --profile and
    --provider the project's default profile counts, and without a project the embedded kind, vfs.
    """

    def opening() -> Opening[Any]:
        selection, _, project = choice.select()
        runtime = Runtime(connections=project.registered())
        spec = resolve(selection.layers, runtime.catalog, ephemeral=True)
        return sandbox.open(spec, name=selection.name, runtime=runtime)

    return session.run(lambda: _run(opening, request, as_json))


@click.command("exec")
@click.argument("name")
@_request_options
def exec_(name: str, request: dict[str, Any], as_json: bool) -> int:  # noqa: FBT001 - click's
    """Run CMD in the durable sandbox NAME, and exit with its code."""
    return session.run(lambda: _run(lambda: again(name), request, as_json))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError("--env is NAME=VALUE")
    return name, value


def _seconds(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise click.UsageError("--timeout is a number of seconds, or 'none'") from None


def _read(source: BinaryIO) -> bytes:
    limit = Limits().stdin_bytes
    data = source.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"stdin is larger than {limit} bytes", hint="put it into a file")
    return data


async def _run(
    opening: Callable[[], Opening[Any]],
    request: dict[str, Any],
    as_json: bool,  # noqa: FBT001 - it is passed by position
) -> int:
    if as_json:
        async with opening() as box:
            return await _report(box, request)
    outputs: Mapping[OutputStream, BinaryIO] = {
        "stdout": session.bytes_of(sys.stdout, "standard output"),
        "stderr": session.bytes_of(sys.stderr, "standard error"),
    }
    async with opening() as box:
        return await _stream(box, request, outputs)


async def _report(box: Sandbox, request: dict[str, Any]) -> int:
    result = await box.exec(**request)
    click.echo(json.dumps(result.to_dict(), indent=2))
    return result.exit_code


async def _stream(
    box: Sandbox, request: dict[str, Any], outputs: Mapping[OutputStream, BinaryIO]
) -> int:
    result: ExecResult
    async with box.stream(**request) as chunks:
        async for chunk in chunks:
            await to_thread.run_sync(_write, outputs[chunk.stream], chunk.data)
        result = await chunks.result()
    if result.timed_out:
        click.echo("pinfold: the command was ended by its timeout", err=True)
    if result.limit:
        click.echo(f"pinfold: the command met a limit: {result.limit}", err=True)
    if result.env_dropped:
        click.echo(f"pinfold: not passed on: {', '.join(result.env_dropped)}", err=True)
    return result.exit_code


def _write(output: BinaryIO, data: bytes) -> None:
    output.write(data)
    output.flush()
