"""Sandboxes: the handle that callers hold, how one is opened, and what keeps stores clean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinfold.sandbox._open import Opening as Opening
from pinfold.sandbox._open import list as list  # noqa: A004 - `pinfold.list`
from pinfold.sandbox._open import open as open  # noqa: A004 - `pinfold.open`
from pinfold.sandbox._open import reopen as reopen
from pinfold.sandbox._open import select as select
from pinfold.sandbox._runtime import Runtime as Runtime
from pinfold.sandbox._sandbox import Sandbox as Sandbox
from pinfold.sandbox._states import DesiredState as DesiredState
from pinfold.sandbox._states import LiveState as LiveState
from pinfold.sandbox._states import ObservedState as ObservedState
from pinfold.sandbox._store import Store as Store
from pinfold.sandbox._stream import Chunk as Chunk
from pinfold.sandbox._stream import ExecStream as ExecStream

if TYPE_CHECKING:
    from pinfold.sandbox._durable_sandbox import DurableSandbox as DurableSandbox
    from pinfold.sandbox._upkeep import Upkeep as Upkeep
    from pinfold.sandbox._upkeep import gc as gc
    from pinfold.sandbox._upkeep import gc_ephemeral as gc_ephemeral
    from pinfold.sandbox._upkeep import reap as reap

# What needs checkpoints is imported when it is first used: an ephemeral sandbox needs none.
_LAZY = {
    "DurableSandbox": "_durable_sandbox",
    "Upkeep": "_upkeep",
    "gc": "_upkeep",
    "gc_ephemeral": "_upkeep",
    "reap": "_upkeep",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pinfold.sandbox' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"pinfold.sandbox.{_LAZY[name]}"), name)
