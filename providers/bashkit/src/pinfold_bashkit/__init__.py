"""The bashkit provider: a bash interpreter on a virtual file system, in process (kind vfs).

Importing this loads no bashkit: describing a provider is cheap (PR-1).
"""

from __future__ import annotations

from pinfold_bashkit._provider import BashkitOptions as BashkitOptions
from pinfold_bashkit._provider import BashkitProvider as BashkitProvider

__all__ = ["BashkitOptions", "BashkitProvider", "provider"]

provider = BashkitProvider()
