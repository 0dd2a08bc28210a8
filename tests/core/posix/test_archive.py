"""What a target sends in one piece is understood however it is cut, and believed only as far as it
may be (FS-2, FS-3): many files as an archive, and the boundary that ends what a program says.
"""

import io
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.errors import Unavailable
from pinfold.posix._bulk import Bulk
from pinfold.posix._call import Answer, Boundary
from pinfold.posix._layout import Place
from pinfold.posix._probe import Tools
from pinfold.posix._tar import END, Reader, header, padding
from pinfold.posix._walk import walk

pytestmark = pytest.mark.anyio

NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=110
).filter(lambda name: name not in {".", ".."} and len(name.encode()) <= 255)
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=600), max_size=4)
CUTS = st.lists(st.integers(1, 700), min_size=1, max_size=6)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def cut(data: bytes, sizes: list[int]) -> AsyncIterator[bytes]:
    """Send data in pieces of these sizes, over and over."""
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        yield data[:size]
        data, turn = data[size:], turn + 1


def archive(contents: dict[str, bytes], form: int) -> bytes:
    """Pack it as others do; a directory and a link stand between the files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form, errors="surrogateescape") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            aside = tarfile.TarInfo("aside")
            aside.type, aside.linkname = tarfile.SYMTYPE, name
            tar.addfile(aside)
    return stream.getvalue()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
@given(contents=CONTENTS, sizes=CUTS, picks=st.sets(st.integers(0, 9)), largest=st.integers(0, 600))
async def test_fs3_an_archive_is_read_however_it_comes(
    form, contents, sizes, picks, largest
) -> None:
    wanted = [name for place, name in enumerate(["aside", "no", *contents]) if place in picks]
    said = archive(contents, form) + b"after\n"
    reader = Reader(cut(said, sizes))
    numbers = {name: number for number, name in enumerate(wanted)}
    found = await reader.files(dict(numbers), largest)
    assert dict(found) == {
        numbers[name]: content
        for name, content in contents.items()
        if name in numbers and len(content) <= largest
    }
    assert await reader.line() == "after"


@given(contents=CONTENTS, sizes=CUTS, place=st.integers(0, 511), flip=st.integers(1, 255))
async def test_what_is_damaged_is_refused_and_not_guessed_at(contents, sizes, place, flip) -> None:
    """A header says its own sum: no other content is taken for a file of that name."""
    whole = archive({**contents, "last": b"x"}, tarfile.GNU_FORMAT)
    damaged = bytearray(whole)
    damaged[whole.index(b"last\0") + place] ^= flip
    reader = Reader(cut(bytes(damaged), sizes))
    try:
        found = await reader.files({"last": 0}, 1500)
    except Unavailable:
        return
    # Only a checksum that says the same in other words is as good.
    assert found == [(0, b"x")]


@given(data=st.binary(max_size=300), part=st.integers(0, 63), sizes=CUTS)
async def test_a_boundary_is_found_however_it_comes(data, part, sizes) -> None:
    boundary = Boundary()
    said = data + boundary.bytes[:part] + data
    pending, clear, after = b"", b"", None
    async for chunk in cut(said + boundary.bytes + b"rest", sizes):
        if after is not None:
            after += chunk
            continue
        sure, pending, after = boundary.split(pending + chunk)
        assert len(pending) < len(boundary.bytes)
        clear += sure
    assert (clear, after) == (said, b"rest")


class Says:
    """A shell that says one thing, whatever it is asked; and another of directories it entered."""

    def __init__(self, said: bytes, inner: bytes = b"") -> None:
        self.said, self.inner = said, inner
        self.entered: list[str] = []
        self.sizes: list[int] = []

    async def stream(self, *names: str, args: tuple[str, ...] = ()) -> AsyncIterator[bytes]:
        yield self.said

    async def ask(
        self,
        *names: str,
        args: tuple[str, ...] = (),
        take: Callable[[bytes], None] | None = None,
    ) -> Answer:
        if take is not None:
            for start in range(0, len(self.said), 7):
                take(self.said[start : start + 7])
            return Answer(b"", "")
        if names[-1] != "walk":
            return Answer(self.said, "")
        self.entered += args
        self.sizes.append(sum(len(arg) + 1 for arg in args))
        return Answer(self.inner, "")


OLD, NEW = "2026-01-02 03:04:05.000000001 +0000", "2026-01-02 03:04:05.000000002 +0000"


LISTED = "f 644 1 1700000000.5 1700000000.5 7\0{}\0\0"
STATED = "{1} 1 1 2026-01-02 03:04:05.5 +0000 1 2026-01-02 03:04:05.5 +0000 7 {0}//{0}//\n"
TOP = Place("/workspace", ".", "/workspace")


def stated(*names: str) -> str:
    """Say what stat does, of files and, with a slash at the end, directories."""
    return "".join(
        STATED.format(f"./{name.removesuffix('/')}", "41ed" if name.endswith("/") else "81a4")
        for name in names
    )


def listing(now: str, records: str, directories: dict[str, str]) -> bytes:
    """Say what `scan.sh` does where find goes by paths: change times by directory, in that order."""
    changed = "".join(f"{time} {name}//\n" for name, time in directories.items())
    return f"1700000001\n{now}\n{records}//\n{changed}".encode()


def found_by(*, printf: bool = False) -> Tools:
    return Tools(control="/tmp/none", find_printf=printf)


@pytest.mark.parametrize("printf", [True, False], ids=["find", "stat"])
@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "..", "a/./x", "", "sound", "a/sound"])
async def test_a_listing_names_what_is_in_the_tree_and_nothing_else(printf, name) -> None:
    """Section 0: a listing is as untrusted as every byte that comes from a guest."""
    if printf:
        said = b"1700000001\n" + LISTED.format(name).encode()
    else:
        said = listing(NEW, stated(name), {"./a": OLD, ".": OLD})
    shell = Says(said)
    if "sound" in name:
        _, (record,), _ = await walk(shell, found_by(printf=printf), TOP)  # type: ignore[arg-type]
        assert record.name == name
    else:
        with pytest.raises(Unavailable, match="listing"):
            await walk(shell, found_by(printf=printf), TOP)  # type: ignore[arg-type]


@given(junk=st.binary(max_size=200), printf=st.booleans())
async def test_a_listing_that_is_none_is_unavailable(junk, printf) -> None:
    with suppress(Unavailable):
        await walk(Says(junk), found_by(printf=printf), TOP)  # type: ignore[arg-type]


TREE = stated("d/", "d/e/", "d/e/f", "d/g", "h")


@pytest.mark.parametrize(
    ("now", "directories", "sound", "entered"),
    [
        pytest.param(
            NEW,
            {"./d/e": OLD, "./d": OLD, ".": OLD},
            ["d", "d/e", "d/e/f", "d/g", "h"],
            [],
            id="nothing-happened",
        ),
        pytest.param(
            NEW,
            {"./d/e": NEW, "./d": OLD, ".": OLD},
            ["d", "d/e", "d/g", "h"],
            ["/workspace/d", "e"],
            id="the-innermost-was-changed",
        ),
        pytest.param(
            NEW,
            {"./d/e": OLD, "./d": NEW, ".": OLD},
            ["d", "h"],
            ["/workspace", "d"],
            id="one-was-changed-that-holds-one-that-was-not",
        ),
        pytest.param(
            NEW, {"./d/e": OLD, "./d": OLD, ".": NEW}, [], ["/workspace", "."], id="the-top-changed"
        ),
        pytest.param(
            NEW,
            {"./d": OLD, "./d/e": OLD, ".": OLD},
            ["d", "d/e", "d/g", "h"],
            ["/workspace/d", "e"],
            id="looked-at-after-the-one-that-holds-it",
        ),
        pytest.param(
            NEW, {"./d": OLD, ".": OLD}, ["d", "d/e", "d/g", "h"], ["/workspace/d", "e"], id="gone"
        ),
        pytest.param(
            OLD, {"./d/e": OLD, "./d": OLD, ".": OLD}, [], ["/workspace", "."], id="the-same-tick"
        ),
        pytest.param(
            "", {"./d/e": OLD, "./d": OLD, ".": OLD}, [], ["/workspace", "."], id="no-clock"
        ),
    ],
)
async def test_fs2_what_was_listed_by_paths_counts_only_where_its_directories_stayed(
    now, directories, sound, entered
) -> None:
    """find looks at a name, and then opens it. What may be from elsewhere is entered and listed anew."""
    inner = f"0 //\n{stated('new')}//\n".encode() if entered else b""
    shell = Says(listing(now, TREE, directories), inner)
    _, records, _ = await walk(shell, found_by(), TOP)  # type: ignore[arg-type]
    top = "/".join(entered).removeprefix("/workspace/").removeprefix(".")
    new = [f"{top}/new".removeprefix("/")] if entered else []
    assert [record.name for record in records] == sound + new
    assert shell.entered == entered


async def test_many_that_are_doubtful_are_entered_in_calls_of_a_bounded_size() -> None:
    """A transport may pass all arguments as one string; the way to each may be long."""
    names = [f"{number}/" for number in range(1000)]
    place = Place("/" + "long/" * 60 + "workspace", ".", "/workspace")
    shell = Says(listing(NEW, stated(*names), {".": OLD}), b"0 //\n//\n")
    await walk(shell, found_by(), place)  # type: ignore[arg-type]
    assert shell.entered[1::2] == [name.removesuffix("/") for name in names]
    assert max(shell.sizes) <= 64 * 1024
    assert len(shell.sizes) > 1


@pytest.mark.parametrize("said", ["1 //\n", "x //\n", "-1 //\n", f"0 //\n{stated('a/b')}//\n"])
async def test_what_was_entered_is_what_was_asked_for(said) -> None:
    shell = Says(listing("", TREE, {}), said.encode())
    with pytest.raises(Unavailable, match="listing"):
        await walk(shell, found_by(), TOP)  # type: ignore[arg-type]


def packed(now: str, before: str, after: str) -> Iterator[bytes]:
    yield f"in ok\n{now}\n{before}\n".encode()
    yield header("f", 1) + b"x" + padding(1) + END
    yield f"{after}\n".encode()


@pytest.mark.parametrize(
    ("now", "before", "after", "comes"),
    [
        pytest.param(NEW, OLD, OLD, True, id="nothing-happened"),
        pytest.param(NEW, OLD, NEW, False, id="changed-meanwhile"),
        pytest.param(NEW, NEW, NEW, False, id="changed-at-the-same-tick"),
        pytest.param(OLD, NEW, NEW, False, id="a-clock-that-is-behind"),
        pytest.param("", OLD, OLD, False, id="no-clock"),
    ],
)
async def test_fs2_what_was_packed_counts_only_where_its_directory_stayed(
    now, before, after, comes
) -> None:
    """tar looks at a name, and then opens it: a change in between shows in the change time, unless
    the directory had been changed in the same tick of the clock before.
    """
    said = b"".join(packed(now, before, after))
    bulk = Bulk(Says(said), Tools(control="/tmp/none"))  # type: ignore[arg-type]
    found = [one async for one in bulk.small([("/workspace", "f", 1)])]
    assert found == ([(0, b"x")] if comes else [])
