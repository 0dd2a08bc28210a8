"""The provider: what it is, and how a sandbox comes to be."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import attrs

from pinfold.faults import Fault
from pinfold.provider import (
    Availability,
    Capabilities,
    Context,
    Descriptor,
    Details,
    Features,
    Instance,
    InstanceRef,
    Owner,
    Provider,
    Supports,
)
from pinfold.spec import (
    Durability,
    Kind,
    Level,
    Limits,
    NetworkMode,
    PinnedSpec,
    ResolvedSpec,
)

if TYPE_CHECKING:
    from pinfold_bashkit._instance import BashkitInstance

__all__ = ["BashkitOptions", "BashkitProvider"]

_NAME: Final = "bashkit"
_MAX_ITERATIONS: Final = 1_000_000_000


@attrs.frozen(kw_only=True)
class BashkitOptions:
    """`target.options` of a bashkit sandbox.

    Attributes:
        max_loop_iterations: how often one loop, of the shell or of awk, may go round; it bounds
            what a command that is deaf to its end can still burn.
        private_hosts: hosts of an allowlist may have private addresses, loopback included;
            bashkit refuses them otherwise.
    """

    max_loop_iterations: int = 10_000_000
    private_hosts: bool = False


_FEATURES: Final = Features(modes=True, symlinks=True, special_files=True)

#: bashkit's own numbers; it has no setting for them.
_LIMITS: Final = Limits(
    stdin_bytes=3 * 1024 * 1024,  # what a pipeline of several commands can still take
    file_bytes=10_000_000,
    read_bytes=10_000_000,
    workspace_bytes=100_000_000,
    workspace_files=10_000,
    output_bytes=10 * 1024 * 1024,
)

_DETAILS: Final = Details(
    lacks=(
        "native processes: all commands are bashkit's own, and none can be installed",
        "output beyond 10 MiB per stream: it is dropped and not counted (limit: output)",
        "bytes that are not UTF-8 in the output of a command that was cut off: they become U+FFFD",
        "names with control, bidirectional or zero-width characters: they are refused",
        "endless generators: seq stops at 100,000 lines, yes at 10,000, /dev/zero at 1 MiB",
        "random bytes: /dev/urandom gives 8 KiB at a time",
        "large buffers: what runs at one time in a pipeline may hold 32 MB (limit: memory)",
        "modes: they are kept, and nobody is kept out by them",
        "a bound on memory: a script can make this process use as much as it gets",
    )
)


class BashkitProvider(Provider):
    """Bash on a virtual file system, interpreted in this process."""

    descriptor = Descriptor(
        name=_NAME,
        display_name="bashkit (virtual bash, in process)",
        kinds=(Kind.VFS,),
        contract=">=1.0,<2",
        containment=(
            Supports(
                level=Level.ISOLATED,
                networks=frozenset({NetworkMode.DENY, NetworkMode.ALLOWLIST}),
            ),
        ),
        durabilities=frozenset({Durability.CHECKPOINTED, Durability.NONE}),
        capabilities=lambda _: Capabilities(
            native_processes=False,
            network_enforced=True,
            packages=False,
            portable_checkpoint=True,
            ports=False,
            pty=False,
        ),
        features=lambda _: _FEATURES,
        limits=lambda _: _LIMITS,
        options=BashkitOptions,
        dist="pinfold-bashkit",
    )

    def __init__(self) -> None:
        self._live: WeakValueDictionary[str, BashkitInstance] = WeakValueDictionary()

    def check(self, spec: ResolvedSpec) -> Iterable[Fault]:
        options = spec.target.options if spec.target is not None else {}
        iterations = options.get("max_loop_iterations", 1)
        if not 1 <= iterations <= _MAX_ITERATIONS:
            yield Fault(
                pointer="/target/options/max_loop_iterations",
                code="out_of_range",
                message="the number is out of range",
                allowed=(f"1..{_MAX_ITERATIONS}",),
            )

    async def probe(self) -> Availability:
        try:
            import bashkit

            result = bashkit.Bash().execute_sync("echo $((6 * 7))")
        except ImportError as exc:
            return Availability(
                available=False,
                reason=f"bashkit can't be loaded: {exc}",
                hint="install it again: pip install --force-reinstall bashkit",
            )
        if result.stdout != "42\n":
            return Availability(
                available=False,
                reason=f"bashkit answers {result.stdout!r} where 42 is right",
                hint="install it again: pip install --force-reinstall bashkit",
            )
        return Availability(available=True, details={"version": bashkit.get_version()})

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        from pinfold_bashkit._instance import BashkitInstance
        from pinfold_bashkit._interpreter import Settings

        spec = pinned.spec
        options = spec.target.options if spec.target is not None else {}
        defaults = BashkitOptions()
        network = spec.containment.network
        ref = InstanceRef(
            provider=_NAME, id=f"bk-{secrets.token_hex(16)}", sandbox=ctx.owner.sandbox
        )
        await ctx.register(ref)
        instance = BashkitInstance(
            ref=ref,
            owner=ctx.owner,
            settings=Settings(
                timeout_seconds=None,
                max_loop_iterations=options.get(
                    "max_loop_iterations", defaults.max_loop_iterations
                ),
                hosts=(
                    tuple(network.allowed_hosts or ())
                    if network.mode is NetworkMode.ALLOWLIST
                    else None
                ),
                private_hosts=options.get("private_hosts", defaults.private_hosts),
            ),
            features=_FEATURES,
            limits=_LIMITS,
            details=_DETAILS,
            generation=ctx.generation,
        )
        self._live[ref.id] = instance
        return instance

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return [
            instance.ref
            for _, instance in sorted(self._live.items())
            if not instance.vfs.gone
            and instance.owner.store == owner.store
            and owner.sandbox in (None, instance.owner.sandbox)
        ]

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        instance = self._live.pop(ref.id, None)
        if instance is not None:
            await instance.destroy()
