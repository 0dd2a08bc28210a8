"""The one converter: JSON-able documents in and out of pinfold's frozen classes.

Reading finds every fault of a document, not just the first: what is at fault is cut out, and the
rest is read again, until it is clean. Unknown keys are faults everywhere (SP-0).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

import attrs
import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault, pointer, suggest
from pinfold.spec._json import JsonObject, canonical_json, freeze, json_faults, thaw
from pinfold.spec._model import ITEM_CONSTRAINTS, Faulty, json_type, not_a_word
from pinfold.spec._secrets import has_secret_shape
from pinfold.spec._values import UNSET, Unset

__all__ = ["CONTRACT", "converter", "from_json", "read", "to_canonical", "to_json"]

T = TypeVar("T")

#: The contract that this core keeps; fields added later carry `since` in their metadata (SP-3).
CONTRACT = "1.0"

_MISSING = object()


# --- reading --------------------------------------------------------------------------------


def _string(value: Any, _: Any) -> str:
    if type(value) is not str:
        raise Faulty([_wrong_type("a string", value)])
    if not value.isascii():
        faults = json_faults(value)
        if faults:
            raise Faulty(faults)
    return value


def _scalar(kind: type, article: str) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise Faulty([_wrong_type(article, value)])

    return structure


def _wrong_type(expected: str, value: object) -> Fault:
    return Fault(
        pointer="",
        code="wrong_type",
        message=f"expected {expected}, found {json_type(value)}",
        allowed=(expected,),
    )


def _word(value: Any, kind: Any) -> StrEnum:
    try:
        return cast(StrEnum, kind(value))
    except ValueError:
        raise Faulty([not_a_word(kind, value)]) from None


def _item(new_type: Any) -> Callable[[Any, Any], Any]:
    constraint = ITEM_CONSTRAINTS[new_type]

    def structure(value: Any, _: Any) -> Any:
        faults = list(constraint.faults(_string(value, str)))
        if faults:
            raise Faulty(faults)
        return value

    return structure


def _object(value: Any, _: Any) -> JsonObject:
    if not isinstance(value, Mapping):
        raise Faulty([_wrong_type("an object", value)])
    faults = json_faults(value)
    if faults:
        raise Faulty(faults)
    return freeze(value)


def _path(value: Any, _: Any) -> PurePosixPath:
    return PurePosixPath(_string(value, str))


def _class_factory(cls: Any, conv: cattrs.Converter) -> Callable[[Any, Any], Any]:
    generated = make_dict_structure_fn(cls, conv, _cattrs_forbid_extra_keys=True)

    def structure(value: Any, kind: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Faulty([_wrong_type("an object", value)])
        return generated(value, kind)

    return structure


def _is_optional(kind: Any) -> bool:
    """Say whether a type is one type or null (or unset)."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType) and (
        type(None) in typing.get_args(kind)
    )


def _optional_factory(kind: Any, conv: cattrs.Converter) -> Callable[[Any, Any], Any]:
    rest = [arg for arg in typing.get_args(kind) if arg not in (Unset, type(None))]
    inner = rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007
    hook = conv.get_structure_hook(inner)
    return lambda value, _: None if value is None else hook(value, inner)


def _is_object(kind: Any) -> bool:
    origin: Any = typing.get_origin(kind)
    return origin is Mapping or origin is dict or kind is JsonObject


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def _list_factory(kind: Any, conv: cattrs.Converter) -> Callable[[Any, Any], Any]:
    item = typing.get_args(kind)[0]
    hook = conv.get_structure_hook(item)

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise Faulty([_wrong_type("an array", value)])
        faults: list[Fault] = []
        items = []
        for index, entry in enumerate(value):
            try:
                items.append(hook(entry, item))
            except Exception as exc:  # noqa: BLE001 - becomes a fault of this entry
                faults += [fault.under(f"/{index}") for fault in _faults(exc)]
        if faults:
            raise Faulty(faults)
        return tuple(items)

    return structure


def _make_converter(*, detailed: bool) -> cattrs.Converter:
    conv = cattrs.Converter(detailed_validation=detailed, forbid_extra_keys=True)
    conv.register_structure_hook_factory(attrs.has, _class_factory)
    conv.register_structure_hook_factory(_is_list, _list_factory)
    conv.register_structure_hook_factory(_is_optional, _optional_factory)
    conv.register_structure_hook_func(_is_object, _object)
    for kind, hook in (
        (str, _string),
        (StrEnum, _word),  # said by name: a StrEnum is a str, and would be read as any str
        (int, _scalar(int, "a whole number")),
        (float, _scalar(float, "a number")),
        (bool, _scalar(bool, "true or false")),
        (PurePosixPath, _path),
    ):
        conv.register_structure_hook(kind, hook)
    for new_type in ITEM_CONSTRAINTS:
        conv.register_structure_hook(new_type, _item(new_type))
    return conv


#: The project's converter. Providers' option classes are read by it too.
converter = _make_converter(detailed=True)

# The same without the bookkeeping of places: sound documents, the usual case, are read by it.
_quick = _make_converter(detailed=False)


def _safe_key(key: object) -> str | None:
    return key if isinstance(key, str) and not has_secret_shape(key) else None


