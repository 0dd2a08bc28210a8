"""The instance that a sandbox without a target has: no commands, files in memory (SP-0)."""

from __future__ import annotations

from pinfold.errors import Unimplemented
from pinfold.memory._files import MemoryFiles
from pinfold.memory._nodes import Store
from pinfold.memory._tree import MemoryTree
from pinfold.provider import (
    ExecRequest,
    ExecResult,
    Features,
    Instance,
    InstanceRef,
    InstanceStatus,
    Sink,
    check_exec,
)
from pinfold.spec import Limits

__all__ = ["NO_COMPUTE", "NoCompute"]

#: The name that stands for "no provider" in refs of this instance.
NO_COMPUTE = "none"


class NoCompute(Instance):
    """Files and checkpoints only; every exec is `unimplemented`."""

    features = Features(modes=True, symlinks=True, non_utf8_names=True)

    def __init__(self, sandbox_id: str, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.ref = InstanceRef(provider=NO_COMPUTE, id=sandbox_id, sandbox=sandbox_id)
        self._store = Store()
        self.files = MemoryFiles(self._store, self.limits)
        self.tree = MemoryTree(self._store)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        check_exec(request, self.limits)
        raise Unimplemented(
            "this sandbox has no target, so it runs no commands",
            hint="open one with a target to run commands",
        )

    async def status(self) -> InstanceStatus:
        return InstanceStatus.ABSENT if self._store.gone else InstanceStatus.RUNNING

    async def destroy(self) -> None:
        self._store.gone = True
        self._store.root.children.clear()
