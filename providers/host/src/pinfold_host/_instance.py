"""Instances of the host provider, put together from a guest, files and a tree."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs

from pinfold.posix import Equipment, Gate, PosixTerminalInstance, equip
from pinfold.provider import (
    Context,
    Instance,
    InstanceRef,
    InstanceStatus,
    roots_of,
)
from pinfold.spec import WORKSPACE, Limits, ResolvedSpec
from pinfold_host import _seccomp
from pinfold_host._beneath import Root, Roots
from pinfold_host._boundary import TMP, Network, bubblewrap_argv, etc_files, slirp_argv
from pinfold_host._features import features_of
from pinfold_host._files import DirectFiles
from pinfold_host._linux import O_PATH, Identity
from pinfold_host._local import LocalGuest
from pinfold_host._native import Launcher, NativeGuest
from pinfold_host._options import HostOptions, options_of
from pinfold_host._place import PROBE_UID, Place, Record
from pinfold_host._processes import end_instance, start_time
from pinfold_host._restore import Restore
from pinfold_host._streams import Drain
from pinfold_host._tree import DirectTree

__all__ = ["make_local", "make_native", "take_local", "try_boundary"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What a command at level none sees of the controller's environment.
_PASSED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"}
)
_NATIVE_ENV: Final = {
    "HOME": TMP,
    "LANG": "C.UTF-8",
    "LOGNAME": "sandbox",
    "PATH": _PATH,
    "SHELL": "/bin/sh",
    "USER": "sandbox",
}
#: Where the launcher of a controller that is root sees the instance's folder.
_SEEN_AT: Final = "/tmp"  # noqa: S108  every system has it, and it is the launcher's own mount
_END_SECONDS: Final = 10.0


@attrs.frozen(kw_only=True)
class Held:
    """What an instance holds, and lets go of when it is destroyed.

    Attributes:
        place: its folder.
        roots: what may be reached by file operations, the workspace first.
        owner: whose its files are, uid and gid; null for this process's user.
        network: how the network is had, a word of `Network`; empty where it is the host's own.
        launcher: holds the boundary at level native.
        drain: reads on for jobs that outlive their exec.
        gate: closed while a restore is under way.
    """

    place: Place
    roots: Roots
    owner: int | None = None
    network: str = ""
    launcher: Launcher | None = None
    drain: Drain = attrs.field(factory=Drain)
    gate: Gate = attrs.field(factory=Gate)

    def files(self) -> DirectFiles:
        """Return the way to its files."""
        return DirectFiles(self.roots, Limits(), Identity(self.owner), self.gate)

    async def let_go(self) -> None:
        """End its processes and remove its folder."""
        if self.launcher is not None:
            await self.launcher.aclose()
        else:
            await anyio.to_thread.run_sync(end_instance, None, self.place.workspace, _END_SECONDS)
        self.drain.close()
        self.roots.close()
        await anyio.to_thread.run_sync(self.place.remove)


class HostInstance(PosixTerminalInstance):
    """One sandbox on this machine."""

    def __init__(self, ref: InstanceRef, equipment: Equipment, held: Held) -> None:
        super().__init__(ref, equipment)
        self._held = held
        self._is_destroyed = False

    @property
    def place(self) -> Place:
        """Its folder."""
        return self._held.place

    @property
    def roots(self) -> Roots:
        """Where its workspace and writable roots are."""
        return self._held.roots

    @property
    def owner(self) -> int | None:
        """Whose its files are; null for this process's user."""
        return self._held.owner

    @property
    def network(self) -> str:
        """How its network is had; empty where it is the host's own."""
        return self._held.network

    async def end_jobs(self) -> bool:
        """End what commands have left running; say whether there was anything."""
        guest = self.equipment.guest
        return isinstance(guest, (LocalGuest, NativeGuest)) and await guest.end_jobs()

    async def status(self) -> InstanceStatus:
        """Look whether the workspace and the boundary are there."""
        launcher = self._held.launcher
        if (
            self._is_destroyed
            or self._held.roots.are_lost()
            or (launcher is not None and not launcher.is_alive)
        ):
            return InstanceStatus.ABSENT
        return InstanceStatus.RUNNING

    async def detach(self) -> None:
        """Let go of the folder, and leave it and its jobs alone (feature `attach`)."""
        if not self.features.attach:
            await self.destroy()
        elif not self._is_destroyed:
            self._is_destroyed = True
            await anyio.to_thread.run_sync(self._held.drain.leave)
            self._held.roots.close()

    async def destroy(self) -> None:
        """End its processes and remove its folder."""
        if not self._is_destroyed:
            self._is_destroyed = True
            guest = self.equipment.guest
            with anyio.CancelScope(shield=True):
                await self._held.let_go()
                if isinstance(guest, NativeGuest):
                    guest.close()


async def make_local(place: Place, ref: InstanceRef, spec: ResolvedSpec, ctx: Context) -> Instance:
    """Make an instance of level none."""
    place.workspace.mkdir(mode=0o755)
    place.workspace.chmod(0o755)
    return await take_local(place, ref, spec, ctx)


