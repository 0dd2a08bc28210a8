"""The errors that users of fsspec know, in place of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pinfold.errors import (
    AlreadyExists,
    Forbidden,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    OutsideWorkspace,
    PinfoldError,
    StaleGeneration,
    TooLarge,
)

__all__ = ["os_errors"]

#: The first that fits. What is not here, such as `Lost`, has no counterpart and stays as it is.
_NUMBERS: Final[tuple[tuple[type[PinfoldError], int], ...]] = (
    (NotFound, errno.ENOENT),
    (AlreadyExists, errno.EEXIST),
    (IsADirectory, errno.EISDIR),
    (NotADirectory, errno.ENOTDIR),
    (OutsideWorkspace, errno.EACCES),
    (Forbidden, errno.EACCES),
    (NoSpace, errno.ENOSPC),
    (TooLarge, errno.EFBIG),
    (InvalidArgument, errno.EINVAL),
)


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise the `OSError` that Python's own `open` would, with ours as its cause."""
    try:
        yield
    except StaleGeneration:
        raise
    except PinfoldError as exc:
        number = next((number for kind, number in _NUMBERS if isinstance(exc, kind)), None)
        if number is None:
            raise
        raise OSError(number, f"{os.strerror(number)}: {exc}", path) from exc
