"""How a container is made: the hardening that `level: isolated` claims, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pinfold.spec import WORKSPACE
from pinfold_docker._guest import RUNTIME_DIRECTORY
from pinfold_docker._options import DockerOptions

__all__ = ["NAME_PREFIX", "container_config", "container_labels", "volume_name"]

#: Of containers and volumes of ours.
NAME_PREFIX: Final = "pinfold-"
#: Whoever starts it decides how long it lives; a loop of its own would only wake it up.
KEEP_ALIVE: Final = ["/bin/sh", "-c", "exec sleep 2147483647"]
#: Room for the resident helper and for what we note down.
RUNTIME_BYTES: Final = 64 * 1024 * 1024
#: Private to this container, also in the file system: no setuid, no devices.
TMPFS: Final = "rw,nosuid,nodev,exec"


def volume_name(container: str) -> str:
    """Return the name of a container's workspace volume."""
    return f"{container}-workspace"


def container_labels(
    name: str, *, store: str, sandbox: str | None, generation: int
) -> dict[str, str]:
    """Return the labels of ours (LC-9).

    The name is among them, so that what somebody makes from a commit of the container, whose labels
    it inherits, is not taken for ours.
    """
    labels = {"pinfold.store": store, "pinfold.name": name, "pinfold.generation": str(generation)}
    return labels | ({"pinfold.sandbox": sandbox} if sandbox is not None else {})


def container_config(
    name: str,
    options: DockerOptions,
    *,
    image: str,
    labels: Mapping[str, str],
    network: str | None,
    writable_roots: Sequence[str],
    copies_image: bool,
) -> dict[str, Any]:
    """Return the body of a create request.

    Args:
        name: of the container.
        options: the author's choices.
        image: the pinned image's id.
        labels: for the container and its volume.
        network: the network's id, or None for no network at all.
        writable_roots: places that get a tmpfs.
        copies_image: the volume may take its owner from the image's own, empty workspace.
    """
    owner = f"uid={options.user},gid={options.user}"
    size = f"size={options.tmp_bytes}"
    # All are the user's: where the image has such a folder, its mode stays in force (runc 1.1).
    tmpfs = {
        "/tmp": f"{TMPFS},{owner},{size},mode=1777",  # noqa: S108 - the container's
        RUNTIME_DIRECTORY: f"{TMPFS},{owner},mode=0700,size={RUNTIME_BYTES}",
        **dict.fromkeys(writable_roots, f"{TMPFS},{owner},{size},mode=0755"),
    }
    volume: dict[str, Any] = {"NoCopy": not copies_image, "Labels": dict(labels)}
    if options.workspace_bytes is not None:
        volume["DriverConfig"] = {
            "Name": "local",
            "Options": {"size": str(options.workspace_bytes)},
        }
    ports = {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}] for port in options.ports}
    return {
        "Image": image,
        "Entrypoint": KEEP_ALIVE,
        "Cmd": [],
        "User": f"{options.user}:{options.user}",
        "WorkingDir": "/",
        # The root is read-only and the user may not be in the image's passwd: a home to write to.
        "Env": ["HOME=/tmp"],
        "Labels": {**options.labels, **labels},
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",  # only sleep would hear of another
        "ExposedPorts": {port: {} for port in ports},
        "HostConfig": {
            "Init": True,
            "NetworkMode": network or "none",
            "PortBindings": ports,
            "ReadonlyRootfs": options.read_only_root,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "CgroupnsMode": "private",
            "IpcMode": "private",
            "PidsLimit": options.pids,
            "Memory": options.memory_bytes,
            "MemorySwap": options.memory_bytes,  # of both together: no swap
            "NanoCpus": round(options.cpus * 1e9),
            "Ulimits": [
                {"Name": limit.name, "Soft": limit.soft, "Hard": limit.hard}
                for limit in options.ulimits
            ],
            "Tmpfs": tmpfs,
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": volume_name(name),
                    "Target": str(WORKSPACE),
                    "VolumeOptions": volume,
                }
            ],
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
        },
    }