def _faults(exc: BaseException) -> list[Fault]:
    """Return the faults in one exception of the converter, pointers relative to its value."""
    if isinstance(exc, SpecInvalid):
        return list(exc.faults)
    if isinstance(exc, ForbiddenExtraKeysError):
        return [_unknown_key(exc, key) for key in sorted(exc.extra_fields, key=str)]
    if isinstance(exc, ClassValidationError):
        faults: list[Fault] = []
        with_notes, others = exc.group_exceptions()
        for inner, note in with_notes:
            at = pointer(note.name)
            if isinstance(inner, KeyError):
                faults.append(_required(at))
            else:
                faults += [fault.under(at) for fault in _faults(inner)]
        for inner in others:
            faults += _faults(inner)
        return faults
    if isinstance(exc, IterableValidationError):
        faults = []
        indexed, rest = exc.group_exceptions()
        for inner, index_note in indexed:
            faults += [fault.under(pointer(index_note.index)) for fault in _faults(inner)]
        for inner in rest:
            faults += _faults(inner)
        return faults
    # A validator of a provider's own option class: its text is for people.
    text = str(exc) if isinstance(exc, ValueError) else type(exc).__name__
    return [Fault(pointer="", code="invalid", message=text or type(exc).__name__)]


def _required(at: str) -> Fault:
    return Fault(pointer=at, code="required", message="this key is required")


def _unknown_key(exc: ForbiddenExtraKeysError, key: object) -> Fault:
    known = tuple(field.name for field in attrs.fields(cast(Any, exc.cl)) if field.init)
    name = _safe_key(key)
    if name is None:
        return Fault(pointer="", code="unknown_key", message="a key is unknown", allowed=known)
    return Fault(
        pointer=pointer(name),
        code="unknown_key",
        message="this key is unknown",
        allowed=known,
        suggestion=suggest(name, known),
    )


def read(document: Any, cls: type[T]) -> tuple[T | None, tuple[Fault, ...], frozenset[str]]:
    """Read what can be read of a document.

    Returns:
        The instance made of all that is sound (None if nothing can be made), every fault, and
        the pointers of what was cut out, so that a caller can tell "absent" from "at fault".
    """
    found: list[Fault] = []
    cut: set[str] = set()

    def note(faults: list[Fault]) -> set[str]:
        places = set()
        for fault in faults:
            # What follows from an earlier cut is not a fault of its own.
            if not any(c == fault.pointer or c.startswith(fault.pointer + "/") for c in cut):
                found.append(fault)
            places.add(fault.pointer)
        return places

    try:
        return _quick.structure(document, cls), (), frozenset()
    except Exception:  # noqa: BLE001, S110 - read again, with every fault
        pass
    while document is not _MISSING:
        try:
            return converter.structure(document, cls), _sorted(found), frozenset(cut)
        except Exception as exc:  # noqa: BLE001 - every failure becomes a fault
            places = note(_faults(exc))
            cut |= places
            smaller = _without(document, places)
            while smaller is document:  # what is missing can't be cut out: cut what lacks it
                places = {place.rpartition("/")[0] for place in places}
                smaller = _without(document, places)
            document = smaller
    return None, _sorted(found), frozenset(cut)


def _sorted(faults: list[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: (fault.pointer, fault.code)))


def _without(document: Any, places: set[str]) -> Any:
    """Return a copy without the values at `places`; the same object if there were none."""
    changed = False

    def walk(value: Any, at: str) -> Any:
        nonlocal changed
        if at in places:
            changed = True
            return _MISSING
        if not any(place.startswith(at + "/") for place in places):
            return value
        if isinstance(value, Mapping):
            kept = {}
            for key, item in value.items():
                if not isinstance(key, str) or (
                    at in places and not key.isascii()
                ):  # already a fault of the object
                    changed = True
                    continue
                inner = walk(item, at + pointer(key))
                if inner is not _MISSING:
                    kept[key] = inner
            return kept
        if isinstance(value, (list, tuple)):
            items = [walk(item, f"{at}/{index}") for index, item in enumerate(value)]
            return [item for item in items if item is not _MISSING]
        return value

    result = walk(document, "")
    return result if changed else document


def from_json(document: Any, cls: type[T]) -> T:
    """Read a document whole.

    Raises:
        SpecInvalid: with every fault (RS-5).
    """
    value, faults, _ = read(document, cls)
    if faults or value is None:
        raise SpecInvalid(faults or (Fault(pointer="", code="invalid", message="not readable"),))
    return value


# --- writing --------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Return the JSON-able form of a value.

    Null keys are left out, except where null is a choice and not an absence: such fields have
    `explicit_null` in their metadata, so that nothing is decided anew when the form is read.
    """
    if attrs.has(type(value)):
        return _object_form(value, canonical=False)
    return _value_form(value, canonical=False)


def to_canonical(value: Any) -> bytes:
    """Return the canonical bytes of an instance (SP-3).

    A field added after contract 1.0 is left out while it has its default, so that what was
    digested before it existed keeps its digest.
    """
    return canonical_json(_object_form(value, canonical=True))


def _object_form(value: Any, *, canonical: bool) -> dict[str, Any]:
    form: dict[str, Any] = {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        if item is UNSET or (item is None and not field.metadata.get("explicit_null")):
            continue
        if canonical and "since" in field.metadata and item == _default(field):
            continue
        form[field.name] = _value_form(item, canonical=canonical)
    return form


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if hasattr(default, "factory") else default


def _value_form(value: Any, *, canonical: bool) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if attrs.has(type(value)):
        return _object_form(value, canonical=canonical)
    if isinstance(value, Mapping):
        return {key: _value_form(item, canonical=canonical) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value_form(item, canonical=canonical) for item in value]
    if isinstance(value, PurePosixPath):
        return str(value)
    return thaw(value)
