"""What Linux offers beyond the os module: openat2, and a thread's own file-system uid.

Importable everywhere; elsewhere, and on a kernel before 5.6, `openat2` is None.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

__all__ = ["O_PATH", "Identity", "openat2", "openat2_or_none"]

_SYS_OPENAT2: Final = 437
_BENEATH, _NO_MAGICLINKS, _NO_SYMLINKS = 0x08, 0x02, 0x04

#: Open a place without reading it; elsewhere the nearest there is.
O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _syscall() -> Any:
    """Return syscall(2) for an openat2: variadic, so that every argument fills a register."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (
        ctypes.c_long,
        ctypes.c_long,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    call.restype = ctypes.c_long
    return call


@functools.lru_cache(64)
def _open_how(flags: int, follow: bool) -> bytes:  # noqa: FBT001
    """Return struct open_how."""
    resolve = _BENEATH | (_NO_MAGICLINKS if follow else _NO_SYMLINKS)
    return struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)


def openat2(root: int, path: bytes, flags: int, *, follow: bool) -> int:
    """Open `path` below `root`, which nothing on the way can leave; return the descriptor.

    Args:
        root: a directory.
        path: relative; empty is the root itself.
        flags: as for open; close-on-exec is added.
        follow: links that stay below the root are followed, else none.

    Raises:
        OSError: EXDEV for what leads out, and for every absolute link; ELOOP for a link that is
            not to be followed; EAGAIN when something was renamed on the way.
    """
    how = _open_how(flags, follow)
    fd: int = _syscall()(_SYS_OPENAT2, root, path or b".", how, len(how))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def openat2_or_none() -> Callable[..., int] | None:
    """Return `openat2` where this kernel has it, found by using it, else None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(openat2(root, b"", O_PATH, follow=True))
        finally:
            os.close(root)
    except (OSError, AttributeError):
        return None
    return openat2


class Identity:
    """Acts on files as another user, for the calling thread and the length of a `with`.

    A controller that is root so meets the guest's files with the guest's own rights, and what it
    makes belongs to the guest (FS-6). Don't await inside.

    Args:
        uid: the user, also the group; None acts as the process does and costs nothing.
    """

    def __init__(self, uid: int | None) -> None:
        self.uid = uid

    def __enter__(self) -> None:
        if self.uid is not None:
            _libc().setfsgid(self.uid)
            _libc().setfsuid(self.uid)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.uid is not None:
            _libc().setfsuid(os.geteuid())
            _libc().setfsgid(os.getegid())
