"""How checks speak to a guest's shell."""

from __future__ import annotations

from pinfold_conformance.dialects._base import QUESTION as QUESTION
from pinfold_conformance.dialects._base import Dialect as Dialect
from pinfold_conformance.dialects._base import How as How
from pinfold_conformance.dialects._base import Means as Means
from pinfold_conformance.dialects._sh import Sh as Sh
from pinfold_conformance.dialects._toy import Toy as Toy

__all__ = ["DIALECTS", "QUESTION", "Dialect", "How", "Means", "Sh", "Toy"]

#: In the order in which a target is asked which of them it speaks.
DIALECTS: tuple[Dialect, ...] = (Sh(), Toy())
