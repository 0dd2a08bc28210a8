"""How host sandboxes are tested (group `pinfold.lanes`): `host-none` and `host-native`."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat as st
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread

from pinfold.errors import Internal
from pinfold.provider import Instance, InstanceRef, Provider
from pinfold.spec import (
    Containment,
    Durability,
    Filesystem,
    Kind,
    Level,
    Network,
    NetworkMode,
    Spec,
    Target,
    WritableRoot,
)
from pinfold.testing import FolderWitness, Lane, Witness
from pinfold_host import provider
from pinfold_host._boundary import Network as Way
from pinfold_host._instance import HostInstance

__all__ = ["HostLane", "HostWitness", "native", "none"]


class HostWitness(FolderWitness):
    """The operating system's own view of several folders, with an owner for what is put there.

    Args:
        folders: where each root really is, by its path in the caller's view.
        owner: whom files are to belong to; null for this process's user.
    """

    def __init__(self, folders: dict[PurePosixPath, Path], owner: int | None) -> None:
        self._folders = folders
        self._owner = owner

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file there."""
        place = self._make_parents(path)
        await anyio.Path(place).write_bytes(data)
        self._give(place)

    async def link(self, path: PurePosixPath, target: str) -> None:
        """Put a link there."""
        place = self._make_parents(path)
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
        place.symlink_to(target)
        self._give(place)

    def place(self, path: PurePosixPath) -> Path:
        """Return where a path of the caller's view really is."""
        for root, folder in self._folders.items():
            if path == root or root in path.parents:
                return folder / path.relative_to(root)
        raise Internal(f"{path} is in none of the roots")

    def _make_parents(self, path: PurePosixPath) -> Path:
        place = self.place(path)
        for parent in reversed(place.parents):
            if not parent.exists():
                parent.mkdir(mode=0o755)
                self._give(parent)
        return place

    def _give(self, place: Path) -> None:
        if self._owner is not None:
            os.chown(place, self._owner, self._owner, follow_symlinks=False)


class HostLane(Lane):
    """One level of the host provider, with every network mode and durability that it claims.

    Args:
        level: the level.
    """

    provider: Provider = provider

    def __init__(self, level: Level) -> None:
        self.name = f"host-{level}"
        self._level = level
        modes = [NetworkMode.ALLOW]
        roots: tuple[WritableRoot, ...] = ()
        if level is Level.NATIVE:
            modes.insert(0, NetworkMode.DENY)
            roots = (WritableRoot("/scratch"),)
        self.specs = tuple(
            Spec(
                target=Target(kind=Kind.HOST, provider="host"),
                containment=Containment(
                    level=level,
                    network=Network(mode=mode),
                    filesystem=Filesystem(writable_roots=roots),
                ),
                durability=durability,
            )
            for mode in modes
            for durability in (Durability.NONE, Durability.CHECKPOINTED)
        )

    async def unavailable(self) -> str | None:
        """Return why this level can't be had here, or None."""
        found = await self.provider.probe()
        if not found.available:
            return found.reason
        if found.levels is not None and self._level not in found.levels:
            return str(found.details.get("native", "level native is not available"))
        return None

    async def reset(self, instance: Instance) -> None:
        """End what runs, and empty every folder."""
        host = _host(instance)
        await host.end_jobs()
        for folder in [*_folders(host).values(), host.place.folder / "tmp"]:
            if folder.exists():
                await anyio.to_thread.run_sync(_empty, folder)

    def witness(self, instance: Instance) -> Witness:
        """Return the way past the provider's own files."""
        host = _host(instance)
        return HostWitness(_folders(host), host.owner)

    def listener_address(self, instance: Instance) -> str:
        """Return where a listener of ours would be: on this machine's loopback, where shared."""
        return _own_address() if _host(instance).network == Way.SLIRP else "127.0.0.1"

    async def lose(self, ref: InstanceRef) -> bool:
        """End its processes and remove its folder, behind its controller's back."""
        await self.provider.destroy(ref)
        return True


def _host(instance: Instance) -> HostInstance:
    if not isinstance(instance, HostInstance):
        raise Internal(f"{type(instance).__name__} is no instance of the host provider")
    return instance


def _folders(host: HostInstance) -> dict[PurePosixPath, Path]:
    return {root.caller: Path(root.folder) for root in host.roots.roots}


def _empty(folder: Path) -> None:
    """Remove all in a folder, whatever modes a guest has left; and open the folder itself."""
    folder.chmod(0o1777 if folder.name == "tmp" else 0o755)
    for entry in folder.iterdir():
        if not entry.is_dir() or entry.is_symlink():
            entry.unlink()
            continue
        for place, names, _ in os.walk(entry):
            for name in (".", *names):
                inner = Path(place, name)
                if not st.S_ISLNK(inner.lstat().st_mode):
                    inner.chmod(0o700)
        shutil.rmtree(entry)


def _own_address() -> str:
    """Return an address of this machine's own that is not loopback, else loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


none = HostLane(Level.NONE)
native = HostLane(Level.NATIVE)
