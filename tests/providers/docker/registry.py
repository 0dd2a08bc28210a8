"""A registry on the loopback with images of one layer: engines take it without TLS there."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.providers.docker.support import BUSYBOX

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry:
    """What it has, and who asked.

    Attributes:
        address: host and port.
        tags: a tag, or a digest, to the digest of a manifest.
        pulls: the references of manifests that were asked for.
        locked: who asks is to log in.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.name = f"{address}/pinfold-test/pulled"
        self.tags: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.pulls: list[str] = []
        self.locked = False

    def publish(self, client: Any, tag: str, version: bytes) -> str:
        """Put a busybox there that has a file /version; return its manifest's digest."""
        container = client.containers.create(BUSYBOX, ["/bin/true"], network_mode="none")
        try:
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode="w") as tar:
                entry = tarfile.TarInfo("version")
                entry.size, entry.mode = len(version), 0o644
                tar.addfile(entry, io.BytesIO(version))
            container.put_archive("/", stream.getvalue())
            layer = b"".join(container.export())
        finally:
            container.remove(force=True)
        config = {
            "architecture": client.version()["Arch"],
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin:/usr/sbin:/sbin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._keep(CONFIG, json.dumps(config).encode()),
            "layers": [self._keep(LAYER, gzip.compress(layer, 1))],
        }
        digest: str = self._keep(MANIFEST, json.dumps(manifest).encode())["digest"]
        self.tags[tag] = self.tags[digest] = digest
        return digest

    def _keep(self, kind: str, data: bytes) -> dict[str, Any]:
        self.blobs[_digest(data)] = data
        return {"mediaType": kind, "size": len(data), "digest": _digest(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


@contextmanager
def serving() -> Iterator[Registry]:
    """Run one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return None

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            *_, kind, reference = ("", *self.path.split("/"))
            if registry.locked:
                self._answer(401, b"{}", "application/json")
            elif self.path == "/v2/":
                self._answer(200, b"{}", "application/json")
            elif kind == "manifests" and reference in registry.tags:
                registry.pulls.append(reference)
                self._answer(200, registry.blobs[registry.tags[reference]], MANIFEST)
            elif kind == "blobs" and reference in registry.blobs:
                self._answer(200, registry.blobs[reference], "application/octet-stream")
            else:
                error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
                self._answer(404, json.dumps(error).encode(), "application/json")

        def _answer(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Docker-Content-Digest", _digest(data))
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="pinfold"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(f"127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
