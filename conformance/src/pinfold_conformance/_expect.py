"""How a check speaks: plain functions that raise AssertionError, whatever runs them.

A test framework's own helpers raise exceptions of their own, some no `Exception` at all; inside an
event loop of another thread these take the loop down and hide the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from pinfold.errors import Effect, PinfoldError

__all__ = [
    "AdapterFault",
    "Caught",
    "CheckFailed",
    "Inconclusive",
    "equal",
    "expect_raises",
    "fail",
    "require",
]

E = TypeVar("E", bound=BaseException)


class CheckFailed(AssertionError):
    """The target does not do what the clause says."""


class AdapterFault(AssertionError):
    """The adapter broke the form of the contract: a wrong type, an error of no kind."""


class Inconclusive(Exception):
    """It can't be found out here; the reason says what is missing."""


class Caught(Generic[E]):
    """What `expect_raises` caught."""

    error: E


def short(value: Any) -> str:
    """Return a value as text of a line's length."""
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:120]}… ({len(text)} characters)"


def fail(message: str) -> None:
    """Fail the check."""
    raise CheckFailed(message)


def require(condition: object, message: str) -> None:
    """Fail the check unless the condition holds; the message says what was found wrong."""
    if not condition:
        raise CheckFailed(message)


def equal(actual: Any, expected: Any, what: str) -> None:
    """Fail the check unless both are equal."""
    if type(actual) is bool and type(expected) is not bool:
        raise CheckFailed(f"{what}: expected {short(expected)}, found {actual}")
    if actual != expected:
        raise CheckFailed(f"{what}: expected {short(expected)}, found {short(actual)}")


@contextmanager
def expect_raises(
    *kinds: type[E], what: str = "the call", effect: Effect | None = None
) -> Iterator[Caught[E]]:
    """Fail the check unless the body raises one of these errors.

    A `PinfoldError` must be whole as well: a message, JSON-able details (ER-1).

    Args:
        kinds: what may be raised.
        what: the call, for the reason.
        effect: what the error must say about effects.
    """
    caught: Caught[E] = Caught()
    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield caught
    except kinds as exc:
        caught.error = exc
        if isinstance(exc, PinfoldError):
            _whole(exc, what)
            if effect is not None and exc.effect is not effect:
                raise CheckFailed(
                    f"{what}: {type(exc).__name__} says effect {exc.effect}, not {effect}"
                ) from exc
        return
    except PinfoldError as exc:
        raise CheckFailed(
            f"{what}: expected {wanted}, found {type(exc).__name__}: {exc.message}"
        ) from exc
    raise CheckFailed(f"{what}: expected {wanted}, but nothing was raised")


def _whole(exc: PinfoldError, what: str) -> None:
    require(exc.message.strip(), f"{what}: {type(exc).__name__} has no message (ER-1)")
    try:
        json.dumps(exc.to_dict())
    except (TypeError, ValueError) as bad:
        raise CheckFailed(f"{what}: {type(exc).__name__} is not JSON-able: {bad} (ER-1)") from exc
