"""Where the caller's paths are, as the helper names them: a root and a path below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from pinfold.errors import InvalidArgument, OutsideWorkspace
from pinfold.posix._resident._wire import text
from pinfold.provider import guest_path
from pinfold.spec import WORKSPACE

__all__ = ["Places"]

#: What stands before the text of an encoded path: the root's number, and the text's length.
_PATH_HEAD: Final = 5
#: Beyond this (PATH_MAX of Linux) no target takes a path; in bytes the target itself judges it.
_PATH_CHARACTERS: Final = 4095


class Places:
    """The roots, as callers, the target and the helper name them.

    Args:
        names: the caller's, the workspace first.
        physical: the target's, in the same order.
        numbers: the helper's.
    """

    def __init__(
        self,
        names: Sequence[PurePosixPath],
        physical: Sequence[PurePosixPath],
        numbers: Sequence[int],
    ) -> None:
        #: The workspace, as the target names it.
        self.root = str(physical[0])
        self._roots = tuple(names[1:])
        prefixes = [bytes((number,)) for number in numbers]
        self._by_name = [(str(name), prefix) for name, prefix in zip(names, prefixes, strict=True)]
        self._by_place = [
            (str(place), prefix) for place, prefix in zip(physical, prefixes, strict=True)
        ]

    def locate(self, path: PurePosixPath | str) -> tuple[PurePosixPath, bytes, bool]:
        """Check a caller's path; return it, its encoding, and whether it is a root itself.

        Raises:
            InvalidArgument, OutsideWorkspace: FS-1.
        """
        pure = guest_path(path, self._roots)
        encoded, is_root = _below(str(pure), self._by_name)
        return pure, encoded, is_root

    @staticmethod
    def inside(encoded: bytes, name: str) -> bytes:
        """Encode what lies in a directory, as the helper has named it, from its own encoding."""
        directory = encoded[_PATH_HEAD:-1]  # without its NUL
        return encoded[:1] + text(directory + b"/" * bool(directory) + os.fsencode(name))

    def encode(self, place: PurePosixPath) -> bytes:
        """Encode a path of the target's, as a guest is given it.

        Raises:
            InvalidArgument, OutsideWorkspace: it is too long, or in no root.
        """
        return _below(str(place), self._by_place)[0]

    @property
    def workspace(self) -> bytes:
        """The workspace itself, encoded."""
        return self.locate(WORKSPACE)[1]


def _below(path: str, roots: Sequence[tuple[str, bytes]]) -> tuple[bytes, bool]:
    if len(path) > _PATH_CHARACTERS:
        raise InvalidArgument(
            f"the path {path[:80]!r}… is too long: {len(path)} characters",
            hint=f"a path has at most {_PATH_CHARACTERS}",
        )
    for name, prefix in roots:
        if path == name:
            return prefix + text(""), True
        inner = name if name.endswith("/") else name + "/"
        if path.startswith(inner):
            return prefix + text(path[len(inner) :]), False
    raise OutsideWorkspace(f"{path!r} is in no root", details={"path": path})
