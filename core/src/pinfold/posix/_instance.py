"""An instance of anything that can spawn a process."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, Literal

import attrs

from pinfold.errors import Unavailable, Unimplemented
from pinfold.posix._call import Boundary, ProgramFailed, Shell
from pinfold.posix._exec import ExecRunner
from pinfold.posix._files import ShellFiles
from pinfold.posix._gate import Gate
from pinfold.posix._guest import COOKIE, Guest, SupervisingGuest, TerminalGuest
from pinfold.posix._layout import Layout
from pinfold.posix._probe import Found, probe
from pinfold.posix._resident import FOLDERS, NoHelper, Resident
from pinfold.posix._restore import Restorer
from pinfold.posix._supervise import GuestSupervisor, ShellSupervisor, Supervisor
from pinfold.posix._tree import ShellTree
from pinfold.posix._trouble import error_of
from pinfold.provider import (
    Details,
    ExecRequest,
    ExecResult,
    Features,
    Files,
    Instance,
    InstanceRef,
    Sink,
    Terminal,
    Terminals,
    TerminalSize,
    Tree,
    check_exec,
    guest_env,
)
from pinfold.spec import TERM_GRACE_SECONDS, Limits, TreeKill

__all__ = ["POSIX_FEATURES", "Equipment", "PosixInstance", "PosixTerminalInstance", "equip"]

#: What a Linux-like target has where nothing is said to lack.
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

_SIZE: Final = TerminalSize()


@attrs.frozen(kw_only=True)
class Equipment:
    """The parts that an instance delegates to; made by `equip`.

    Attributes:
        guest: what spawns.
        layout: where the workspace is.
        features: in force.
        limits: the target's own.
        runner: runs commands.
        files: its files.
        tree: its workspace as a whole.
        details: what the target lacks.
        mark: the beginning of every cookie.
        shell_path: the target's shell.
        resident: the helper that carries all of it, or None; to be closed with the instance.
        found: what a probe found, for `equip` in targets that are made in the same way; None where
            none was needed.
    """

    guest: Guest
    layout: Layout
    features: Features
    limits: Limits
    runner: ExecRunner
    files: Files
    tree: Tree
    details: Details
    mark: str
    shell_path: str
    resident: Resident | None = None
    found: Found | None = None

    @property
    def control(self) -> str:
        """Our private directory in the target, or `` where there is none."""
        return "" if self.found is None else self.found.tools.control


async def equip(
    guest: Guest,
    *,
    root: PurePosixPath,
    identity: str | None = None,
    writable_roots: Sequence[PurePosixPath] = (),
    features: Features = POSIX_FEATURES,
    limits: Limits = Limits(),
    generation: int = 1,
    shell_path: str = "sh",
    files: Files | None = None,
    tree: Tree | None = None,
    gate: Gate | None = None,
    helper: Literal["auto", "required", "never"] = "never",
    owns_processes: bool = False,
    helper_folders: Sequence[str] = FOLDERS,
    found: Found | None = None,
) -> Equipment:
    """Make of a guest what an instance needs.

    What the guest does itself is left to it: a `SupervisingGuest` runs commands without a shell of
    ours, and `files` and `tree` replace ours. With all three the target is not even probed.

    Args:
        guest: what spawns.
        root: the physical workspace; it exists.
        identity: of the instance, the same whenever it is attached to: what a former controller
            left running is then found. None where there is no attaching.
        writable_roots: as the target names them (SP-4).
        features: what the target has at most; what is found to be missing is taken out of it.
        limits: the target's own.
        generation: of the instance.
        shell_path: the target's shell.
        files: a better way to its files.
        tree: a better way to its tree.
        gate: what commands pass before they start, where `tree` closes one of its own.
        helper: whether a resident helper is put into the target (docs/helper.md): where it can be,
            always, or not at all. With it nothing else of the target is needed or probed.
        owns_processes: all processes that start in the target are of this instance, so that all
            are ended before a helper that was killed is started again.
        helper_folders: where the helper may be put, the best first.
        found: what a probe found in a target that was made in the same way, fresh as this one:
            it is not probed again.

    Raises:
        NotFound: the workspace or a writable root isn't there.
        Unavailable: the target lacks something without which nothing works; it is named. Or the
            helper is required, and can't run there.
        Lost, Unreachable: from the guest.
    """
    mark = hashlib.sha256((identity or secrets.token_hex(16)).encode()).hexdigest()[:16]
    gate = gate or Gate()
    resident: Resident | None = None
    lacks: tuple[str, ...] = ()
    if helper != "never":
        try:
            resident = await Resident.start(
                guest,
                root=root,
                writable_roots=writable_roots,
                mark=mark,
                limits=limits,
                gate=gate,
                owns_processes=owns_processes,
                folders=tuple(helper_folders),
            )
        except NoHelper as exc:
            if helper == "required":
                raise Unavailable(
                    f"the resident helper can't run in this target: {exc}",
                    hint='helper = "auto" does without it, more slowly',
                ) from exc
            lacks = (f"resident helper: {exc}; every operation takes longer",)
        else:
            guest, files, tree = resident.guest, resident.files, resident.tree
            lacks = resident.lacks
    if resident is not None:
        found = None
        layout = Layout(
            root=resident.physical[0],
            writable_roots=tuple(zip(writable_roots, resident.physical[1:], strict=True)),
        )
    elif isinstance(guest, SupervisingGuest) and files is not None and tree is not None:
        found = None
        layout = Layout(root=root, writable_roots=tuple((path, path) for path in writable_roots))
    else:
        if found is None:
            found = await probe(Shell(guest, shell_path), root, writable_roots)
        else:
            found = found.elsewhere()
        layout = found.layout
    tools = None if found is None else found.tools
    inner = Shell(guest, shell_path, roots=layout.encoded)
    supervisor: Supervisor
    if isinstance(guest, SupervisingGuest):
        supervisor = GuestSupervisor(guest)
    else:
        assert tools is not None  # noqa: S101 -- probed above
        supervisor = ShellSupervisor(inner, layout, tools)
    features = attrs.evolve(
        features,
        signals=features.signals and supervisor.signals,
        tree_kill=supervisor.tree_kill,
        pty=isinstance(guest, TerminalGuest),
    )
    runner = ExecRunner(
        supervisor,
        layout=layout,
        shell=shell_path,
        features=features,
        limits=limits,
        generation=generation,
        mark=mark,
        gate=gate,
    )
    if tools is not None:
        past = ShellFiles(inner, layout, tools, limits)
        if files is None:
            outer = Shell(guest, shell_path, roots=layout.encoded, gate=gate)
            files = ShellFiles(outer, layout, tools, limits)
        if tree is None:
            restorer = Restorer(inner, layout, tools, past, runner, gate, mark)
            gate.mend = restorer.recover
            tree = ShellTree(inner, layout, tools, past, restorer)
    assert files is not None and tree is not None  # noqa: PT018, S101 -- given, or made above
    return Equipment(
        guest=guest,
        layout=layout,
        features=features,
        limits=limits,
        runner=runner,
        files=files,
        tree=tree,
        details=Details(
            helper=None if resident is None else resident.description,
            lacks=lacks if tools is None else (*lacks, *tools.lacks),
        ),
        mark=mark,
        shell_path=shell_path,
        resident=resident,
        found=found,
    )


class PosixInstance(Instance):
    """An instance made of a guest; a provider adds `status` and `destroy`.

    Args:
        ref: enough to find it again.
        equipment: from `equip`.
    """

    def __init__(self, ref: InstanceRef, equipment: Equipment) -> None:
        self.ref = ref
        self.equipment = equipment
        self.features = equipment.features
        self.files = equipment.files
        self.tree = equipment.tree
        self.details = equipment.details

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        return await self.equipment.runner.run(request, sink)

    async def clean_up(self) -> None:
        """End all processes and remove what is ours outside the workspace.

        For the `destroy` of a target that lives on, a machine; it may be called again.

        Raises:
            Lost, Unreachable, Unavailable: the target can't be asked; all may still be there.
        """
        kit = self.equipment
        if kit.resident is not None:
            await kit.resident.aclose()
            await kit.resident.sweep()
        shell = Shell(kit.guest, kit.shell_path)
        await shell.reap(f"{COOKIE}={kit.mark}", f"{TERM_GRACE_SECONDS:g}")
        if kit.control:
            await shell.call("clean", args=(kit.control,))


class PosixTerminalInstance(PosixInstance, Terminals):
    """An instance made of a `TerminalGuest`."""

    async def open_terminal(
        self, request: ExecRequest | None = None, size: TerminalSize = _SIZE
    ) -> Terminal:
        kit = self.equipment
        guest = kit.guest
        if not isinstance(guest, TerminalGuest):
            raise Unimplemented("this target has no terminals")
        request = request or ExecRequest(argv=(kit.shell_path,))
        check_exec(request, kit.limits, kit.layout.names, argv_bytes=self.features.argv_bytes)
        own = {"PINFOLD_WORKSPACE": str(kit.layout.root)}
        mark = {COOKIE: kit.mark + secrets.token_hex(8)}
        env, _ = guest_env(request, own)
        argv = request.argv or (kit.shell_path, "-c", request.shell or "")
        place = kit.layout.place(request.cwd)
        if isinstance(guest, SupervisingGuest):  # it checks the cwd itself
            cwd = PurePosixPath(place.directory, place.name)
            return await guest.open_terminal(argv, {**env, **mark}, cwd, size)
        shell = Shell(guest, kit.shell_path, roots=kit.layout.encoded)
        try:
            await shell.call("paths", "check", args=place.args)
        except ProgramFailed as exc:
            raise error_of(exc, request.cwd, "use as cwd") from None
        variables = tuple(f"{name}={value}" for name, value in env.items())
        program = shell.argv(Boundary(), ("paths", "attach"), *place.args, *variables, *argv)
        return await guest.open_terminal(program, mark, PurePosixPath("/"), size)
