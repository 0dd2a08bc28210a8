"""Constraints: what a value must be, as faults for people and as JSON Schema for programs.

One object gives both, so that the schema can't drift from the check.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import attrs

from pinfold.faults import Fault
from pinfold.spec._secrets import has_secret_shape

__all__ = [
    "BOOTSTRAP_COMMAND",
    "HOST_PATTERN",
    "NAME",
    "WRITABLE_ROOT",
    "Constraint",
    "Count",
    "Range",
]


class Constraint(ABC):
    """Something that a well-typed value must satisfy."""

    @abstractmethod
    def faults(self, value: Any) -> Iterator[Fault]:
        """Yield what is wrong with `value`; pointers are relative to it."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema keywords that say the same, as far as they can."""


@attrs.frozen
class Range(Constraint):
    """A number between two bounds, both included."""

    low: int
    high: int

    def faults(self, value: Any) -> Iterator[Fault]:
        if type(value) is not int:  # an instance made in Python, not read
            yield _wrong_type("a whole number")
        elif not self.low <= value <= self.high:
            yield Fault(
                pointer="",
                code="out_of_range",
                message="the number is out of range",
                allowed=(f"{self.low}..{self.high}",),
            )

    def schema(self) -> dict[str, Any]:
        return {"minimum": self.low, "maximum": self.high}


@attrs.frozen
class Count(Constraint):
    """A list of `low` to `high` entries, all different where `unique`."""

    low: int
    high: int
    unique: bool = True
    hint: str = ""

    def faults(self, value: Any) -> Iterator[Fault]:
        if type(value) is not tuple:  # an instance made in Python, not read
            yield _wrong_type("an array")
            return
        if not self.low <= len(value) <= self.high:
            yield Fault(
                pointer="",
                code="wrong_count",
                message=f"the list has {len(value)} entries",
                allowed=(f"{self.low}..{self.high} entries",),
                hint=self.hint,
            )
        if self.unique:
            for index, item in enumerate(value):
                if item in value[:index]:
                    yield Fault(
                        pointer=f"/{index}", code="duplicate", message="this entry stands twice"
                    )

    def schema(self) -> dict[str, Any]:
        bounds = {"minItems": self.low, "maxItems": self.high}
        return bounds | {"uniqueItems": True} if self.unique else bounds


@attrs.frozen
class _Text(Constraint):
    """A string with a pattern, a length in bytes, and words for what goes wrong."""

    what: str
    pattern: re.Pattern[str]
    max_bytes: int
    allowed: tuple[str, ...]
    hint: str = ""

    def faults(self, value: Any) -> Iterator[Fault]:
        if not isinstance(value, str):  # an instance made in Python, not read
            yield _wrong_type("a string")
            return
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > self.max_bytes:
            yield Fault(
                pointer="",
                code="too_large",
                message=f"{self.what} of {size} bytes",
                allowed=(f"at most {self.max_bytes} bytes",),
            )
        elif self.pattern.fullmatch(value) is None:
            yield Fault(
                pointer="",
                code="bad_format",
                message=f"this is not {self.what}",
                allowed=self.allowed,
                hint=self.explain(value),
            )

    def explain(self, value: str) -> str:
        return self.hint

    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^(?:{self.pattern.pattern})$", "maxLength": self.max_bytes}


class _Host(_Text):
    def explain(self, value: str) -> str:
        # Never repeats the value: a URL may hold a credential (SP-2).
        if not value.isascii():
            return "write an international name in its xn-- form"
        if "/" in value or "@" in value:
            return "leave out the scheme, the path and any credential"
        if ":" in value or re.fullmatch(r"[\d.]+", value):
            return "leave out the port; an IP address is not a host name"
        if value.endswith("."):
            return "leave out the trailing dot"
        if value != value.lower():
            return "write it in lower case"
        return "a wildcard is '*.' and a name, at the front only"


class _NoSecret(_Text):
    """Text that people paste credentials into (SP-2)."""

    def faults(self, value: Any) -> Iterator[Fault]:
        yield from super().faults(value)
        if isinstance(value, str) and has_secret_shape(value):
            yield Fault(
                pointer="",
                code="secret",
                message=f"{self.what} holds something with the shape of a credential",
                hint="bind credentials through a connection (target.connection_id)",
            )


def _wrong_type(expected: str) -> Fault:
    return Fault(pointer="", code="wrong_type", message=f"expected {expected}", allowed=(expected,))


_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

#: A DNS name or `*.` plus one (SP-1). The last label must not be a number, decimal or hexadecimal:
#: resolvers take that for an address.
HOST_PATTERN: Final[Constraint] = _Host(
    "a host pattern",
    re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)$){_LABEL}", re.ASCII),
    253,
    ("a lower-case DNS name", "'*.' and a name"),
)

#: An absolute, normal path (SP-4).
WRITABLE_ROOT: Final[Constraint] = _Text(
    "a writable root",
    re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\x00]+)+", re.DOTALL),
    4096,
    ("an absolute path without '.', '..', '//' or a trailing '/'",),
)

BOOTSTRAP_COMMAND: Final[Constraint] = _NoSecret(
    "a bootstrap command",
    re.compile(r"[^\x00]+", re.DOTALL),
    8192,
    ("a shell command of 1 to 8192 bytes without NUL",),
)

#: Names of providers, connections, profiles, templates.
NAME: Final[Constraint] = _NoSecret(
    "a name",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*", re.ASCII),
    128,
    ("1 to 128 letters, digits and . _ : @ -, a letter or digit first",),
)
