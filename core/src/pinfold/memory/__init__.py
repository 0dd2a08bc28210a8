"""Core's own instance without compute, for `target: null`: files and tree in memory (SP-0)."""

from __future__ import annotations

from pinfold.memory._files import MemoryFiles as MemoryFiles
from pinfold.memory._instance import NO_COMPUTE as NO_COMPUTE
from pinfold.memory._instance import NoCompute as NoCompute
from pinfold.memory._nodes import Directory as Directory
from pinfold.memory._nodes import File as File
from pinfold.memory._nodes import Link as Link
from pinfold.memory._nodes import Store as Store
from pinfold.memory._tree import MemoryTree as MemoryTree
