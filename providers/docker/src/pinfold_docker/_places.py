"""Where an image's links lead what is mounted: nothing may hide the workspace, or another (SP-4).

A container gets memory at /tmp, at our own folder and at each writable root, and a volume at the
workspace. A mount follows the image's links: a root that leads into the workspace would be scratch
amid what checkpoints cover, and one that leads onto another mount would hide it or be hidden.
"""

from __future__ import annotations

import io
import json
import tarfile
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import PurePosixPath
from typing import Final

import attrs

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault
from pinfold.spec import WORKSPACE
from pinfold_docker._engine import Engine
from pinfold_docker._guest import RUNTIME_DIRECTORY
from pinfold_docker._http import EngineError

__all__ = ["refuse_hiding"]

TMP: Final = PurePosixPath("/tmp")  # noqa: S108 - the container's
OURS: Final = (WORKSPACE, TMP, PurePosixPath(RUNTIME_DIRECTORY))
KERNELS: Final = tuple(map(PurePosixPath, "/proc /sys /dev".split()))
#: Whatever is started needs them. A folder below one of them may be a root.
NEEDED: Final = tuple(map(PurePosixPath, "/bin/sh /bin /lib /lib64 /usr/bin /usr/lib".split()))
#: In a mode of Go's.
DIRECTORY: Final = 1 << 31
LINK: Final = 1 << 27
#: As many links as the kernel follows.
LINKS: Final = 40


@attrs.frozen
class Way:
    """Where a path of an image leads.

    Attributes:
        real: where that is, all links followed, whether something is there or not.
        links: where the links are that were followed.
    """

    real: PurePosixPath
    links: tuple[PurePosixPath, ...] = ()


@attrs.frozen
class Thing:
    """What an image has at a path.

    Attributes:
        is_directory: it is one.
        link: a link's text.
    """

    is_directory: bool = False
    link: str | None = None


Ways = Mapping[PurePosixPath, Way]


async def refuse_hiding(engine: Engine, container: str, roots: Sequence[str]) -> None:
    """Refuse an image in which a mount of ours would hide another, or what all programs need.

    Args:
        engine: that has the image.
        container: made of it, never started, with nothing mounted where we look.
        roots: the writable roots.

    Raises:
        SpecInvalid: each such place.
        EngineError: the engine can't tell.
    """
    image = _Image(engine, container)
    mounts: dict[PurePosixPath, Way] = {}
    faults: dict[PurePosixPath, Fault] = {}
    for place in sorted((*OURS, *map(PurePosixPath, roots)), key=lambda place: len(place.parts)):
        outer = next((parent for parent in place.parents if parent in mounts), None)
        if outer is not None:  # that one is mounted before and empty: the image counts no more
            inner = mounts[outer].real / place.relative_to(outer)
            mounts[place] = Way(inner, mounts[outer].links)
            continue
        mounts[place] = way = await image.way(place)
        thing = await image.thing(way.real)
        if (thing is not None and not thing.is_directory) or len(way.links) > LINKS:
            what = "links without an end" if len(way.links) > LINKS else "no directory"
            message = f"in this image {str(place)!r} leads to {what}"
            faults[place] = _fault(place, roots, "not_a_directory", message)
    needed = {place: await image.way(place) for place in (NEEDED if roots else ())}
    for place, other in _hiding(mounts, needed, roots):
        way = mounts[place]
        led = f", a link to {str(way.real)!r}," if way.links else ""
        message = f"in this image {str(place)!r}{led} and {str(other)!r} would hide one another"
        if place == other:
            message = f"what is mounted at {str(way.real)!r} would hide the link {str(place)!r}"
        code = "tmp_in_workspace" if (place, other) == (TMP, WORKSPACE) else "place_taken"
        faults.setdefault(place, _fault(place, roots, code, message))
    if faults:
        raise SpecInvalid(list(faults.values()))


