"""`pinfold targets`: what is installed, what it can do, and whether it is there."""

from __future__ import annotations

import json
from typing import Final

import attrs
import click

from pinfold.resolve import TargetInfo, describe
from pinfold.resolve import targets as probed

__all__ = ["targets"]

_SHORT: Final = {
    "native_processes": "processes",
    "network_enforced": "net-enforced",
    "packages": "packages",
    "portable_checkpoint": "checkpoints",
    "ports": "ports",
    "pty": "pty",
}


@click.command()
@click.option("--no-probe", is_flag=True, help="Don't ask whether they are available now.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def targets(no_probe: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """List every installed provider: available, or why not and what to do."""
    rows = describe() if no_probe else _probed()
    if as_json:
        click.echo(json.dumps({"items": [row.to_dict() for row in rows]}, indent=2))
    elif not rows:
        click.echo("no provider is installed (pip install pinfold-bashkit)")
    else:
        for row in rows:
            click.echo("\n".join(_lines(row)))
    return 0


def _probed() -> list[TargetInfo]:
    import anyio

    return anyio.run(probed)


def _lines(row: TargetInfo) -> list[str]:
    state = {True: "available", False: "unavailable", None: "not probed"}[row.available]
    kind = f" ({row.kind})" if row.kind else ""
    lines = [f"{row.provider}{kind}: {state}"]
    if row.reason:
        lines.append(f"  reason:       {row.reason}")
    if row.hint:
        lines.append(f"  what to do:   {row.hint}")
    if row.capabilities is not None:
        facts = attrs.asdict(row.capabilities)
        can = ", ".join(_SHORT[name] for name, value in facts.items() if value)
        cannot = ", ".join(_SHORT[name] for name, value in facts.items() if not value)
        lines.append(f"  can:          {can or 'none of the six'}")
        lines.append(f"  cannot:       {cannot or '-'}")
        for level in row.levels:
            there = row.available_levels is None or level in row.available_levels
            modes = ", ".join(row.networks[str(level)])
            lines.append(f"  level:        {level} (network {modes}){'' if there else ' not here'}")
        lines.append(f"  durability:   {', '.join(row.durability)}")
    return lines
