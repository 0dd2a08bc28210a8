"""A fault: one thing that is wrong with a specification, and where (RS-5)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import attrs

__all__ = ["Fault", "pointer", "suggest"]


def _one_line(text: str) -> str:
    # A fault is shown on a terminal and in logs: names in it come from the document.
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


@attrs.frozen(kw_only=True)
class Fault:
    """One fault of a specification.

    Attributes:
        pointer: JSON pointer (RFC 6901) into the document that holds the fault.
        code: stable identifier, for programs: `unknown_key`, `wrong_type`, `out_of_range`, ...
        message: what is wrong, for people; never the value of a secret (SP-2).
        allowed: what would have been accepted; empty where that can't be listed.
        hint: what to do.
        suggestion: the near miss that was probably meant, or null.
        layer: the layer that brought the value (`profile`, `session`, ...), or null.
    """

    pointer: str
    code: str
    message: str = attrs.field(converter=_one_line)
    allowed: tuple[str, ...] = ()
    hint: str = ""
    suggestion: str | None = None
    layer: str | None = None

    def under(self, prefix: str) -> Fault:
        """Return the same fault, seen from a document that holds this one at `prefix`."""
        return attrs.evolve(self, pointer=prefix + self.pointer)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; empty and null keys are left out."""
        return {
            k: v for k, v in attrs.asdict(self).items() if v not in (None, "", ()) or k == "pointer"
        }

    def __str__(self) -> str:
        place = _one_line(self.pointer) or "(document)"
        if self.layer:
            place += f" [{self.layer}]"
        text = f"{place}: {self.message}"
        if self.suggestion is not None:
            text += f"; did you mean {self.suggestion!r}?"
        elif self.allowed:
            text += f"; allowed: {', '.join(self.allowed)}"
        return f"{text} ({self.hint})" if self.hint else text


def pointer(*parts: object) -> str:
    """Return the JSON pointer to `parts`, escaped as RFC 6901 says."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def suggest(word: object, known: Iterable[str]) -> str | None:
    """Return the member of `known` that `word` nearly is, or None."""
    if not isinstance(word, str) or len(word) > 64:  # difflib is quadratic
        return None
    matches = difflib.get_close_matches(word.casefold(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
