"""Remove whole trees, whatever a guest made of them."""

from __future__ import annotations

import contextlib
import os
import stat as st
from typing import Final

from pinfold_host._names import temporary_name

__all__ = ["remove_tree"]

#: Deeper directories are first moved up: each level in hand is an open descriptor.
_MAX_DEPTH: Final = 64
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(directory: int, name: bytes) -> None:
    """Remove a directory and all in it; never descends through a link (FS-4).

    Trees may be of any depth. Directories that were closed to their owner are opened first. What
    is added meanwhile is removed too, unless whoever adds it keeps winning.

    Args:
        directory: the open directory that holds it.
        name: its name there.

    Raises:
        OSError: something could not be removed.
    """
    _Removal(directory).remove(name)


class _Removal:
    def __init__(self, top: int) -> None:
        self._top = top
        self._moved_up: list[bytes] = []

    def remove(self, name: bytes) -> None:
        self._empty(self._top, name, 0)
        os.rmdir(name, dir_fd=self._top)
        while self._moved_up:
            name = self._moved_up.pop()
            self._empty(self._top, name, 0)
            os.rmdir(name, dir_fd=self._top)

    def _empty(self, directory: int, name: bytes, depth: int) -> None:
        fd = _open(directory, name)
        try:
            with os.scandir(fd) as scan:
                entries = [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in scan]
            for inner, is_directory in entries:
                if is_directory and depth == _MAX_DEPTH:
                    self._move_up(fd, inner)
                elif not is_directory or not self._remove_directory(fd, inner, depth):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(inner, dir_fd=fd)
        finally:
            os.close(fd)

    def _remove_directory(self, directory: int, name: bytes, depth: int) -> bool:
        """Remove one; false when it has been replaced by something else meanwhile."""
        try:
            self._empty(directory, name, depth + 1)
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            return True
        except OSError:
            if _is_other(directory, name):
                return False
            raise
        return True

    def _move_up(self, directory: int, name: bytes) -> None:
        other = temporary_name()
        os.rename(name, other, src_dir_fd=directory, dst_dir_fd=self._top)
        self._moved_up.append(other)


def _open(directory: int, name: bytes) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=directory)
    except PermissionError:
        return _open_closed(directory, name)


def _open_closed(directory: int, name: bytes) -> int:
    """Open one's own directory that has no permissions left, by giving it some."""
    path_only = getattr(os, "O_PATH", None)
    if path_only is None:
        raise PermissionError(13, "its permissions refuse it", os.fsdecode(name))
    fd = os.open(name, path_only | _FLAGS, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def _is_other(directory: int, name: bytes) -> bool:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return not st.S_ISDIR(found.st_mode)
