"""A sandbox, its streams and its terminals, without async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

import anyio

from pinfold.blocking._files import BlockingFiles
from pinfold.blocking._portal import Facade, call, pull
from pinfold.provider import Capabilities, Features, Terminal, TerminalSize
from pinfold.sandbox import Chunk, ExecStream, Sandbox
from pinfold.spec import EXEC_TIMEOUT_SECONDS, WORKSPACE, PinnedSpec

__all__ = ["BlockingSandbox", "BlockingStream", "BlockingTerminal"]


class BlockingStream(Facade):
    """A command's output while it runs; see `pinfold.sandbox.ExecStream`."""

    result = call(ExecStream.result)

    def __iter__(self) -> Iterator[Chunk]:
        return pull(self._portal, self._target)


class BlockingTerminal(Facade):
    """An open terminal; iterate over its output, or see `pinfold.provider.Terminal`."""

    receive = call(Terminal.receive)
    send = call(Terminal.send)
    resize = call(Terminal.resize)
    wait = call(Terminal.wait)
    aclose = call(Terminal.aclose)

    def __iter__(self) -> Iterator[bytes]:
        return pull(self._portal, _output(self._target))


async def _output(terminal: Terminal) -> AsyncIterator[bytes]:
    while True:
        try:
            data = await terminal.receive()
        except anyio.EndOfStream:
            return
        yield data


class BlockingSandbox(Facade):
    """A sandbox; `pinfold.Sandbox` says what each call does and raises."""

    _target: Sandbox

    exec = call(Sandbox.exec)
    expose = call(Sandbox.expose)
    view = call(Sandbox.view)
    environment = call(Sandbox.environment)
    events = call(Sandbox.events)
    close = call(Sandbox.close)

    @property
    def id(self) -> str:
        """`sbx_` and 32 hex digits."""
        return self._target.id

    @property
    def name(self) -> str:
        """The profile's name, the name given, or `inline`."""
        return self._target.name

    @property
    def pinned(self) -> PinnedSpec:
        """What it was made from; immutable."""
        return self._target.pinned

    @property
    def capabilities(self) -> Capabilities:
        """The six facts (RS-7)."""
        return self._target.capabilities

    @property
    def features(self) -> Features:
        """The features in force (PR-7)."""
        return self._target.features

    @property
    def generation(self) -> int:
        """The number of the physical incarnation (LC-1)."""
        return self._target.generation

    @property
    def files(self) -> BlockingFiles:
        """Its files (FS)."""
        return BlockingFiles(self._portal, self._target.files)

    @contextmanager
    def stream(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        cwd: PurePosixPath | str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_seconds: float | None = EXEC_TIMEOUT_SECONDS,
    ) -> Iterator[BlockingStream]:
        """Run one command and yield its output while it runs; see `Sandbox.stream`."""
        stream = self._target.stream(
            argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds
        )
        with self._held(stream) as chunks:
            yield BlockingStream(self._portal, chunks)

    @contextmanager
    def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        cwd: PurePosixPath | str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        size: TerminalSize = TerminalSize(),  # noqa: B008 - frozen
    ) -> Iterator[BlockingTerminal]:
        """Open a terminal for the length of a block; see `Sandbox.terminal`."""
        with self._held(self._target.terminal(argv, cwd=cwd, env=env, size=size)) as terminal:
            yield BlockingTerminal(self._portal, terminal)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Let all mutations of a block share one checkpoint; see `Sandbox.batch`."""
        with self._held(self._target.batch()):
            yield
