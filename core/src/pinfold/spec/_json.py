"""JSON as pinfold accepts it, its frozen form, and its canonical bytes (SP-3)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from pinfold.faults import Fault, pointer
from pinfold.spec._secrets import has_secret_name, has_secret_shape

__all__ = [
    "JsonObject",
    "canonical_json",
    "digest_of",
    "freeze",
    "json_faults",
    "options_faults",
    "thaw",
]

MAX_DEPTH: Final = 32
MAX_OPTIONS_BYTES: Final = 32 * 1024
#: Larger integers are not the same number in every JSON reader.
MAX_INTEGER: Final = 2**53 - 1


class JsonObject(Mapping[str, Any]):
    """A JSON object that can't be changed: hashable, comparable with any mapping."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items: dict[str, Any] = {key: freeze_value(items[key]) for key in sorted(items)}
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._items.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, JsonObject):
            return self._items == other._items
        if isinstance(other, Mapping):
            return self._items == freeze(other)._items
        return NotImplemented

    def __repr__(self) -> str:
        return repr(thaw(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonObject, (self._items,)


def freeze_value(value: Any) -> Any:
    """Return the unchangeable form of a JSON value: `JsonObject`, tuple or scalar."""
    if isinstance(value, Mapping):
        return freeze(value)
    if isinstance(value, (list, tuple)):
        return tuple(freeze_value(item) for item in value)
    return value


def freeze(value: Mapping[str, Any]) -> JsonObject:
    """Return the unchangeable form of a JSON object."""
    return value if isinstance(value, JsonObject) else JsonObject(value)


def thaw(value: Any) -> Any:
    """Return plain dicts and lists, new ones."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


def canonical_json(value: Any) -> bytes:
    """Return the canonical form: sorted keys, no insignificant space, UTF-8 (SP-3).

    Raises:
        ValueError: NaN, infinities or lone surrogates, which JSON can't carry.
    """
    text = json.dumps(
        thaw(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def digest_of(value: Any) -> str:
    """Return `sha256:` and the hex digest of the canonical form."""
    return "sha256:" + sha256(canonical_json(value)).hexdigest()


def json_faults(value: Any, *, depth: int = 0) -> list[Fault]:
    """Return what keeps a value from being plain, portable JSON; pointers are relative to it."""
    faults: list[Fault] = []
    _walk(value, "", depth, faults)
    return faults


def _walk(value: Any, at: str, depth: int, faults: list[Fault]) -> None:
    kind = type(value)
    if value is None or kind is bool:
        return
    if isinstance(value, str):
        if not value.isascii() and _has_surrogate(value):
            _add(faults, at, "bad_text", "the text has a lone surrogate, which UTF-8 can't carry")
    elif isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            _add(faults, at, "out_of_range", "the integer is beyond 2^53 - 1")
    elif isinstance(value, float):
        if not math.isfinite(value):
            _add(faults, at, "out_of_range", "NaN and infinities are not JSON")
    elif isinstance(value, (Mapping, list, tuple)):
        if depth >= MAX_DEPTH:
            _add(faults, at, "too_deep", f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    _add(faults, at, "wrong_type", "the keys of an object are strings")
                elif not key.isascii() and _has_surrogate(key):
                    _add(faults, at, "bad_text", "a key has a lone surrogate")
                else:
                    _walk(item, at + pointer(key), depth + 1, faults)
        else:
            for index, item in enumerate(value):
                _walk(item, f"{at}/{index}", depth + 1, faults)
    else:
        _add(faults, at, "wrong_type", f"{kind.__name__} is not a JSON value")


def _add(faults: list[Fault], at: str, code: str, message: str) -> None:
    faults.append(Fault(pointer=at, code=code, message=message))


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def options_faults(options: Mapping[str, Any]) -> list[Fault]:
    """Return what keeps options out of a specification: not JSON, too large, secrets (SP-2)."""
    faults = json_faults(options)
    if faults:
        return faults
    faults = list(_secrets(options, ""))
    size = len(canonical_json(options))
    if size > MAX_OPTIONS_BYTES:
        faults.append(
            Fault(
                pointer="",
                code="too_large",
                message=f"the options take {size} bytes as JSON",
                allowed=(f"at most {MAX_OPTIONS_BYTES} bytes",),
            )
        )
    return faults


_BIND = "bind credentials through a connection (target.connection_id)"


def _secrets(value: Any, at: str) -> Iterator[Fault]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if has_secret_shape(key):  # the pointer must not repeat it
                yield Fault(pointer=at, code="secret", message="a key is a credential", hint=_BIND)
            elif has_secret_name(key):
                yield Fault(
                    pointer=at + pointer(key),
                    code="secret",
                    message="the name says that this is a credential",
                    hint=_BIND,
                )
            else:
                yield from _secrets(item, at + pointer(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _secrets(item, f"{at}/{index}")
    elif isinstance(value, str) and has_secret_shape(value):
        yield Fault(
            pointer=at,
            code="secret",
            message="the value has the shape of a credential",
            hint=_BIND,
        )