async def take_local(place: Place, ref: InstanceRef, spec: ResolvedSpec, ctx: Context) -> Instance:
    """Take up an instance of level none, whoever made it.

    Raises:
        OSError: its folder is not there, or is no folder.
    """
    physical = PurePosixPath(place.workspace)
    options = options_of(spec)
    held = Held(place=place, roots=Roots([_root(WORKSPACE, physical, place.workspace)]))
    guest = LocalGuest(
        roots=held.roots,
        env={"PATH": _PATH, **_passed(options)},
        rlimits=options.rlimits.by_resource(),
        drain=held.drain,
        is_ending=lambda: place.is_ending,
    )
    return await _assemble(ref, spec, ctx, held, guest)


async def make_native(
    place: Place, ref: InstanceRef, spec: ResolvedSpec, ctx: Context, network: str
) -> Instance:
    """Make an instance of level native.

    Args:
        place: its folder, with its record in it.
        ref: what finds it again.
        spec: what it is to be.
        ctx: for whom.
        network: a word of `Network`.

    Raises:
        Unavailable: the boundary can't be built here.
    """
    record = place.read() or Record(store=ctx.owner.store)
    named = [(f"roots/{number}", root) for number, root in enumerate(roots_of(spec))]
    named = [("tmp" if str(root) == TMP else name, root) for name, root in named]
    _lay_out(place.folder, record.uid, [name for name, _ in named], network)
    launcher = await Launcher.start(_launch(place.folder, record.uid, named, network))
    try:
        place.write(attrs.evolve(record, launcher=(launcher.pid, start_time(launcher.pid))))
        roots = [_root(WORKSPACE, WORKSPACE, place.workspace)]
        roots += [_root(root, root, place.folder / name) for name, root in named]
        held = Held(
            place=place,
            roots=Roots(roots),
            owner=record.uid,
            network=network,
            launcher=launcher,
        )
        options = options_of(spec)
        passed = {name: os.environ[name] for name in options.pass_env if name in os.environ}
        guest = NativeGuest(
            launcher=launcher,
            env=_NATIVE_ENV | passed,
            files=held.files(),
            rlimits=options.rlimits.by_resource(),
            drain=held.drain,
        )
        return await _assemble(ref, spec, ctx, held, guest)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await launcher.aclose()
        raise


async def _assemble(
    ref: InstanceRef, spec: ResolvedSpec, ctx: Context, held: Held, guest: LocalGuest | NativeGuest
) -> Instance:
    restore = Restore(held.roots, held.place.folder, held.owner)
    equipment = await equip(
        guest,
        root=PurePosixPath(os.fsdecode(held.roots.roots[0].guest)),
        writable_roots=[root.caller for root in held.roots.roots[1:]],
        features=features_of(spec),
        generation=ctx.generation,
        shell_path="/bin/sh",
        files=held.files(),
        tree=DirectTree(held.roots, restore, guest, held.gate),
        gate=held.gate,
    )
    return HostInstance(ref, equipment, held)


async def try_boundary() -> None:
    """Build a boundary and take it down again.

    Raises:
        Unavailable: it can't be built here.
    """
    with tempfile.TemporaryDirectory(prefix="pinfold-probe-") as name:
        folder = Path(name)
        uid = PROBE_UID if os.geteuid() == 0 else None
        _lay_out(folder, uid, [], Network.NONE)
        launcher = await Launcher.start(_launch(folder, uid, [], Network.NONE))
        await launcher.aclose()


def _root(caller: PurePosixPath, guest: PurePosixPath, folder: Path) -> Root:
    fd = os.open(folder, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return Root(caller=caller, guest=os.fsencode(str(guest)), fd=fd, folder=str(folder))


def _passed(options: HostOptions) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith("LC_") or name in options.pass_env
    }


def _lay_out(folder: Path, uid: int | None, names: Sequence[str], network: str) -> None:
    """Make the folders that the boundary shows, the guest's own."""
    for name in ("workspace", "tmp", "roots", *names):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(0o1777 if name == "tmp" else 0o755)
        if uid is not None:
            os.chown(folder / name, uid, uid)
    etc = folder / "etc"
    etc.mkdir()
    etc.chmod(0o755)
    for name, text in etc_files(network).items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)
    if uid is not None:  # its own group may look names up in here, nobody else's
        os.chown(folder, 0, uid)
        folder.chmod(0o710)


def _launch(
    folder: Path, uid: int | None, named: Sequence[tuple[str, PurePosixPath]], network: str
) -> dict[str, Any]:
    seen = str(folder) if uid is None else _SEEN_AT
    return {
        "bwrap": bubblewrap_argv(folder=seen, roots=named, network=network),
        "uid": uid,
        "folder": str(folder),
        "seen_at": _SEEN_AT,
        "slirp": slirp_argv() if network == Network.SLIRP else None,
        "landlock": network == Network.SHARED,
        "seccomp": _seccomp.program(platform.machine()).hex(),
    }
