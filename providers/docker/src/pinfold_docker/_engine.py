"""The engine's API, as far as a sandbox needs it; every call is one connection."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import anyio
from anyio.abc import ByteStream

from pinfold.errors import Effect, Unavailable, Unreachable
from pinfold_docker._http import Body, Connection, Endpoint, EngineError, opened, path_of
from pinfold_docker._socket import EngineSocket

__all__ = ["API_NEWEST", "API_OLDEST", "CALL_SECONDS", "Engine", "Hijacked", "local_endpoint"]

#: Engine 20.10 speaks up to 1.41; 26.1, the newest that was tested, up to 1.45.
API_OLDEST: Final = (1, 41)
API_NEWEST: Final = (1, 45)
CALL_SECONDS: Final = 60.0
#: It costs an engine more than a create does to say what it is.
FACTS_SECONDS: Final = 10.0
DEFAULT_SOCKET: Final = "/var/run/docker.sock"

Query = Mapping[str, Any]


def local_endpoint(environ: Mapping[str, str] = os.environ) -> Endpoint:
    """Return where the local engine listens: DOCKER_HOST, a rootless socket, or the usual one.

    Raises:
        Unavailable: DOCKER_HOST names an engine that is not local.
    """
    host = environ.get("DOCKER_HOST", "")
    if host:
        scheme, _, rest = host.partition("://")
        if scheme == "unix" and rest.startswith("/"):
            return Endpoint(path=rest)
        raise Unavailable(
            f"DOCKER_HOST is {scheme or 'no'}://…; only a local engine is taken from there",
            hint="register a connection for a remote engine (host, ca, cert, key), and name it in "
            "target.connection_id",
            retryable=False,
        )
    rootless = Path(environ.get("XDG_RUNTIME_DIR", "/nowhere"), "docker.sock")
    if not Path(DEFAULT_SOCKET).exists() and rootless.exists():
        return Endpoint(path=str(rootless))
    return Endpoint(path=DEFAULT_SOCKET)


class Hijacked:
    """The two-way stream of an exec, once the engine has switched to it."""

    def __init__(self, stream: ByteStream, sock: EngineSocket, first: bytes) -> None:
        self._stream = stream
        self._socket = sock
        self._first = first

    async def receive(self, max_bytes: int = 256 * 1024) -> bytes:
        """Return what comes next.

        Raises:
            anyio.EndOfStream: nothing does.
            anyio.BrokenResourceError: the connection broke.
        """
        if self._first:
            data, self._first = self._first, b""
            return data
        return await self._stream.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    def send_now(self, data: bytes) -> int:
        """Send as much as goes without waiting; nothing where it has to be encrypted."""
        return self._socket.send_now(data) if self._stream is self._socket else 0

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    def has_ended(self) -> bool:
        """Say whether the engine has ended it, without reading on."""
        return self._socket.has_ended()

    def close(self) -> None:
        """Close it at once; idempotent."""
        self._socket.close()


class Engine:
    """One engine; belongs to no event loop and holds no connection.

    Every call may raise `Unauthorized` and `Unreachable`, and `EngineError` for what the engine
    itself refuses.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._prefix = ""
        self._facts: dict[str, Any] = {}
        self._asked = -FACTS_SECONDS

    async def facts(self) -> dict[str, Any]:
        """Return what the engine says of itself, asked anew after a while."""
        now = monotonic()
        if now - self._asked >= FACTS_SECONDS:
            self._facts = await self.call("GET", "info")
            self._asked = now
        return self._facts

    def forget(self) -> None:
        """Ask anew, the next time, what engine it is: it may have been replaced."""
        self._prefix, self._asked = "", -FACTS_SECONDS

    async def version(self) -> str:
        """Return the API version that both sides speak, `v1.41`.

        Raises:
            Unavailable: the engine is too old.
        """
        if not self._prefix:
            async with opened(self.endpoint) as connection:
                response = await connection.request("GET", "/_ping")
                await connection.read()
            text = response.headers.get("api-version", "")
            try:
                theirs = tuple(int(part) for part in text.split("."))
            except ValueError:
                theirs = ()
            if response.status != 200 or theirs < API_OLDEST:
                raise Unavailable(
                    f"what listens at {self.endpoint} is no Docker engine of 20.10 or later "
                    f"(status {response.status}, API {text or 'unknown'})",
                    hint="update the engine",
                    retryable=False,
                )
            self._prefix = "v{}.{}".format(*min(theirs, API_NEWEST))
        return self._prefix

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        *parts: str,
        query: Query | None = None,
        body: Body | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = CALL_SECONDS,
    ) -> AsyncIterator[Connection]:
        """One request, its answer's body still to be read.

        Raises:
            EngineError: any status of 400 and above.
        """
        version = await self.version()
        try:
            with anyio.fail_after(seconds):
                async with opened(self.endpoint) as connection:
                    await self.send(
                        connection,
                        method,
                        *parts,
                        query=query,
                        body=body,
                        headers=headers,
                        version=version,
                    )
                    yield connection
        except TimeoutError:
            raise Unreachable(
                f"the engine at {self.endpoint} did not answer {method} /{'/'.join(parts)} "
                f"within {seconds:g} seconds",
                hint="it may be overloaded or restarting",
                effect=Effect.UNKNOWN,
            ) from None

    async def send(
        self,
        connection: Connection,
        method: str,
        *parts: str,
        version: str,
        query: Query | None = None,
        body: Body | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Send a request on a connection and hold its answer to what is no error."""
        target = path_of(version, *parts, query=query)
        response = await connection.request(method, target, body, headers=headers)
        if response.status >= 400:
            raise _error(response.status, await connection.read())
        return response.status

    async def call(
        self,
        method: str,
        *parts: str,
        query: Query | None = None,
        body: Body | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = CALL_SECONDS,
    ) -> Any:
        """Send a request and return its answer's JSON, or None."""
        async with self.exchange(
            method, *parts, query=query, body=body, headers=headers, seconds=seconds
        ) as connection:
            answer = await connection.read()
        return json.loads(answer) if answer.strip() else None

    async def exec(
        self, container: str, config: Mapping[str, Any], *, tty: bool = False
    ) -> tuple[str, Hijacked]:
        """Create and start an exec, and take its stream over: two requests on one connection.

        Returns:
            The exec's id and its stream, which the caller closes.

        Raises:
            EngineError: refused; nothing was started.
            Unreachable: `effect` none until the start was sent, then unknown.
        """
        version = await self.version()
        connection = await self.endpoint.connect()
        try:
            try:
                await self.send(
                    connection,
                    "POST",
                    "containers",
                    container,
                    "exec",
                    version=version,
                    body=config,
                )
                exec_id = json.loads(await connection.read())["Id"]
            except Unreachable as exc:  # an exec that was only created runs nothing
                exc.effect = Effect.NONE
                raise
            await self.send(
                connection,
                "POST",
                "exec",
                exec_id,
                "start",
                version=version,
                body={"Detach": False, "Tty": tty},
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            )
            stream, sock, first = connection.take_over()
            sock.guard()
            return exec_id, Hijacked(stream, sock, first)
        except BaseException:
            await connection.aclose()
            raise


def _error(status: int, body: bytes) -> EngineError:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace").strip() or "the engine gives no reason"
    return EngineError(status, str(message))
