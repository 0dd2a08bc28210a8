"""The record of one checkpoint (CP-1)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import attrs

from pinfold.checkpoint._manifest import Damaged, Newer

__all__ = ["CheckpointRecord", "decode_record", "encode_record"]

VERSION: Final = 1
LISTED: Final = 10_000
#: What a number in a record may be; of times the year 2255, which every calendar has.
_MOST: Final = 9 * 10**18
_LEAST: Final = {"generation": 0, "entries": 0, "total_bytes": 0, "created_ns": -_MOST}
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@attrs.frozen(kw_only=True)
class CheckpointRecord:
    """One checkpoint. It is never altered (CP-5).

    Attributes:
        checkpoint_id: `cp_` and 32 hex digits.
        sandbox_id: whose it is.
        generation: of the compute that it was taken from.
        created_ns: when, in nanoseconds since the epoch; always later than `parent`, whatever the
            clock did.
        tree_digest: `sha256:` and the hex digest of the tree (CP-1).
        manifest: `sha256:` and the digest of the stored manifest of the root.
        parent: the checkpoint that it was made from, or null.
        entries: files, directories and links in the tree.
        total_bytes: the sizes of its files together.
        skipped: paths of sockets, pipes and devices, surrogateescape (CP-6).
        unsettled: paths of files that changed while they were read, stored as read (CP-6).

    At most 10,000 paths are listed in `skipped`, and in `unsettled`.
    """

    checkpoint_id: str
    sandbox_id: str
    generation: int
    created_ns: int
    tree_digest: str
    manifest: str
    parent: str | None = None
    entries: int = 0
    total_bytes: int = 0
    skipped: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()


_TYPES: Final[dict[str, Any]] = {
    "checkpoint_id": str,
    "sandbox_id": str,
    "generation": int,
    "created_ns": int,
    "tree_digest": str,
    "manifest": str,
    "parent": (str, type(None)),
    "entries": int,
    "total_bytes": int,
    "skipped": list,
    "unsettled": list,
}


def _seal(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return "sha256:" + sha256(text.encode("ascii")).hexdigest()


def encode_record(record: CheckpointRecord) -> bytes:
    """Return the record as JSON, with its version and a digest of the rest."""
    body: dict[str, Any] = {
        **attrs.asdict(record),
        "version": VERSION,
        "skipped": list(record.skipped[:LISTED]),
        "unsettled": list(record.unsettled[:LISTED]),
    }
    return json.dumps({**body, "seal": _seal(body)}, indent=1).encode("ascii")


def decode_record(data: bytes, *, sandbox: str, checkpoint_id: str) -> CheckpointRecord:
    """Return the record that these bytes are, when it is the one that was asked for.

    Raises:
        Damaged: they are no record, or another one's.
        Newer: they are of a later version (SP-3).
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Damaged(f"the record is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise Damaged("the record is not a JSON object")
    version, seal = body.get("version"), body.pop("seal", None)
    if type(version) is not int:
        raise Damaged("the record has no version")
    if version > VERSION:
        raise Newer(version)
    if version != VERSION or seal != _seal(body):
        raise Damaged("the record's version or seal is not right")
    del body["version"]
    if body.keys() != _TYPES.keys():
        raise Damaged("the record lacks a key, or has one too many")
    for key, kind in _TYPES.items():
        if not isinstance(body[key], kind) or isinstance(body[key], bool):
            raise Damaged(f"the record's {key} is of the wrong type")
    for key, least in _LEAST.items():
        if not least <= body[key] <= _MOST:
            raise Damaged(f"the record's {key} is absurd")
    if not all(isinstance(path, str) for path in (*body["skipped"], *body["unsettled"])):
        raise Damaged("the record lists something that is no path")
    if not (_DIGEST.fullmatch(body["tree_digest"]) and _DIGEST.fullmatch(body["manifest"])):
        raise Damaged("a digest in the record is malformed")
    if (body["sandbox_id"], body["checkpoint_id"]) != (sandbox, checkpoint_id):
        raise Damaged("this is another checkpoint's record")
    for key in ("skipped", "unsettled"):
        body[key] = tuple(body[key])
    return CheckpointRecord(**body)
