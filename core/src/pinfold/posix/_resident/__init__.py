"""The resident helper: any operation in a target in about the time of a fork (docs/helper.md)."""

from __future__ import annotations

from pinfold.posix._resident._resident import Resident as Resident
from pinfold.posix._resident._start import FOLDERS as FOLDERS
from pinfold.posix._resident._start import NoHelper as NoHelper

__all__ = ["FOLDERS", "NoHelper", "Resident"]
