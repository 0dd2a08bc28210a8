"""Guest paths by their text (FS-1)."""

from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.errors import InvalidArgument, OutsideWorkspace
from pinfold.provider import guest_path

ROOT = PurePosixPath("/data/out")
PARTS = (
    "",
    ".",
    "..",
    "...",
    "workspace",
    "workspacefoo",
    "data",
    "out",
    "a b",
    "\n",
    "\0",
    "é",
    "\udc80",
)


def expected(text: str) -> PurePosixPath | type[Exception]:
    """FS-1, word by word and without haste."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not text.startswith("/") or ".." in parts or "\0" in text:
        return InvalidArgument
    for root in (["workspace"], ["data", "out"]):
        if parts[: len(root)] == root:
            return PurePosixPath("/", *parts)
    return OutsideWorkspace


@given(st.lists(st.sampled_from(PARTS), max_size=5).map("/".join), st.booleans())
@example("/workspace", False)
@example("/workspace/", False)
@example("/workspace/f\n", False)
@example("/workspace/..\n", False)
@example("/workspace/a//b/./c", False)
@example("//workspace/f", True)
def test_fs1_a_path_is_judged_part_by_part_however_plain_it_looks(text, pure) -> None:
    path = PurePosixPath(text) if pure else text
    want = expected(str(path))
    if isinstance(want, PurePosixPath):
        assert guest_path(path, (ROOT,)) == want
    else:
        with pytest.raises(want):
            guest_path(path, (ROOT,))
