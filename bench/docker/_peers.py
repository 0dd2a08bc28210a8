"""What else there is to run a command in a container with; measured where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import docker
from anyio.from_thread import BlockingPortal

from bench.harness import Way

__all__ = ["peers"]

#: What inspect_ai makes its containers of.
COMPOSE = """
services:
  default:
    image: {image}
    init: true
    network_mode: none
    command: sleep 2147483647
"""


@contextmanager
def peers(
    client: docker.DockerClient, container: str, image: str, portal: BlockingPortal
) -> Iterator[list[Way]]:
    """Ways to run `echo hi` in a container: in the given one, or in one of its own."""
    with ExitStack() as stack:
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
        if importlib.util.find_spec("inspect_ai"):
            compose = ["docker", "compose", "version"]
            if subprocess.run(compose, check=False, capture_output=True).returncode:
                print("inspect_ai: not measured: it needs `docker compose` (tools.docker_newer)")
            else:
                sandbox = stack.enter_context(portal.wrap_async_context_manager(_inspect(image)))
                ways.append(
                    Way(
                        name="inspect_ai docker sandbox",
                        run=lambda: portal.call(sandbox.exec, ["echo", "hi"]),
                    )
                )
        yield ways


@asynccontextmanager
async def _inspect(image: str) -> AsyncIterator[Any]:
    kind = importlib.import_module("inspect_ai.util._sandbox.docker.docker")
    sandbox = kind.DockerSandboxEnvironment
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "compose.yaml"
        config.write_text(COMPOSE.format(image=image))
        await sandbox.task_init("bench", str(config))
        environments = await sandbox.sample_init("bench", str(config), {})
        try:
            yield environments["default"]
        finally:
            await sandbox.sample_cleanup("bench", str(config), environments, False)
            await sandbox.task_cleanup("bench", str(config), True)
