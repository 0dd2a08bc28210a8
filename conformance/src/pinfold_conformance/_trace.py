"""Steps as data: what a machine did, so that it can be done again, elsewhere, and with less."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

__all__ = ["SCHEMA", "NotATrace", "Step", "Trace", "load", "minimise"]

SCHEMA: Final = "pinfold-conformance-trace/1"


class NotATrace(ValueError):
    """A file holds no trace; the message says where and why."""


@attrs.frozen
class Step:
    """One step: what is done, and with what; JSON-able, bytes as latin-1 text."""

    do: str
    args: Mapping[str, Any] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"do": self.do, **self.args}


@attrs.frozen(kw_only=True)
class Trace:
    """The steps of one failure.

    Attributes:
        machine: that the steps belong to.
        steps: in order.
        signature: of the failure, to tell it from another on the way of minimising.
        target: where it was found.
        replays: that minimising took.
    """

    machine: str
    steps: Sequence[Step]
    signature: str = ""
    target: str = ""
    replays: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "signature": self.signature,
            "target": self.target,
            "replays": self.replays,
            "steps": [step.to_json() for step in self.steps],
        }


def load(path: Path) -> Trace:
    """Read a trace.

    Raises:
        NotATrace: the file is none.
    """
    try:
        form = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise NotATrace(f"{path}: {exc}") from exc
    if not isinstance(form, dict) or form.get("schema") != SCHEMA:
        raise NotATrace(f"{path}: this is no trace of schema {SCHEMA}")
    try:
        steps = [
            Step(step["do"], {key: value for key, value in step.items() if key != "do"})
            for step in form["steps"]
        ]
        return Trace(
            machine=str(form["machine"]),
            steps=steps,
            signature=str(form.get("signature", "")),
            target=str(form.get("target", "")),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise NotATrace(f"{path}: malformed: {type(exc).__name__}: {exc}") from exc


async def minimise(
    steps: Sequence[Step],
    fails: Callable[[Sequence[Step]], Awaitable[bool]],
    budget: int,
) -> tuple[list[Step], int]:
    """Return fewer steps that fail in the same way, and how many replays it took (ddmin).

    Args:
        steps: that fail.
        fails: replays steps and says whether they fail in that way; the caller keeps the signature.
        budget: the most replays.
    """
    current, pieces, used = list(steps), 2, 0
    while len(current) > 1 and used < budget:
        size = max(1, len(current) // pieces)
        for start in range(0, len(current), size):
            fewer = current[:start] + current[start + size :]
            if not fewer:
                continue
            used += 1
            if await fails(fewer):
                current, pieces = fewer, max(pieces - 1, 2)
                break
            if used >= budget:
                break
        else:
            if size == 1:
                break
            pieces = min(len(current), pieces * 2)
    return current, used
