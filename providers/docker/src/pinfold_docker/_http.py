"""HTTP/1.1 to an engine, on anyio: h11 does the protocol, each exchange has its own connection.

A connection costs a few tenths of a millisecond where an exec costs forty: so none is kept, nothing
belongs to an event loop, and a sandbox that does nothing holds no socket.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

import anyio
import attrs
import h11
from anyio.abc import ByteStream

from pinfold.errors import Effect, PinfoldError, Unauthorized, Unreachable
from pinfold_docker._socket import EngineSocket, connect_tcp, connect_unix
from pinfold_docker._tls import TLSStream

__all__ = [
    "Body",
    "Connection",
    "Endpoint",
    "EngineError",
    "Response",
    "opened",
    "path_of",
]

CONNECT_SECONDS: Final = 10.0
CHUNK_BYTES: Final = 64 * 1024

Body = bytes | AsyncIterable[bytes]


class EngineError(Exception):
    """The engine's own refusal.

    Attributes:
        status: of the HTTP response; 0 for an error inside a stream.
        message: the engine's words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} ({status})" if status else message)
        self.status = status
        self.message = message


@attrs.frozen(kw_only=True)
class Response:
    """The head of an answer."""

    status: int
    headers: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where an engine listens: a Unix socket, or a host and port with TLS.

    Attributes:
        path: of the socket, or empty.
        host: for TLS, else empty.
        port: for TLS.
        tls: for TLS, with the client's certificate in it.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False, eq=False)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        return bool(self.path)

    async def connect(self) -> Connection:
        """Open a connection.

        Raises:
            Unauthorized: no permission on the socket, or TLS says no.
            Unreachable: nobody listens there, or not in time.
        """
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                if self.tls is None:
                    sock = await connect_unix(self.path)
                    return Connection(sock, sock, self)
                sock = await connect_tcp(self.host, self.port)
                try:
                    return Connection(await TLSStream.wrap(sock, self.tls, self.host), sock, self)
                except BaseException:
                    sock.close()
                    raise
        except PermissionError:
            raise Unauthorized(
                f"no permission on the engine's socket {self}",
                hint="join the group that owns the socket, or run a rootless engine",
            ) from None
        except FileNotFoundError:
            raise Unreachable(
                f"there is no engine at {self}: no such socket",
                hint="start Docker, or set DOCKER_HOST to unix://PATH of its socket",
            ) from None
        except ConnectionRefusedError:
            raise Unreachable(
                f"nobody listens at {self}", hint="start the engine, or wait until it is up"
            ) from None
        except ssl.SSLCertVerificationError as exc:
            raise Unauthorized(
                f"the engine at {self} is not who it should be: {exc.verify_message}",
                hint="give the connection the ca that signed the engine's certificate",
            ) from None
        except (ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream) as exc:
            raise Unauthorized(
                f"TLS with the engine at {self} failed: {_reason(exc)}",
                hint="check ca, cert and key of the connection, and that the port speaks TLS",
            ) from None
        except (TimeoutError, OSError) as exc:
            raise Unreachable(
                f"the engine at {self} can't be reached: {_reason(exc)}",
                hint="check that it runs and that the network leads there",
            ) from None


def _reason(exc: BaseException) -> str:
    cause = exc.__cause__ or exc
    text = getattr(cause, "strerror", None) or str(cause)
    return str(text) or type(cause).__name__


def path_of(*parts: str, query: Mapping[str, Any] | None = None) -> str:
    """Return a request target: parts quoted, values that are None left out, dicts as JSON."""
    target = "/" + "/".join(quote(part, safe="") for part in parts)
    pairs = {
        key: json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        for key, value in (query or {}).items()
        if value is not None
    }
    # A path in a container may be any bytes.
    return f"{target}?{urlencode(pairs, errors='surrogateescape')}" if pairs else target


