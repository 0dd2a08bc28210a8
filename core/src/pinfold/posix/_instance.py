"""An instance of anything that can spawn a process."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath

import attrs

from pinfold.posix._call import Shell
from pinfold.posix._exec import ExecRunner
from pinfold.posix._guest import Guest, SupervisingGuest, TerminalGuest
from pinfold.posix._layout import Layout
from pinfold.posix._probe import probe
from pinfold.posix._supervise import GuestSupervisor, ShellSupervisor, Supervisor
from pinfold.provider import (
    Details,
    Features,
)
from pinfold.spec import Limits, TreeKill

__all__ = ["POSIX_FEATURES", "Equipment", "PosixInstance", "equip"]

#: What a Linux-like target has, where nothing is said to lack.
POSIX_FEATURES = Features(
    background=True,
    concurrent_exec=True,
    signals=True,
    modes=True,
    symlinks=True,
    non_utf8_names=True,
    argv_bytes=True,
    special_files=True,
    tree_kill=TreeKill.COOKIE,
)


@attrs.frozen(kw_only=True)
class Equipment:
    """The parts of an instance, ready for use."""

    guest: Guest
    layout: Layout
    shell: Shell
    features: Features
    runner: ExecRunner
    details: Details
    control: str


async def equip(
    guest: Guest,
    *,
    root: PurePosixPath,
    writable_roots: Sequence[PurePosixPath] = (),
    features: Features = POSIX_FEATURES,
    limits: Limits = Limits(),
    generation: int = 1,
    shell_path: str = "sh",
) -> Equipment:
    mark = secrets.token_hex(8)
    shell = Shell(guest, shell_path)
    layout, tools = await probe(shell, root, writable_roots)
    supervisor: Supervisor = (
        GuestSupervisor(guest)
        if isinstance(guest, SupervisingGuest)
        else ShellSupervisor(shell, layout, tools)
    )
    features = attrs.evolve(features, signals=features.signals and supervisor.signals,
        tree_kill=supervisor.tree_kill, pty=isinstance(guest, TerminalGuest))
    runner = ExecRunner(supervisor, layout=layout, shell=shell_path, features=features, limits=limits, generation=generation, mark=mark)
    return Equipment(guest=guest, layout=layout, shell=shell, features=features, runner=runner, details=Details(lacks=tools.lacks), control=tools.control)
