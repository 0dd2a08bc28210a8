"""How bytes are kept: one zstd frame that states its size, with a checksum."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pinfold.checkpoint._manifest import Damaged

if TYPE_CHECKING:
    import zstandard

__all__ = ["pack", "unpack"]

LEVEL: Final = 1  # a checkpoint is made before a call returns: speed first


class _Contexts(threading.local):
    """zstd contexts are costly to make, and each serves one thread."""

    def __init__(self) -> None:
        import zstandard

        self.compressor: zstandard.ZstdCompressor = zstandard.ZstdCompressor(
            level=LEVEL, write_checksum=True
        )
        self.decompressor: zstandard.ZstdDecompressor = zstandard.ZstdDecompressor()
        self.parameters = zstandard.get_frame_parameters
        self.error = zstandard.ZstdError


_contexts: _Contexts | None = None


def _get() -> _Contexts:
    global _contexts  # noqa: PLW0603 - zstandard is imported when it is first needed
    if _contexts is None:
        _contexts = _Contexts()
    return _contexts


def pack(data: bytes) -> bytes:
    """Return the kept form of `data`."""
    return _get().compressor.compress(data)


def unpack(packed: bytes, most: int) -> bytes:
    """Return what `pack` was given; never more than `most` bytes are made.

    Raises:
        Damaged: these are not bytes that `pack` made, or they claim to be more than `most`.
    """
    contexts = _get()
    try:
        size = contexts.parameters(packed).content_size
        if not 0 <= size <= most:  # unknown is 2^64 - 1
            raise Damaged(f"a frame claims {size} bytes where at most {most} can be")
        if size == 0:
            if packed != contexts.compressor.compress(b""):
                raise Damaged("a frame claims to be empty, and is not")
            return b""
        return contexts.decompressor.decompress(
            packed, max_output_size=size, allow_extra_data=False
        )
    except contexts.error as exc:
        raise Damaged(f"not a whole zstd frame: {exc}") from exc
