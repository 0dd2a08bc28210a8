"""Adapters with one bug each: every check has to kill those that are named for it."""

from __future__ import annotations

from pinfold_conformance.mutants._base import Mutant as Mutant
from pinfold_conformance.mutants._base import mutants as mutants
from pinfold_conformance.mutants._base import table as table

__all__ = ["Mutant", "mutants", "table"]
