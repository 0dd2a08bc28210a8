"""JUnit XML, for CI systems."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from pinfold_conformance._verdicts import Outcome, Report, Verdict

__all__ = ["junit"]

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(value: str) -> str:
    """Return what XML can carry of a text; guests' bytes may end up in reasons."""
    return _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), value)


def junit(reports: list[Report]) -> str:
    """Return the reports as one JUnit document: a suite each."""
    root = ET.Element("testsuites", name="pinfold conformance")
    for report in reports:
        counts = report.counts
        suite = ET.SubElement(
            root,
            "testsuite",
            name=report.target,
            tests=str(len(report.outcomes)),
            failures=str(counts["fail"]),
            errors=str(counts["engine-error"]),
            skipped=str(counts["inconclusive"] + counts["known-failure"]),
            time=f"{sum(one.duration_ms for one in report.outcomes) / 1000:.3f}",
        )
        for outcome in report.outcomes:
            _case(suite, report.target, outcome)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, target: str, one: Outcome) -> None:
    name = f"{one.check}[{one.spec}]" if one.spec else one.check
    case = ET.SubElement(
        suite, "testcase", classname=target, name=name, time=f"{one.duration_ms / 1000:.3f}"
    )
    properties = ET.SubElement(case, "properties")
    facts = {
        "clauses": " ".join(one.clauses),
        "level": str(one.level),
        "kind": one.kind,
        "verdict": str(one.verdict),
    }
    for key, value in facts.items():
        ET.SubElement(properties, "property", name=key, value=_text(value))
    reason = _text(one.reason)
    match one.verdict:
        case Verdict.FAIL:
            ET.SubElement(case, "failure", message=reason).text = reason
        case Verdict.ENGINE_ERROR:
            ET.SubElement(case, "error", message=reason).text = reason
        case Verdict.INCONCLUSIVE | Verdict.KNOWN_FAILURE:
            ET.SubElement(case, "skipped", message=reason)
        case _:
            if reason or one.warnings:
                ET.SubElement(case, "system-out").text = _text(
                    "\n".join(filter(None, (one.reason, *one.warnings)))
                )
