"""An exec with a terminal."""

from __future__ import annotations

from typing import Final, Protocol

import anyio

from pinfold.provider import Terminal, TerminalSize
from pinfold_docker._engine import Engine, Hijacked
from pinfold_docker._http import EngineError

__all__ = ["DockerTerminal"]

RESIZE_SECONDS: Final = 5.0
#: The kernel hangs up on what is in the front when the shell, which leads the session, ends.
HANG_UP: Final = """
read -r p <"$1" && rm -f "$1" && kill -HUP "$p" && for i in 1 2 3 4 5; do
  kill -0 "$p" || exit 0
  sleep 0.05
done && kill -KILL "$p" 2>/dev/null"""


class Place(Protocol):
    """What a terminal needs of the container that it is in."""

    engine: Engine

    async def run(self, script: str, *args: str) -> None:
        """Run a shell script to its end; never raises."""

    async def exit_code(self, exec_id: str, *, broken: bool) -> int:
        """Return an exec's exit code once it has one that can be believed."""


class DockerTerminal(Terminal):
    """An exec with a terminal: one stream, not multiplexed."""

    def __init__(self, place: Place, exec_id: str, stream: Hijacked, pidfile: str) -> None:
        self._place = place
        self._exec_id = exec_id
        self._stream = stream
        self._pidfile = pidfile
        self._closed = self._broken = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            raise
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._broken = True
            raise anyio.EndOfStream from None

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except anyio.ClosedResourceError:
            raise anyio.BrokenResourceError from None

    async def resize(self, size: TerminalSize) -> None:
        query = {"h": size.rows, "w": size.columns}
        with anyio.move_on_after(RESIZE_SECONDS):
            while True:
                try:
                    await self._place.engine.call(
                        "POST", "exec", self._exec_id, "resize", query=query
                    )
                except EngineError:
                    if await self._has_ended():
                        return
                    await anyio.sleep(0.01)  # not started yet
                else:
                    return

    async def _has_ended(self) -> bool:
        try:
            facts = await self._place.engine.call("GET", "exec", self._exec_id, "json")
        except EngineError:
            return True
        return facts.get("ExitCode") is not None

    async def wait(self) -> int:
        if not self._closed:
            while True:
                try:
                    await self.receive()
                except anyio.EndOfStream:
                    break
        return await self._place.exit_code(self._exec_id, broken=self._broken)

    async def aclose(self) -> None:
        """Hang up: the shell gets HUP, then KILL; the kernel hangs up on what is in the front."""
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        await self._place.run(HANG_UP, self._pidfile)
