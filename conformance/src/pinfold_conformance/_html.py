"""One self-contained page that a person wants to look at: no script from elsewhere, no font."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from pinfold_conformance._clauses import CLAUSES, REASONS

__all__ = ["page"]

Form = Mapping[str, Any]

_VERDICTS: Final = (
    "pass", "not-claimed", "inconclusive", "known-failure", "fail", "engine-error",
)  # fmt: skip

_AREAS: Final = {
    "SP": "Specification", "RS": "Resolution", "PR": "Providers", "EX": "Exec", "FS": "Files",
    "CP": "Checkpoints", "LC": "Life", "ER": "Errors", "EV": "Events", "TR": "Truth",
}  # fmt: skip


def page(certificates: Sequence[Form]) -> str:
    """Return the page for one or more certificates."""
    names = ", ".join(str(form["target"]) for form in certificates) or "nothing"
    folder = files("pinfold_conformance") / "_report"
    style, script = (folder / "page.css").read_text(), (folder / "page.js").read_text()
    body = "".join(_target(form, number) for number, form in enumerate(certificates))
    overview = _overview(certificates) if len(certificates) > 1 else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>pinfold conformance: {escape(names)}</title><style>{style}</style></head>"
        f"<body><main><h1>pinfold conformance</h1>{overview}{body}"
        "<footer>A certificate is evidence against error, not against a provider that lies on "
        "purpose. Each cell of the matrix is one check; hover for its name, follow it for its "
        f"story.</footer></main><script>{script}</script></body></html>\n"
    )


def _color(verdict: str) -> str:
    return f"var(--{verdict})" if verdict in _VERDICTS else "var(--soft)"


def _badge(result: str) -> str:
    verdict = {"conformant": "pass", "partial": "inconclusive"}.get(result, "fail")
    return f'<span class="badge" style="background:{_color(verdict)}">{escape(result)}</span>'


def _overview(certificates: Sequence[Form]) -> str:
    rows = "".join(
        f'<tr><td><a href="#t{number}">{escape(str(form["target"]))}</a></td>'
        f"<td>{_badge(str(form['result']))}</td>"
        + "".join(f'<td class="num">{form["counts"][verdict]}</td>' for verdict in _VERDICTS)
        + "</tr>"
        for number, form in enumerate(certificates)
    )
    heads = "".join(f"<th class=num>{verdict}</th>" for verdict in _VERDICTS)
    return (
        f"<div class=scroll><table><thead><tr><th>target</th><th>result</th>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _target(form: Form, number: int) -> str:
    run = form["run"]
    adapter = form["adapter"] or {}
    profile = run.get("profile", {}).get("name", "?")
    facts = [
        f"contract {form['contract']}",
        f"suite {form['suite']['version']}",
        f"{adapter.get('dist', '?')} {adapter.get('version', '')}".strip(),
        f"profile {profile}",
        f"seed {run.get('seed', '?')}",
        f"{run.get('backend', '?')}",
        f"{run.get('duration_s', 0):.1f} s",
    ]
    title = escape(str(form["target"]))
    head = (
        f'<div class="head"><h1>{title}</h1>{_badge(str(form["result"]))}'
        f'<span class="soft small">{escape(" · ".join(facts))}</span></div>'
    )
    foot = (
        f"<h3>Reproduce</h3><pre>{escape(str(form['reproduce']))}</pre><p class='small soft'>"
        f"digest <span class='mono'>{escape(str(form['digest']))}</span></p>"
    )
    parts = [
        f'<section class="target" id="t{number}">',
        head,
        _numbers(form["counts"]),
        _problems(form["outcomes"]),
        f"<h2>What was checked</h2>{_legend()}{_matrix(form['outcomes'], number)}",
        _claims(form["claims"]),
        _timings(run.get("timings", {})),
        _slowest(form["outcomes"]),
        _table(form["outcomes"], number),
        _omitted(run.get("omitted", {})),
        foot,
        "</section>",
    ]
    return "".join(parts)


def _numbers(counts: Mapping[str, int]) -> str:
    cells = "".join(
        f'<div class="number{"" if counts[verdict] else " zero"}"><b>{counts[verdict]}</b>'
        f'<span class="small"><span class="dot" style="background:{_color(verdict)}"></span>'
        f"{verdict}</span></div>"
        for verdict in _VERDICTS
    )
    return f'<div class="numbers">{cells}</div>'


def _legend() -> str:
    return '<p class="small soft">Squares are MUST, circles SHOULD.</p>'


def _problems(outcomes: Iterable[Form]) -> str:
    order = {"engine-error": 0, "fail": 1, "known-failure": 2, "inconclusive": 3}
    bad = [one for one in outcomes if one["verdict"] in order]
    if not bad:
        return ""
    bad.sort(key=lambda one: order[one["verdict"]])
    return "<h2>What is not as it should be</h2>" + "".join(map(_problem, bad))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _problem(one: Form) -> str:
    clauses = ", ".join(one["clauses"])
    trace = one.get("trace")
    shown = ""
    if trace:
        steps = trace.get("steps", [])
        shown = (
            f"<details open><summary>minimised trace, {_count(len(steps), 'step')}</summary><pre>"
            + escape("\n".join(_step(step) for step in steps))
            + "</pre></details>"
        )
    return (
        f'<div class="failure {one["verdict"]}"><b class="mono">{escape(one["check"])}</b> '
        f'<span class="soft small">{escape(one["verdict"])} · {escape(clauses)} · '
        f"{escape(one['spec'])}</span><div>{escape(one.get('reason', ''))}</div>{shown}</div>"
    )


def _step(step: Any) -> str:
    if not isinstance(step, Mapping):
        return str(step)
    rest = {key: value for key, value in step.items() if key != "do"}
    return f"{step.get('do', '?'):12} " + "  ".join(
        f"{key}={_short(json.dumps(value, ensure_ascii=False))}" for key, value in rest.items()
    )


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _matrix(outcomes: Sequence[Form], number: int) -> str:
    by_clause: dict[str, list[tuple[int, Form]]] = {clause: [] for clause in CLAUSES}
    for index, one in enumerate(outcomes):
        for clause in one["clauses"]:
            by_clause.setdefault(clause, []).append((index, one))
    areas: dict[str, list[str]] = {}
    for clause, found in by_clause.items():
        cells = "".join(
            f'<a class="cell{" should" if one["level"] == "SHOULD" else ""}" '
            f'style="background:{_color(one["verdict"])}" href="#t{number}c{index}" '
            f'title="{escape(one["check"])} [{escape(one["spec"])}]: {escape(one["verdict"])}"></a>'
            for index, one in found
        )
        if not cells:
            reason = REASONS.get(clause, "not in this run")
            cells = f'<span class="none">{escape(reason)}</span>'
        row = f'<div class="clause">{clause}</div><div class="cells">{cells}</div>'
        areas.setdefault(clause[:2], []).append(row)
    cards = "".join(
        f'<div class="card"><div class="area">{_AREAS.get(area, area)}</div>'
        f'<div class="rows">{"".join(rows)}</div></div>'
        for area, rows in areas.items()
    )
    return f'<div class="matrix">{cards}</div>'


def _claims(claims: Mapping[str, Any]) -> str:
    if not claims:
        return ""
    rows = []
    for name, entry in claims.items():
        evidence = "<br>".join(
            f'<span class="dot" style="background:{_color(verdict)}"></span>{escape(check)}'
            for check, verdict in entry["evidence"].items()
        )
        said = "claimed" if entry["claimed"] else "denied"
        rows.append(
            f'<tr><td class="mono">{escape(name)}</td><td>{said}</td>'
            f'<td class="mono small">{evidence}</td></tr>'
        )
    return (
        "<h2>Claims, both ways</h2><table><thead><tr><th>claim</th><th>the target</th>"
        f"<th>proof or refutation</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _timings(timings: Mapping[str, Mapping[str, float]]) -> str:
    if not timings:
        return ""
    low, high = 0.01, max(1.0, *(one["max_ms"] for one in timings.values()))
    decades = math.ceil(math.log10(high / low))
    left, width, row = 130, 760, 24
    height = row * len(timings) + 30

    def x(value: float) -> float:
        return left + width * math.log10(max(value, low) / low) / decades

    parts = []
    for decade in range(decades + 1):
        at = left + width * decade / decades
        value = low * 10**decade
        label = f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - 24}"/>'
            f'<text class="faint" x="{at:.1f}" y="{height - 8}" text-anchor="middle">{label}</text>'
        )
    for index, (name, one) in enumerate(timings.items()):
        y = index * row + 4
        parts.append(
            f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
            f'<line x1="{x(one["p50_ms"]):.1f}" x2="{x(one["max_ms"]):.1f}" y1="{y + 8}" '
            f'y2="{y + 8}" stroke="var(--bar2)" stroke-width="2"/>'
            f'<rect x="{x(one["p50_ms"]):.1f}" y="{y + 3}" rx="3" fill="var(--bar2)" height="10" '
            f'width="{max(3.0, x(one["p95_ms"]) - x(one["p50_ms"])):.1f}"/>'
            f'<circle cx="{x(one["p50_ms"]):.1f}" cy="{y + 8}" r="5" fill="var(--bar)">'
            f"<title>{escape(name)}: p50 {one['p50_ms']:g} ms, p95 {one['p95_ms']:g} ms, max "
            f"{one['max_ms']:g} ms, {one['count']:g} calls</title></circle>"
            f'<text class="faint" x="{left + width + 14}" y="{y + 12}">'
            f"{one['count']:g} calls</text>"
        )
    return (
        '<h2>How long calls took</h2><p class="small soft">dot: median; bar: to the 95th '
        "percentile; line: to the slowest. Recorded, never judged.</p>"
        f'<svg viewBox="0 0 {left + width + 100} {height}" role="img" '
        f'aria-label="durations of calls">{"".join(parts)}</svg>'
    )


def _slowest(outcomes: Sequence[Form]) -> str:
    top = sorted(outcomes, key=lambda one: -one["duration_ms"])[:10]
    if not top or top[0]["duration_ms"] <= 0:
        return ""
    most, left, width, row = top[0]["duration_ms"], 230, 660, 24
    parts = []
    for index, one in enumerate(top):
        y, length = index * row + 4, width * one["duration_ms"] / most
        parts.append(
            f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{escape(one["check"])}</text>'
            f'<rect x="{left}" y="{y + 1}" rx="3" height="14" width="{max(2.0, length):.1f}" '
            f'fill="{_color(one["verdict"])}"/>'
            f'<text class="faint" x="{left + length + 8:.1f}" y="{y + 12}">'
            f"{one['duration_ms'] / 1000:.2f} s</text>"
        )
    return (
        "<h2>The longest checks</h2>"
        f'<svg viewBox="0 0 {left + width + 100} {row * len(top) + 8}" role="img" '
        f'aria-label="the longest checks">{"".join(parts)}</svg>'
    )


def _table(outcomes: Sequence[Form], number: int) -> str:
    present = [verdict for verdict in _VERDICTS if any(o["verdict"] == verdict for o in outcomes)]
    buttons = '<button aria-pressed="true" data-v="">all</button>' + "".join(
        f'<button aria-pressed="false" data-v="{verdict}"><span class="dot" '
        f'style="background:{_color(verdict)}"></span>{verdict}</button>'
        for verdict in present
    )
    rows = "".join(
        f'<tr id="t{number}c{index}" data-v="{one["verdict"]}"><td class="mono id">'
        f'{escape(one["check"])}</td><td class="small">{escape(one["spec"])}</td>'
        f'<td class="verdict"><span class="dot" style="background:{_color(one["verdict"])}"></span>'
        f"{one['verdict']}</td>"
        f'<td class="small">{escape(one.get("reason", ""))}{_evidence(one)}</td>'
        f'<td class="num">{one["operations"]}</td>'
        f'<td class="num">{one["duration_ms"]:.0f} ms</td></tr>'
        for index, one in enumerate(outcomes)
    )
    return (
        f'<h2>Every check</h2><div class="filter" data-table="t{number}all">{buttons}</div>'
        f'<div class="scroll"><table id="t{number}all"><thead><tr><th>check</th><th>spec</th>'
        "<th>verdict</th><th>reason and evidence</th><th>calls</th><th>time</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _evidence(one: Form) -> str:
    told = [
        f"{key.replace('_', ' ')}: {_said(value)}" for key, value in one.get("evidence", {}).items()
    ]
    told += list(one.get("warnings", []))
    if not told:
        return ""
    return f'<div class="soft">{escape("; ".join(told))}</div>'


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value)


def _omitted(omitted: Mapping[str, str]) -> str:
    if not omitted:
        return ""
    rows = "".join(
        f'<tr><td class="mono">{escape(name)}</td><td class="small">{escape(why)}</td></tr>'
        for name, why in omitted.items()
    )
    return (
        f"<details><summary>{len(omitted)} checks do not apply to this target</summary>"
        f"<table><tbody>{rows}</tbody></table></details>"
    )
