"""Folders of this machine, as people write them."""

from __future__ import annotations

import os

__all__ = ["expanded"]


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path with `~` as a shell has it; one of nobody's is a name like any other."""
    # Path.expanduser raises where there is no such user.
    return os.path.expanduser(os.fspath(path))  # noqa: PTH111
