"""The group of verbs, and the one place where errors become exit codes.

Exit codes: the command's own where one was run; 125 for pinfold's own failures, as container tools
do; 130 and 143 after Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from pinfold.cli._text import shown

__all__ = ["FAILURE", "app", "main"]

FAILURE: Final = 125

_VERBS: Final = {
    "attach": "pinfold.cli._attach:attach",
    "checkpoint": "pinfold.cli._checkpoints:checkpoint",
    "checkpoints": "pinfold.cli._checkpoints:checkpoints",
    "cp": "pinfold.cli._cp:cp",
    "down": "pinfold.cli._durable:down",
    "drain": "pinfold.cli._durable:drain",
    "events": "pinfold.cli._durable:events",
    "exec": "pinfold.cli._run:exec_",
    "fork": "pinfold.cli._checkpoints:fork",
    "gc": "pinfold.cli._upkeep:gc",
    "list": "pinfold.cli._durable:list_",
    "ls": "pinfold.cli._cp:ls",
    "migrate": "pinfold.cli._checkpoints:migrate",
    "port": "pinfold.cli._durable:port",
    "reap": "pinfold.cli._upkeep:reap",
    "resolve": "pinfold.cli._specs:resolve",
    "restore": "pinfold.cli._checkpoints:restore",
    "run": "pinfold.cli._run:run",
    "schema": "pinfold.cli._specs:schema",
    "targets": "pinfold.cli._targets:targets",
    "up": "pinfold.cli._durable:up",
    "view": "pinfold.cli._specs:view",
}


class _Verbs(click.Group):
    """Verbs that are imported when they are used: ours, then those of `pinfold.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from pinfold.plugins import Entries

        return sorted({*_VERBS, *Entries("pinfold.commands").names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _VERBS:
            module, _, name = _VERBS[cmd_name].partition(":")
            verb: click.Command = getattr(import_module(module), name)
            return verb
        from pinfold.plugins import Entries, Loaded

        found = Entries("pinfold.commands").load(cmd_name)
        if found is None:
            return None
        if isinstance(found, Loaded) and isinstance(found.value, click.Command):
            return found.value
        reason = "it is no click command" if isinstance(found, Loaded) else str(found)
        return _broken(cmd_name, reason)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from pinfold.faults import suggest

        name = args[0]
        if self.get_command(ctx, name) is None:
            near = suggest(name, self.list_commands(ctx))
            ctx.fail(f"no such command {name!r}" + (f"; did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)


def _broken(name: str, reason: str) -> click.Command:
    @click.command(
        name,
        help=f"(can't be used: {reason})",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("args", nargs=-1)
    def verb(args: tuple[str, ...]) -> NoReturn:
        raise click.ClickException(f"command {name!r} can't be used: {reason}")

    return verb


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"pinfold {version('pinfold')}")
    ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def app() -> None:
    """Run commands in sandboxes, and be told first what a place can do."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _occupy()
    sys.exit(_main(argv))


def _occupy() -> None:
    """Let no file of ours be taken for a standard stream that we were started without."""
    import os

    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest number that is free: this one


def _main(argv: list[str] | None) -> int:
    try:
        code = app.main(argv, prog_name="pinfold", standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.UsageError as exc:
        verb = exc.ctx.command_path if exc.ctx else "pinfold"
        return _fail(f"{exc.format_message()} (see `{verb} --help`)")
    except click.ClickException as exc:
        return _fail(exc.format_message())
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _quiet_pipe()
        return FAILURE
    except Exception as exc:
        from pinfold.errors import PinfoldError, SpecInvalid

        if isinstance(exc, SpecInvalid):
            return _fail(*str(exc).split("\n"))  # a line for each fault
        if isinstance(exc, (PinfoldError, OSError)):
            return _fail(str(exc))
        raise
    return code if isinstance(code, int) else 0


def _fail(*lines: str) -> int:
    click.echo("pinfold: " + "\n".join(map(shown, lines)), err=True)
    return FAILURE


def _quiet_pipe() -> None:
    # Whoever read us has gone; the interpreter must not complain of it at exit.
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
