"""Contract section 8: one hierarchy, stable codes, a next step, an effect."""

from __future__ import annotations

import inspect
import re

import pytest

from pinfold import errors
from pinfold.errors import Effect, PinfoldError, SpecInvalid, StaleGeneration, error_classes
from pinfold.faults import Fault, pointer, suggest

# ER-2, as the contract lists them: code, and the code of the class above it.
CODES = {
    "invalid_argument": "internal",
    "spec_invalid": "invalid_argument",
    "outside_workspace": "invalid_argument",
    "too_large": "invalid_argument",
    "is_a_directory": "invalid_argument",
    "not_a_directory": "invalid_argument",
    "not_regular": "invalid_argument",
    "not_found": "internal",
    "conflict": "internal",
    "already_exists": "conflict",
    "stale_generation": "conflict",
    "locked": "conflict",
    "forbidden": "internal",
    "permission_denied": "forbidden",
    "unauthorized": "internal",
    "rate_limited": "internal",
    "unavailable": "internal",
    "outcome_unknown": "unavailable",
    "lost": "unavailable",
    "unreachable": "unavailable",
    "unimplemented": "internal",
    "checkpoint_corrupt": "internal",
    "no_space": "internal",
    "internal": "internal",
}


def test_er2_the_classes_are_the_codes_of_the_contract():
    classes = [cls for cls in error_classes() if cls is not PinfoldError]

    assert {cls.code: cls.__mro__[1].code for cls in classes} == CODES
    assert len(classes) == len(CODES)


def test_the_tree_drawn_at_the_top_of_the_module_is_the_tree():
    drawn = re.findall(r"[├└]── (\w+) +(\w+)", errors.__doc__ or "")

    assert dict(drawn) == {
        cls.__name__: cls.code for cls in error_classes() if cls is not PinfoldError
    }


def test_every_public_name_is_in_all():
    public = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }

    assert public | {"error_classes"} == set(errors.__all__)


def test_er1_an_error_tells_code_message_hint_details_retryable_and_effect():
    error = errors.OutcomeUnknown("the connection broke", hint="look", details={"n": 1})

    assert error.to_dict() == {
        "code": "outcome_unknown",
        "message": "the connection broke",
        "hint": "look",
        "details": {"n": 1},
        "retryable": False,
        "effect": "unknown",
    }
    assert str(error) == "the connection broke (look)"


def test_ex14_outcome_unknown_is_unavailable_yet_not_retryable():
    assert issubclass(errors.OutcomeUnknown, errors.Unavailable)
    assert errors.Unavailable("x").retryable
    assert not errors.OutcomeUnknown("x").retryable
    assert errors.Unavailable("x").effect is Effect.NONE


def test_lc2_a_stale_handle_is_told_both_numbers():
    error = StaleGeneration(carried=1, current=3)

    assert error.details == {"carried": 1, "current": 3}
    assert "1" in str(error)
    assert "3" in str(error)


def test_rs5_spec_invalid_shows_every_fault():
    faults = [Fault(pointer=f"/x/{i}", code="c", message=f"m{i}") for i in range(3)]

    error = SpecInvalid(faults)

    assert error.details["faults"] == [fault.to_dict() for fault in faults]
    assert all(f"/x/{i}: m{i}" in str(error) for i in range(3))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((), ""), (("a", 0), "/a/0"), (("a/b", "c~d"), "/a~1b/c~0d"), (("",), "/")],
)
def test_pointers_are_rfc_6901(parts, expected):
    assert pointer(*parts) == expected


def test_a_fault_is_one_line_whatever_the_document_holds():
    fault = Fault(pointer="/a\n\x1b[31m", code="c", message="bad\r\nname")

    assert "\n" not in str(fault)
    assert "\x1b" not in str(fault)


def test_suggestions_are_near_misses_only():
    assert suggest("targt", ["target", "durability"]) == "target"
    assert suggest("zzz", ["target"]) is None
    assert suggest("t" * 10_000, ["target"]) is None
    assert suggest(3, ["target"]) is None
