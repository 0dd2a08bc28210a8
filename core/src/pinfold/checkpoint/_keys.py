"""Where things are in a store.

::

    objects/AB/…       blobs, chunks and manifests, by the SHA-256 of what is in them
    chunked/AB/…       for a file above 8 MiB, by its SHA-256: the chunks that it is made of
    records/SBX/cp_…   one checkpoint of one sandbox; written last, never altered
    tags/SBX/NAME      a name for a checkpoint; the only thing that is ever overwritten, with states
    states/SBX         what the next scan may start from; a cache, and no more
    clock/…            a collector asks for the time here
    leases/…           somebody is writing, or reading
    fossils/RUN/KEY    what a collection has set aside, until nobody can need it any more
    notes/RUN/…        which leases there were beside which of its fossils
"""

from __future__ import annotations

import re
from typing import Final

from pinfold.errors import InvalidArgument

__all__ = [
    "CHUNKED",
    "CLOCK",
    "FOSSILS",
    "LEASES",
    "NOTES",
    "OBJECTS",
    "RECORDS",
    "TAGS",
    "check_checkpoint_id",
    "check_sandbox",
    "check_tag",
    "chunked_key",
    "fossil_key",
    "fossil_of",
    "is_content",
    "is_fossil",
    "is_record",
    "is_tag",
    "object_key",
    "record_key",
    "state_key",
    "tag_key",
]

OBJECTS: Final = "objects"
CHUNKED: Final = "chunked"
RECORDS: Final = "records"
TAGS: Final = "tags"
STATES: Final = "states"
LEASES: Final = "leases"
CLOCK: Final = "clock"
FOSSILS: Final = "fossils"
NOTES: Final = "notes"

_SANDBOX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_CHECKPOINT: Final = re.compile(r"cp_[0-9a-f]{32}")
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONTENT: Final = re.compile(r"(?:objects|chunked)/[0-9a-f]{2}/[0-9a-f]{62}")


def object_key(digest: str) -> str:
    """Return the key of a blob, chunk or manifest, by its hex SHA-256."""
    return f"objects/{digest[:2]}/{digest[2:]}"


def chunked_key(digest: str) -> str:
    """Return the key of the list of chunks of a file, by the file's hex SHA-256."""
    return f"chunked/{digest[:2]}/{digest[2:]}"


def fossil_key(run: str, key: str) -> str:
    """Return where a collection sets an object aside."""
    return f"{FOSSILS}/{run}/{key}"


def fossil_of(fossil: str) -> tuple[str, str]:
    """Return the collection that set a fossil aside, and the key that it had."""
    _, run, key = fossil.split("/", 2)
    return run, key


def is_content(key: str) -> bool:
    """Say whether a key below `objects/` or `chunked/` is ours, and no file that somebody left."""
    return _CONTENT.fullmatch(key) is not None


def is_fossil(key: str) -> bool:
    """Say the same of a key below `fossils/`."""
    _, _, rest = key.partition("/")
    return is_content(rest.partition("/")[2])


def is_record(key: str) -> bool:
    """Say the same of a key below `records/`."""
    return _is_of_a_sandbox(key, _CHECKPOINT)


def is_tag(key: str) -> bool:
    """Say the same of a key below `tags/`."""
    return _is_of_a_sandbox(key, _TAG) and not key.rpartition("/")[2].startswith("cp_")


def _is_of_a_sandbox(key: str, name: re.Pattern[str]) -> bool:
    _, _, rest = key.partition("/")
    sandbox, _, last = rest.partition("/")
    return bool(_SANDBOX.fullmatch(sandbox) and name.fullmatch(last))


def record_key(sandbox: str, checkpoint_id: str) -> str:
    """Return the key of a checkpoint's record."""
    return f"{RECORDS}/{sandbox}/{checkpoint_id}"


def tag_key(sandbox: str, name: str) -> str:
    """Return the key of a tag."""
    return f"{TAGS}/{sandbox}/{name}"


def state_key(sandbox: str) -> str:
    """Return the key of a sandbox's saved scan state."""
    return f"{STATES}/{sandbox}"


def check_sandbox(sandbox: str) -> str:
    """Return a sandbox id that may be part of a key.

    Raises:
        InvalidArgument: it has other characters, or is too long.
    """
    return _check(_SANDBOX, sandbox, "the sandbox id", "letters, digits, '_' and '-'; at most 128")


def check_checkpoint_id(checkpoint_id: str) -> str:
    """Return a checkpoint id.

    Raises:
        InvalidArgument: it isn't one.
    """
    return _check(_CHECKPOINT, checkpoint_id, "the checkpoint id", "cp_ and 32 hex digits")


def check_tag(name: str) -> str:
    """Return a tag's name.

    Raises:
        InvalidArgument: it has other characters, is too long, or looks like a checkpoint's id.
    """
    _check(_TAG, name, "the tag", "letters, digits, '.', '_' and '-'; at most 64")
    if name.startswith("cp_"):
        raise InvalidArgument(f"the tag {name!r} looks like a checkpoint id", hint="choose another")
    return name


def _check(pattern: re.Pattern[str], text: str, what: str, allowed: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise InvalidArgument(f"{what} is not valid: {text!r:.200}", hint=f"allowed: {allowed}")
    return text
