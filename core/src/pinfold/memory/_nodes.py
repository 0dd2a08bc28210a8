"""A file system of plain objects, rooted at the workspace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

import attrs

from pinfold.errors import (
    InvalidArgument,
    IsADirectory,
    Lost,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
)
from pinfold.provider import guest_path
from pinfold.spec import WORKSPACE

__all__ = ["Directory", "File", "Link", "Node", "Store"]

MAX_LINKS: Final = 40  # as Linux has it
MAX_NAME_BYTES: Final = 255


@attrs.define(eq=False)
class File:
    """A regular file; `digest` is remembered until the content changes."""

    data: bytes
    mode: int = 0o644
    mtime_ns: int = attrs.field(factory=time.time_ns)
    _digest: str = ""

    @property
    def digest(self) -> str:
        self._digest = self._digest or sha256(self.data).hexdigest()
        return self._digest


@attrs.define(eq=False)
class Link:
    """A symbolic link; its text is kept verbatim."""

    text: str
    mtime_ns: int = attrs.field(factory=time.time_ns)


@attrs.define(eq=False)
class Directory:
    """A directory."""

    children: dict[str, Node] = attrs.field(factory=dict)
    mode: int = 0o755
    mtime_ns: int = attrs.field(factory=time.time_ns)


Node = File | Link | Directory


@attrs.define(eq=False)
class Store:
    """The tree, and a count of the changes made to it."""

    root: Directory = attrs.field(factory=Directory)
    version: int = 0
    gone: bool = False

    def changed(self, directory: Directory) -> None:
        """Note that an entry of a directory changed."""
        directory.mtime_ns = time.time_ns()
        self.version += 1

    def lookup(self, path: PurePosixPath | str, *, follow: bool) -> Node:
        """Return what a path leads to; links inside are followed, the last one if `follow`.

        Raises:
            OutsideWorkspace: it, or a link on its way, leads out (FS-2).
            NotFound, NotADirectory: FS-5.
        """
        parent, name = self.locate(path, follow=follow)
        if not name:
            return parent
        node = parent.children.get(name)
        if node is None:
            raise NotFound(f"there is no {str(path)!r}", details={"path": str(path)})
        return node

    def locate(
        self,
        path: PurePosixPath | str,
        *,
        follow: bool,
        make: Callable[[Directory, str], Directory] | None = None,
    ) -> tuple[Directory, str]:
        """Return the directory that holds, or would hold, what a path names, and the name there.

        Args:
            path: in the caller's view.
            follow: a link in the last place is followed too.
            make: called for a missing parent, to make it; without it that is NotFound.

        Returns:
            The directory and the name; the name is "" for the workspace itself.
        """
        start = guest_path(path).relative_to(WORKSPACE).parts
        if self.gone:
            raise Lost("this sandbox was ended", hint="open another one")
        pending = list(reversed(start))
        stack = [self.root]
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                if len(stack) == 1:
                    raise _outside(path)
                stack.pop()
                continue
            _check_name(name)
            here = stack[-1]
            node = here.children.get(name)
            if isinstance(node, Link) and (pending or follow):
                links += 1
                if links > MAX_LINKS:
                    raise InvalidArgument(f"too many links on the way to {str(path)!r}")
                stack, more = self._jump(stack, node.text, path)
                pending += reversed(more)
                continue
            if not pending:
                return here, name
            if node is None and make is not None:
                node = make(here, name)
            if node is None:
                raise NotFound(f"there is no directory {name!r} on the way to {str(path)!r}")
            if not isinstance(node, Directory):
                raise NotADirectory(f"{name!r} is no directory, on the way to {str(path)!r}")
            stack.append(node)
        # The path ended at a directory through `..` or a link: name it from its parent.
        if len(stack) == 1:
            return self.root, ""
        found = next(n for n, node in stack[-2].children.items() if node is stack[-1])
        return stack[-2], found

    def _jump(
        self, stack: list[Directory], text: str, path: PurePosixPath | str
    ) -> tuple[list[Directory], list[str]]:
        """Follow a link's text, as far as it stays inside by its own text."""
        target = PurePosixPath(text)
        if not target.is_absolute():
            return stack, list(target.parts)
        parts = target.parts[1:]
        root = WORKSPACE.parts[1:]
        if parts[: len(root)] != root:
            raise _outside(path)
        return [self.root], list(parts[len(root) :])

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Yield every entry by its relative path, parents first, names in order of their bytes."""
        pending: list[tuple[str, Node]] = [("", self.root)]
        while pending:
            path, node = pending.pop()
            if path:
                yield path, node
            if isinstance(node, Directory):
                prefix = f"{path}/" if path else ""
                names = sorted(node.children, key=_bytes, reverse=True)
                pending += [(prefix + name, node.children[name]) for name in names]


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _check_name(name: str) -> None:
    if len(_bytes(name)) > MAX_NAME_BYTES:
        raise InvalidArgument(f"a name is longer than {MAX_NAME_BYTES} bytes: {name[:40]!r}…")


def _outside(path: PurePosixPath | str) -> OutsideWorkspace:
    return OutsideWorkspace(
        f"{str(path)!r} leads out of the workspace through a link",
        hint="name the place directly",
        details={"path": str(path)},
    )


def file_at(store: Store, path: PurePosixPath | str) -> File:
    """Return the file that a path leads to.

    Raises:
        IsADirectory: it is one.
        NotFound, NotADirectory, OutsideWorkspace: as `Store.lookup`.
    """
    node = store.lookup(path, follow=True)
    if isinstance(node, File):
        return node
    raise IsADirectory(f"{str(path)!r} is a directory", details={"path": str(path)})
