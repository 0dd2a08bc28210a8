"""Text on its way to a person's terminal."""

from __future__ import annotations

__all__ = ["shown"]


def shown(text: str) -> str:
    """Return text in one line that drives no terminal: a guest chooses its names and words."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
