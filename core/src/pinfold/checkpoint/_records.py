"""The records of a store: found, named, dropped (retention)."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import Final

import attrs

from pinfold.checkpoint._io import Io
from pinfold.checkpoint._keys import (
    RECORDS,
    TAGS,
    check_checkpoint_id,
    check_sandbox,
    check_tag,
    is_record,
    is_tag,
    record_key,
    tag_key,
)
from pinfold.checkpoint._manifest import Damaged, Newer
from pinfold.checkpoint._merkle import newer
from pinfold.checkpoint._record import CheckpointRecord, decode_record
from pinfold.errors import CheckpointCorrupt, NotFound, PinfoldError

__all__ = ["Records"]

_log: Final = logging.getLogger("pinfold.checkpoint")
_BATCH: Final = 256
#: Beside a record that is about to go, until it is sure that no tag names it. The record itself
#: stays where it is: a listing beside a rename may see neither name.
_GOING: Final = ".going"


@attrs.frozen
class Records:
    """Finds records, and tags and drops them."""

    io: Io

    async def keys(self, sandbox: str | None = None) -> list[str]:
        """Return the keys of all records."""
        return [key for key in await self._listed(sandbox) if not key.endswith(_GOING)]

    async def _listed(self, sandbox: str | None) -> list[str]:
        prefix = RECORDS if sandbox is None else f"{RECORDS}/{check_sandbox(sandbox)}"
        keys = [info.key for info in await self.io.list(prefix)]
        return [key for key in keys if is_record(key.removesuffix(_GOING))]

    async def read(
        self, keys: Sequence[str]
    ) -> tuple[list[CheckpointRecord], dict[str, PinfoldError]]:
        """Return the records that can be read, and the errors of the others.

        One that was dropped meanwhile is in neither.
        """
        records: list[CheckpointRecord] = []
        faults: dict[str, PinfoldError] = {}
        for start in range(0, len(keys), _BATCH):
            found = await self.io.find(keys[start : start + _BATCH])
            for key, data in found.items():
                try:
                    records.append(_decoded(key, data))
                except PinfoldError as exc:
                    faults[key] = exc
        return records, faults

    async def get(self, checkpoint_id: str, sandbox: str | None) -> CheckpointRecord:
        """Do what `CheckpointStore.record` says."""
        check_checkpoint_id(checkpoint_id)
        if sandbox is not None:
            keys = [record_key(check_sandbox(sandbox), checkpoint_id)]
        else:
            keys = [key for key in await self.keys() if key.endswith(f"/{checkpoint_id}")]
        for key, data in (await self.io.find(keys)).items():
            return _decoded(key, data)
        raise NotFound(
            f"there is no checkpoint {checkpoint_id}" + (f" of {sandbox}" if sandbox else ""),
            hint="list the sandbox's checkpoints",
            details={"checkpoint_id": checkpoint_id, "sandbox_id": sandbox},
        )

    async def of(self, sandbox: str) -> list[CheckpointRecord]:
        """Do what `CheckpointStore.list` says."""
        records, faults = await self.read(await self.keys(sandbox))
        for key, exc in faults.items():
            _log.warning("left out of the list: %s: %s", key, exc.message)
        records.sort(key=lambda record: (record.created_ns, record.checkpoint_id))
        return records

    async def tag(self, record: CheckpointRecord, name: str) -> None:
        """Do what `CheckpointStore.tag` says."""
        key = tag_key(record.sandbox_id, check_tag(name))
        body = {"version": 1, "checkpoint_id": record.checkpoint_id}
        await self.io.put({key: json.dumps(body).encode("ascii")})
        # The tag first, then the mark, then the record: see `drop`.
        place = record_key(record.sandbox_id, record.checkpoint_id)
        going = await self.io.exists([place + _GOING])
        if going or not await self.io.exists([place]):
            await self.io.delete([key])
            raise NotFound(
                f"the checkpoint {record.checkpoint_id} is being dropped, or gone",
                hint="list the sandbox's checkpoints",
                details={"checkpoint_id": record.checkpoint_id},
            )

    async def untag(self, sandbox: str, name: str) -> None:
        """Do what `CheckpointStore.untag` says."""
        await self.io.delete([tag_key(check_sandbox(sandbox), check_tag(name))])

    async def tag_names(self, sandbox: str) -> list[str]:
        """Return the names of a sandbox's tags, also of damaged ones."""
        prefix = f"{TAGS}/{check_sandbox(sandbox)}"
        keys = [info.key for info in await self.io.list(prefix)]
        return sorted(key.rpartition("/")[2] for key in keys if is_tag(key))

    async def tags(self, sandbox: str) -> dict[str, str]:
        """Do what `CheckpointStore.tags` says."""
        keys = [tag_key(sandbox, name) for name in await self.tag_names(sandbox)]
        tags: dict[str, str] = {}
        for key, data in sorted((await self.io.find(keys)).items()):
            name = key.rpartition("/")[2]
            try:
                body = json.loads(data)
                version, checkpoint_id = body["version"], str(body["checkpoint_id"])
            except (ValueError, KeyError, TypeError) as exc:
                raise CheckpointCorrupt(
                    f"the tag {name!r} of {sandbox} is damaged", details={"object": key}
                ) from exc
            if version != 1:
                raise newer(f"tag {name}", key, Newer(version))
            tags[name] = checkpoint_id
        return tags

    async def drop(self, sandbox: str, ids: Collection[str], *, tagged: bool) -> list[str]:
        """Drop records, but (unless `tagged`) for those with a tag; return the ids of the dropped.

        A record is first marked, and tags are looked up after that. So a tag that was given
        meanwhile has either been seen here, or has seen the mark. What a killed process had
        marked is finished here too.
        """
        await self.io.put({record_key(sandbox, one) + _GOING: b"" for one in ids})
        marks = [key for key in await self._listed(sandbox) if key.endswith(_GOING)]
        kept = set() if tagged else set((await self.tags(sandbox)).values())
        doomed = {mark.removesuffix(_GOING) for mark in marks}
        gone = sorted(key for key in doomed if key.rpartition("/")[2] not in kept)
        await self.io.delete(gone)
        await self.io.delete(marks)
        return [key.rpartition("/")[2] for key in gone]

    async def retain(self, sandbox: str, keep: int, protect: Collection[str]) -> list[str]:
        """Do what `CheckpointStore.retain` says."""
        records = await self.of(sandbox)
        kept = {*protect, *(await self.tags(sandbox)).values()}
        old = [r.checkpoint_id for r in records[: max(len(records) - keep, 0)]]
        old = [checkpoint_id for checkpoint_id in old if checkpoint_id not in kept]
        return await self.drop(sandbox, old, tagged=False)


def _decoded(key: str, data: bytes) -> CheckpointRecord:
    _, sandbox, checkpoint_id = key.split("/", 2)
    try:
        return decode_record(data, sandbox=sandbox, checkpoint_id=checkpoint_id)
    except Newer as exc:
        raise newer(checkpoint_id, key, exc) from exc
    except Damaged as exc:
        raise CheckpointCorrupt(
            f"checkpoint {checkpoint_id} is damaged: {key}: {exc}",
            hint="other checkpoints are not touched by this; go back to an earlier one",
            details={
                "checkpoint_id": checkpoint_id,
                "sandbox_id": sandbox,
                "object": key,
                "reason": str(exc),
            },
        ) from exc