class Connection:
    """One connection: one exchange after the other, the last of which may take the stream over.

    Attributes:
        headers: of the last answer, their names in lower case.
    """

    headers: Mapping[str, str]

    def __init__(self, stream: ByteStream, sock: EngineSocket, endpoint: Endpoint) -> None:
        self._stream = stream
        self._socket = sock
        self._endpoint = endpoint
        self._h11 = h11.Connection(h11.CLIENT)
        self._sent = False

    async def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request and return the head of the answer; `read` gives the rest.

        Args:
            method: of HTTP.
            target: from `path_of`.
            body: None, an object to be sent as JSON, bytes, or an iterable of bytes.
            headers: besides the usual ones.

        Raises:
            Unreachable: the connection broke; `effect` unknown, for the request may have arrived.
        """
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        lines = {"Host": "engine", "User-Agent": "pinfold", **(headers or {})}
        chunks: Body = b""
        if isinstance(body, AsyncIterable):
            lines |= {"Transfer-Encoding": "chunked"}
            chunks = body
        elif body is not None:
            if not isinstance(body, bytes):
                lines |= {"Content-Type": "application/json"}
                body = json.dumps(body).encode()
            lines |= {"Content-Length": str(len(body))}
            chunks = body
        elif method != "GET":
            lines |= {"Content-Length": "0"}
        head = h11.Request(method=method, target=target, headers=list(lines.items()))
        self._sent = True
        try:
            return await self._exchange(head, chunks)
        except (anyio.BrokenResourceError, anyio.EndOfStream, h11.RemoteProtocolError) as exc:
            raise self._broken(exc) from None

    async def _exchange(self, head: h11.Request, chunks: Body) -> Response:
        first = self._h11.send(head) or b""
        end = h11.EndOfMessage()
        with suppress(anyio.BrokenResourceError):  # refused before its end: the answer says why
            if isinstance(chunks, bytes):
                data = self._h11.send(h11.Data(data=chunks)) if chunks else b""
                await self._stream.send(first + (data or b"") + (self._h11.send(end) or b""))
            else:
                await self._stream.send(first)
                async for chunk in chunks:
                    await self._stream.send(self._h11.send(h11.Data(data=chunk)) or b"")
                await self._stream.send(self._h11.send(end) or b"")
        while True:
            event = await self._event()
            if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
                continue
            if isinstance(event, (h11.Response, h11.InformationalResponse)):
                self.headers = {k.decode().lower(): v.decode("latin-1") for k, v in event.headers}
                return Response(status=event.status_code, headers=self.headers)
            raise anyio.EndOfStream

    async def _event(self) -> Any:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._stream.receive(CHUNK_BYTES)
            except anyio.EndOfStream:
                data = b""
            self._h11.receive_data(data)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the answer's body as it comes.

        Raises:
            Unreachable: the connection broke before its end.
        """
        try:
            while True:
                event = await self._event()
                if not isinstance(event, h11.Data):
                    break
                yield bytes(event.data)
        except (anyio.BrokenResourceError, h11.RemoteProtocolError) as exc:
            raise self._broken(exc) from None

    async def read(self) -> bytes:
        """Return the answer's body."""
        return b"".join([chunk async for chunk in self.chunks()])

    def take_over(self) -> tuple[ByteStream, EngineSocket, bytes]:
        """Return the stream for what comes after a 101, and what has come of it already."""
        rest, _ = self._h11.trailing_data
        return self._stream, self._socket, bytes(rest)

    def _broken(self, exc: BaseException) -> PinfoldError:
        if isinstance(exc.__cause__, ssl.SSLError):  # TLS 1.3 says no after the handshake
            return Unauthorized(
                f"the engine at {self._endpoint} does not accept us: {_reason(exc)}",
                hint="check cert and key of the connection: the engine's own ca must have signed",
            )
        return Unreachable(
            f"the connection to the engine at {self._endpoint} broke: {_reason(exc)}",
            hint="the engine may have been restarted",
            effect=Effect.UNKNOWN,
        )

    async def aclose(self) -> None:
        self._socket.close()


@asynccontextmanager
async def opened(endpoint: Endpoint) -> AsyncIterator[Connection]:
    """Open a connection and close it at the end."""
    connection = await endpoint.connect()
    try:
        yield connection
    finally:
        await connection.aclose()
