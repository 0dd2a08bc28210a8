"""What else there is to run a command in a container with; measured where it is installed."""

from __future__ import annotations

import importlib
import importlib.util

import docker

from bench.harness import Way

__all__ = ["peers"]


def peers(client: docker.DockerClient, container: str) -> list[Way]:
    """Return ways to run `echo hi` in a container."""
    ways = []
    if importlib.util.find_spec("testinfra"):
        host = importlib.import_module("testinfra").get_host(f"docker://{container}")
        ways.append(Way(name="testinfra docker://", run=lambda: host.run("echo hi").stdout))
    if importlib.util.find_spec("llm_sandbox"):
        session = importlib.import_module("llm_sandbox").SandboxSession(
            client=client, container_id=container, lang="python", skip_environment_setup=True
        )
        session.open()
        ways.append(Way(name="llm-sandbox", run=lambda: session.execute_command("echo hi")))
    return ways
