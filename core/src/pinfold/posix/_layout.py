"""Where the caller's paths are in the target: arguments are mapped, nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import attrs

from pinfold.provider import guest_text
from pinfold.spec import WORKSPACE

__all__ = ["TEMPORARY", "Layout", "Place", "temporary"]

#: How names of ours in the workspace begin, while something is written; hidden from listings.
TEMPORARY: Final = ".pinfold-tmp-"


def temporary() -> str:
    """Return a fresh name for something of ours."""
    return TEMPORARY + secrets.token_hex(12)


@attrs.frozen
class Place:
    """A path, split for our programs: a directory of the target, and a name in it.

    Attributes:
        directory: physical.
        name: `.` for a root itself.
        text: the path in the caller's view.
    """

    directory: str
    name: str
    text: str

    @property
    def path(self) -> PurePosixPath:
        """The path in the caller's view."""
        return PurePosixPath(self.text)

    @property
    def args(self) -> tuple[str, str]:
        """The first two arguments of a program."""
        return self.directory, self.name

    @property
    def physical(self) -> str:
        """The path in the target."""
        return self.directory if self.is_root else f"{self.directory}/{self.name}"

    def below(self, name: str) -> tuple[str, str]:
        """Return the first two arguments of a program for something in this directory."""
        inner, _, last = name.rpartition("/")
        return f"{self.physical}/{inner}" if inner else self.physical, last

    @property
    def is_root(self) -> bool:
        """It is the workspace or a writable root itself."""
        return self.name == "."


@attrs.frozen(kw_only=True)
class Layout:
    """The workspace and the writable roots, as the caller and as the target names them.

    Attributes:
        root: the physical workspace, all links resolved.
        writable_roots: the caller's name and the physical path, which differ only by links.
    """

    root: PurePosixPath
    writable_roots: Sequence[tuple[PurePosixPath, PurePosixPath]] = ()
    #: The writable roots as the caller names them.
    names: tuple[PurePosixPath, ...] = attrs.field(init=False, repr=False, eq=False)
    _texts: tuple[tuple[str, str], ...] = attrs.field(init=False, repr=False, eq=False)

    @names.default
    def _names_of(self) -> tuple[PurePosixPath, ...]:
        return tuple(name for name, _ in self.writable_roots)

    @_texts.default
    def _texts_of(self) -> tuple[tuple[str, str], ...]:
        roots = ((WORKSPACE, self.root), *self.writable_roots)
        return tuple((str(name), str(real)) for name, real in roots)

    @property
    def encoded(self) -> str:
        """All physical roots, each ended by `//`, for our programs."""
        return "".join(
            f"{root}//" for root in (self.root, *(real for _, real in self.writable_roots))
        )

    def place(self, path: PurePosixPath | str) -> Place:
        """Check a caller's path by its text and map it (FS-1).

        Raises:
            InvalidArgument, OutsideWorkspace: as `guest_path`.
        """
        text = guest_text(path, self.names)
        for name, real in self._texts:
            if text.startswith(name) and text[len(name) : len(name) + 1] == "/":
                directory, _, last = text.rpartition("/")
                return Place(real + directory[len(name) :], last, text)
            if text == name:
                return Place(real, ".", text)
        raise AssertionError(text)  # guest_text has refused all else

    def caller(self, path: PurePosixPath) -> PurePosixPath:
        """Return how the caller names a physical path."""
        for name, real in ((WORKSPACE, self.root), *self.writable_roots):
            if path == real or real in path.parents:
                return name / path.relative_to(real)
        return path

    def root_of(self, directory: str) -> str:
        """Return the physical root that a physical directory lies in, by its text."""
        inside = f"{directory}/"
        return next(real for _, real in self._texts if inside.startswith(f"{real}/"))

    def physical(self, path: PurePosixPath | str) -> PurePosixPath:
        """Return where a caller's path is in the target.

        Raises: as `place`.
        """
        place = self.place(path)
        return PurePosixPath(place.physical)
