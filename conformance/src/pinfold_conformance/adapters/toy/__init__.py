"""The reference adapter: the contract in memory, with model processes.

It knows nothing of the checks. Every optional part can be switched off, which makes the strict
reference: the least that a conformant target can be.
"""

from __future__ import annotations

from pinfold_conformance.adapters.toy._instance import ToyInstance as ToyInstance
from pinfold_conformance.adapters.toy._provider import EVERYTHING as EVERYTHING
from pinfold_conformance.adapters.toy._provider import NOTHING as NOTHING
from pinfold_conformance.adapters.toy._provider import ToyLane as ToyLane
from pinfold_conformance.adapters.toy._provider import ToyProvider as ToyProvider
from pinfold_conformance.adapters.toy._provider import ToyWitness as ToyWitness
