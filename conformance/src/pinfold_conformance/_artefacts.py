"""What a run leaves: certificates, JUnit, one report to look at, and failing traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinfold_conformance._html import page
from pinfold_conformance._junit import junit
from pinfold_conformance._verdicts import Report

__all__ = ["write"]


def write(
    folder: Path, reports: Sequence[Report], certificates: Sequence[Mapping[str, Any]]
) -> None:
    """Write the artefacts of one run over one or more targets.

    `certificate.json` for one target, `certificate-TARGET.json` for several; `junit.xml` and
    `report.html` for all; `traces/CHECK-TARGET.json` for each failure that has one.

    Raises:
        OSError: the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for form in certificates:
        name = "certificate" if len(certificates) == 1 else f"certificate-{_safe(form['target'])}"
        text = json.dumps(form, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8", errors="backslashreplace")
    (folder / "junit.xml").write_text(
        junit(list(reports)), encoding="utf-8", errors="backslashreplace"
    )
    (folder / "report.html").write_text(
        page(certificates), encoding="utf-8", errors="backslashreplace"
    )
    for report in reports:
        for outcome in report.outcomes:
            if outcome.trace is not None:
                traces = folder / "traces"
                traces.mkdir(exist_ok=True)
                name = f"{_safe(outcome.check)}-{_safe(report.target)}.json"
                (traces / name).write_text(json.dumps(outcome.trace, indent=2) + "\n")


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
