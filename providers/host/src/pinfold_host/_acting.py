"""The frame of every file operation: as whom it is done, how its failure is told (FS-5, FS-6)."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import TracebackType

from pinfold_host._beneath import Roots
from pinfold_host._errors import lost, typed
from pinfold_host._linux import Identity

__all__ = ["Acting"]


class Acting:
    """Take the owner's identity and give the contract's errors; a class, since it is hot."""

    __slots__ = ("_identity", "_place", "_roots")

    def __init__(self, roots: Roots, identity: Identity, place: PurePosixPath | str) -> None:
        self._roots = roots
        self._identity = identity
        self._place = place

    def __enter__(self) -> None:
        if self._roots.are_lost():
            raise lost()
        self._identity.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._identity.__exit__(kind, error, trace)
        if isinstance(error, OSError):
            if isinstance(error, FileNotFoundError) and self._roots.are_lost():
                raise lost() from None
            raise typed(error, self._place) from error
