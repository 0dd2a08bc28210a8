"""`pinfold.toml`: profiles, templates, connections and the store of a project or a user.

Precedence, strongest first: flags, `PINFOLD_*` variables, the project's file (found upwards from
the working directory), the user's file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from pinfold._paths import expanded
from pinfold.connections import Connections
from pinfold.errors import InvalidArgument, NotFound, SpecInvalid
from pinfold.faults import Fault, pointer
from pinfold.plugins import Hooks, TemplateRevision, hooks
from pinfold.resolve import Layer, Profile, ProfileSet, SetMode
from pinfold.spec import digest_of, from_json, json_faults

__all__ = ["FILE_NAME", "Project", "StoreConfig", "find_file", "load", "parse"]

FILE_NAME = "pinfold.toml"


@attrs.frozen(kw_only=True)
class StoreConfig:
    """Where checkpoints and state are kept.

    Attributes:
        url: an fsspec URL or a folder, relative to the file that names it; null is the user's
            data folder.
        keep: how many checkpoints of a sandbox are kept, 1 or more; null is all.
    """

    url: str | None = None
    keep: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )


@attrs.frozen(kw_only=True)
class _File:
    """One file, as it is read."""

    profiles: Mapping[str, Any] = attrs.field(factory=dict)
    templates: Mapping[str, Any] = attrs.field(factory=dict)
    connections: Mapping[str, Any] = attrs.field(factory=dict)
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    default: str | None = None
    mode: SetMode | None = None
    store: StoreConfig = StoreConfig()


@attrs.frozen(kw_only=True)
class Project:
    """What the files say, the project's over the user's.

    Attributes:
        profiles: name to table: a spec, and `template` beside it where one lies below.
        templates: name to spec.
        connections: name to table of values and references.
        defaults: the deployment's layers, weakest first.
        default: the default profile's name.
        mode: the set's policy.
        store: where checkpoints and state are kept.
        path: the project's file; null where there is none.
    """

    profiles: Mapping[str, Any] = attrs.field(factory=dict)
    templates: Mapping[str, Any] = attrs.field(factory=dict)
    connections: Mapping[str, Any] = attrs.field(factory=dict)
    defaults: tuple[Layer, ...] = ()
    default: str | None = None
    mode: SetMode | None = None
    store: StoreConfig = StoreConfig()
    path: Path | None = None

    @property
    def profile_set(self) -> ProfileSet:
        """The named profiles as a set (RS-8)."""
        profiles = {}
        for name, table in self.profiles.items():
            spec = {key: value for key, value in table.items() if key != "template"}
            profiles[name] = Profile(spec=spec, template=table.get("template"))
        return ProfileSet(
            profiles=profiles, default=self.default, mode=self.mode, below=self.defaults
        )

    def template(self, name: str, plugins: Hooks | None = None) -> TemplateRevision | None:
        """Return a template's current revision: a plugin's, else the file's.

        The file's revision id is `tr_` and a digest of its content: an edit is another revision.

        Raises:
            SpecInvalid: the file's template holds what JSON can't (a date, say).
        """
        revision = (plugins or hooks()).template(name)
        if revision is None and name in self.templates:
            spec = self.templates[name]
            faults = json_faults(spec)
            if faults:
                raise SpecInvalid([fault.under(pointer("templates", name)) for fault in faults])
            digest = digest_of(spec).removeprefix("sha256:")
            revision = TemplateRevision(name=name, revision_id=f"tr_{digest[:32]}", spec=spec)
        return revision

    def registered(self, plugins: Hooks | None = None) -> Connections:
        """Return the connections, an embedder's hook first.

        Raises:
            SpecInvalid: a table holds a credential in plain.
        """
        return Connections(self.connections, hook=(plugins or hooks()).connection)


def find_file(start: Path | None = None) -> Path | None:
    """Return the nearest `pinfold.toml`, from a folder upwards.

    `PINFOLD_CONFIG` names one instead, and must exist.

    Raises:
        NotFound: `PINFOLD_CONFIG` names nothing.
    """
    named = os.environ.get("PINFOLD_CONFIG")
    if named:
        path = Path(named)
        if not path.is_file():
            raise NotFound(f"PINFOLD_CONFIG names no file: {named}")
        return path
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def user_file() -> Path:
    """Return where the user's own file would be."""
    import platformdirs

    return platformdirs.user_config_path("pinfold") / FILE_NAME


