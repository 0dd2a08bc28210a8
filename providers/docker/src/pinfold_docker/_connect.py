"""The engine that a spec means: the local one, or a connection's, by TCP with TLS."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pinfold.connections import Connection
from pinfold.errors import InvalidArgument, Unauthorized, Unavailable
from pinfold_docker._engine import Engine, local_endpoint
from pinfold_docker._http import Endpoint

__all__ = ["Engines", "endpoint_of", "lacks_of", "missing_protection"]

DEFAULT_TLS_PORT = 2376


def endpoint_of(connection: Connection) -> Endpoint:
    """Return where a connection leads.

    Its values: `host` (tcp://HOST:PORT), `ca`, `cert` and `key`, PEM texts, which are references
    (`file:PATH` and the like).

    Raises:
        NotFound: one of them is missing.
        InvalidArgument: `host` is no such address.
        Unauthorized: one of the others is no certificate or key.
    """
    address = urlsplit(connection.text("host"))
    try:
        port = address.port
    except ValueError:
        port = -1
    if address.scheme != "tcp" or not address.hostname or port == -1 or address.path:
        raise InvalidArgument(
            f"connection {connection.id!r}: host is to be tcp://HOST:PORT",
            hint="ssh and plain tcp are not offered",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # its half-close is well defined
    try:
        context.load_verify_locations(cadata=connection.text("ca"))
        # The standard library reads these from files alone.
        with tempfile.NamedTemporaryFile("w", prefix="pinfold-", encoding="utf-8") as file:
            file.write(connection.text("cert") + "\n" + connection.text("key") + "\n")
            file.flush()
            context.load_cert_chain(file.name, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as exc:
        raise Unauthorized(
            f"connection {connection.id!r}: ca, cert and key are to be PEM texts that fit: "
            f"{getattr(exc, 'reason', None) or type(exc).__name__}",
            hint="refer to the files by file:PATH",
        ) from None
    return Endpoint(host=address.hostname, port=port or DEFAULT_TLS_PORT, tls=context)


def _no_passphrase() -> str:
    """Refuse; without this the library asks the terminal, and waits for an answer."""
    raise Unauthorized(
        "the key of a connection needs a passphrase, which nobody is there to give",
        hint="store the key without one, readable by its owner alone",
    )


class Engines:
    """The engines in use: the local one, and one for each connection this process has used."""

    def __init__(self) -> None:
        self._engines: dict[str | None, Engine] = {}

    def local(self) -> Engine:
        """Return the local engine.

        Raises:
            Unavailable: DOCKER_HOST names one that isn't local.
        """
        endpoint = local_endpoint(os.environ)
        engine = self._engines.get(None)
        if engine is None or engine.endpoint != endpoint:
            engine = self._engines[None] = Engine(endpoint)
        return engine

    def use(self, connection: Connection) -> Engine:
        """Return a connection's engine, with the credentials that it has now."""
        engine = self._engines[connection.id] = Engine(endpoint_of(connection))
        return engine

    def known(self, connection_id: str | None) -> Engine:
        """Return an engine that this process has used.

        Raises:
            Unavailable: it hasn't, so that its credentials are not known here.
        """
        if connection_id is None:
            return self.local()
        engine = self._engines.get(connection_id)
        if engine is None:
            raise Unavailable(
                f"the engine of connection {connection_id!r} has not been used by this process",
                hint="pass a context that can connect to it",
            )
        return engine


def missing_protection(facts: Mapping[str, Any]) -> list[str]:
    """Name what `level: isolated` needs and an engine lacks."""
    options = [str(option) for option in facts.get("SecurityOptions") or ()]
    lacking = []
    if not any("seccomp" in option and "unconfined" not in option for option in options):
        lacking.append("seccomp: the engine has no system call filter")
    for key, what in (("MemoryLimit", "memory"), ("PidsLimit", "pids"), ("CpuCfsQuota", "cpu")):
        if not facts.get(key):
            lacking.append(f"{what} limit: the engine can't enforce it")
    if facts.get("OSType", "linux") != "linux":
        lacking.append("Linux containers: the engine runs others")
    return lacking


def lacks_of(facts: Mapping[str, Any]) -> list[str]:
    """Name what an engine could have besides, and what it costs that it hasn't (PR-4, TR-2)."""
    names = " ".join(str(option) for option in facts.get("SecurityOptions") or ())
    lacks = []
    if "name=apparmor" not in names and "name=selinux" not in names:
        lacks.append("AppArmor or SELinux: no second boundary behind the namespaces")
    if "name=userns" not in names and "name=rootless" not in names:
        lacks.append("user namespaces: uids inside are uids of the engine's host")
    if not facts.get("SwapLimit"):
        lacks.append("swap limit: memory_bytes does not count what is swapped out")
    if not facts.get("BridgeNfIptables"):
        lacks.append("bridge filtering: network allow is refused")
    # Volumes have a size on xfs alone, and there only with project quota, which no engine tells of.
    if dict(facts.get("DriverStatus") or ()).get("Backing Filesystem") != "xfs":
        lacks.append("workspace quota: a workspace has no size, and may fill the engine's disk")
    return lacks
