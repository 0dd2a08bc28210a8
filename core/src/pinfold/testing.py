"""How a target under test is made, watched from outside and broken on purpose (PR-1).

A provider ships its `Lane` under the entry-point group `pinfold.lanes`; a test suite finds it
there. Nothing here imports a test framework, and a provider needs no suite at run time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import anyio

from pinfold.provider import Context, Instance, InstanceRef, Provider
from pinfold.spec import WORKSPACE, PinnedSpec, Spec

__all__ = ["FolderWitness", "Lane", "Witness"]

_LOOKS: Final = 24
_LOOK_SECONDS: Final = 0.05


class Witness(ABC):
    """A second way to the same place, past the code under test.

    It lets a check tell a wrong write from a wrong read. Paths are the caller's view.
    """

    @abstractmethod
    async def read(self, path: PurePosixPath) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    async def write(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file there; parents are made."""

    @abstractmethod
    async def list(self, path: PurePosixPath) -> Sequence[str]:
        """Return the names in a directory, sorted."""

    @abstractmethod
    async def link(self, path: PurePosixPath, target: str) -> None:
        """Put a symbolic link there, with this text."""

    @abstractmethod
    async def is_alive(self, heartbeat: PurePosixPath) -> bool:
        """Say whether a file still grows, by reading it twice within a second or so."""


class FolderWitness(Witness):
    """The operating system's own view of a workspace that is a folder of this machine.

    A subclass whose workspace is not alone overrides `place`.

    Args:
        workspace: the folder.
    """

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace

    def place(self, path: PurePosixPath) -> Path:
        """Return where a path of the caller's view really is."""
        return self._workspace / path.relative_to(WORKSPACE)

    async def read(self, path: PurePosixPath) -> bytes:
        return await self._at(path).read_bytes()

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        await self._at(path).parent.mkdir(parents=True, exist_ok=True)
        await self._at(path).write_bytes(data)

    async def list(self, path: PurePosixPath) -> Sequence[str]:
        return sorted([entry.name async for entry in self._at(path).iterdir()])

    async def link(self, path: PurePosixPath, target: str) -> None:
        await self._at(path).symlink_to(target)

    async def is_alive(self, heartbeat: PurePosixPath) -> bool:
        before = (await self._at(heartbeat).stat()).st_size
        for _ in range(_LOOKS):
            await anyio.sleep(_LOOK_SECONDS)
            if (await self._at(heartbeat).stat()).st_size != before:
                return True
        return False

    def _at(self, path: PurePosixPath) -> anyio.Path:
        return anyio.Path(self.place(path))


class Lane(ABC):
    """One target to be tested: a provider, and the specs that cover what it claims.

    Attributes:
        name: the entry point's name; a provider with several lanes names them `host-none`, ….
        provider: the provider under test.
        specs: one per level, network mode and durability claimed; the first is the usual one.
        allow_attacks: break-out attempts may be made against this target.
    """

    name: str
    provider: Provider
    specs: Sequence[Spec]
    allow_attacks: bool = True

    @abstractmethod
    async def unavailable(self) -> str | None:
        """Return why the target can't be tested here, or None."""

    async def make(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        """Make a fresh instance."""
        return await self.provider.create(pinned, ctx)

    @abstractmethod
    async def reset(self, instance: Instance) -> None:
        """Bring an instance back to how `make` gave it: files, processes, everything."""

    def witness(self, instance: Instance) -> Witness | None:
        """Return the second way in, or None where there is none."""
        return None

    def listener_address(self, instance: Instance) -> str | None:
        """Return the address at which a listener of ours would be, seen from inside."""
        return None

    async def lose(self, ref: InstanceRef) -> bool:
        """Destroy the compute behind the controller's back; False where that can't be done."""
        return False

    async def cut(self, ref: InstanceRef) -> bool:
        """Cut the connection to it for a moment; False where that can't be done."""
        return False
