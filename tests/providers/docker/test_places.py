"""Where an image's links lead what is mounted: scratch stays scratch, nothing is hidden (SP-4)."""

from collections.abc import Coroutine, Iterator, Mapping
from itertools import groupby, permutations, product
from pathlib import PurePosixPath as Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pinfold.errors import SpecInvalid
from pinfold_docker import _places
from pinfold_docker._descriptor import CLOSED_ROOTS, RESERVED_ROOTS
from pinfold_docker._places import OURS, Thing, refuse_hiding
from tests.providers.docker.support import box, image, make, said, strays


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What an engine mounts does not depend on the event loop: one is enough."""
    return "asyncio"


ROOTS = "/containment/filesystem/writable_roots/"
IMAGE = "/target/options/image"

#: One image, in which links lead from and to where nothing of ours is to be.
LINKS = {
    "into": "/workspace/x",
    "is": "workspace",
    "chain": "/l1",
    "l1": "./l2/y",
    "l2": "/workspace",
    "a": "/opt/x",
    "around": "/opt",
    "temporary": "/tmp",
    "inner": "tmp/../tmp/x",
    "ours": "/run/pinfold",
    "above": "/run",
    "all": "/",
    "programs": "/bin",
    "kernel": "/proc/sys",
    "file": "/bin/busybox",
    "circle": "/circle2",
    "circle2": "circle",
    "etc/l": "/elsewhere",
    "by": "etc/l",
    "own/l": "/own",
    "bin/sh": "/shells/sh",
    "shells/sh": "/bin/busybox",
}
REFUSED = {
    "in the workspace": (("/into",), [0]),
    "the workspace": (("/opt", "/is"), [1]),
    "by a chain into the workspace": (("/chain",), [0]),
    "by a parent into the workspace": (("/l2/a/b",), [0]),
    "in a root": (("/opt", "/a"), [1]),
    "around a root": (("/opt/x", "/around"), [1]),
    "the same root": (("/a", "/opt/x"), [0]),
    "/tmp": (("/temporary",), [0]),
    "in /tmp": (("/inner",), [0]),
    "our own folder": (("/ours",), [0]),
    "around our own folder": (("/above",), [0]),
    "everything": (("/all",), [0]),
    "the programs": (("/programs",), [0]),
    "what the kernel shows": (("/kernel/x",), [0]),
    "a file": (("/file",), [0]),
    "a circle": (("/circle",), [0]),
    "over the link of another": (("/by", "/etc"), [0]),
    "over its own link": (("/own/l",), [0]),
    "over the link to the shell": (("/shells",), [0]),
    "several": (("/into", "/opt", "/temporary/x", "/srv"), [0, 2]),
}


@pytest.fixture(scope="module")
async def linked(client, anyio_backend):
    async with image(client, links=LINKS) as name:
        yield name


@pytest.mark.anyio
@pytest.mark.parametrize(("roots", "faulty"), REFUSED.values(), ids=REFUSED)
async def test_sp4_a_root_that_a_link_leads_onto_something_is_refused(
    client, provider, linked, roots, faulty
):
    """RS-5: all at once, before anything runs."""
    with pytest.raises(SpecInvalid) as caught:
        await make(provider, image=linked, roots=roots)
    assert [fault.pointer for fault in caught.value.faults] == [f"{ROOTS}{n}" for n in faulty]
    assert all("folder of its own" in fault.hint for fault in caught.value.faults)
    assert strays(client) == []


@pytest.mark.anyio
async def test_sp4_what_was_refused_is_refused_again_by_who_knows_the_image(provider, linked):
    """Whether an image can be used is remembered with the roots that it was asked for."""
    for _ in range(2):
        await (await make(provider, image=linked, roots=("/opt",))).destroy()
        with pytest.raises(SpecInvalid):
            await make(provider, image=linked, roots=("/into",))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "links", [{"run": "/workspace"}, {"workspace": "/tmp/w"}, {"run": "tmp"}], ids=str
)
async def test_an_image_whose_own_folders_hide_one_another_is_refused(client, provider, links):
    async with image(client, links=links) as name:
        with pytest.raises(SpecInvalid) as caught:
            await make(provider, image=name)
    assert [fault.pointer for fault in caught.value.faults] == [IMAGE]
    assert strays(client) == []


@pytest.mark.anyio
async def test_sp4_a_root_by_a_link_to_a_place_of_its_own_is_scratch(client, provider, flavour):
    """FS-6: files and commands see the same there; it is empty after a restart."""
    links = {"data": "/elsewhere/deep", "l": "/opt"}
    roots = ("/data", "/l/x", "/tmp/inner", "/data/nested")
    async with (
        image(client, flavour, links=links) as name,
        box(provider, image=name, roots=roots) as instance,
    ):
        for root in map(Path, roots):
            await instance.files.write(root / "by-file", b"1")
            await said(instance, f"cat {root}/by-file && echo 2 >{root}/by-command")
            assert await instance.files.read(root / "by-command") == b"2\n"
            listed = await instance.files.list(root)
            assert {"by-command", "by-file"} <= {entry.path.name for entry in listed}
        assert await said(instance, "ls /elsewhere/deep /opt/x") != ""
        assert (await instance.tree.scan(None)).entries == ()  # nothing of it is in the workspace
        await instance.pause()
        await instance.resume()
        assert await said(instance, f"find {' '.join(roots)} -type f") == ""


@pytest.mark.anyio
async def test_a_workspace_that_is_a_link_of_the_image_is_a_workspace(client, provider):
    async with (
        image(client, links={"workspace": "/srv/w"}) as name,
        box(provider, image=name, roots=("/srv/x",)) as instance,
    ):
        await instance.files.write(Path("/workspace/f"), b"1")
        assert await said(instance, "cat f /workspace/f; touch /srv/x/g; ls") == "11f\n"
        await instance.pause()
        await instance.resume()
        assert await said(instance, "ls /workspace/ /srv/x") == "/srv/x:\n\n/workspace/:\nf\n"


# --- any image, any roots: against a file system in which all is mounted, in any order ------------

#: Few, so that links, their ends and roots meet.
PATHS = st.sampled_from(
    [
        Path(path)
        for path in "/a /a/a /a/b /b /b/a /b/b /run /tmp /tmp/a /workspace /workspace/a".split()
    ]
)
Links = Mapping[Path, Path]


class Looped(Exception):
    """Links that lead in a circle: no engine starts that."""


def lies(path: Path, links: Links, mounted: Mapping[Path, object]):
    """Return where a path leads: an image's links count where nothing is mounted."""
    todo, real, steps = list(path.parts[1:]), Path("/"), 0
    while todo:
        real /= todo.pop(0)
        covered = any(place in mounted for place in (real, *real.parents))
        if real in links and not covered:
            steps += 1
            if steps > 40:
                raise Looped
            todo, real = [*links[real].parts[1:], *todo], Path("/")
    return real


