"""The same API without async: every call goes through one event loop in one thread.

::

    from pinfold import blocking

    with blocking.open({"target": {"kind": "vfs"}}) as box:
        print(box.exec(["echo", "hello"]).stdout)

It is the async API behind a portal, not a second implementation: each method names the coroutine
function that it calls. For threads without a running event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinfold.blocking._files import BlockingFiles as BlockingFiles
from pinfold.blocking._open import gc as gc
from pinfold.blocking._open import list as list  # noqa: A004 - `blocking.list`
from pinfold.blocking._open import open as open  # noqa: A004 - `blocking.open`
from pinfold.blocking._open import reap as reap
from pinfold.blocking._open import reopen as reopen
from pinfold.blocking._open import targets as targets
from pinfold.blocking._sandbox import BlockingSandbox as BlockingSandbox
from pinfold.blocking._sandbox import BlockingStream as BlockingStream
from pinfold.blocking._sandbox import BlockingTerminal as BlockingTerminal

if TYPE_CHECKING:
    from pinfold.blocking._durable import BlockingDurableSandbox as BlockingDurableSandbox

__all__ = [
    "BlockingDurableSandbox",
    "BlockingFiles",
    "BlockingSandbox",
    "BlockingStream",
    "BlockingTerminal",
    "gc",
    "list",
    "open",
    "reap",
    "reopen",
    "targets",
]


def __getattr__(name: str) -> Any:
    # What needs checkpoints is imported when it is first used: an ephemeral sandbox needs none.
    if name != "BlockingDurableSandbox":
        raise AttributeError(f"module 'pinfold.blocking' has no attribute {name!r}")
    from pinfold.blocking._durable import BlockingDurableSandbox

    return BlockingDurableSandbox
