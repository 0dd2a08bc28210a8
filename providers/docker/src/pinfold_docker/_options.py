"""What an author may choose of a container; nothing here weakens it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

from pinfold.spec import JsonObject, freeze

__all__ = ["LABEL_PREFIX", "DockerOptions", "Pull", "Ulimit"]

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: Labels of ours begin with it.
LABEL_PREFIX: Final = "pinfold."

_IMAGE = re.compile(
    r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
    r"|(?:sha256:)?[0-9a-f]{64}",
    re.IGNORECASE | re.ASCII,
)
_PLATFORM = re.compile(r"linux/[a-z0-9]+(?:/v[0-9]+)?", re.ASCII)
_ULIMITS: Final = frozenset(
    "core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending "
    "stack".split()
)


class Pull(StrEnum):
    """When an image is fetched from its registry; always before the sandbox is pinned."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


@attrs.frozen(kw_only=True)
class Ulimit:
    """One resource limit of the container's processes; -1 is unlimited."""

    name: str
    soft: int
    hard: int

    def __attrs_post_init__(self) -> None:
        if self.name not in _ULIMITS:
            raise ValueError(f"there is no such ulimit; allowed: {', '.join(sorted(_ULIMITS))}")
        if min(self.soft, self.hard) < -1 or (self.hard != -1 and not -1 < self.soft <= self.hard):
            raise ValueError("soft and hard are at least 0, or -1 for unlimited, and soft <= hard")


def _between(low: float, high: float, unit: str) -> Callable[[Any, Any, Any], None]:
    def check(_: Any, __: Any, value: float | None) -> None:
        if value is not None and not low <= value <= high:
            raise ValueError(f"out of range; allowed: {low:g} to {high:g} {unit}")

    return check


def _image(_: Any, __: Any, value: str) -> None:
    if not _IMAGE.fullmatch(value):
        raise ValueError(
            "this names no image; allowed: NAME, NAME:TAG, NAME@sha256:DIGEST or an image id"
        )


def _platform(_: Any, __: Any, value: str | None) -> None:
    if value is not None and not _PLATFORM.fullmatch(value):
        raise ValueError("allowed: linux/ARCHITECTURE or linux/ARCHITECTURE/VARIANT")


def _user(_: Any, __: Any, value: int) -> None:
    if value == 0:
        raise ValueError("commands never run as root (uid 0); allowed: 1 to 2147483647")
    _between(1, 2**31 - 1, "(a uid)")(_, __, value)


def _labels(_: Any, __: Any, value: Mapping[str, Any]) -> None:
    for key, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"the label {key!r} is not a string")  # noqa: TRY004 - becomes a fault
        if not key or key.startswith(LABEL_PREFIX):
            raise ValueError(f"labels that begin with {LABEL_PREFIX!r} are pinfold's own")


def _ports(_: Any, __: Any, value: tuple[int, ...]) -> None:
    if len(set(value)) != len(value) or not all(1 <= port <= 65535 for port in value):
        raise ValueError("ports are different numbers from 1 to 65535")


@attrs.frozen(kw_only=True)
class DockerOptions:
    """`target.options` of the docker provider.

    Attributes:
        image: the image; there is no default. Its tag is pinned when a sandbox is created.
        memory_bytes: memory of all processes together, swap included, and of all tmpfs.
        cpus: processors' worth of time, a fraction allowed.
        pids: processes and threads at once.
        workspace_bytes: size of the workspace; refused where the engine has no quota.
        tmp_bytes: size of /tmp and of each writable root, each in memory.
        platform: `linux/ARCHITECTURE`, where the image is not for the engine's own.
        user: uid, and gid, of all commands; any but 0.
        read_only_root: the image's files can't be changed.
        ulimits: resource limits, besides the engine's.
        labels: for the container and its volume, besides ours.
        pull: when the image is fetched from its registry.
        ports: TCP ports that can be reached from the engine's own loopback (network allow only).
    """

    image: str = attrs.field(validator=_image)
    memory_bytes: int = attrs.field(
        default=1024 * MIB, validator=_between(16 * MIB, 2**50, "bytes")
    )
    cpus: float = attrs.field(default=1.0, validator=_between(0.01, 1024, "processors"))
    pids: int = attrs.field(default=256, validator=_between(16, 2**22, "processes"))
    workspace_bytes: int | None = attrs.field(default=None, validator=_between(MIB, 2**60, "bytes"))
    tmp_bytes: int = attrs.field(default=256 * MIB, validator=_between(MIB, 2**50, "bytes"))
    platform: str | None = attrs.field(default=None, validator=_platform)
    user: int = attrs.field(default=1000, validator=_user)
    read_only_root: bool = True
    ulimits: tuple[Ulimit, ...] = ()
    labels: Mapping[str, Any] = attrs.field(
        factory=lambda: freeze({}), converter=freeze, validator=_labels
    )
    pull: Pull = attrs.field(default=Pull.MISSING, converter=Pull)
    ports: tuple[int, ...] = attrs.field(default=(), validator=_ports)

    @classmethod
    def of(cls, options: JsonObject) -> DockerOptions:
        """Return the options of a resolved spec, which core has checked."""
        from pinfold.spec import from_json, thaw

        return from_json(thaw(options), cls)
