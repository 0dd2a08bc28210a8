"""TLS over a byte stream, with a half-close.

anyio's own TLS stream can't end one direction alone, and the end of a command's stdin is told to an
engine in just that way: a close-notify of ours, after which the engine goes on sending.
"""

from __future__ import annotations

import contextlib
import ssl

import anyio
from anyio.abc import ByteStream

__all__ = ["TLSStream"]

CHUNK_BYTES = 64 * 1024


class TLSStream(ByteStream):
    """A client's TLS connection over another stream; one task may receive and one may send."""

    def __init__(self, transport: ByteStream, context: ssl.SSLContext, host: str) -> None:
        self._transport = transport
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._decrypted = bytearray()
        self._half_closed = False
        self._sending = anyio.Lock()

    @classmethod
    async def wrap(cls, transport: ByteStream, context: ssl.SSLContext, host: str) -> TLSStream:
        """Shake hands.

        Raises:
            ssl.SSLError: either side refuses the other.
            anyio.EndOfStream, anyio.BrokenResourceError: the other side went away.
        """
        stream = cls(transport, context, host)
        while True:
            try:
                stream._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await stream._flush()
                stream._in.write(await transport.receive(CHUNK_BYTES))
            except ssl.SSLError:
                await stream._flush()  # the alert that says why
                raise
            else:
                await stream._flush()
                return stream

    async def receive(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        while True:
            if self._decrypted:
                data = bytes(self._decrypted[:max_bytes])
                del self._decrypted[:max_bytes]
                return data
            try:
                data = self._ssl.read(max_bytes)
            except ssl.SSLWantReadError:
                await self._flush()
                self._feed(await self._transport_bytes())
                continue
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError as exc:
                raise anyio.BrokenResourceError from exc
            if not data:
                raise anyio.EndOfStream
            return data

    async def _transport_bytes(self) -> bytes:
        try:
            return await self._transport.receive(CHUNK_BYTES)
        except anyio.EndOfStream:  # without a close-notify: cut short
            raise anyio.BrokenResourceError from None

    def _feed(self, data: bytes) -> None:
        self._in.write(data)

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        while view:
            try:
                view = view[self._ssl.write(view[:CHUNK_BYTES]) :]
            except ssl.SSLError as exc:
                raise anyio.BrokenResourceError from exc
            await self._flush()

    async def send_eof(self) -> None:
        if self._half_closed:
            return
        self._half_closed = True
        self._read_all()  # or the shutdown would meet data where it looks for the other's
        with contextlib.suppress(ssl.SSLError):  # the other's close-notify is still to come
            self._ssl.unwrap()
        await self._flush()

    def _read_all(self) -> None:
        while True:
            try:
                data = self._ssl.read(CHUNK_BYTES)
            except ssl.SSLError:
                return
            if not data:
                return
            self._decrypted += data

    async def _flush(self) -> None:
        async with self._sending:
            data = self._out.read()
            if data:
                await self._transport.send(data)

    async def aclose(self) -> None:
        await self._transport.aclose()
