"""The POSIX floor as a lane: a root that holds busybox alone, and nothing but spawning.

No helper, no supervisor of ours, none of GNU's tools: what the suite finds here is what any target
that can start a process gets from core. Each sandbox is a boundary of bubblewrap's own.
"""

import atexit
import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from pinfold.errors import Lost
from pinfold.posix import POSIX_FEATURES, Equipment, PosixInstance, equip
from pinfold.provider import (
    Availability,
    Capabilities,
    Context,
    Descriptor,
    Features,
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Provider,
    Supports,
)
from pinfold.spec import (
    Containment,
    Durability,
    Kind,
    Level,
    Network,
    NetworkMode,
    PinnedSpec,
    ResolvedSpec,
    Spec,
    Target,
)
from pinfold.testing import FolderWitness, Lane, Witness
from tests.core.posix.guests import BusyboxGuest, busybox_root, living

NAME = "busybox-root"
TOOLS = ("busybox", "bwrap", "nsenter")


@cache
def _home() -> Path:
    """Where all sandboxes of this process are, and the root that they share."""
    home = Path(tempfile.mkdtemp(prefix="busybox-lane-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)
    busybox_root(home / "root")
    return home


def _capabilities(spec: ResolvedSpec) -> Capabilities:
    del spec
    return Capabilities(
        native_processes=True,
        network_enforced=True,
        packages=False,
        portable_checkpoint=True,
        ports=False,
        pty=False,
    )


def _features(spec: ResolvedSpec) -> Features:
    del spec
    return POSIX_FEATURES


class FloorGuest(BusyboxGuest):
    """As any guest does, it says so when what it spawned in is gone."""

    async def spawn(self, argv, env, cwd):
        if self.holder.poll() is not None:
            raise Lost("the sandbox's namespaces are gone", hint="make another")
        return await super().spawn(argv, env, cwd)


class FloorInstance(PosixInstance):
    def __init__(self, ref: InstanceRef, equipment: Equipment, guest: FloorGuest) -> None:
        super().__init__(ref, equipment)
        self.guest = guest

    async def status(self) -> InstanceStatus:
        lives = self.guest.holder.poll() is None
        return InstanceStatus.RUNNING if lives else InstanceStatus.ABSENT

    async def destroy(self) -> None:
        await provider.destroy(self.ref)


class FloorProvider(Provider):
    """Sandboxes are folders with their owner beside them, and live as long as this process."""

    descriptor = Descriptor(
        name=NAME,
        display_name="a root of busybox alone",
        kinds=(Kind.HOST,),
        contract=">=1.0,<2",
        containment=(Supports(level=Level.ISOLATED, networks=frozenset({NetworkMode.DENY})),),
        durabilities=frozenset({Durability.NONE, Durability.CHECKPOINTED}),
        capabilities=_capabilities,
        features=_features,
        dist="pinfold",
    )

    def __init__(self) -> None:
        self._guests: dict[str, FloorGuest] = {}

    async def probe(self) -> Availability:
        missing = [name for name in TOOLS if shutil.which(name) is None]
        reason = f"{', '.join(missing)}: not installed (make system)" if missing else ""
        return Availability(available=not missing, reason=reason)

    def folder(self, ref: InstanceRef) -> Path:
        return _home() / ref.id

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        ref = InstanceRef(provider=NAME, id=uuid.uuid4().hex, sandbox=ctx.owner.sandbox)
        await ctx.register(ref)
        folder = self.folder(ref)
        for name in ("workspace", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "owner.json").write_text(json.dumps([ctx.owner.store, ctx.owner.sandbox]))
        tmp = ("--bind", str(folder / "tmp"), "/tmp")
        guest = FloorGuest(_home() / "root", folder / "workspace", *tmp)
        self._guests[ref.id] = guest
        try:
            equipment = await equip(
                guest,
                root=PurePosixPath("/workspace"),
                identity=ref.id,
                features=self.descriptor.features(pinned.spec),
                generation=ctx.generation,
            )
        except BaseException:
            self.end(ref)
            raise
        return FloorInstance(ref, equipment, guest)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        found = []
        for file in _home().glob("*/owner.json"):
            store, sandbox = json.loads(file.read_text())
            if store == owner.store and owner.sandbox in (None, sandbox):
                found.append(InstanceRef(provider=NAME, id=file.parent.name, sandbox=sandbox))
        return found

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        self.end(ref)

    def end(self, ref: InstanceRef) -> None:
        guest = self._guests.pop(ref.id, None)
        if guest is not None:
            guest.close()
        if ref.id and "/" not in ref.id:
            shutil.rmtree(self.folder(ref), ignore_errors=True)


class FloorLane(Lane):
    """In each durability that it claims."""

    name = NAME
    specs: Sequence[Spec] = tuple(
        Spec(
            target=Target(kind=Kind.HOST, provider=NAME),
            containment=Containment(level=Level.ISOLATED, network=Network(mode=NetworkMode.DENY)),
            durability=durability,
        )
        for durability in (Durability.CHECKPOINTED, Durability.NONE)
    )

    def __init__(self) -> None:
        self.provider = provider

    async def unavailable(self) -> str | None:
        found = await provider.probe()
        return None if found.available else found.reason

    async def reset(self, instance: Instance) -> None:
        """End what runs, and empty the workspace."""
        for pid in living(f"PINFOLD_EXEC={_floor(instance).equipment.mark}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        for entry in (provider.folder(instance.ref) / "workspace").iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def witness(self, instance: Instance) -> Witness:
        return FolderWitness(provider.folder(instance.ref) / "workspace")

    def listener_address(self, instance: Instance) -> str | None:
        del instance
        return "127.0.0.1"

    async def lose(self, ref: InstanceRef) -> bool:
        provider.end(ref)
        return True


def _floor(instance: Instance) -> FloorInstance:
    assert isinstance(instance, FloorInstance)
    return instance


provider = FloorProvider()
lane = FloorLane()