def _hiding(
    mounts: Ways, needed: Ways, roots: Sequence[str]
) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield each of our mounts that would hide something or be hidden, with what that is."""
    for pair in combinations(mounts, 2):
        inner, outer = sorted(pair, key=lambda place: len(mounts[place].real.parts), reverse=True)
        clash = _within(mounts[inner].real, mounts[outer].real)
        if clash and mounts[inner].real != mounts[outer].real:
            clash = outer not in inner.parents  # one in the other is mounted after it
        ways = _blocks(mounts[inner], mounts[outer]) or _blocks(mounts[outer], mounts[inner])
        if clash or ways:
            # An author changes a root sooner than an image; one that is no link is not to blame.
            other, place = sorted(pair, key=lambda p: (str(p) in roots, bool(mounts[p].links)))
            yield place, other
    for place, way in mounts.items():
        if _blocks(way, way):
            yield place, place
    for root in map(PurePosixPath, roots):
        here = mounts[root]
        for kernels in KERNELS:
            if _within(here.real, kernels) or _within(kernels, here.real):
                yield root, kernels
        for place, way in needed.items():
            if _within(way.real, here.real) or _blocks(here, way):
                yield root, place


def _blocks(mount: Way, way: Way) -> bool:
    """Say whether a mount hides a link of a way."""
    return any(_within(link, mount.real) for link in way.links)


def _within(inner: PurePosixPath, outer: PurePosixPath) -> bool:
    return inner == outer or outer in inner.parents


def _fault(place: PurePosixPath, roots: Sequence[str], code: str, message: str) -> Fault:
    if str(place) in roots:
        where = f"/containment/filesystem/writable_roots/{roots.index(str(place))}"
        hint = "name a folder of its own, to which no link of the image leads"
    else:
        where = "/target/options/image"
        hint = f"use an image whose {place} is a directory"
    return Fault(pointer=where, code=code, message=message, hint=hint)


class _Image:
    """What an image has, as the engine tells it of a container."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._known: dict[PurePosixPath, Thing | None] = {}

    async def way(self, place: PurePosixPath) -> Way:
        """Follow a path; one with more links than the kernel follows ends where it is one more."""
        real, todo, links = PurePosixPath("/"), list(place.parts[1:]), list[PurePosixPath]()
        while todo and len(links) <= LINKS:
            name = todo.pop(0)
            if name in ("", ".", ".."):
                real = real.parent if name == ".." else real
                continue
            thing = await self.thing(real / name)
            if thing is None or thing.link is None:
                real /= name
                continue
            links.append(real / name)
            real = PurePosixPath("/") if thing.link.startswith("/") else real
            todo = [*thing.link.split("/"), *todo]
        return Way(real, tuple(links))

    async def thing(self, path: PurePosixPath) -> Thing | None:
        """Say what is at a path whose parents are no links, if anything."""
        if path not in self._known:
            self._known[path] = await self._ask(path)
        return self._known[path]

    async def _ask(self, path: PurePosixPath) -> Thing | None:
        where, query = ("containers", self._container, "archive"), {"path": str(path)}
        try:
            async with self._engine.exchange("HEAD", *where, query=query) as connection:
                facts = json.loads(b64decode(connection.headers["x-docker-container-path-stat"]))
            if not facts["mode"] & LINK:
                return Thing(is_directory=bool(facts["mode"] & DIRECTORY))
            # There is said where it ends, and not what is on the way: its own text is in a tar.
            async with self._engine.exchange("GET", *where, query=query) as connection:
                archive = io.BytesIO(await connection.read())
        except EngineError as exc:
            if exc.status == 404:
                return None
            if exc.status == 500:  # it can't follow a link to its end
                return Thing(link=str(path))
            raise
        with tarfile.open(fileobj=archive, errors="surrogateescape") as tar:
            entry = tar.next()
        return Thing(link=entry.linkname if entry is not None else "")
