"""What looks like a credential, by name or by shape (SP-2).

A specification is stored, logged and shown, so a secret must not enter one. These are heuristics
against accidents; the rule itself is that credentials travel by connection reference (PR-5).
"""

from __future__ import annotations

import re

__all__ = ["has_secret_name", "has_secret_shape"]

# A segment is a maximal run of letters or digits, or a camelCase hump: `max_tokens` has the
# segments `max` and `tokens`, and `tokens` is a count, not a credential.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[^A-Za-z0-9]+")
_WORDS = re.compile(
    r"(?:^|_)(?:api_?keys?|token|secrets?|passwords?|passwd|credentials?|private_?keys?|access_?keys?)(?:_|$)"
)

_SHAPES = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z0-9 ]+-----",
            r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{16,}",
            r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{16,}",
            r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}",
            r"(?<![A-Za-z0-9])A(?:KI|SI)A[0-9A-Z]{16}(?![A-Za-z0-9])",
            r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",
            r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s/:@]*:[^\s/@]+@",
        )
    )
)
# The shapes cost a scan each; no string without one of these can match.
_MARKS = ("-----BEGIN", "gh", "sk-", "AKIA", "ASIA", "eyJ", "://")


def has_secret_name(key: str) -> bool:
    """Say whether a key has a credential word as a segment."""
    joined = _SEPARATOR.sub("_", _HUMP.sub("_", key)).lower()
    return _WORDS.search(joined) is not None


def has_secret_shape(text: str) -> bool:
    """Say whether a text holds something with the shape of a well-known kind of key."""
    return any(mark in text for mark in _MARKS) and _SHAPES.search(text) is not None
