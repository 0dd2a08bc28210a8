"""Connections: credentials by reference, resolved at the moment of use (PR-5).

A connection has a name and values. A value is plain (a host, a user) or a reference:

- `env:NAME` reads an environment variable,
- `file:PATH` reads a file (a final newline is dropped); in pinfold.toml a relative path is
  relative to the file,
- `keyring:SERVICE/USER` asks the system's keyring (extra `pinfold[keyring]`).

What a reference gives is a `Secret`: it shows itself only when asked to, and is remembered, so that
`redact` can take it out of any text on its way into an error, an event or a log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from pinfold._paths import expanded
from pinfold.errors import Effect, Internal, NotFound, PinfoldError, SpecInvalid, Unauthorized
from pinfold.faults import Fault, pointer
from pinfold.spec import has_secret_name, has_secret_shape

__all__ = [
    "Connection",
    "Connections",
    "Secret",
    "connection_faults",
    "provider_failure",
    "redact",
    "scrub",
    "scrub_error",
]

_SCHEMES = ("env:", "file:", "keyring:")
_MASK = "[redacted]"
_MIN_LENGTH = 4  # shorter texts would take innocent text out

#: Every secret revealed in this process, so that it can be taken out of texts: the forms in which
#: texts show it. The longest is first: one secret may be a part of another.
_revealed: dict[str, None] = {}


def _remember(value: str) -> None:
    shown = (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False))
    forms = {value, *(text[1:-1] for text in shown), quote(value), quote(value, safe="")}
    if not forms <= _revealed.keys():
        longest = sorted({*_revealed, *forms}, key=len, reverse=True)
        _revealed.clear()
        _revealed.update(dict.fromkeys(longest))


class Secret:  # no attrs class: nothing that turns those into text or JSON may open it
    """A value that shows itself only through `reveal()`; it can't be pickled or printed.

    Args:
        value: what to keep.
        reference: where it came from; shown in its place.
    """

    __slots__ = ("_value", "reference")

    def __init__(self, value: str, reference: str) -> None:
        self._value = value
        self.reference = reference
        if len(value) >= _MIN_LENGTH:
            _remember(value)

    def reveal(self) -> str:
        """Return the value; keep it out of everything that is stored or shown."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise TypeError("a secret can't be pickled")


@attrs.frozen(kw_only=True)
class Connection:
    """A resolved connection; use it at once and let it go.

    Attributes:
        id: its name.
        values: plain values as str, references as `Secret`.
    """

    id: str
    values: Mapping[str, str | Secret] = attrs.field(repr=lambda values: repr(sorted(values)))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a value, revealed.

        Raises:
            NotFound: there is no such value and no default.
        """
        value = self.values.get(key, default)
        if value is None:
            raise NotFound(
                f"connection {self.id!r} has no {key!r}",
                hint=f"add it to [connections.{self.id}]",
            )
        return value.reveal() if isinstance(value, Secret) else value


def connection_faults(values: Mapping[str, Any]) -> Iterable[Fault]:
    """Yield what is wrong with a connection's table: a secret in plain, or no text at all."""
    for key, value in values.items():
        at = pointer(key)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            yield Fault(pointer=at, code="wrong_type", message="expected a string")
        elif isinstance(value, str) and value.startswith(_SCHEMES):
            if value in _SCHEMES:
                yield Fault(pointer=at, code="bad_format", message="the reference names nothing")
        elif has_secret_name(key) or has_secret_shape(str(value)):
            yield Fault(
                pointer=at,
                code="secret",
                message="a credential in plain",
                allowed=("env:NAME", "file:PATH", "keyring:SERVICE/USER"),
                hint="write where it is to be found instead",
            )


