"""What a target can really do: six capabilities, and finer features (contract section 0, PR-7)."""

from __future__ import annotations

import attrs

from pinfold.spec import TreeKill

__all__ = ["NO_CAPABILITIES", "Capabilities", "Features"]


@attrs.frozen(kw_only=True)
class Capabilities:
    """Six facts, stated by the adapter, never requested by the author (seeds 000 and 001).

    Attributes:
        native_processes: commands can spawn operating-system processes.
        network_enforced: the target enforces the declared outbound policy.
        packages: the runtime can install operating-system packages.
        portable_checkpoint: the workspace has a portable checkpoint representation.
        ports: workloads can bind and expose network ports.
        pty: interactive pseudo-terminals are supported.
    """

    native_processes: bool
    network_enforced: bool
    packages: bool
    portable_checkpoint: bool
    ports: bool
    pty: bool


NO_CAPABILITIES = Capabilities(
    native_processes=False,
    network_enforced=False,
    packages=False,
    portable_checkpoint=False,
    ports=False,
    pty=False,
)


@attrs.frozen(kw_only=True)
class Features:
    """Finer facts, each provable both ways (PR-7); a feature not named is absent.

    Attributes:
        background: jobs outlive the exec that started them (EX-8).
        concurrent_exec: several execs run at once; without it they queue (EX-13).
        signals: a result tells which signal ended a command (EX-2).
        attach: another process can take the instance up again (LC-1).
        pause: the instance can be paused and resumed.
        pty: terminals can be opened.
        modes: permission bits are kept and changed by chmod.
        symlinks: symbolic links can be made.
        non_utf8_names: file names may be any bytes but NUL and slash.
        argv_bytes: arguments may be any bytes but NUL, as surrogateescape text.
        special_files: FIFOs, sockets or devices can exist in the workspace.
        tree_kill: what provably dies on a timeout (EX-4); null on vfs, where nothing of a
            command outlives its return.
    """

    background: bool = False
    concurrent_exec: bool = False
    signals: bool = False
    attach: bool = False
    pause: bool = False
    pty: bool = False
    modes: bool = False
    symlinks: bool = False
    non_utf8_names: bool = False
    argv_bytes: bool = False
    special_files: bool = False
    tree_kill: TreeKill | None = None

    def missing(self, promised: Features) -> tuple[str, ...]:
        """Name the features that `promised` has and this lacks; tree_kill is a minimum (PR-7)."""
        names = []
        for field in attrs.fields(Features):
            mine, theirs = getattr(self, field.name), getattr(promised, field.name)
            if field.name == "tree_kill":
                if theirs is not None and (mine is None or not mine.at_least(theirs)):
                    names.append(field.name)
            elif theirs and not mine:
                names.append(field.name)
        return tuple(names)
