"""What an author may say of a host sandbox, and what is refused before anything is made (RS-5)."""

import pytest

from pinfold.errors import SpecInvalid
from pinfold.resolve import Layer, resolve

LIMITS = ("cpu_seconds", "address_space_bytes", "file_bytes", "open_files", "processes")


def resolved(options):
    target = {"kind": "host", "provider": "host", "options": options}
    return resolve([Layer({"target": target}, "test")])


def faults(options):
    with pytest.raises(SpecInvalid) as caught:
        resolved(options)
    return [(fault.pointer, fault.code) for fault in caught.value.faults]


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_a_positive_number(name):
    """0 ends every command before it begins, and -1 would be no limit at all."""
    for number in (0, -1, 2**63):
        pointer = f"/target/options/rlimits/{name}"
        assert faults({"rlimits": {name: number}}) == [(pointer, "out_of_range")]
    for number in (1, 2**40, None):  # the control
        assert resolved({"rlimits": {name: number}})


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("A=B", "bad_format"),
        ("", "bad_format"),
        ("1A", "bad_format"),
        ("A B", "bad_format"),
        ("A\0", "bad_format"),
        ("PINFOLD_EXEC", "not_allowed"),
        ("PINFOLD_STORE", "not_allowed"),
    ],
)
def test_a_variable_to_pass_has_a_name_that_one_can_have(name, code):
    """EX-3, EX-12: no name that no variable has, and none of pinfold's own."""
    assert faults({"pass_env": ["LANG", name]}) == [("/target/options/pass_env/1", code)]
    assert resolved({"pass_env": ["LANG", "_a1"]})  # the control


def test_all_faults_are_told_at_once():
    """RS-5: those of the options among them."""
    found = faults({"pass_env": ["A=B"], "rlimits": {"cpu_seconds": 0}})
    assert {pointer for pointer, _ in found} == {
        "/target/options/rlimits/cpu_seconds",
        "/target/options/pass_env/0",
    }