class Connections:
    """The connections that a deployment has registered.

    Args:
        tables: name to table, as in `[connections.NAME]`.
        hook: an embedder's source, asked first: name to table, or None (PR-1).

    Raises:
        SpecInvalid: a table holds a credential in plain.
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        hook: Callable[[str], Mapping[str, str | Secret] | None] = lambda _: None,
    ) -> None:
        self._tables = {name: dict(table) for name, table in (tables or {}).items()}
        self._hook = hook
        faults = [
            fault.under(pointer("connections", name))
            for name, table in self._tables.items()
            for fault in connection_faults(table)
        ]
        if faults:
            raise SpecInvalid(faults)

    @property
    def names(self) -> tuple[str, ...]:
        """The names known without asking the hook, sorted."""
        return tuple(sorted(self._tables))

    async def resolve(self, name: str) -> Connection:
        """Resolve a connection's references, now.

        Raises:
            NotFound: no such connection.
            Unauthorized: a reference leads to nothing; says which, never what.
        """
        from anyio import to_thread

        return await to_thread.run_sync(self._resolve, name)

    def _resolve(self, name: str) -> Connection:
        table = self._hook(name)
        if table is None:
            table = self._tables.get(name)
        if table is None:
            known = ", ".join(self.names) or "none"
            raise NotFound(
                f"there is no connection {name!r}",
                hint=f"add [connections.{name}] to pinfold.toml; registered: {known}",
            )
        if not isinstance(table, Mapping) or not all(
            isinstance(key, str) and isinstance(value, (str, int, Secret))
            for key, value in table.items()
        ):
            raise Internal(
                f"the hook's answer for connection {name!r} is no table of texts and secrets",
                hint="this is a bug of the plugin that answered",
                effect=Effect.NONE,
            )
        values = {
            key: value if isinstance(value, Secret) else _resolve_value(name, key, str(value))
            for key, value in table.items()
        }
        return Connection(id=name, values=values)


def _resolve_value(name: str, key: str, value: str) -> str | Secret:
    scheme = next((scheme for scheme in _SCHEMES if value.startswith(scheme)), None)
    if scheme is None:
        # Files hold no credential in plain; an embedder's hook may.
        plain = not (has_secret_name(key) or has_secret_shape(value))
        return value if plain else Secret(value, f"hook:{name}/{key}")
    rest = value.removeprefix(scheme)
    found = {"env:": _from_env, "file:": _from_file, "keyring:": _from_keyring}[scheme](rest)
    if isinstance(found, Secret):
        return found
    raise Unauthorized(
        f"connection {name!r}: {key} is to come from {value!r}, which {found}",
        hint="set it, or change the reference",
        details={"connection": name, "key": key, "reference": value},
    )


def _from_env(name: str) -> Secret | str:
    value = os.environ.get(name)
    return Secret(value, f"env:{name}") if value else "is not set"


def _from_file(name: str) -> Secret | str:
    try:
        value = Path(expanded(name)).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError, RuntimeError) as exc:
        return f"can't be read ({type(exc).__name__})"
    return Secret(value, f"file:{name}") if value else "is empty"


def _from_keyring(name: str) -> Secret | str:
    service, slash, user = name.rpartition("/")
    if not slash or not service:
        return "is not SERVICE/USER"
    try:
        import keyring
    except ImportError:
        return "needs the extra pinfold[keyring]"
    try:
        value = keyring.get_password(service, user)
    except Exception as exc:  # noqa: BLE001 - a backend may raise anything
        return f"the keyring refuses ({type(exc).__name__})"
    return Secret(value, f"keyring:{name}") if value else "is not in the keyring"


def redact(text: str) -> str:
    """Return `text` without any secret that was revealed in this process."""
    for value in tuple(_revealed):  # other threads may reveal more meanwhile
        if value in text:
            text = text.replace(value, _MASK)
    return text


def scrub(value: Any) -> Any:
    """Return a JSON-able value without any secret that was revealed."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value


def scrub_error(error: PinfoldError) -> PinfoldError:
    """Take revealed secrets out of an error, in place, and return it.

    What it was raised from is kept where it holds no secret, else dropped.
    """
    error.message = redact(error.message)
    error.hint = redact(error.hint)
    error.details = scrub(error.details)
    error.args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in error.args)
    source = error.__cause__ or error.__context__
    if source is not None and _holds_secret(source):
        error.__cause__ = error.__context__ = None
        error.__suppress_context__ = True
    return error


def provider_failure(source: Exception) -> Internal:
    """Return the typed error for what a provider should not have raised; raise it `from` its cause.

    The source becomes its cause, unless it holds a secret.
    """
    error = Internal(
        redact(f"the provider failed: {type(source).__name__}: {source}"),
        hint="this is a bug of the provider",
    )
    error.__cause__ = None if _holds_secret(source) else source
    return error


def _holds_secret(source: BaseException) -> bool:
    import traceback

    text = "".join(traceback.format_exception(source))
    return redact(text) != text
