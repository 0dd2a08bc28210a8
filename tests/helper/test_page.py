"""One protocol in three places: docs/helper.md, the controller in Python, the helper in C."""

import re
from enum import IntEnum
from pathlib import Path

import pytest

from pinfold.posix._resident import _session, _wire
from pinfold.posix._resident._wire import Call, Code, From, Open, To
from pinfold_helper import _build
from tests.helper import raw

PAGE = (Path(__file__).parents[2] / "docs" / "helper.md").read_text()
SOURCE = {path.name: path.read_text() for path in (_build.HERE / "source").iterdir()}
#: Names of C that are others' already, or would be one another's.
IN_C = {
    ("To", "EOF"): "END_OF_INPUT",
    ("From", "ACK"): "ACKED",
    ("Open", "REMOVE"): "REMOVE_TREE",
}
KINDS = (To, From, Call, Open)


def c_names(name: str) -> dict[str, int]:
    """An `enum { /* NAME */ A = 1, B, ... }` of helper.h."""
    found = re.search(rf"enum \{{ /\* {name} \*/(.*?)\}}", SOURCE["helper.h"], re.DOTALL)
    assert found is not None
    values: dict[str, int] = {}
    value = -1
    for item in found[1].split(","):
        label, _, given = item.strip().partition(" = ")
        value = int(given) if given else value + 1
        values[label] = value
    return values


def c_value(name: str) -> int:
    """One constant of C, worked out: products and shifts of numbers."""
    [text] = {
        found
        for source in SOURCE.values()
        for found in re.findall(rf"\b{name} = ([0-9 <*]+)", source)
    }
    first, _, shift = text.partition("<<")
    return int(first) << int(shift or 0)


def rows(heading: str) -> dict[str, int]:
    """The names and numbers of the table below a heading that begins so."""
    table = PAGE.partition(f"\n| {heading}")[2].partition("\n\n")[0]
    found = re.findall(r"^\| (\d+) ([A-Z]+) \|", table, re.MULTILINE)
    return {name: int(number) for number, name in found}


TABLES = {
    To: "type | to the helper",
    From: "type | from the helper",
    Call: "CALL |",
    Open: "OPEN |",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_page_has_every_number_and_no_other(kind: type[IntEnum]) -> None:
    assert rows(TABLES[kind]) == {one.name: int(one) for one in kind}


@pytest.mark.parametrize("name", ["frames", "operations"])
def test_c_has_every_number_and_no_other(name) -> None:
    kinds = (To, From) if name == "frames" else (Call, Open)
    expected = {
        IN_C.get((kind.__name__, one.name), one.name): int(one) for kind in kinds for one in kind
    }
    assert c_names(name) == expected
    for label, value in expected.items():  # and the controller of the tests
        assert getattr(raw, {"END_OF_INPUT": "EOF"}.get(label, label)) == value


def test_the_page_has_every_code() -> None:
    said = PAGE.partition("\nCodes: ")[2].partition("\n\n")[0]
    said = re.sub(r"\([^)]*\)", "", said)
    found = re.findall(r"(\d+) ([a-z_]+)", said)
    assert {name: int(number) for number, name in found} == {
        code.name.lower(): int(code) for code in Code
    }


def test_c_gives_no_code_that_there_is_not() -> None:
    body = SOURCE["path.c"].partition("int code_of(int error) {")[2].partition("\n}")[0]
    given = {int(number) for number in re.findall(r"return (\d+);", body)}
    assert given == {int(code) for code in Code}


@pytest.mark.parametrize(
    ("name", "ours", "words"),
    [
        ("PROTOCOL_VERSION", _wire.VERSION, "u32 version (1)"),
        ("MAX_FRAME", _wire.MAX_FRAME, "5 to 2 MiB"),
        ("MAX_CALL", _wire.MAX_CALL, "length (at most 1 MiB)"),
        ("MAX_OUT", _wire.MAX_OUT, "bytes (at most 256 KiB)"),
        ("IN_CREDIT", _wire.IN_CREDIT, "1 MiB may be sent unasked"),
        ("ACK_EVERY", _wire.ACK_EVERY, "due after at most 256 KiB"),
        ("WINDOW", _wire.WINDOW, "while 4 MiB are not acknowledged"),
        ("GRACE_MS", int(_session._GRACE_SECONDS * 1000), "waits for 30 seconds"),
        ("OVERFLOW", 64 << 20, "Beyond 64 MiB"),
        ("MAX_ROOTS", 64, "CALL ROOT, at most 64"),
        ("MAX_JOBS", 4096, "at\nmost 4096 OPENs"),
        ("WAITING", 4, "At most 4 may be proving themselves"),
        ("ANSWER_MS", 10_000, "within 10 seconds"),
        ("BACKUP_MS", 6000, "or after 6 seconds"),
        ("LEASE_MS", 5000, "it waits 5 seconds"),
    ],
)
def test_a_bound_is_the_same_on_both_sides_and_on_the_page(name, ours, words) -> None:
    assert c_value(name) == ours
    assert words in PAGE


def test_the_greeting_is_as_long_as_the_page_says() -> None:
    fields = PAGE.partition("1. The helper greets:")[2].partition("2. The controller")[0]
    sizes = [int(bits) // 8 for bits in re.findall(r"\bu(\d+) ", fields)]
    sizes += [int(count) for count in re.findall(r"(\d+)\s+bytes", fields)]
    assert len(b"pinfold1") + sum(sizes) == _wire.GREETING_BYTES == 80
    bits = re.findall(r"(\d+) (openat2|/proc|subreaper|close_range|memory counters)", fields)
    for number, name in bits:
        fact = {"/proc": "proc", "memory counters": "counters"}.get(name, name)
        raw_ = b"pinfold1" + raw.u32(1) + raw.u32(int(number)) + bytes(64)
        greeting = _wire.Greeting.parse(raw_)
        true = [each for each in ("openat2", "proc", "subreaper", "close_range", "counters")
                if getattr(greeting, each)]  # fmt: skip
        assert true == [fact]
    assert len(bits) == 5
