"""`pinfold gc` and `reap`: what keeps stores clean and idle sandboxes asleep."""

from __future__ import annotations

import anyio
import click

from pinfold import sandbox
from pinfold.cli import _session as session
from pinfold.cli._app import FAILURE
from pinfold.cli._stores import surroundings
from pinfold.cli._text import shown
from pinfold.errors import PinfoldError
from pinfold.sandbox import Upkeep

__all__ = ["gc", "reap"]

PAUSE_SECONDS = 1.0


@click.command()
def gc() -> int:
    """Remove what no living sandbox has: compute, and contents that no checkpoint needs.

    Of the store, and of ephemeral sandboxes that have ended; of nothing else.
    """
    store, runtime = surroundings()

    async def run() -> Upkeep:
        return await sandbox.gc(store, runtime) + await sandbox.gc_ephemeral(runtime)

    return _report(session.run(run), "removed")


@click.command()
@click.option("--watch", is_flag=True, help="Go on, until interrupted.")
def reap(watch: bool) -> int:  # noqa: FBT001 - click's
    """Do what is overdue for idle sandboxes that nobody holds."""
    store, runtime = surroundings()

    async def run() -> Upkeep:
        known: frozenset[tuple[str, str]] = frozenset()
        while watch:
            try:
                report = await sandbox.reap(store, runtime)
            except PinfoldError as exc:
                if not exc.retryable:
                    raise
                report = Upkeep(failed=(("the store", str(exc)),))
            news = [failure for failure in report.failed if failure not in known]
            _report(Upkeep(done=report.done, failed=tuple(news)), "put to rest")
            known = frozenset(report.failed)
            await anyio.sleep(PAUSE_SECONDS)
        return await sandbox.reap(store, runtime)

    return _report(session.run(run), "put to rest")


def _report(report: Upkeep, what: str) -> int:
    for name in report.done:
        click.echo(f"{what}: {name}")
    for name, why in report.failed:
        click.echo(f"pinfold: {name}: {shown(why)}", err=True)
    return FAILURE if report.failed else 0
