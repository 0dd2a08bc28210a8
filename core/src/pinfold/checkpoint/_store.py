"""The checkpoint store, as its users see it."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from pinfold.checkpoint._codec import pack, unpack
from pinfold.checkpoint._collect import Collector, CollectReport
from pinfold.checkpoint._commit import Commit, Committer, Progress
from pinfold.checkpoint._io import Io, in_thread
from pinfold.checkpoint._keys import check_checkpoint_id, check_sandbox, state_key
from pinfold.checkpoint._leases import Leases
from pinfold.checkpoint._manifest import Damaged
from pinfold.checkpoint._merkle import Manifests
from pinfold.checkpoint._objects import Objects, OnStep, no_step
from pinfold.checkpoint._record import CheckpointRecord
from pinfold.checkpoint._records import Records
from pinfold.checkpoint._remote import open_objects
from pinfold.checkpoint._restore import Contents
from pinfold.checkpoint._verify import Verifier, VerifyReport
from pinfold.errors import InvalidArgument
from pinfold.provider import Entry, FileMark, RestorePlan, RestoreReport, ScanState, Tree

__all__ = ["CheckpointStore"]

_STATE_BYTES: Final = 2**30


class CheckpointStore:
    """Checkpoints of any number of sandboxes, in one place, without a byte stored twice (CP-5).

    Several processes may use one place at once, a collector among them (CP-10). Whatever dies
    whenever: a checkpoint is there whole, or not at all.

    All methods raise `Unavailable`, `Unreachable`, `PermissionDenied` or `NoSpace` where the place
    fails; every checkpoint that was there before then still is.

    Args:
        place: a folder, a URL that fsspec knows (`s3://bucket/prefix`), or `Objects`.
        options: what fsspec's file system is made with.
        fsync: whether a commit in a folder of this machine also survives a power cut.
        lease_seconds: after how long a writer that never ended counts as dead.
        now_ns: the clock, nanoseconds since the epoch.
        token: gives 32 random hex digits.
        on_step: called with the name of each step, and the key it is about, before and after it
            (`put` and `put.done`); within a folder also `write`, `rename`, `written`, `move`,
            `moved`, `delete`, `deleted`. For tests: what it raises ends the operation there.

    Raises:
        InvalidArgument: there can be no store at such a place.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | Objects,
        *,
        options: Mapping[str, Any] | None = None,
        fsync: bool = True,
        lease_seconds: float = 86_400.0,
        now_ns: Callable[[], int] = time.time_ns,
        token: Callable[[], str] = lambda: secrets.token_hex(16),
        on_step: OnStep = no_step,
    ) -> None:
        self._io = Io(open_objects(place, options, fsync=fsync, on_step=on_step), on_step)
        self._manifests = Manifests(self._io)
        self._records = Records(self._io)
        self._leases = Leases(self._io, token)
        self._committer = Committer(self._io, self._manifests, self._leases, now_ns, token)
        self._collector = Collector(self._io, self._records, self._manifests, lease_seconds, token)

    def __repr__(self) -> str:
        return f"CheckpointStore({self._io.objects!r})"

    async def commit(
        self,
        tree: Tree,
        *,
        sandbox: str,
        generation: int,
        base: CheckpointRecord | None = None,
        state: ScanState | None = None,
        progress: Progress | None = None,
    ) -> Commit:
        """Make a checkpoint of a workspace; where nothing changed since `base`, that is the answer.

        Files that CP-7 calls unchanged are not read; contents that the store has are not sent;
        directories that are as in `base` are not written. The record is put last: until then, and
        after any error or cancellation, the earlier checkpoints are as they were.

        Args:
            tree: the workspace.
            sandbox: whose it is.
            generation: of its compute.
            base: the checkpoint that this workspace came from: the last commit, or what was
                restored. It saves work, and is the new record's parent.
            state: what the commit of `base` on this same instance returned, or the restore of it.
            progress: told of bytes sent, and of bytes to be sent.

        Raises:
            InvalidArgument: the target's listing is none of a tree (CP-8).
            PinfoldError: whatever the tree raises.
        """
        return await self._committer.commit(
            tree,
            sandbox=check_sandbox(sandbox),
            generation=generation,
            base=base,
            state=state,
            progress=progress,
        )

    async def restore(
        self, tree: Tree, record: CheckpointRecord, *, progress: Progress | None = None
    ) -> RestoreReport:
        """Make a workspace exactly the checkpoint's tree (CP-2); every byte is verified first.

        Args:
            tree: the workspace; its own journal makes this all or nothing (CP-3).
            record: the checkpoint.
            progress: told of bytes fetched, and of the tree's bytes in all.

        Raises:
            CheckpointCorrupt: an object is missing or damaged, by name; the workspace is untouched.
            InvalidArgument: written by a later pinfold, or the target can't represent it (CP-4).
            PinfoldError: whatever the tree raises.
        """
        why = f"a restore of {record.checkpoint_id}"
        async with self._leases.hold(why, needed=False):
            entries = await self._manifests.tree(record)
            contents = Contents(self._io, record, entries, progress)
            async with contents.reading_ahead():
                return await tree.restore(RestorePlan(entries=entries, fetch=contents.fetch))

    async def adopt(
        self, record: CheckpointRecord, *, sandbox: str, generation: int
    ) -> CheckpointRecord:
        """Give another sandbox a checkpoint of the same tree; no content is copied (LC-8).

        Raises:
            CheckpointCorrupt: an object of it is missing or damaged.
        """
        check_sandbox(sandbox)
        return await self._committer.adopt(record, sandbox=sandbox, generation=generation)

    async def record(self, checkpoint_id: str, *, sandbox: str | None = None) -> CheckpointRecord:
        """Return a checkpoint by its id; faster where its sandbox is named.

        Raises:
            NotFound: there is none.
            CheckpointCorrupt: its record is damaged.
            InvalidArgument: no such id can be, or a later pinfold wrote it (SP-3).
        """
        return await self._records.get(checkpoint_id, sandbox)

    async def list(self, sandbox: str) -> Sequence[CheckpointRecord]:
        """Return a sandbox's checkpoints, the oldest first; the damaged are logged, not listed."""
        return tuple(await self._records.of(check_sandbox(sandbox)))

    async def entries(self, record: CheckpointRecord) -> Sequence[Entry]:
        """Return all entries of a checkpoint, sorted by path, parents before children.

        Raises:
            CheckpointCorrupt: a manifest is missing or damaged, by name.
        """
        return await self._manifests.tree(record)

    async def tag(self, record: CheckpointRecord, name: str) -> None:
        """Give a checkpoint a name, which keeps it from being dropped; a name there is moved.

        Raises:
            NotFound: the checkpoint is gone.
            InvalidArgument: no such name can be.
        """
        await self._records.tag(record, name)

    async def untag(self, sandbox: str, name: str) -> None:
        """Take a name away; one that is not there is none."""
        await self._records.untag(sandbox, name)

    async def tags(self, sandbox: str) -> Mapping[str, str]:
        """Return a sandbox's tags: name to checkpoint id.

        Raises:
            CheckpointCorrupt: one is damaged.
        """
        return await self._records.tags(sandbox)

    async def retain(
        self, sandbox: str, keep: int, *, protect: Collection[str] = ()
    ) -> Sequence[str]:
        """Drop a sandbox's checkpoints, but for the newest, the tagged and the protected.

        Their contents go at the next collection, when nothing else needs them.

        Args:
            sandbox: whose.
            keep: how many of the newest.
            protect: ids that stay in any case: what the sandbox is at.

        Returns:
            The ids that were dropped.

        Raises:
            InvalidArgument: `keep` is negative.
        """
        if keep < 0:
            raise InvalidArgument(f"keep is negative: {keep}", hint="0 keeps none of the untagged")
        return await self._records.retain(check_sandbox(sandbox), keep, protect)

    async def forget(self, sandbox: str) -> Sequence[str]:
        """Drop all of a sandbox's checkpoints, also damaged ones, its tags and its saved state.

        Returns:
            The ids that were dropped.
        """
        for name in await self._records.tag_names(sandbox):
            await self._records.untag(sandbox, name)
        ids = [key.rpartition("/")[2] for key in await self._records.keys(sandbox)]
        dropped = await self._records.drop(sandbox, ids, tagged=True)
        await self._io.delete([state_key(sandbox)])
        return dropped

    async def drop(self, sandbox: str, checkpoint_id: str) -> bool:
        """Drop one checkpoint, damaged or not, unless it has a tag; say whether it was dropped."""
        ids = [check_checkpoint_id(checkpoint_id)]
        return bool(await self._records.drop(check_sandbox(sandbox), ids, tagged=False))

    async def collect(self) -> CollectReport:
        """Remove what no checkpoint needs; safe beside writers and other collectors (CP-10).

        What a writer at work may still need is set aside only, and left to the next collection.

        Raises:
            CheckpointCorrupt: a checkpoint can't be read, so that what it needs is unknown;
                nothing was removed. `verify` names the damaged, `drop` and `forget` drop them.
            InvalidArgument: a later pinfold wrote one (SP-3); nothing was removed.
        """
        return await self._collector.collect()

    async def verify(self, sandbox: str | None = None) -> VerifyReport:
        """Read every checkpoint through, or one sandbox's, and say what is missing or damaged."""
        verifier = Verifier(self._io, self._records, Manifests(self._io))
        return await verifier.verify(None if sandbox is None else check_sandbox(sandbox))

    async def save_state(self, record: CheckpointRecord, instance: str, state: ScanState) -> None:
        """Keep what the next scan may start from, for a controller that comes later.

        Args:
            record: the checkpoint that `state` belongs to.
            instance: tells the instance that was scanned from any other.
            state: what the commit or restore of `record` returned.
        """
        key = state_key(record.sandbox_id)
        data = await in_thread(lambda: _state_to_bytes(record.checkpoint_id, instance, state))
        await self._io.put({key: data})

    async def load_state(self, record: CheckpointRecord, instance: str) -> ScanState | None:
        """Return the state that was kept for this checkpoint and instance, or None.

        One that is damaged, or belongs to another checkpoint or instance, is none: it is a cache.
        """
        key = state_key(record.sandbox_id)
        data = (await self._io.find([key])).get(key)
        if data is None:
            return None
        return await in_thread(lambda: _state_from_bytes(data, record.checkpoint_id, instance))


def _state_to_bytes(checkpoint_id: str, instance: str, state: ScanState) -> bytes:
    body = {
        "version": 1,
        "checkpoint_id": checkpoint_id,
        "instance": instance,
        "started_ns": state.started_ns,
        "token": state.token,
        "files": {
            path: [mark.size, mark.mtime_ns, mark.ctime_ns, mark.inode, mark.digest]
            for path, mark in state.files.items()
        },
    }
    return pack(json.dumps(body, separators=(",", ":")).encode("ascii"))


def _state_from_bytes(data: bytes, checkpoint_id: str, instance: str) -> ScanState | None:
    try:
        body = json.loads(unpack(data, _STATE_BYTES))
        if (body["version"], body["checkpoint_id"], body["instance"]) != (
            1,
            checkpoint_id,
            instance,
        ):
            return None
        return ScanState(
            started_ns=body["started_ns"],
            token=body["token"],
            files={path: FileMark(*mark) for path, mark in body["files"].items()},
        )
    except (Damaged, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
