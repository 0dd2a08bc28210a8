"""Reading a whole store through, to find what is damaged."""

from __future__ import annotations

import attrs

from pinfold.checkpoint._io import Io
from pinfold.checkpoint._merkle import Manifests
from pinfold.checkpoint._record import CheckpointRecord
from pinfold.checkpoint._records import Records
from pinfold.checkpoint._restore import Contents
from pinfold.errors import CheckpointCorrupt, InvalidArgument, PinfoldError
from pinfold.provider import FileType

__all__ = ["Problem", "Verifier", "VerifyReport"]


@attrs.frozen(kw_only=True)
class Problem:
    """One object that is missing or damaged.

    Attributes:
        object: its key.
        reason: what is wrong with it.
        checkpoints: the checkpoints that need it.
    """

    object: str
    reason: str
    checkpoints: tuple[str, ...]


@attrs.frozen(kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        checkpoints: checkpoints that were gone through.
        contents: different file contents that were read.
        content_bytes: their bytes.
        problems: what is wrong, sorted by object; empty when all is well.
    """

    checkpoints: int
    contents: int
    content_bytes: int
    problems: tuple[Problem, ...]


@attrs.define
class _Found:
    reasons: dict[str, str] = attrs.Factory(dict)
    checkpoints: dict[str, list[str]] = attrs.Factory(dict)

    def add(self, exc: PinfoldError, checkpoint_id: str) -> str:
        key = str(exc.details.get("object", ""))
        self.reasons.setdefault(key, str(exc.details.get("reason", exc.message)))
        self.checkpoints.setdefault(key, []).append(checkpoint_id)
        return key


@attrs.frozen
class Verifier:
    """Verifies one store."""

    io: Io
    records: Records
    manifests: Manifests

    async def verify(self, sandbox: str | None) -> VerifyReport:
        """Do what `CheckpointStore.verify` says."""
        keys = await self.records.keys(sandbox)
        records, faults = await self.records.read(keys)
        found = _Found()
        for key, exc in faults.items():
            found.add(exc, key.rpartition("/")[2])
        checked: dict[str, str] = {}  # content digest to the object that is wrong, or ""
        total = 0
        for record in records:
            total += await self._verify(record, found, checked)
        problems = [
            Problem(object=key, reason=reason, checkpoints=tuple(sorted(found.checkpoints[key])))
            for key, reason in sorted(found.reasons.items())
        ]
        return VerifyReport(
            checkpoints=len(keys),
            contents=sum(1 for key in checked.values() if not key),
            content_bytes=total,
            problems=tuple(problems),
        )

    async def _verify(
        self, record: CheckpointRecord, found: _Found, checked: dict[str, str]
    ) -> int:
        try:
            entries = await self.manifests.tree(record)
            contents = Contents(self.io, record, entries)
        except (CheckpointCorrupt, InvalidArgument) as exc:
            found.add(exc, record.checkpoint_id)
            return 0
        total = 0
        wanted = {e.digest: e.size for e in entries if e.type is FileType.FILE and e.size}
        for digest, size in wanted.items():
            if digest in checked:
                bad = checked[digest]
                if bad and record.checkpoint_id not in found.checkpoints[bad]:
                    found.checkpoints[bad].append(record.checkpoint_id)
                continue
            try:
                async for _ in contents.fetch(digest):
                    pass
            except (CheckpointCorrupt, InvalidArgument) as exc:
                checked[digest] = found.add(exc, record.checkpoint_id)
            else:
                checked[digest] = ""
                total += size
        return total
