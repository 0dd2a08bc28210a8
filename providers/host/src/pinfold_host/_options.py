"""The options of the host provider (`target.options`)."""

from __future__ import annotations

import attrs

__all__ = ["HostOptions", "Rlimits"]


@attrs.frozen(kw_only=True)
class Rlimits:
    """Resource limits for each process of each command; null is the user's own limit.

    Attributes:
        cpu_seconds: processor time; past it SIGXCPU, then SIGKILL.
        address_space_bytes: virtual memory; past it allocation fails.
        file_bytes: the largest file that can be written; past it SIGXFSZ.
        open_files: file descriptors.
        processes: processes and threads of the user.
    """

    cpu_seconds: int | None = None
    address_space_bytes: int | None = None
    file_bytes: int | None = None
    open_files: int | None = None
    processes: int | None = None

    def by_resource(self) -> dict[str, int]:
        """Return the limits by their names in the resource module."""
        pairs = {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.address_space_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }
        return {name: value for name, value in pairs.items() if value is not None}


@attrs.frozen(kw_only=True)
class HostOptions:
    """Options of a host sandbox.

    Attributes:
        rlimits: limits for each process of each command.
        pass_env: names of variables of the controller's that commands are to see.
    """

    rlimits: Rlimits = Rlimits()
    pass_env: tuple[str, ...] = ()
