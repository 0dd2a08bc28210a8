"""What an author may choose of a container; nothing here weakens it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

import attrs

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault, pointer
from pinfold.spec import JsonObject, freeze

__all__ = ["LABEL_PREFIX", "DockerOptions", "Helper", "Pull", "Ulimit"]

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: Labels of ours begin with it.
LABEL_PREFIX: Final = "pinfold."

_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+|/)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
    r"|(?:sha256:)?[0-9a-f]{64}",
    re.ASCII,
)
_IMAGES: Final = ("NAME", "NAME:TAG", "NAME@sha256:DIGEST", "an image id")
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


class Helper(StrEnum):
    """Whether the resident helper is put into the container (docs/helper.md)."""

    AUTO = "auto"
    REQUIRED = "required"
    NEVER = "never"


def _refuse(place: str, message: str, *allowed: str, code: str = "out_of_range") -> NoReturn:
    raise SpecInvalid([Fault(pointer=place, code=code, message=message, allowed=allowed)])


@attrs.frozen(kw_only=True)
class Ulimit:
    """One resource limit of the container's processes; -1 is unlimited."""

    name: str
    soft: int
    hard: int

    def __attrs_post_init__(self) -> None:
        if self.name not in _ULIMITS:
            _refuse("/name", "there is no such ulimit", *sorted(_ULIMITS), code="not_allowed")
        if self.hard != -1 and not 0 <= self.soft <= self.hard:
            _refuse("/soft", "a soft limit lies between 0 and the hard one")
        if min(self.soft, self.hard) < -1:
            _refuse("/soft", "limits are at least 0, or -1 for unlimited")


_Words = TypeVar("_Words", bound=StrEnum)
Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _between(low: float, high: float, unit: str) -> Check:
    def check(_: Any, field: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None and not low <= value <= high:
            allowed = f"{low:.16g} to {high:.16g} {unit}"
            _refuse(pointer(field.name), "the number is out of range", allowed)

    return check


def _matching(pattern: re.Pattern[str], what: str, *allowed: str) -> Check:
    def check(_: Any, field: attrs.Attribute[Any], value: str | None) -> None:
        if value is not None and not pattern.fullmatch(value):
            _refuse(pointer(field.name), f"this is not {what}", *allowed, code="bad_format")

    return check


def _word(place: str, words: type[_Words], value: str) -> _Words:
    try:
        return words(value)
    except ValueError:
        allowed = [str(word) for word in words]
        _refuse(place, "this is none of the allowed words", *allowed, code="not_allowed")


def _pull(value: str) -> Pull:
    return _word("/pull", Pull, value)


def _helper(value: str) -> Helper:
    return _word("/helper", Helper, value)


_uid = _between(1, 2**31 - 1, "(a uid)")


def _user(owner: Any, field: attrs.Attribute[Any], value: int) -> None:
    if value == 0:
        _refuse(pointer(field.name), "commands never run as root (uid 0)", "1 to 2147483647")
    _uid(owner, field, value)


def _labels(_: Any, field: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
    for key, text in value.items():
        place = pointer(field.name, key)
        if not isinstance(text, str):
            _refuse(place, "a label's value is a string", code="wrong_type")
        if not key or key.startswith(LABEL_PREFIX):
            _refuse(place, f"labels that begin with {LABEL_PREFIX!r} are pinfold's own")


def _ports(_: Any, field: attrs.Attribute[Any], value: tuple[int, ...]) -> None:
    for index, port in enumerate(value):
        if not 1 <= port <= 65535:
            _refuse(pointer(field.name, index), "this is no port", "1 to 65535")
        if port in value[:index]:
            _refuse(pointer(field.name, index), "this port stands twice", code="duplicate")


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
        helper: whether the resident helper is put into the container: where it can run, always, or
            not at all.
        ports: TCP ports that can be reached from the engine's own loopback (network allow only).
    """

    image: str = attrs.field(validator=_matching(_IMAGE, "an image", *_IMAGES))
    memory_bytes: int = attrs.field(
        default=1024 * MIB, validator=_between(16 * MIB, 2**50, "bytes")
    )
    cpus: float = attrs.field(default=1.0, validator=_between(0.01, 1024, "processors"))
    pids: int = attrs.field(default=256, validator=_between(16, 2**22, "processes"))
    workspace_bytes: int | None = attrs.field(default=None, validator=_between(MIB, 2**60, "bytes"))
    tmp_bytes: int = attrs.field(default=256 * MIB, validator=_between(MIB, 2**50, "bytes"))
    platform: str | None = attrs.field(
        default=None, validator=_matching(_PLATFORM, "a platform", "linux/ARCHITECTURE[/VARIANT]")
    )
    user: int = attrs.field(default=1000, validator=_user)
    read_only_root: bool = True
    ulimits: tuple[Ulimit, ...] = ()
    labels: Mapping[str, Any] = attrs.field(
        factory=lambda: freeze({}), converter=freeze, validator=_labels
    )
    pull: Pull = attrs.field(default=Pull.MISSING, converter=_pull)
    helper: Helper = attrs.field(default=Helper.AUTO, converter=_helper)
    ports: tuple[int, ...] = attrs.field(default=(), validator=_ports)

    @classmethod
    def of(cls, options: JsonObject) -> DockerOptions:
        """Return the options of a resolved spec, which core has checked."""
        from pinfold.spec import from_json, thaw

        return from_json(thaw(options), cls)