def orders(places: tuple[Path, ...]) -> Iterator[list[Path]]:
    """Yield all orders in which an engine may mount: by the number of names in a path."""
    ranked = sorted(places, key=lambda place: len(place.parts))
    groups = [tuple(group) for _, group in groupby(ranked, key=lambda place: len(place.parts))]
    for choice in product(*map(permutations, groups)):
        yield [place for group in choice for place in group]


@given(
    links=st.dictionaries(PATHS, PATHS, min_size=1, max_size=4),
    roots=st.lists(PATHS, min_size=1, max_size=3, unique=True),
)
@example(
    links={Path("/b/a"): Path("/a/a"), Path("/a/a"): Path("/b/b")}, roots=[Path("/b/a"), Path("/a")]
)
def test_sp4_what_is_not_refused_hides_nothing_in_any_order_of_mounts(links, roots):
    roots = [root for root in roots if not _reserved(root)]
    links = {at: to for at, to in links.items() if not any(up in links for up in at.parents)}

    async def ask(_: object, path: Path) -> Thing | None:
        link = links.get(path)
        return Thing(is_directory=True) if link is None else Thing(link=str(link))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_places._Image, "_ask", ask)
        try:
            finish(refuse_hiding(None, "", tuple(map(str, roots))))  # type: ignore[arg-type]
        except SpecInvalid:
            assume(False)
    for order in orders((*OURS, *roots)):
        mounted: dict[Path, Path] = {}
        for place in order:
            mounted[lies(place, links, mounted)] = place
        for place in order:
            there = lies(place, links, mounted)
            assert mounted.get(there) == place, "another hides it"
            above = {mounted[up] for up in there.parents if up in mounted}
            assert above <= set(place.parents), "it is amid another"


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Carry out what never has to wait."""
    with pytest.raises(StopIteration):
        work.send(None)


def _reserved(root: Path) -> bool:
    return str(root) in RESERVED_ROOTS or str(root).startswith(CLOSED_ROOTS)
