"""One physical incarnation of a sandbox's compute, and the powers it may have besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import attrs

from pinfold.errors import InvalidArgument
from pinfold.provider._capabilities import Features
from pinfold.provider._exec import ExecRequest, ExecResult, Sink
from pinfold.provider._files import Files
from pinfold.provider._tree import Tree
from pinfold.spec import JsonObject, freeze

if TYPE_CHECKING:
    from pinfold.connections import Connection

__all__ = [
    "Context",
    "Details",
    "Endpoint",
    "Instance",
    "InstanceRef",
    "InstanceStatus",
    "Owner",
    "Pausable",
    "Ports",
    "Snapshots",
    "Terminal",
    "TerminalSize",
    "Terminals",
]

_MOST_CELLS: Final = 65_535  # a terminal keeps its size in 16 bits


@attrs.frozen(kw_only=True)
class Owner:
    """Whose an instance is; every instance carries it as labels (LC-9).

    Attributes:
        store: the uuid of the store, or of the ephemeral register, that it belongs to.
        sandbox: the sandbox's id; null when asking for all of a store's instances.
    """

    store: str
    sandbox: str | None = None


@attrs.frozen(kw_only=True)
class InstanceRef:
    """Enough to find an instance again: plain data, at most 64 KiB as JSON, no secret.

    Attributes:
        provider: the provider's name.
        id: the provider's own name for it: a container id, a folder, a machine's id.
        data: whatever else the provider needs to attach to it.
        sandbox: the sandbox it was made for, where the provider can tell.
    """

    provider: str
    id: str
    data: JsonObject = attrs.field(factory=lambda: freeze({}), converter=freeze)
    sandbox: str | None = None


class InstanceStatus(StrEnum):
    """What a provider observes (LC-5): only ABSENT is definite absence."""

    RUNNING = "running"
    PAUSED = "paused"  # stopped counts as paused
    ABSENT = "absent"
    UNREACHABLE = "unreachable"


@attrs.frozen(kw_only=True)
class Details:
    """What the views tell of an instance besides the contract's fields (TR-2).

    Attributes:
        helper: which helper carries its operations, or null.
        lacks: what the target lacks, each with what it costs; empty when nothing is missing.
    """

    helper: str | None = None
    lacks: tuple[str, ...] = ()


async def _register_nowhere(_: InstanceRef) -> None:
    return None


def _no_connection(_: str) -> Awaitable[Connection]:
    from pinfold.errors import NotFound

    raise NotFound("no connection can be resolved here")


@attrs.frozen(kw_only=True)
class Context:
    """What core hands to a provider that makes or finds an instance.

    Attributes:
        owner: to be put on the instance as labels.
        generation: of the instance to be; results carry it.
        register: to be awaited with the ref *before* the effect it names, so that a crash or a
            cancellation in between leaves nothing unknown (LC-9).
        connect: connection id to its values, resolved at the moment of use (PR-5).
        connection_id: the connection that is meant, where no spec says so: in `list`, `destroy`.
    """

    owner: Owner
    generation: int = 1
    register: Callable[[InstanceRef], Awaitable[None]] = attrs.field(
        default=_register_nowhere, repr=False
    )
    connect: Callable[[str], Awaitable[Connection]] = attrs.field(
        default=_no_connection, repr=False
    )
    connection_id: str | None = None


class Instance(ABC):
    """One incarnation of compute.

    Attributes:
        ref: enough to find it again.
        features: in force here (PR-7); at least what the descriptor promises for its spec.
        files: its files (FS).
        tree: its workspace as a whole (CP).
        details: what the views tell besides.
    """

    ref: InstanceRef
    features: Features
    files: Files
    tree: Tree
    details: Details = Details()

    @abstractmethod
    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        """Run one command to its end (EX).

        Args:
            request: the command.
            sink: gets the output while the command runs; the result then keeps none of it (EX-15).

        Returns:
            The result of a command that ran, whatever its exit code (EX-1).

        Raises:
            InvalidArgument: malformed, or a cwd outside; nothing was run (EX-3).
            TooLarge: one past a limit; nothing was run.
            NotFound, NotADirectory: the cwd; nothing was run.
            Unimplemented: this target runs no commands; nothing was run.
            Lost, Unreachable: nothing was run (`effect` none).
            OutcomeUnknown: it may have run (EX-14).

        On cancellation the whole tree is killed before it propagates, within 5 s (EX-5).
        """

    @abstractmethod
    async def status(self) -> InstanceStatus:
        """Say what is observed now; does not raise for a target that is away (LC-5)."""

    @abstractmethod
    async def destroy(self) -> None:
        """End it and everything of it; idempotent.

        Raises:
            Unreachable: it may still be there.
        """

    async def detach(self) -> None:
        """Let go of the instance and leave it as it is: free connections, threads, descriptors.

        Where `attach` is absent this is the same as `destroy`.
        """
        if not self.features.attach:
            await self.destroy()


class Pausable(ABC):
    """An instance that can be paused; present exactly with the feature `pause`."""

    @abstractmethod
    async def pause(self) -> None:
        """Stop it, keeping its files; idempotent. Processes may be lost (LC-1).

        Raises:
            Unreachable: it may or may not be paused (`effect` unknown).
        """

    @abstractmethod
    async def resume(self) -> bool:
        """Start it again; idempotent.

        Returns:
            Whether processes were lost.

        Raises:
            Lost: it is definitely gone.
            Unreachable: it may or may not run (`effect` unknown).
        """


@attrs.frozen
class TerminalSize:
    """A terminal's size, in character cells: 0 (not known) to 65,535.

    Raises:
        InvalidArgument: it is none that a terminal can have.
    """

    rows: int = 24
    columns: int = 80

    def __attrs_post_init__(self) -> None:
        for name, cells in (("rows", self.rows), ("columns", self.columns)):
            if type(cells) is not int or not 0 <= cells <= _MOST_CELLS:
                raise InvalidArgument(
                    f"a terminal's {name} are a number from 0 to {_MOST_CELLS}, not {cells!r}"
                )


class Terminal(ABC):
    """An open terminal: bytes in, bytes out."""

    @abstractmethod
    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next output, 1 to `max_bytes` bytes.

        Raises:
            anyio.EndOfStream: the shell has ended.
        """

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Type `data`.

        Raises:
            anyio.BrokenResourceError: the shell has ended.
        """

    @abstractmethod
    async def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size."""

    @abstractmethod
    async def wait(self) -> int:
        """Return the shell's exit code, 128+n for a signal, once it has ended."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the shell and what runs in its foreground; idempotent."""


