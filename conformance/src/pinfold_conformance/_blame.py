"""Whose fault an exception of a check is, and how a reason tells it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

from pinfold.errors import PinfoldError, Unimplemented
from pinfold_conformance._expect import Inconclusive
from pinfold_conformance._verdicts import Verdict

__all__ = ["classify", "told_of", "where"]


def classify(exc: BaseException) -> tuple[Verdict, str]:
    """Say whose fault an exception of a check is."""
    leaves = list(_leaves(exc))
    for leaf in leaves:
        if not isinstance(leaf, (AssertionError, PinfoldError, Inconclusive)):
            return Verdict.ENGINE_ERROR, where(leaf)
    for leaf in leaves:
        if isinstance(leaf, AssertionError):
            return Verdict.FAIL, str(leaf) or "an assertion failed"
        if isinstance(leaf, PinfoldError):
            return Verdict.FAIL, f"unexpected {told_of(leaf)}"
    return Verdict.INCONCLUSIVE, str(leaves[0])


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc


def told_of(exc: BaseException) -> str:
    """Return an error as a reason tells it."""
    if isinstance(exc, Unimplemented):
        return f"Unimplemented: {exc} (ER-3: only for what the descriptor says is absent)"
    text = str(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def where(exc: BaseException) -> str:
    """Return an error and the line that raised it: a bug of the suite."""
    frames = traceback.extract_tb(exc.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(exc).__name__}: {exc}{place}"
