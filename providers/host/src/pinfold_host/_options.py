"""The options of the host provider (`target.options`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import attrs

from pinfold.errors import SpecInvalid, Unavailable
from pinfold.faults import Fault, pointer
from pinfold.spec import ResolvedSpec, from_json, thaw

__all__ = ["HostOptions", "Rlimits", "options_of"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: How variables of pinfold's own begin (EX-12).
_OURS: Final = "PINFOLD_"
_MOST: Final = 2**62


def _refuse(place: str, code: str, message: str, allowed: str) -> NoReturn:
    raise SpecInvalid([Fault(pointer=place, code=code, message=message, allowed=(allowed,))])


def _positive(_: Any, field: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and not 1 <= value <= _MOST:
        allowed = f"1 to {_MOST}, or null for the user's own limit"
        _refuse(pointer(field.name), "out_of_range", "the number is out of range", allowed)


def _names(_: Any, field: attrs.Attribute[Any], value: Sequence[str]) -> None:
    for index, name in enumerate(value):
        place = pointer(field.name, str(index))
        if not _NAME.fullmatch(name):
            allowed = "letters, digits and _, not a digit first"
            _refuse(place, "bad_format", f"{name!r} is not the name of a variable", allowed)
        if name.startswith(_OURS):
            _refuse(place, "not_allowed", f"{name} is pinfold's own to set", "other names")


@attrs.frozen(kw_only=True)
class Rlimits:
    """Resource limits for each process of each command; null is the user's own limit.

    Attributes:
        cpu_seconds: processor time; past it SIGXCPU, a second later SIGKILL.
        address_space_bytes: virtual memory; past it allocation fails.
        file_bytes: the largest file that can be written; past it SIGXFSZ.
        open_files: file descriptors.
        processes: processes and threads of the user.
    """

    cpu_seconds: int | None = attrs.field(default=None, validator=_positive)
    address_space_bytes: int | None = attrs.field(default=None, validator=_positive)
    file_bytes: int | None = attrs.field(default=None, validator=_positive)
    open_files: int | None = attrs.field(default=None, validator=_positive)
    processes: int | None = attrs.field(default=None, validator=_positive)

    def by_resource(self) -> dict[str, tuple[int, int]]:
        """Return the soft and hard limits by their names in the resource module."""
        import resource

        wanted = {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.address_space_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }
        found = {name: (value, value) for name, value in wanted.items() if value is not None}
        if self.cpu_seconds is not None:
            # One second more, where that may be: at the hard limit SIGKILL comes, and first.
            _, most = resource.getrlimit(resource.RLIMIT_CPU)
            found["RLIMIT_CPU"] = (self.cpu_seconds, self.cpu_seconds + (most != self.cpu_seconds))
        return found

    def check(self) -> None:
        """See that a process without rights can have them here.

        Raises:
            Unavailable: this process's own hard limits are lower.
        """
        import resource

        for name, (value, _) in self.by_resource().items():
            _, most = resource.getrlimit(getattr(resource, name))
            if most != resource.RLIM_INFINITY and value > most:
                raise Unavailable(
                    f"commands can't have {name} {value}: pinfold itself may have {most} at most",
                    hint="lower the option in rlimits, or raise the limit that pinfold is run with",
                    details={"limit": name, "most": most},
                    retryable=False,
                )


@attrs.frozen(kw_only=True)
class HostOptions:
    """Options of a host sandbox.

    Attributes:
        rlimits: limits for each process of each command.
        pass_env: names of variables of the controller's that commands are to see.
    """

    rlimits: Rlimits = Rlimits()
    pass_env: tuple[str, ...] = attrs.field(default=(), validator=_names)


def options_of(spec: ResolvedSpec) -> HostOptions:
    """Return a spec's options."""
    return from_json({} if spec.target is None else thaw(spec.target.options), HostOptions)
