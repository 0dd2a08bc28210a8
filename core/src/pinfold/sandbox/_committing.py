"""A workspace's checkpoints, made and put back while a controller holds it (CP, LC-3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs

from pinfold.checkpoint import CheckpointRecord, Progress
from pinfold.errors import Conflict, Effect, PinfoldError, Unavailable
from pinfold.events import EventType
from pinfold.provider import Instance, ScanState
from pinfold.sandbox._held import Held
from pinfold.sandbox._provision import typed_errors
from pinfold.sandbox._record import SandboxRecord

__all__ = ["Committing"]


class _FinishedBefore(Exception):
    """The rollback is not under way any more."""


class Committing(Held):
    """Commits what the instance's workspace has become, and fills it from a checkpoint."""

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Let all mutations of a block share one checkpoint, at its end (LC-3)."""
        self._commits.batches += 1
        try:
            yield
        finally:
            self._commits.batches -= 1
            if not self._commits.batches and self._commits.owed:
                await self._settle()

    async def _settle(self) -> None:
        """Commit a checkpoint that covers what was just done, if one is owed (LC-3)."""
        if not self._checkpointed or self._commits.batches:
            self._commits.owed = self._checkpointed
            return
        try:
            await self._commits.share(self._commit)
        except PinfoldError as exc:
            exc.effect = Effect.DONE  # the work itself is done; the last checkpoint stays current
            raise

    async def _commit(self, progress: Progress | None = None) -> CheckpointRecord:
        """Commit the workspace and make the result current; nothing where nothing changed."""
        instance, generation = self._instance, self._generation
        if instance is None or generation is None:
            raise Conflict("there is no instance to take a checkpoint of")
        checkpoints, commits = self._store.checkpoints, self._commits
        base = commits.base
        if base is None and self._record.checkpoint_id is not None:
            with suppress(PinfoldError):
                base = await checkpoints.record(self._record.checkpoint_id, sandbox=self._id)
        try:
            with typed_errors():
                done = await checkpoints.commit(
                    instance.tree,
                    sandbox=self._id,
                    generation=generation,
                    base=base,
                    state=commits.state,
                    progress=progress,
                )
            if done.record.checkpoint_id != self._record.checkpoint_id:
                event = (EventType.CHECKPOINT_CREATED, _checkpoint_facts(done.record))
                await self._update(
                    lambda r: attrs.evolve(r, checkpoint_id=done.record.checkpoint_id), event
                )
        except Unavailable:
            self._suspect = True
            raise
        commits.base, commits.state, commits.owed = done.record, done.state, False
        if done.created:
            await self._after_commit(done.record, instance, done.state)
        return done.record

    async def _after_commit(
        self, record: CheckpointRecord, instance: Instance, state: ScanState
    ) -> None:
        # Both only save work later: the checkpoint is current whatever becomes of them.
        with suppress(PinfoldError):
            if instance.features.attach:
                await self._store.checkpoints.save_state(record, instance.ref.id, state)
            if self._store.keep is not None:
                await self._store.checkpoints.retain(
                    self._id, self._store.keep, protect=[record.checkpoint_id]
                )

    async def _finish_restore(
        self, instance: Instance, checkpoint_id: str, progress: Progress | None = None
    ) -> None:
        checkpoints = self._store.checkpoints
        try:
            record = await checkpoints.record(checkpoint_id, sandbox=self._id)
            with typed_errors():
                report = await checkpoints.restore(instance.tree, record, progress=progress)
        except Unavailable:
            self._suspect = True
            raise
        except PinfoldError:
            # It was refused before anything was touched: the rollback is off.
            await self._update(
                lambda r: attrs.evolve(r, restoring=None) if r.restoring == checkpoint_id else r
            )
            raise
        self._commits.base, self._commits.state = record, report.state
        if report.state is None:
            self._commits.base = None

        def finished(now: SandboxRecord) -> SandboxRecord:
            if now.restoring != checkpoint_id:
                raise _FinishedBefore
            return attrs.evolve(now, restoring=None, checkpoint_id=checkpoint_id)

        facts = {
            **_checkpoint_facts(record),
            "escaping_links": list(report.escaping_links),
            "process_state_lost": report.processes_ended,
        }
        # Another controller that found this rollback under way may have been quicker: what is
        # current since is not taken back.
        with suppress(_FinishedBefore):
            await self._update(finished, (EventType.CHECKPOINT_RESTORED, facts))

    async def _fill(
        self, instance: Instance, before: SandboxRecord
    ) -> tuple[CheckpointRecord, ScanState] | None:
        checkpoint_id = before.restoring or before.checkpoint_id
        if checkpoint_id is None:
            return None
        checkpoints = self._store.checkpoints
        base = await checkpoints.record(checkpoint_id, sandbox=self._id)
        report = await checkpoints.restore(instance.tree, base)
        return None if report.state is None else (base, report.state)

    async def _scan_state(self, record: SandboxRecord) -> tuple[CheckpointRecord, ScanState] | None:
        if record.checkpoint_id is None or record.ref is None:
            return None
        with suppress(PinfoldError):  # without it the next scan reads everything, no more
            base = await self._store.checkpoints.record(record.checkpoint_id, sandbox=self._id)
            state = await self._store.checkpoints.load_state(base, record.ref.id)
            return None if state is None else (base, state)
        return None


def _checkpoint_facts(record: CheckpointRecord) -> dict[str, Any]:
    return {
        "checkpoint_id": record.checkpoint_id,
        "tree_digest": record.tree_digest,
        "entries": record.entries,
        "skipped": len(record.skipped),
        "unsettled": len(record.unsettled),
    }
