"""A whole file system of plain objects, with a workspace in it and a world around it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

import attrs

from pinfold.errors import (
    InvalidArgument,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    PermissionDenied,
)
from pinfold.spec import WORKSPACE

__all__ = ["Dir", "Fifo", "File", "Link", "Node", "Place", "World"]

_numbers = itertools.count(1)
MAX_LINKS: Final = 40
MAX_NAME_BYTES: Final = 255


@attrs.define(eq=False, kw_only=True)
class Base:
    mode: int = 0o644
    mtime_ns: int = attrs.field(factory=time.time_ns)
    ctime_ns: int = attrs.field(factory=time.time_ns)
    inode: int = attrs.field(factory=lambda: next(_numbers))

    def touched(self) -> None:
        """Note that the content changed."""
        self.mtime_ns = self.ctime_ns = time.time_ns()


@attrs.define(eq=False, kw_only=True)
class File(Base):
    data: bytearray = attrs.field(factory=bytearray)


@attrs.define(eq=False, kw_only=True)
class Dir(Base):
    mode: int = 0o755
    children: dict[str, Node] = attrs.field(factory=dict)


@attrs.define(eq=False, kw_only=True)
class Link(Base):
    text: str
    mode: int = 0o777


@attrs.define(eq=False, kw_only=True)
class Fifo(Base):
    """A FIFO that nobody has at the other end."""


Node = File | Dir | Link | Fifo


@attrs.frozen
class Place:
    """Where a path leads: the directory, the name in it, and what is there now."""

    parent: Dir
    name: str
    node: Node | None
    path: PurePosixPath


class World:
    """A root directory with `/workspace`, `/tmp` and something worth stealing in `/etc`."""

    def __init__(self, roots: Sequence[PurePosixPath] = ()) -> None:
        self.root = Dir()
        for path in (WORKSPACE, *map(PurePosixPath("/").joinpath, ("tmp", "etc")), *roots):
            self.make_dirs(path)
        etc = self.root.children["etc"]
        assert isinstance(etc, Dir)  # noqa: S101 - made above
        etc.children["passwd"] = File(data=bytearray(b"root:x:0:0::/:/bin/false\n"))
        self.roots = (WORKSPACE, *roots)

    @property
    def workspace(self) -> Dir:
        """The workspace's directory."""
        node = self.root.children["workspace"]
        assert isinstance(node, Dir)  # noqa: S101 - nothing replaces it by anything else
        return node

    def inside(self, path: PurePosixPath) -> bool:
        """Say whether a canonical path is in the workspace or a writable root."""
        return any(path == root or root in path.parents for root in self.roots)

    def find(
        self,
        path: PurePosixPath,
        *,
        follow: bool = True,
        confined: bool = False,
        make: bool = False,
    ) -> Place:
        """Resolve a path as a kernel does.

        Args:
            path: absolute.
            follow: a link in the last place is followed.
            confined: no step may leave the workspace and the roots (FS-2).
            make: missing parents are made, the last name not; only once the whole path is known
                to be sound.

        Raises:
            OutsideWorkspace: confined, and it leads out.
            NotFound, NotADirectory, PermissionDenied: of a parent.
        """
        pending = list(reversed(path.parts[1:]))
        stack: list[tuple[str, Dir]] = [("", self.root)]
        missing: list[str] = []
        links = 0
        while pending:
            name = pending.pop()
            here = stack[-1][1]
            if name == "..":
                if missing:
                    missing.pop()
                elif len(stack) > 1:
                    stack.pop()
                self._still_inside(stack, missing, path, confined=confined)
                continue
            if missing:
                missing.append(name)
                continue
            if not here.mode & 0o100:
                raise PermissionDenied(f"no permission to enter {self._path(stack)}")
            node = here.children.get(name)
            if isinstance(node, Link) and (pending or follow):
                links += 1
                if links > MAX_LINKS:
                    raise InvalidArgument(f"too many links on the way to {str(path)!r}")
                target = PurePosixPath(node.text)
                if target.is_absolute():
                    stack = stack[:1]
                pending += reversed([part for part in target.parts if part != "/"])
                self._still_inside(stack, missing, path, confined=confined and not pending)
                continue
            if isinstance(node, Dir):
                stack.append((name, node))
                self._still_inside(stack, missing, path, confined=confined)
                continue
            if node is not None and pending:
                raise NotADirectory(f"{name!r} is no directory, on the way to {str(path)!r}")
            missing.append(name)
        return self._arrived(stack, missing, path, confined=confined, make=make)

    def _arrived(
        self,
        stack: list[tuple[str, Dir]],
        missing: list[str],
        path: PurePosixPath,
        *,
        confined: bool,
        make: bool,
    ) -> Place:
        canonical = self._path(stack).joinpath(*missing)
        if confined and not self.inside(canonical):
            raise _outside(path)
        if not missing:
            above = stack[-2][1] if len(stack) > 1 else self.root
            return Place(above, stack[-1][0], stack[-1][1], canonical)
        if len(missing) > 1:
            if not make:
                raise NotFound(f"there is no {missing[0]!r} on the way to {str(path)!r}")
            stack.append(("", self.make_dirs(canonical.parent)))
        parent = stack[-1][1]
        return Place(parent, missing[-1], parent.children.get(missing[-1]), canonical)

    def _still_inside(
        self,
        stack: list[tuple[str, Dir]],
        missing: list[str],
        path: PurePosixPath,
        *,
        confined: bool,
    ) -> None:
        here = self._path(stack).joinpath(*missing)
        if confined and not self.inside(here) and not any(here in r.parents for r in self.roots):
            raise _outside(path)

    @staticmethod
    def _path(stack: Iterable[tuple[str, Dir]]) -> PurePosixPath:
        return PurePosixPath("/").joinpath(*[name for name, _ in stack])

    def make_dirs(self, path: PurePosixPath) -> Dir:
        """Make a directory and its parents; links are not followed."""
        here = self.root
        for name in path.parts[1:]:
            node = here.children.get(name)
            if node is None:
                node = Dir()
                put(here, name, node)
            if not isinstance(node, Dir):
                raise NotADirectory(f"{name!r} is no directory, on the way to {str(path)!r}")
            here = node
        return here

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Yield what is in the workspace by its relative path, parents first, sorted."""
        yield from _walk(self.workspace, "")

    def used_bytes(self) -> int:
        """Bytes of all files in the workspace."""
        return sum(len(node.data) for _, node in self.walk() if isinstance(node, File))


def _walk(directory: Dir, prefix: str) -> Iterator[tuple[str, Node]]:
    for name in sorted(directory.children, key=os.fsencode):
        node = directory.children[name]
        yield prefix + name, node
        if isinstance(node, Dir):
            yield from _walk(node, f"{prefix}{name}/")


def put(parent: Dir, name: str, node: Node) -> None:
    """Give a name to a node.

    Raises:
        PermissionDenied: the directory is not writable.
        InvalidArgument: the name is too long.
    """
    writable(parent, name)
    check_length(name)
    parent.children[name] = node
    parent.touched()


def check_length(name: str) -> None:
    """Refuse a name that is longer than the kernel has them.

    Raises:
        InvalidArgument: it is.
    """
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise InvalidArgument(f"a name is longer than {MAX_NAME_BYTES} bytes: {name[:40]!r}…")


def drop(parent: Dir, name: str) -> None:
    """Take a name away.

    Raises:
        PermissionDenied: the directory is not writable.
    """
    writable(parent, name)
    del parent.children[name]
    parent.touched()


def writable(parent: Dir, name: str) -> None:
    """Raise PermissionDenied unless entries of a directory may change."""
    if parent.mode & 0o300 != 0o300:
        raise PermissionDenied(f"no permission to change {name!r} in its directory")


def _outside(path: PurePosixPath) -> OutsideWorkspace:
    return OutsideWorkspace(f"{str(path)!r} leads out of the workspace through a link")
