"""pinfold: sandboxed compute behind one contract.

::

    async with pinfold.open({"target": {"kind": "vfs", "provider": "bashkit"}}) as box:
        result = await box.exec(["echo", "hello"])
        print(result.exit_code, result.stdout)

The same, without async, is in `pinfold.blocking`. Everything is reached from here or from the
public modules: `spec`, `resolve`, `provider`, `plugins`, `connections`, `config`, `events`,
`errors`, `views`, `sandbox`, `testing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinfold.errors import PinfoldError as PinfoldError
    from pinfold.errors import SpecInvalid as SpecInvalid
    from pinfold.provider import ExecRequest as ExecRequest
    from pinfold.provider import ExecResult as ExecResult
    from pinfold.resolve import targets as targets
    from pinfold.sandbox import DurableSandbox as DurableSandbox
    from pinfold.sandbox import Runtime as Runtime
    from pinfold.sandbox import Sandbox as Sandbox
    from pinfold.sandbox import Store as Store
    from pinfold.sandbox import gc as gc
    from pinfold.sandbox import list as list  # noqa: A004 - `pinfold.list`
    from pinfold.sandbox import open as open  # noqa: A004 - `pinfold.open`
    from pinfold.sandbox import reap as reap
    from pinfold.sandbox import reopen as reopen
    from pinfold.spec import CONTRACT as CONTRACT
    from pinfold.spec import PinnedSpec as PinnedSpec
    from pinfold.spec import ResolvedSpec as ResolvedSpec
    from pinfold.spec import Spec as Spec
    from pinfold.spec import Target as Target

# Names are imported when they are first used: a provider needs no resolver, a resolver no sandbox.
# `resolve` is not among them: `pinfold.resolve` is the module that has it.
_HOMES = {
    "CONTRACT": "spec",
    "DurableSandbox": "sandbox",
    "ExecRequest": "provider",
    "ExecResult": "provider",
    "PinfoldError": "errors",
    "PinnedSpec": "spec",
    "ResolvedSpec": "spec",
    "Runtime": "sandbox",
    "Sandbox": "sandbox",
    "Spec": "spec",
    "SpecInvalid": "errors",
    "Store": "sandbox",
    "Target": "spec",
    "gc": "sandbox",
    "list": "sandbox",
    "open": "sandbox",
    "reap": "sandbox",
    "reopen": "sandbox",
    "targets": "resolve",
}

__all__ = [
    "CONTRACT",
    "DurableSandbox",
    "ExecRequest",
    "ExecResult",
    "PinfoldError",
    "PinnedSpec",
    "ResolvedSpec",
    "Runtime",
    "Sandbox",
    "Spec",
    "SpecInvalid",
    "Store",
    "Target",
    "__version__",
    "gc",
    "list",
    "open",
    "reap",
    "reopen",
    "targets",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pinfold")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pinfold' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pinfold.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> Sequence[str]:
    return sorted({*globals(), *__all__})
