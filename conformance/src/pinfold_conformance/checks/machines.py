"""The machines as checks."""

from __future__ import annotations

from pinfold_conformance._case import Case
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.machines import (
    ExecMachine,
    FilesMachine,
    LifeMachine,
    TreeMachine,
    explore,
)


@check(
    "machine.files", "FS-1", "FS-2", "FS-3", "FS-4", "FS-5", "FS-6",
    kind=Kind.STOCHASTIC, place=Place.OWN, deadline_s=300,
)  # fmt: skip
async def files(case: Case) -> None:
    """Random file operations beside the reference, audited by list, scan and witness."""
    await explore(case, FilesMachine)


@check(
    "machine.tree", "CP-1", "CP-2", "CP-3", "CP-7", "CP-8",
    needs={"cap:portable_checkpoint"}, kind=Kind.STOCHASTIC, place=Place.OWN, deadline_s=300,
)  # fmt: skip
async def tree(case: Case) -> None:
    """Random edits, captures, restores, broken and cancelled ones; every checkpoint stays."""
    await explore(case, TreeMachine)


@check(
    "machine.exec", "EX-1", "EX-2", "EX-4", "EX-6", "EX-7", "EX-9", "EX-10", "EX-11", "EX-12",
    needs={"exec"}, kind=Kind.STOCHASTIC, place=Place.OWN, deadline_s=300,
)  # fmt: skip
async def execs(case: Case) -> None:
    """Random commands with every trait at once come to what arithmetic says."""
    await explore(case, ExecMachine)


@check(
    "machine.life", "LC-1", "LC-2", "LC-5", "LC-9",
    kind=Kind.STOCHASTIC, place=Place.OWN, deadline_s=300,
)  # fmt: skip
async def life(case: Case) -> None:
    """Instances made, used, paused, lost and ended in any order do what their state says."""
    await explore(case, LifeMachine)
