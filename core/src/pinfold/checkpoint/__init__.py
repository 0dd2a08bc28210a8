"""Checkpoints: workspaces as Merkle trees in a store that any target can restore from (CP).

`CheckpointStore` is the whole of it. The format is described where it is made: keys in `_keys`,
manifests and the tree digest in `_manifest`, collection in `_leases`.
"""

from __future__ import annotations

from pinfold.checkpoint._collect import CollectReport as CollectReport
from pinfold.checkpoint._commit import Commit as Commit
from pinfold.checkpoint._commit import Progress as Progress
from pinfold.checkpoint._local import LocalObjects as LocalObjects
from pinfold.checkpoint._objects import ObjectInfo as ObjectInfo
from pinfold.checkpoint._objects import Objects as Objects
from pinfold.checkpoint._objects import OnStep as OnStep
from pinfold.checkpoint._record import CheckpointRecord as CheckpointRecord
from pinfold.checkpoint._remote import FsspecObjects as FsspecObjects
from pinfold.checkpoint._store import CheckpointStore as CheckpointStore
from pinfold.checkpoint._verify import Problem as Problem
from pinfold.checkpoint._verify import VerifyReport as VerifyReport

__all__ = [
    "CheckpointRecord",
    "CheckpointStore",
    "CollectReport",
    "Commit",
    "FsspecObjects",
    "LocalObjects",
    "ObjectInfo",
    "Objects",
    "OnStep",
    "Problem",
    "Progress",
    "VerifyReport",
]
