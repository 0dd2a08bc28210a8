"""Copying between the operator's disk and a sandbox, with cp's rules about folders.

The sandbox is hostile (contract section 0): nothing that it names can make us write outside of the
folder that the operator named. Names are checked, links are made last and never followed, and
every file is opened relative to a folder that was opened before, without following a link.
"""

from __future__ import annotations

from pinfold.transfer._get import get as get
from pinfold.transfer._get import get_to as get_to
from pinfold.transfer._put import put as put
from pinfold.transfer._put import put_from as put_from

__all__ = ["get", "get_to", "put", "put_from"]
