"""The host provider: what it is, and how its instances are made and found (PR)."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pinfold.errors import Lost, NoSpace, PinfoldError, Unavailable
from pinfold.faults import Fault
from pinfold.provider import (
    Availability,
    Context,
    Descriptor,
    Instance,
    InstanceRef,
    Owner,
    Pins,
    Provider,
    Supports,
    roots_of,
)
from pinfold.spec import (
    WORKSPACE,
    Durability,
    Kind,
    Level,
    NetworkMode,
    PinnedSpec,
    ResolvedSpec,
)
from pinfold_host._features import capabilities_of, features_of
from pinfold_host._options import HostOptions, options_of

if TYPE_CHECKING:
    from pinfold_host._place import Place

__all__ = ["HostProvider"]

#: Paths that a writable root may neither be, nor lie in, nor hold.
_TAKEN: Final = tuple(
    PurePosixPath(path)
    for path in (
        *("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
        *("/proc", "/sbin", "/sys", "/usr", str(WORKSPACE)),
    )
)
_PIN_NETWORK: Final = "network"
_DESTROY_SECONDS: Final = 10.0


class HostProvider(Provider):
    """Sandboxes on this machine: plain processes, or a boundary of bubblewrap's around them."""

    descriptor = Descriptor(
        name="host",
        display_name="This machine",
        kinds=(Kind.HOST,),
        contract=">=1.0,<2",
        containment=(
            Supports(level=Level.NONE, networks={NetworkMode.ALLOW}),
            Supports(
                level=Level.NATIVE,
                networks={NetworkMode.DENY, NetworkMode.ALLOW},
                writable_roots=True,
            ),
        ),
        durabilities={Durability.NONE, Durability.CHECKPOINTED},
        capabilities=capabilities_of,
        features=features_of,
        options=HostOptions,
        dist="pinfold-host",
    )

    def check(self, spec: ResolvedSpec) -> Iterable[Fault]:
        """Yield faults of writable roots that the boundary itself needs."""
        roots = roots_of(spec)
        for index, root in enumerate(roots):
            at = f"/containment/filesystem/writable_roots/{index}"
            taken = next((p for p in _TAKEN if _overlap(root, p)), None)
            if taken is not None:
                yield Fault(
                    pointer=at,
                    code="not_allowed",
                    message=f"{root} would overlap {taken}, which the sandbox itself needs",
                    hint="choose another place, such as /scratch",
                )
            other = next((p for p in roots[:index] if _overlap(root, p)), None)
            if other is not None:
                yield Fault(
                    pointer=at,
                    code="conflict",
                    message=f"{root} overlaps another writable root, {other}",
                )

    async def probe(self) -> Availability:
        """Build a boundary and run a command in it."""
        if os.name != "posix":
            return Availability(
                available=False,
                reason="the host provider needs a POSIX system",
                hint="use another kind of target",
            )
        from pinfold_host._boundary import missing, network_of

        reason = missing()
        if not reason:
            from pinfold_host._instance import try_boundary

            try:
                await try_boundary()
            except PinfoldError as error:
                reason = error.message
        if reason:
            return Availability(available=True, levels=(Level.NONE,), details={"native": reason})
        try:
            network = network_of(NetworkMode.ALLOW)
        except Unavailable as error:
            network = error.message
        return Availability(available=True, details={"network_allow": network})

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        """Pin how the network is had; say that the host's own programs can't be pinned."""
        unpinned = {"system": "commands use this machine's own programs, which may be updated"}
        if spec.containment.level is Level.NONE:
            return Pins(unpinned=unpinned)
        from pinfold_host._boundary import network_of

        return Pins(
            pins={_PIN_NETWORK: network_of(spec.containment.network.mode)}, unpinned=unpinned
        )

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        """Make a folder, and for level native the boundary around it."""
        from pinfold_host._boundary import missing, network_of
        from pinfold_host._instance import make_local, make_native
        from pinfold_host._place import GUEST_UIDS, Place, Record

        spec = pinned.spec
        native = spec.containment.level is Level.NATIVE
        if native and (reason := missing()):
            raise Unavailable(f"level native can't be had here: {reason}")
        if native or os.geteuid() != 0:
            options_of(spec).rlimits.check()
        place = Place()
        ref = InstanceRef(
            provider=self.descriptor.name,
            id=place.id,
            data={"folder": str(place.folder)},
            sandbox=ctx.owner.sandbox,
        )
        await ctx.register(ref)
        is_root = native and os.geteuid() == 0
        record = Record(
            store=ctx.owner.store,
            sandbox=ctx.owner.sandbox,
            uid=secrets.choice(GUEST_UIDS) if is_root else None,
        )
        try:
            place.make(record)
            if not native:
                return await make_local(place, ref, spec, ctx)
            network = str(
                pinned.pins.get(_PIN_NETWORK) or network_of(spec.containment.network.mode)
            )
            return await make_native(place, ref, spec, ctx, network)
        except BaseException as error:
            from anyio import CancelScope, to_thread

            with CancelScope(shield=True):
                await to_thread.run_sync(place.remove)
            if isinstance(error, OSError):
                raise _not_made(error) from error
            raise

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        """Take up the folder of level none that another process made."""
        if pinned.spec.containment.level is Level.NATIVE:
            return await super().attach(ref, pinned, ctx)
        from pinfold_host._instance import take_local
        from pinfold_host._place import Place

        place = Place(ref.id)
        record = place.read() if place.is_valid and not place.is_ending else None
        if record is None:
            raise Lost(f"the folder of {ref.id} is gone")
        try:
            return await take_local(place, ref, pinned.spec, ctx)
        except (FileNotFoundError, NotADirectoryError):
            raise Lost(f"the workspace of {ref.id} is gone") from None

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        """Return an owner's instances."""
        from pinfold_host._place import places

        return [
            InstanceRef(
                provider=self.descriptor.name,
                id=place.id,
                data={"folder": str(place.folder)},
                sandbox=record.sandbox,
            )
            for place in places(owner)
            if (record := place.read()) is not None
        ]

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        """End an instance's processes and remove its folder."""
        from pinfold_host._place import Place

        place = Place(ref.id)
        if place.is_valid and place.folder.is_dir():
            from anyio import to_thread

            await to_thread.run_sync(_destroy, place)


def _not_made(error: OSError) -> PinfoldError:
    kind = NoSpace if error.errno in {errno.ENOSPC, errno.EDQUOT} else Unavailable
    return kind(
        f"the sandbox's folder can't be made: {error}",
        hint="the user's data folder has to be a folder that can be written",
        retryable=False,
    )


def _destroy(place: Place) -> None:
    from pinfold_host._processes import end_instance

    place.begin_end()
    record = place.read()
    launcher = record.launcher if record else None
    if not end_instance(launcher, place.workspace, _DESTROY_SECONDS):
        raise Unavailable(f"processes of {place.id} can't be ended", hint="see `ps`")
    place.remove()


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one == other or one in other.parents or other in one.parents
