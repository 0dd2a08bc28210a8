"""Places where a checkpoint store can be: a folder, fsspec's memory and local, a real S3 server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import pytest

from pinfold.checkpoint import CheckpointStore, FsspecObjects, LocalObjects
from tests.core.checkpoint.folder import FolderTree


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def s3_server() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """An S3 server of moto's on loopback, in a process of its own; and its URL."""
    port = free_port()
    env = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1"]
    with subprocess.Popen(
        [*command, "-p", str(port)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(url, timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "moto's server ended"
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.1)
        try:
            yield server, url
        finally:
            server.kill()


def options_for(url: str) -> dict[str, Any]:
    return {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": url}}


@pytest.fixture(scope="session")
def s3_options():
    with s3_server() as (_, url):
        yield options_for(url)


@pytest.fixture
def place(request, tmp_path):
    """What a store is made with: (place, options)."""
    kind = request.param
    name = f"{uuid.uuid4().hex}"
    if kind == "folder":
        return LocalObjects(tmp_path / "store"), None
    if kind == "memory":
        return f"memory://{name}", None
    if kind == "fsspec-local":
        return FsspecObjects(fsspec.filesystem("file"), str(tmp_path / "store")), None
    assert kind == "s3"
    options = request.getfixturevalue("s3_options")
    fs = fsspec.filesystem("s3", **options)
    fs.mkdir(name)
    return f"s3://{name}/some/prefix", options


@pytest.fixture
def store(place):
    where, options = place
    return CheckpointStore(where, options=options)


@pytest.fixture
def tree(tmp_path):
    return FolderTree(tmp_path / "workspace")


@pytest.fixture
def other(tmp_path):
    """Another instance's workspace, with something in it."""
    tree = FolderTree(tmp_path / "other")
    (tree.root / "rubbish").mkdir()
    (tree.root / "rubbish" / "x").write_bytes(b"to be gone")
    return tree
