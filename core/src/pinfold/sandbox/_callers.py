"""What a caller's own code raises is the caller's, not a provider's failure."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs

from pinfold.errors import InvalidArgument
from pinfold.provider import TreeItem
from pinfold.sandbox._arguments import content

__all__ = ["CallersError"]

T = TypeVar("T")


class CallersError:
    """Notes what a caller's block or iterator raises, and raises just that at the end.

    Between the two lies the provider's code, whose untyped errors are turned into typed ones: by
    the time that the caller's error comes out of it, nobody could tell them apart.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the caller's error in place of what a block made of it."""
        try:
            yield
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise
        if self.error is not None:
            raise self.error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep a caller's error until the end."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - raised by `raised`
            self.error = exc

    def chunks(self, source: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Iterate over a caller's chunks."""
        return _Chunks(source, self)

    def items(
        self, source: AsyncIterable[TreeItem] | Iterable[TreeItem]
    ) -> AsyncIterator[TreeItem]:
        """Iterate over a caller's items, and over the chunks of each."""
        if not isinstance(source, AsyncIterable):
            if not isinstance(source, Iterable):
                raise InvalidArgument("items is an iterable of TreeItem")
            source = _Each(source)
        return _NotedItems(source, self)


class _Noted(AsyncIterator[T]):
    # No generator: whoever stops half way leaves nothing open behind.
    def __init__(self, source: AsyncIterable[T], own: CallersError) -> None:
        if not isinstance(source, AsyncIterable):
            raise InvalidArgument(
                f"chunks is an async iterable of bytes, not {type(source).__name__}",
                hint="write() takes bytes",
            )
        self._steps = aiter(source)
        self._own = own

    def _hold(self, item: object) -> None:
        """Refuse what the source must not give."""

    async def __anext__(self) -> T:
        try:
            item = await anext(self._steps)
            self._hold(item)
        except StopAsyncIteration:
            raise
        except Exception as exc:
            self._own.error = exc
            raise
        return item


class _Chunks(_Noted[bytes]):
    def _hold(self, item: object) -> None:
        content(item, "a chunk")


class _NotedItems(_Noted[TreeItem]):
    def _hold(self, item: object) -> None:
        if not isinstance(item, TreeItem):
            raise InvalidArgument(f"an item is a TreeItem, not {type(item).__name__}")

    async def __anext__(self) -> TreeItem:
        item = await super().__anext__()
        if item.chunks is None:
            return item
        return attrs.evolve(item, chunks=_Again(item.chunks, self._own))


class _Again(AsyncIterable[bytes]):
    def __init__(self, source: AsyncIterable[bytes], own: CallersError) -> None:
        self._source = source
        self._own = own

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Chunks(self._source, self._own)


class _Each(AsyncIterator[T]):
    def __init__(self, source: Iterable[T]) -> None:
        self._steps = iter(source)

    async def __anext__(self) -> T:
        for item in self._steps:
            return item
        raise StopAsyncIteration
