"""Finding plugins by entry point, and calling embedders' hooks (PR-1, PR-2)."""

from __future__ import annotations

from pinfold.plugins._catalog import KNOWN_DISTS as KNOWN_DISTS
from pinfold.plugins._catalog import Catalog as Catalog
from pinfold.plugins._catalog import installed as installed
from pinfold.plugins._entries import Entries as Entries
from pinfold.plugins._entries import Loaded as Loaded
from pinfold.plugins._entries import Problem as Problem
from pinfold.plugins._hooks import Hooks as Hooks
from pinfold.plugins._hooks import hooks as hooks
from pinfold.plugins._hookspecs import HookSpecs as HookSpecs
from pinfold.plugins._hookspecs import TemplateRevision as TemplateRevision
from pinfold.plugins._hookspecs import hookimpl as hookimpl
