"""What the docker provider promises, as data and pure functions of the spec."""

from __future__ import annotations

from collections.abc import Iterable

from pinfold.errors import Internal
from pinfold.faults import Fault
from pinfold.provider import Capabilities, Descriptor, Features, Supports
from pinfold.spec import (
    Durability,
    Kind,
    Level,
    Limits,
    NetworkMode,
    ResolvedSpec,
    TreeKill,
)
from pinfold_docker._options import DockerOptions

__all__ = ["DESCRIPTOR", "options_of", "spec_faults"]

#: Where images, the kernel and we ourselves have something: a root there would hide it.
RESERVED_ROOTS = frozenset(
    "/ /bin /dev /lib /lib64 /proc /run /run/pinfold /sys /tmp /usr /usr/bin /usr/lib "
    "/workspace".split()
)
#: No root may be below these either.
CLOSED_ROOTS = tuple("/dev/ /proc/ /run/pinfold/ /sys/ /workspace/".split())


def options_of(spec: ResolvedSpec) -> DockerOptions:
    """Return the typed options of a spec."""
    if spec.target is None:
        raise Internal("a provider was asked about a spec without a target")
    return DockerOptions.of(spec.target.options)


def _remote(spec: ResolvedSpec) -> bool:
    return spec.target is not None and spec.target.connection_id is not None


def _has_network(spec: ResolvedSpec) -> bool:
    return spec.containment.network.mode is NetworkMode.ALLOW


def capabilities(spec: ResolvedSpec) -> Capabilities:
    """Return the six facts: ports need a network, and a loopback that is ours."""
    return Capabilities(
        native_processes=True,
        network_enforced=True,
        packages=False,  # nothing runs as root
        portable_checkpoint=True,
        ports=_has_network(spec) and not _remote(spec),
        pty=True,
    )


def features(spec: ResolvedSpec) -> Features:
    """Return what every container has."""
    return Features(
        background=True,
        concurrent_exec=True,
        signals=True,
        attach=True,
        pause=True,
        pty=True,
        modes=True,
        symlinks=True,
        non_utf8_names=True,
        argv_bytes=True,
        special_files=True,
        tree_kill=TreeKill.COOKIE,
    )


def limits(spec: ResolvedSpec) -> Limits:
    """Return the contract's limits, with the workspace's size where there is one."""
    return Limits(workspace_bytes=options_of(spec).workspace_bytes)


def spec_faults(spec: ResolvedSpec) -> Iterable[Fault]:
    """Yield what the tables can't express."""
    options = options_of(spec)
    if options.ports and not _has_network(spec):
        yield Fault(
            pointer="/target/options/ports",
            code="conflict",
            message="ports can't be reached without a network",
            hint="set containment.network to {mode: allow}, or leave the ports out",
        )
    if options.ports and _remote(spec):
        yield Fault(
            pointer="/target/options/ports",
            code="conflict",
            message="ports are published on the engine's own loopback, which is not ours",
            hint="use a local engine, or leave the ports out",
        )
    for index, root in enumerate(spec.containment.filesystem.writable_roots):
        if root in RESERVED_ROOTS or root.startswith(CLOSED_ROOTS):
            yield Fault(
                pointer=f"/containment/filesystem/writable_roots/{index}",
                code="not_allowed",
                message="this place is taken",
                hint="name a folder of its own; /tmp and the workspace are writable anyway",
            )


DESCRIPTOR = Descriptor(
    name="docker",
    display_name="Docker",
    kinds=(Kind.CONTAINER,),
    contract=">=1.0,<2",
    containment=(
        Supports(
            level=Level.ISOLATED,
            networks=(NetworkMode.DENY, NetworkMode.ALLOW),
            writable_roots=True,
        ),
    ),
    durabilities=(Durability.CHECKPOINTED, Durability.PROVIDER_SNAPSHOT, Durability.NONE),
    capabilities=capabilities,
    features=features,
    limits=limits,
    options=DockerOptions,
    example={"image": "debian:bookworm"},
    dist="pinfold-docker",
)
