"""The verbs that this dist adds to `pinfold`: `conform` and `new-provider`.

`conform` exits with 0 conformant, 1 not conformant, 2 usage, 3 engine error, 4 partial.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import attrs
import click

from pinfold_conformance._profiles import PROFILES
from pinfold_conformance._template import FLAVOURS, NameInvalid, write_project
from pinfold_conformance._verdicts import Outcome, Report, Result, Verdict

__all__ = ["conform", "new_provider"]

USAGE = 2


class _Conform(click.Command):
    """A command whose usage errors exit with 2, as its exit codes say."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as exc:
            _usage(exc.format_message())

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as exc:
            _usage(exc.format_message())


def _usage(message: str) -> NoReturn:
    click.echo(f"pinfold conform: {message} (see `pinfold conform --help`)", err=True)
    raise click.exceptions.Exit(USAGE)


@click.command("conform", cls=_Conform, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", show_default=True)
@click.option("--only", multiple=True, metavar="CHECK", help="An id, a clause, or `EX-*`.")
@click.option("--all", "everything", is_flag=True, help="Every installed lane.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the artefacts.")
@click.option("--known", type=click.Path(path_type=Path), help="File of known failures.")
@click.option("--with", "other", metavar="TARGET", help="A second target, to move trees to.")
@click.option("--strict", is_flag=True, help="Underclaims fail.")
@click.option("--attack/--no-attack", default=True, help="Try to break out, where it is allowed.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--scale", type=float, default=1.0, help="Multiplies every deadline.")
@click.option("--json", "as_json", is_flag=True, help="Certificates on stdout, as JSON.")
@click.option("--list", "list_checks", is_flag=True, help="List checks, or lanes, and exit.")
@click.option("--mutants", is_flag=True, help="Print the bugs that the checks kill, and exit.")
@click.option("--clauses", is_flag=True, help="Print the table of clauses and checks, and exit.")
@click.option(
    "--verify",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Verify a certificate and exit.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Replay a failing trace on the targets.",
)
@click.option("--sweep", is_flag=True, help="Remove what crashed runs left behind.")
def conform(targets: tuple[str, ...], **given: Any) -> int:
    """Prove that TARGETS keep the contract: lanes by name, by provider, or as module:attribute.

    Exit codes: 0 conformant, 1 not conformant, 2 usage, 3 engine error, 4 partial.
    """
    if given["verify"] is not None:
        return _verify(given["verify"])
    if given["clauses"]:
        from pinfold_conformance._clauses import table

        click.echo(table())
        return 0
    if given["mutants"]:
        from pinfold_conformance.mutants import table as bugs

        click.echo(bugs())
        return 0
    if given["list_checks"]:
        return _list(given["only"])
    if given["sweep"]:
        return _sweep(targets)
    from pinfold_conformance._targets import lane_names

    if given["everything"]:
        targets = tuple(dict.fromkeys((*targets, *lane_names())))
    if not targets:
        known = ", ".join(lane_names()) or "none: install a provider that ships its lanes"
        raise click.UsageError(f"which target? Installed lanes: {known}")
    if given["replay"] is not None:
        return _replay(given["replay"], targets)
    return _conform(targets, given)


def _found(targets: tuple[str, ...]) -> list[Any]:
    from pinfold_conformance._targets import NoSuchTarget, find_lanes

    try:
        return [found for target in targets for found in find_lanes(target)]
    except NoSuchTarget as exc:
        raise click.UsageError(str(exc)) from exc


def _options(given: dict[str, Any]) -> Any:
    from pinfold_conformance._known import KnownFailuresInvalid, load
    from pinfold_conformance._options import Options
    from pinfold_conformance._registry import find
    from pinfold_conformance._surroundings import connections, ledgers

    if not 0 < given["scale"] < math.inf:  # which NaN is not
        raise click.UsageError("--scale is a number above 0")
    try:
        list(find(given["only"]))
        known = load(given["known"]) if given["known"] else ()
    except (LookupError, KnownFailuresInvalid) as exc:
        raise click.UsageError(str(exc)) from exc
    other = None
    if given["other"]:
        (found, *more) = _found((given["other"],))
        if more or found.lane is None:
            raise click.UsageError(
                f"--with names no single lane: {found.problem or given['other']}"
            )
        other = found.lane
    return Options(
        profile=PROFILES[given["profile"]],
        only=given["only"],
        backend=given["backend"],
        seed=given["seed"],
        strict=given["strict"],
        attacks=given["attack"],
        scale=given["scale"],
        known=known,
        other=other,
        connect=connections(),
        ledger=ledgers(),
    )


def _conform(targets: tuple[str, ...], given: dict[str, Any]) -> int:
    from pinfold_conformance._artefacts import write
    from pinfold_conformance._certificate import certificate
    from pinfold_conformance._run import run

    options, results, done = _options(given), [], []
    for found in _found(targets):
        if found.lane is None:
            report = Report(
                target=found.name,
                outcomes=(
                    Outcome(
                        check="target.loads",
                        kind="setup",
                        verdict=Verdict.FAIL,
                        reason=found.problem,
                    ),
                ),
                facts={"profile": attrs.asdict(options.profile), "only": list(options.only)},
            )
        else:
            told = _Progress(found.name, quiet=given["as_json"])
            report = run(found.lane, options, told)
            told.clear()
        form = certificate(
            report,
            found.lane.provider if found.lane is not None else None,
            command=shlex.join(["pinfold", "conform", *_arguments(found.name, given)]),
        )
        results.append(report)
        done.append(form)
        if not given["as_json"]:
            _summary(report)
    if given["out"]:
        try:
            write(given["out"], results, done)
        except OSError as exc:
            raise click.UsageError(f"--out {given['out']}: {exc}") from exc
        if not given["as_json"]:
            click.echo(f"artefacts: {given['out']}/")
    if given["as_json"]:
        click.echo(json.dumps(done[0] if len(done) == 1 else done, indent=2))
    return max((report.result for report in results), key=_badness).exit_code


def _badness(result: Result) -> int:
    return [Result.CONFORMANT, Result.PARTIAL, Result.NOT_CONFORMANT, Result.ENGINE_ERROR].index(
        result
    )


def _arguments(target: str, given: dict[str, Any]) -> list[str]:
    words = [target, "--profile", given["profile"], "--seed", str(given["seed"])]
    for pattern in given["only"]:
        words += ["--only", pattern]
    words += ["--with", given["other"]] if given["other"] else []
    words += ["--known", str(given["known"])] if given["known"] else []
    words += ["--scale", f"{given['scale']:g}"] if given["scale"] != 1 else []
    words += ["--strict"] if given["strict"] else []
    words += [] if given["attack"] else ["--no-attack"]
    words += ["--backend", given["backend"]] if given["backend"] != "asyncio" else []
    return words


class _Progress:
    """What came of each check, as it comes: lines for what is not plain, a counter for the rest."""

    def __init__(self, target: str, *, quiet: bool) -> None:
        self._target, self._count = target, 0
        self._live = not quiet and sys.stderr.isatty()
        self._quiet = quiet

    def __call__(self, outcome: Outcome) -> None:
        self._count += 1
        self.clear()
        if outcome.verdict not in (Verdict.PASS, Verdict.NOT_CLAIMED) and not self._quiet:
            click.echo(_line(outcome))
        for warning in outcome.warnings if not self._quiet else ():
            click.echo(f"{'warning':14} {outcome.check:30} {_plain(warning)}")
        if self._live:
            click.echo(
                f"\r{self._target}: {self._count} checks, {outcome.check}", nl=False, err=True
            )

    def clear(self) -> None:
        """Take the counter away."""
        if self._live:
            click.echo("\r\033[K", nl=False, err=True)


def _plain(text: str) -> str:
    """Return a text without what a terminal would obey: guests' bytes end up in reasons."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _line(outcome: Outcome) -> str:
    return f"{outcome.verdict:14} {outcome.check:30} {_plain(outcome.reason)}"


def _summary(report: Report) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
    seconds = report.facts.get("duration_s")
    took = f" in {seconds:.1f} s" if isinstance(seconds, float) else ""
    for outcome in report.outcomes:
        if outcome.kind == "setup" and outcome.check == "target.loads":
            click.echo(_line(outcome))
    some = " in the checks asked for, not in all" if report.facts.get("only") else ""
    click.echo(f"{report.target}: {str(report.result).upper()}{some} ({counts}){took}")


def _list(patterns: tuple[str, ...]) -> int:
    from pinfold_conformance._registry import all_checks, find

    try:
        checks = list(find(patterns)) if patterns else list(all_checks())
    except LookupError as exc:
        raise click.UsageError(str(exc)) from exc
    for one in checks:
        click.echo(f"{one.id:32} {one.level:6} {one.kind:10} {one.profile:7} {one.title}")
    return 0


def _verify(path: Path) -> int:
    from pinfold_conformance._verify import verify

    try:
        form = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"{path}: {exc}") from exc
    problems = verify(form)
    for problem in problems:
        click.echo(f"{path}: {_plain(problem)}")
    if problems:
        return Result.NOT_CONFORMANT.exit_code
    click.echo(f"{path}: holds together; {form['target']} is {form['result']}")
    return Result(form["result"]).exit_code


def _replay(path: Path, targets: tuple[str, ...]) -> int:
    from pinfold_conformance._replay import NotATrace, load, replay
    from pinfold_conformance._surroundings import connections

    try:
        trace = load(path)
    except NotATrace as exc:
        raise click.UsageError(str(exc)) from exc
    worst = Result.CONFORMANT
    for found in _found(targets):
        if found.lane is None:
            click.echo(f"{found.name}: {found.problem}")
            worst = Result.NOT_CONFORMANT
            continue
        outcome = replay(trace, found.lane, connect=connections())
        click.echo(f"{found.name}: {_line(outcome)}")
        if outcome.verdict is not Verdict.PASS:
            worst = max(worst, Report(target="", outcomes=[outcome]).result, key=_badness)
    return worst.exit_code


def _sweep(targets: tuple[str, ...]) -> int:
    """Remove what crashed runs left; targets are lanes that are not installed."""
    from pinfold_conformance._surroundings import connections, ledgers
    from pinfold_conformance._sweep import sweep

    named = {}
    for found in _found(targets):
        if found.lane is None:
            raise click.UsageError(found.problem)
        named[found.lane.name] = found.lane
    problems = 0
    for line, sound in sweep(ledgers(), connections(), named.get):
        click.echo(_plain(line))
        problems += not sound
    return Result.PARTIAL.exit_code if problems else 0


@click.command("new-provider")
@click.argument("name")
@click.option(
    "--flavour",
    type=click.Choice(list(FLAVOURS)),
    default="posix",
    show_default=True,
    help="; ".join(f"{name}: {fits}" for name, fits in FLAVOURS.items()) + ".",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The folder in which the project's folder is made.",
)
def new_provider(name: str, flavour: str, into: Path) -> int:
    """Write a complete plugin project for a provider NAME, with tests and a CI file."""
    try:
        folder = write_project(name, flavour, into)
    except (NameInvalid, FileExistsError, OSError) as exc:
        raise click.UsageError(str(exc)) from exc
    click.echo(f"wrote {folder}/; next: pip install -e {folder} && pinfold conform {name}")
    return 0