def parse(text: str, name: str) -> Mapping[str, Any]:
    """Parse a TOML or, for a name in `.json`, a JSON text.

    Raises:
        InvalidArgument: a syntax error, with line and column.
    """
    if name.endswith(".json"):
        import json

        try:
            value = json.loads(text, object_pairs_hook=_object)
        except json.JSONDecodeError as exc:
            raise InvalidArgument(
                f"{name}: line {exc.lineno}, column {exc.colno}: {exc.msg}",
                details={"line": exc.lineno, "column": exc.colno},
            ) from None
        except RecursionError:
            raise InvalidArgument(f"{name}: nested too deeply") from None
        except ValueError as exc:  # a key that stands twice, a number of thousands of digits
            raise InvalidArgument(f"{name}: {exc}") from None
        if not isinstance(value, Mapping):
            raise InvalidArgument(f"{name}: expected an object at the top")
        return value
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise _toml_error(name, text, str(exc)) from None
    except RecursionError:
        raise InvalidArgument(f"{name}: nested too deeply") from None
    except ValueError as exc:  # a number of thousands of digits
        raise InvalidArgument(f"{name}: {exc}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its keys; TOML allows none twice, and neither do we."""
    form = dict(pairs)
    if len(form) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"a key stands twice in one object: {', '.join(map(repr, twice))}")
    return form


def _toml_error(name: str, text: str, message: str) -> InvalidArgument:
    import re

    found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if found:
        line, column = int(found[1]), int(found[2])
        message = message[: found.start()]
    else:  # "at end of document"
        lines = text.split("\n")
        line, column = len(lines), len(lines[-1]) + 1
        message = message.removesuffix(" (at end of document)")
    return InvalidArgument(
        f"{name}: line {line}, column {column}: {message}",
        details={"line": line, "column": column},
    )


def read_document(path: Path) -> Mapping[str, Any]:
    """Read a TOML or JSON file.

    Raises:
        NotFound: there is none.
        InvalidArgument: it can't be read, or has a syntax error, with line and column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}") from None
    except (OSError, ValueError) as exc:  # no UTF-8; a name with a NUL or a lone surrogate
        raise InvalidArgument(f"{str(path)!a}: can't be read: {type(exc).__name__}") from None
    return parse(text, str(path))


def _read(path: Path) -> _File:
    try:
        file = from_json(read_document(path), _File)
    except SpecInvalid as exc:
        raise SpecInvalid(exc.faults, hint=f"in {path}") from None
    faults = [
        Fault(pointer=pointer(section, name), code="wrong_type", message="expected a table")
        for section in ("profiles", "templates", "connections")
        for name, table in getattr(file, section).items()
        if not isinstance(table, Mapping)
    ]
    faults += [
        Fault(
            pointer=pointer("profiles", name, "template"),
            code="wrong_type",
            message="expected a string",
        )
        for name, table in file.profiles.items()
        if isinstance(table, Mapping) and not isinstance(table.get("template", ""), str)
    ]
    if faults:
        raise SpecInvalid(faults, hint=f"in {path}")
    return _anchored(file, path.resolve().parent)


def _anchored(file: _File, folder: Path) -> _File:
    """Make what a file names relative to itself absolute: it means the same from everywhere."""
    connections = {
        name: {key: _anchored_reference(value, folder) for key, value in table.items()}
        for name, table in file.connections.items()
    }
    url = file.store.url
    if url is not None and "://" not in url:
        url = str(folder / expanded(url))
    return attrs.evolve(file, connections=connections, store=attrs.evolve(file.store, url=url))


def _anchored_reference(value: Any, folder: Path) -> Any:
    if isinstance(value, str) and value.startswith("file:") and value != "file:":
        return "file:" + str(folder / expanded(value.removeprefix("file:")))
    return value


def load(path: Path | None = None, *, user: bool = True) -> Project:
    """Read the project's file and the user's below it.

    Args:
        path: the project's file; by default the one found upwards from here.
        user: read the user's file too.

    Raises:
        NotFound: the file that was named is not there.
        InvalidArgument: a syntax error, with line and column.
        SpecInvalid: unknown keys or wrong types outside of specs, which are judged when resolved.
    """
    path = path or find_file()
    files: list[tuple[Path, _File]] = []
    if user and user_file().is_file() and user_file() != path:
        files.append((user_file(), _read(user_file())))
    if path is not None:
        files.append((path, _read(path)))
    merged = _File()
    defaults: list[Layer] = []
    for _, file in files:
        merged = _File(
            profiles={**merged.profiles, **file.profiles},
            templates={**merged.templates, **file.templates},
            connections={**merged.connections, **file.connections},
            default=file.default or merged.default,
            mode=file.mode or merged.mode,
            store=StoreConfig(
                url=file.store.url or merged.store.url, keep=file.store.keep or merged.store.keep
            ),
        )
        if file.defaults:
            defaults.append(Layer(file.defaults, "deployment"))
    return Project(
        profiles=merged.profiles,
        templates=merged.templates,
        connections=merged.connections,
        defaults=tuple(defaults),
        default=os.environ.get("PINFOLD_PROFILE") or merged.default,
        mode=merged.mode,
        store=merged.store,
        path=path,
    )
