"""What the tests of bashkit share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from pinfold.plugins import Catalog
from pinfold.provider import Context, ExecRequest, ExecResult, Owner, Sink
from pinfold.resolve import resolve
from pinfold.spec import PinnedSpec, ResolvedSpec
from pinfold_bashkit import BashkitProvider
from pinfold_bashkit._instance import BashkitInstance

WORKSPACE = PurePosixPath("/workspace")
OWNER = Owner(store="st_test", sandbox="sbx_test")


def resolved(provider: BashkitProvider | None = None, **spec: Any) -> ResolvedSpec:
    """Return a spec for bashkit, resolved."""
    target = {"kind": "vfs", "provider": "bashkit", **spec.pop("target", {})}
    return resolve([{"target": target, **spec}], Catalog([provider or BashkitProvider()]))


async def make(provider: BashkitProvider | None = None, **spec: Any) -> BashkitInstance:
    """Make a sandbox; core pins no more than this for bashkit."""
    provider = provider or BashkitProvider()
    instance = await provider.create(
        PinnedSpec(spec=resolved(provider, **spec)), Context(owner=OWNER, generation=3)
    )
    assert isinstance(instance, BashkitInstance)
    return instance


async def sh(
    box: BashkitInstance, script: str, sink: Sink | None = None, **request: Any
) -> ExecResult:
    """Run a script."""
    return await box.exec(ExecRequest(shell=script, **request), sink)


async def run(box: BashkitInstance, *argv: str, **request: Any) -> ExecResult:
    """Run a program."""
    return await box.exec(ExecRequest(argv=argv, **request))


class Stopwatch:
    """How long it has been."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> float:
        return self._clock() - self._start
