"""What stat says is understood, whatever the names and the texts of links are, and though links are
swapped while it looks (FS-3).
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import Unavailable
from pinfold.posix._records import from_stat
from pinfold.provider import FileType

CLOCK = "1767323045 2026-01-02 03:04:05.5 +0000"
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)
#: Names as the target's stat is given them: never with two slashes in a row, nor with one at the end.
NAMES = TEXTS.map(lambda text: text.replace("/", "")).filter(bool)


def record(kind: int, size: int, name: str, shown: str) -> str:
    return f"{kind:x} {size} {CLOCK} {CLOCK} 7 {name}//{shown}//\n"


def file(name: str) -> str:
    return record(0o100644, 3, name, name)


def link(name: str, text: str, quote: str, size: int | None = None) -> str:
    size = len(os.fsencode(text)) if size is None else size
    return record(0o120777, size, name, f"{quote}{name}{quote} -> {quote}{text}{quote}")


@given(st.lists(st.tuples(NAMES, st.none() | TEXTS), max_size=6), st.sampled_from(["'", ""]), TEXTS)
def test_fs3_names_and_links_come_as_they_are(entries, quote, tail) -> None:
    said = "".join(
        file(f"./{name}") if text is None else link(f"./{name}", text, quote)
        for name, text in entries
    )
    records, rest = from_stat(f"{said}//\n{tail}")
    assert [(one.name, one.link) for one in records] == entries
    assert rest == tail


@pytest.mark.parametrize("quote", ["'", ""], ids=["busybox", "gnu"])
@pytest.mark.parametrize("size", [0, 1, 9, 500])
def test_fs3_a_link_that_another_one_replaces_has_the_text_that_was_read(quote, size) -> None:
    """lstat says how long the text is, and then it is read: ln -sfn can come in between."""
    said = link("./current", "release-2", quote, size) + file("./next")
    records, _ = from_stat(said)
    assert [(one.name, one.link) for one in records] == [("current", "release-2"), ("next", None)]


@pytest.mark.parametrize("shown", ["", "./gone"], ids=["busybox", "gnu"])
def test_fs3_a_link_that_is_none_any_more_harms_nothing_beside_it(shown) -> None:
    said = file("./a") + record(0o120777, 9, "./gone", shown) + file("./z")
    assert [(one.name, one.type) for one in from_stat(said)[0]] == [
        ("a", FileType.FILE),
        ("z", FileType.FILE),
    ]


@given(st.integers(1, 200))
def test_what_is_cut_off_is_no_listing(length) -> None:
    said = file("./a") + link("./b", "text", "'") + file("./c")
    whole = {len(said[: said.index(name)]) for name in ("81a4",)} | {
        len(file("./a")),
        len(file("./a") + link("./b", "text", "'")),
        len(said),
    }
    cut = said[:length]
    if len(cut) in whole:
        from_stat(cut)
    else:
        with pytest.raises(Unavailable, match="listing"):
            from_stat(cut)
