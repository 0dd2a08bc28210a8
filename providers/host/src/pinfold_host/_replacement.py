"""How a file is replaced: whoever reads it finds the old one or the new one (FS-4)."""

from __future__ import annotations

import contextlib
import os
import stat as st
import sys
from pathlib import PurePosixPath
from types import TracebackType
from typing import Final, Self

from pinfold.errors import IsADirectory, NotRegular
from pinfold_host._acting import Acting
from pinfold_host._beneath import Place, Roots
from pinfold_host._linux import Identity
from pinfold_host._names import temporary_name

__all__ = ["Replacement", "not_regular", "write_all"]

_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Replacement:
    """A new file, written aside, that takes a name's place when it is committed (FS-4).

    Args:
        roots: where it may be.
        identity: whose it is.
        place: in the caller's view; parents are made.
        mode: its permission bits; None keeps those of the file that is there.

    Attributes:
        fd: to be written to.
    """

    fd: int

    def __init__(
        self, roots: Roots, identity: Identity, place: PurePosixPath, mode: int | None
    ) -> None:
        self._roots = roots
        self._identity = identity
        self._place = place
        self._mode = mode
        self._stack = contextlib.ExitStack()
        self._committed = False

    def __enter__(self) -> Self:
        with Acting(self._roots, self._identity, self._place):
            final = self._roots.final(self._place, make_parents=True)
            self._at = self._stack.enter_context(final)
            try:
                if self._mode is None:
                    self._mode = _mode_to_keep(self._place, self._at)
                self._name = temporary_name()
                self.fd = os.open(self._name, _NEW_FLAGS, 0o600, dir_fd=self._at.directory)
            except BaseException:
                self._stack.__exit__(*sys.exc_info())  # so that it undoes what it made
                raise
        return self

    def commit(self) -> None:
        """Put it in its place."""
        here = self._at.directory
        with Acting(self._roots, self._identity, self._place):
            os.fchmod(self.fd, self._mode or 0)
            os.rename(self._name, self._at.name, src_dir_fd=here, dst_dir_fd=here)
        self._committed = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)
        with self._identity:
            if not self._committed:
                with contextlib.suppress(OSError):
                    os.unlink(self._name, dir_fd=self._at.directory)
            self._stack.__exit__(kind, error, trace)


def _mode_to_keep(place: PurePosixPath, at: Place) -> int:
    try:
        found = os.stat(at.name, dir_fd=at.directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    if st.S_ISDIR(found.st_mode):
        raise IsADirectory(f"{str(place)!r} is a directory", details={"path": str(place)})
    if not st.S_ISREG(found.st_mode):
        raise not_regular(place)
    return st.S_IMODE(found.st_mode)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however often the kernel takes less."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def not_regular(place: PurePosixPath) -> NotRegular:
    """Return the error for what is neither a file nor a directory."""
    return NotRegular(
        f"{str(place)!r} is a pipe, a socket or a device, not a regular file",
        details={"path": str(place)},
    )
