"""What the tests of docker share: specs, sandboxes, and a second way to the engine."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import docker

from pinfold.plugins import Catalog
from pinfold.provider import Context, ExecRequest, ExecResult, Owner, Terminal
from pinfold.resolve import resolve
from pinfold.spec import PinnedSpec, ResolvedSpec
from pinfold_docker import DockerProvider
from pinfold_docker._instance import DockerInstance
from pinfold_docker._socket import EngineSocket

BUSYBOX = "pinfold-test:busybox"
DEBIAN = "pinfold-test:debian"
STORE = f"tests-{os.getpid()}"
OWNER = Owner(store=STORE, sandbox="sbx_test")


def resolved(
    *,
    network: str | None = None,
    roots: tuple[str, ...] = (),
    connection: str | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> ResolvedSpec:
    """Return a spec for docker, resolved; durability none, so that one concern is tested."""
    all_options = {"image": BUSYBOX, **(options or {}), **more}
    target: dict[str, Any] = {"kind": "container", "provider": "docker", "options": all_options}
    if connection is not None:
        target["connection_id"] = connection
    containment: dict[str, Any] = {"filesystem": {"writable_roots": list(roots)}}
    if network is not None:
        containment["network"] = {"mode": network}
    layer = {"target": target, "containment": containment, "durability": "none"}
    return resolve([layer], Catalog([DockerProvider()]))


async def pinned(provider: DockerProvider, spec: ResolvedSpec, ctx: Context | None = None):
    """Return a spec, pinned as core does it."""
    pins = await provider.pin(spec, ctx or Context(owner=OWNER))
    return PinnedSpec(spec=spec, pins=pins.pins, unpinned=pins.unpinned, provider="docker")


async def make(
    provider: DockerProvider | None = None, *, owner: Owner = OWNER, **spec: Any
) -> DockerInstance:
    """Make a sandbox."""
    provider = provider or DockerProvider()
    ctx = Context(owner=owner)
    instance = await provider.create(await pinned(provider, resolved(**spec), ctx), ctx)
    assert isinstance(instance, DockerInstance)
    return instance


@asynccontextmanager
async def box(provider: DockerProvider | None = None, **spec: Any) -> AsyncIterator[DockerInstance]:
    """A sandbox, gone afterwards."""
    instance = await make(provider, **spec)
    try:
        yield instance
    finally:
        with anyio.CancelScope(shield=True):
            await instance.destroy()


async def sh(instance: DockerInstance, script: str, **request: Any) -> ExecResult:
    """Run a script."""
    return await instance.exec(ExecRequest(shell=script, **request))


async def said(instance: DockerInstance, script: str, **request: Any) -> str:
    """Run a script that must succeed and return what it said."""
    result = await sh(instance, script, **request)
    assert result.exit_code == 0, (result, result.stdout_text, result.stderr_text)
    return result.stdout_text


async def all_of(stream: EngineSocket | Terminal) -> bytes:
    """Read to the end."""
    data = b""
    try:
        while True:
            data += await stream.receive()
    except anyio.EndOfStream:
        return data


async def eventually(check: Any, seconds: float = 15) -> None:
    """Wait until something is so."""
    with anyio.fail_after(seconds):
        while True:
            answer = check()
            if hasattr(answer, "__await__"):
                answer = await answer
            if answer:
                return
            await anyio.sleep(0.02)


def strays(client: docker.DockerClient, store: str = STORE) -> list[str]:
    """Name all that carries a store's label: containers and volumes."""
    filters: dict[str, Any] = {"label": f"pinfold.store={store}"}
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    volumes = client.volumes.list(filters=filters)
    return [*(str(c.name) for c in containers), *(str(v.name) for v in volumes)]


@asynccontextmanager
async def image(
    client: docker.DockerClient,
    base: str = BUSYBOX,
    *,
    files: Mapping[str, bytes] = {},
    links: Mapping[str, str] = {},
    changes: tuple[str, ...] = (),
) -> AsyncIterator[str]:
    """An image made of another one by a commit, gone afterwards."""
    tag = f"made-{time.monotonic_ns()}"
    container = client.containers.create(base, ["/bin/true"], network_mode="none")
    try:
        if files or links:
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode="w") as tar:
                for name, data in files.items():
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mode = len(data), 0o755
                    tar.addfile(entry, io.BytesIO(data))
                for name, text in links.items():
                    entry = tarfile.TarInfo(name)
                    entry.type, entry.linkname = tarfile.SYMTYPE, text
                    tar.addfile(entry)
            container.put_archive("/", stream.getvalue())
        container.commit("pinfold-test", tag, changes=list(changes))
    finally:
        container.remove(force=True)
    try:
        yield f"pinfold-test:{tag}"
    finally:
        client.images.remove(f"pinfold-test:{tag}", force=True)
