"""One engine, and sandboxes of ours on it, for blocking rows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import docker
from anyio.from_thread import BlockingPortal

from bench.docker._raw import RawEngine
from pinfold.plugins import Catalog
from pinfold.provider import Context, ExecRequest, Owner
from pinfold.resolve import pin, resolve
from pinfold.spec import PinnedSpec
from pinfold_docker import DockerProvider
from pinfold_docker._instance import DockerInstance

__all__ = ["ECHO", "IMAGE", "MIB", "Bench"]

IMAGE = "pinfold-test:busybox"
MIB = 1 << 20
ECHO = ["echo", "hi"]


class Bench:
    """One engine, and the blocking way to ours."""

    def __init__(self, host: str, portal: BlockingPortal) -> None:
        self.host = host
        self.portal = portal
        self.raw = RawEngine(host.removeprefix("unix://"))
        self.client = docker.DockerClient(base_url=host, version="auto")
        self.provider = DockerProvider()
        # With the helper or a fault, or by the shell path: no row is named after the other's figures.
        self.pinned: dict[bool, PinnedSpec] = {
            helper: portal.call(self._pin, "required" if helper else "never")
            for helper in (True, False)
        }

    async def _pin(self, helper: str) -> PinnedSpec:
        options = {"image": IMAGE, "helper": helper}
        target = {"kind": "container", "provider": "docker", "options": options}
        catalog = Catalog([self.provider])
        return await pin(resolve({"target": target, "durability": "none"}, catalog), catalog)

    def create(self, *, helper: bool) -> DockerInstance:
        ctx = Context(owner=Owner(store="bench", sandbox="sbx_bench"))
        return self.portal.call(self.provider.create, self.pinned[helper], ctx)

    def run(self, instance: DockerInstance) -> None:
        result = self.portal.call(instance.exec, ExecRequest(argv=ECHO))
        if result.stdout != b"hi\n":
            raise RuntimeError(result)

    @contextmanager
    def box(self, *, helper: bool) -> Iterator[DockerInstance]:
        instance = self.create(helper=helper)
        try:
            yield instance
        finally:
            self.portal.call(instance.destroy)

    def cli(self, *argv: str) -> None:
        subprocess.run(["docker", "--host", self.host, *argv], check=True, capture_output=True)