class Terminals(ABC):
    """An instance with terminals; present exactly with the capability and feature `pty`."""

    @abstractmethod
    async def open_terminal(
        self, request: ExecRequest | None = None, size: TerminalSize = TerminalSize()
    ) -> Terminal:
        """Start the target's shell, or a command, in a new terminal in the workspace.

        Only argv, shell, cwd and env of the request are used.

        Raises:
            InvalidArgument, NotFound: as `Instance.exec`.
        """


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where a port of the sandbox is reached from outside.

    Attributes:
        port: inside.
        url: outside, `tcp://HOST:PORT` or `https://…`.
    """

    port: int
    url: str


class Ports(ABC):
    """An instance whose ports can be reached; present exactly with the capability `ports`."""

    @abstractmethod
    async def expose(self, port: int) -> Endpoint:
        """Make a port reachable; idempotent.

        Raises:
            InvalidArgument: not 1..65535, or one that was not declared where that is needed.
        """


class Snapshots(ABC):
    """An instance with the provider's own snapshots (LC-4)."""

    @abstractmethod
    async def snapshot(self) -> str:
        """Take one and return its id."""

    @abstractmethod
    async def restore_snapshot(self, snapshot_id: str) -> None:
        """Go back to one.

        Raises:
            NotFound: there is no such snapshot.
        """
