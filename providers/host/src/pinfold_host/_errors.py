"""What the operating system says, as the contract's errors (FS-5)."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath
from typing import Final

from pinfold.errors import (
    AlreadyExists,
    Conflict,
    Internal,
    InvalidArgument,
    IsADirectory,
    Lost,
    NoSpace,
    NotADirectory,
    NotFound,
    NotRegular,
    OutsideWorkspace,
    PermissionDenied,
    PinfoldError,
    Unavailable,
)

__all__ = ["lost", "typed"]

_KINDS: Final[dict[int, tuple[type[PinfoldError], str]]] = {
    errno.ENOENT: (NotFound, "there is no {path}"),
    errno.ENOTDIR: (NotADirectory, "{path} is, or leads through, something that is no directory"),
    errno.EISDIR: (IsADirectory, "{path} is a directory"),
    errno.EEXIST: (AlreadyExists, "{path} exists already"),
    errno.ENOTEMPTY: (Conflict, "{path} is a directory that is not empty"),
    errno.EACCES: (PermissionDenied, "the permissions of {path} refuse it"),
    errno.EPERM: (PermissionDenied, "the permissions of {path} refuse it"),
    errno.EROFS: (PermissionDenied, "{path} is on a read-only file system"),
    errno.ENOSPC: (NoSpace, "no space is left for {path}"),
    errno.EDQUOT: (NoSpace, "the quota leaves no space for {path}"),
    errno.EFBIG: (NoSpace, "{path} grew beyond what the file system or a limit allows"),
    errno.EXDEV: (OutsideWorkspace, "{path} leads out of the workspace and the writable roots"),
    errno.ENXIO: (NotRegular, "{path} is not a regular file"),
    errno.ELOOP: (InvalidArgument, "{path} leads through too many links"),
    errno.ENAMETOOLONG: (InvalidArgument, "a name in {path} is too long for the file system"),
    errno.EILSEQ: (InvalidArgument, "the file system can't represent a name in {path}"),
    errno.EINVAL: (InvalidArgument, "the file system refuses {path}"),
    errno.EMFILE: (Unavailable, "too many files are open here to reach {path}"),
    errno.ENFILE: (Unavailable, "too many files are open on this machine to reach {path}"),
    errno.EAGAIN: (Conflict, "{path} keeps changing while it is looked up"),
    errno.EBUSY: (Conflict, "{path} is in use"),
    errno.EIO: (Unavailable, "the disk failed at {path}"),
}


def lost() -> Lost:
    """Return the error for an instance whose folder or processes are gone (LC-5)."""
    return Lost("this sandbox is gone: it was removed from outside pinfold")


def typed(error: OSError, path: PurePosixPath | str) -> PinfoldError:
    """Return the contract's error for the operating system's, naming `path`, the caller's."""
    kind, text = _KINDS.get(
        error.errno or 0, (Internal, f"the operating system failed at {{path}}: {error}")
    )
    return kind(text.format(path=repr(str(path))), details={"path": str(path)})
