"""How bashkit sandboxes are tested (group `pinfold.lanes`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import anyio

from pinfold.provider import Instance, InstanceRef, Provider
from pinfold.spec import (
    Containment,
    Durability,
    HostPattern,
    Kind,
    Level,
    Network,
    NetworkMode,
    Spec,
    Target,
)
from pinfold.testing import Lane, Witness
from pinfold_bashkit import provider
from pinfold_bashkit._instance import BashkitInstance
from pinfold_bashkit._vfs import Vfs

__all__ = ["BashkitLane", "BashkitWitness", "lane"]

_HEARTBEAT_SECONDS: Final = 1.5


class BashkitWitness(Witness):
    """Reads and writes the virtual file system through bashkit's own interface, not our files."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs

    async def read(self, path: PurePosixPath) -> bytes:
        """Return a file's bytes, its path taken by the letter."""
        try:
            return self._vfs.root.read_file(str(path))
        except RuntimeError as exc:
            raise FileNotFoundError(str(path)) from exc

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file there."""
        self._vfs.changes += 1
        self._vfs.root.mkdir(str(path.parent), recursive=True)
        self._vfs.root.write_file(str(path), data)

    async def list(self, path: PurePosixPath) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        return sorted(entry["name"] for entry in self._vfs.root.read_dir(str(path)))

    async def link(self, path: PurePosixPath, target: str) -> None:
        """Put a link there."""
        self._vfs.changes += 1
        self._vfs.root.symlink(target, str(path))

    async def is_alive(self, heartbeat: PurePosixPath) -> bool:
        """Say whether a file still grows."""
        deadline = time.monotonic() + _HEARTBEAT_SECONDS
        before = await self.read(heartbeat)
        while time.monotonic() < deadline:
            await anyio.sleep(0.05)
            if await self.read(heartbeat) != before:
                return True
        return False


class BashkitLane(Lane):
    """Both network modes and both durabilities."""

    name = "bashkit"
    provider: Provider = provider
    specs: Sequence[Spec] = tuple(
        Spec(
            # So that a listener on this machine's port 80 can prove what an allowlist allows.
            target=Target(kind=Kind.VFS, provider="bashkit", options={"private_hosts": True}),
            containment=Containment(level=Level.ISOLATED, network=network),
            durability=durability,
        )
        for network, durability in (
            (Network(mode=NetworkMode.DENY), Durability.CHECKPOINTED),
            (Network(mode=NetworkMode.DENY), Durability.NONE),
            (
                Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=(HostPattern("localhost"),)),
                Durability.CHECKPOINTED,
            ),
        )
    )

    async def unavailable(self) -> str | None:
        """Return why bashkit can't be used here, or None."""
        found = await self.provider.probe()
        return None if found.available else found.reason

    async def reset(self, instance: Instance) -> None:
        """Give an instance blank files; it has no processes."""
        vfs = _vfs(instance)
        vfs.root = vfs.blank()

    def witness(self, instance: Instance) -> Witness:
        """Return the way past our own files."""
        return BashkitWitness(_vfs(instance))

    def listener_address(self, instance: Instance) -> str | None:
        """Return where it would find a listener of ours, if it could."""
        return "127.0.0.1"

    async def lose(self, ref: InstanceRef) -> bool:
        """Drop it behind its controller's back."""
        await self.provider.destroy(ref)
        return True


def _vfs(instance: Instance) -> Vfs:
    if not isinstance(instance, BashkitInstance):
        raise TypeError(f"{instance!r} is no bashkit sandbox")
    return instance.vfs


lane = BashkitLane()
