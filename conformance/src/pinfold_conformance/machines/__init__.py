"""Machines: random steps, chosen by Hypothesis, recorded and minimised by us."""

from __future__ import annotations

from pinfold_conformance.machines._base import Machine as Machine
from pinfold_conformance.machines._base import explore as explore
from pinfold_conformance.machines._base import replay as replay
from pinfold_conformance.machines._exec import ExecMachine as ExecMachine
from pinfold_conformance.machines._files import FilesMachine as FilesMachine
from pinfold_conformance.machines._life import LifeMachine as LifeMachine
from pinfold_conformance.machines._tree import TreeMachine as TreeMachine

__all__ = [
    "MACHINES",
    "ExecMachine",
    "FilesMachine",
    "LifeMachine",
    "Machine",
    "TreeMachine",
    "explore",
    "replay",
]

#: By name, as traces have it.
MACHINES: dict[str, type[Machine]] = {
    machine.name: machine for machine in (FilesMachine, TreeMachine, ExecMachine, LifeMachine)
}
