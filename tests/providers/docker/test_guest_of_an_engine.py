"""Tests on somebody's own engine leave it as it was: images, containers, volumes, networks."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import docker
import pytest

from tests.providers.docker.support import BUSYBOX, DEBIAN

# It imports the Debian image once more.
pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
CODE = """
import os, sys, docker, pytest
client = docker.DockerClient(base_url=os.environ["DOCKER_HOST"], version="auto")
assert {"pinfold-test:debian", "pinfold-test:busybox", "mine:1"} <= {
    tag for image in client.images.list() for tag in image.tags
}
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def state(client: docker.DockerClient) -> dict[str, list[str]]:
    """Everything that an engine has, by name."""
    return {
        "images": sorted(f"{image.id} {sorted(image.tags)}" for image in client.images.list(all=True)),
        "containers": sorted(str(one.name) for one in client.containers.list(all=True)),
        "volumes": sorted(str(one.name) for one in client.volumes.list()),
        "networks": sorted(str(one.name) for one in client.networks.list()),
    }  # fmt: skip


@pytest.mark.parametrize("has_busybox", [True, False], ids=["an image of ours was there", "none"])
def test_an_engine_that_is_not_ours_is_left_as_it_was(own_engine, has_busybox):
    """What was there stays, be it named as ours; what the run brought goes with it."""
    with closing(docker.DockerClient(base_url=own_engine.host, version="auto")) as client:
        client.images.get(BUSYBOX).tag("mine", "1")
        container = client.containers.create("mine:1", ["true"])
        try:
            if not has_busybox:
                client.images.remove(BUSYBOX)
            before = state(client)
            assert DEBIAN not in str(before)
            tests = ("tests/providers/docker/test_life.py", "-k", "listing or commit or labels")
            done = subprocess.run(
                [sys.executable, "-m", "tools.docker_engine", sys.executable, "-c", CODE, *tests],
                cwd=ROOT,
                env=os.environ | {"DOCKER_HOST": own_engine.host},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert state(client) == before
        finally:
            container.remove()
            client.images.get("mine:1").tag(*BUSYBOX.split(":"))
            client.images.remove("mine:1")
