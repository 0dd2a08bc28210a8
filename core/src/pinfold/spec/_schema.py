"""JSON Schema, generated from the classes: it can't say anything else than the converter does."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import attrs

from pinfold.spec._json import JsonObject
from pinfold.spec._model import ITEM_CONSTRAINTS, Network, Spec
from pinfold.spec._values import UNSET, NetworkMode, Unset

__all__ = ["DIALECT", "json_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    PurePosixPath: {"type": "string"},
    JsonObject: {"type": "object"},
}


def json_schema(cls: type[Any] = Spec, *, options: Mapping[str, type[Any]] | None = None) -> Any:
    """Return the JSON Schema (2020-12) of a class.

    Args:
        cls: an attrs class of ours, or a provider's option class.
        options: provider name to option class: their schemas are bound to the provider's name.
    """
    definitions: dict[str, Any] = {}
    root = _ref(cls, definitions)
    for name, option_class in (options or {}).items():
        option_ref = _ref(option_class, definitions, f"{name}.options")
        rule = {
            "if": {"properties": {"provider": {"const": name}}, "required": ["provider"]},
            "then": {"properties": {"options": option_ref}},
        }
        definitions["Target"].setdefault("allOf", []).append(rule)
    schema = {"$schema": DIALECT, "title": cls.__name__, **root}
    if definitions:
        schema["$defs"] = dict(sorted(definitions.items()))
    return schema


def _ref(cls: type[Any], definitions: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    name = name or cls.__name__
    if name not in definitions:
        definitions[name] = {}  # so that a cycle ends
        definitions[name] = _object(cls, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _object(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    attrs.resolve_types(cls)
    docs = _attribute_docs(cls)
    properties: dict[str, Any] = {}
    required = []
    for field in attrs.fields(cls):
        schema = _type(field.type, definitions)
        constraint = field.metadata.get("constraint")
        if constraint is not None:
            # Null, where it is allowed, is not held to the constraint.
            part = schema["anyOf"][0] if "anyOf" in schema else schema
            part.update(constraint.schema())
        if field.name in docs:
            schema["description"] = docs[field.name]
        default = _default(field)
        if default is attrs.NOTHING:
            required.append(field.name)
        elif default not in (None, UNSET) and isinstance(default, (str, int, float, bool)):
            schema["default"] = str(default) if isinstance(default, StrEnum) else default
        properties[field.name] = schema
    result: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    if summary:
        result["description"] = summary
    if required:
        result["required"] = required
    if cls is Network:
        # The one rule between fields that shape alone can say.
        hosts = {"required": ["allowed_hosts"], "properties": {"allowed_hosts": {"type": "array"}}}
        none = {"properties": {"allowed_hosts": {"type": "null"}}}
        result["if"] = {"properties": {"mode": {"const": str(NetworkMode.ALLOWLIST)}}}
        result["then"], result["else"] = hosts, none
    return result


def _type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        variants = [_type(arg, definitions) for arg in args if arg not in (Unset, type(None))]
        null: list[dict[str, Any]] = [{"type": "null"}] if type(None) in args else []
        both = variants + null
        return both[0] if len(both) == 1 else {"anyOf": both}
    if kind in ITEM_CONSTRAINTS:
        return {"type": "string", **ITEM_CONSTRAINTS[kind].schema()}
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if origin is tuple:
        return {"type": "array", "items": _type(args[0], definitions)}
    if origin is Mapping or origin is dict:
        return {"type": "object"}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [str(member) for member in kind]}
    if isinstance(kind, type) and attrs.has(kind):
        return _ref(kind, definitions)
    return {}  # Any: a provider's option may be any JSON


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return None if hasattr(default, "factory") else default


def _attribute_docs(cls: type[Any]) -> dict[str, str]:
    """Return what the class's docstring says of each attribute, in one line each."""
    doc = inspect.getdoc(cls) or ""
    _, found, section = doc.partition("Attributes:\n")
    if not found:
        return {}
    docs: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            docs[name] = start[2]
        elif name and line.startswith("     "):
            docs[name] += " " + line.strip()
        else:
            name = ""
    return docs
