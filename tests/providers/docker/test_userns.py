"""An engine that has user namespaces: what is asked for there, and what is claimed (SP-5, PR-4)."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from pinfold_docker import DockerProvider
from tests.providers.docker.support import box, said, sh
from tools import docker_engine, docker_images

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("client"), pytest.mark.nightly]

FIRST = 200_000
OPTIONS = ("--bridge=none", "--iptables=false", "--userns-remap=nobody:nogroup")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def remapped() -> Iterator[str]:
    """An engine of our own for which root inside is nobody outside."""
    lacking = docker_engine.why_not()
    if lacking is not None:
        pytest.skip(f"an engine with user namespaces can't be started: {lacking}")
    ranges = "".join(f"{name}:{FIRST}:65536\n" for name in ("nobody", "nogroup"))
    with docker_engine.throwaway(*OPTIONS, subordinates=ranges) as engine:
        docker_images.load_busybox(engine.host)
        yield engine.host


@pytest.fixture
def engine(remapped, monkeypatch) -> Iterator[docker.DockerClient]:
    """DOCKER_HOST names it; nothing is left on it."""
    monkeypatch.setenv("DOCKER_HOST", remapped)
    with closing(docker.DockerClient(base_url=remapped, version="auto")) as client:
        yield client
        assert client.containers.list(all=True) == []
        assert client.volumes.list() == []


def uid_of(pid: str) -> str:
    """Return whose a process is, as this machine sees it."""
    return Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0]


async def test_user_namespaces_are_no_longer_told_as_lacking(engine):
    state = await DockerProvider().probe()
    assert state.available
    assert not any("user namespaces" in lack for lack in state.details["lacks"])


@pytest.mark.parametrize("helper", ["required", "never"])
async def test_a_sandbox_works_and_its_user_is_nobody_outside(engine, helper):
    """Whoever breaks out has no uid of this machine's; files are the sandbox's own all the same."""
    async with box(DockerProvider(), roots=("/scratch",), helper=helper) as instance:
        assert (await said(instance, "cat /proc/self/uid_map")).split() == [
            "0",
            str(FIRST),
            "65536",
        ]
        await instance.files.write("/workspace/a/f", b"by the file operation")
        await instance.files.write("/scratch/f", b"beside it")
        script = "id -u; cat a/f /scratch/f; stat -c %u a a/f /scratch/f; echo more >>a/f"
        result = await sh(instance, script)
        assert result.exit_code == 0, result.stderr_text
        words = "1000\nby the file operationbeside it" + "1000\n" * 3
        assert result.stdout_text == words
        assert await instance.files.read("/workspace/a/f") == b"by the file operationmore\n"
        top = engine.containers.get(instance.ref.id).top()
        pids = [row[top["Titles"].index("PID")] for row in top["Processes"]]
        uids = {uid_of(pid) for pid in pids}
        assert uids <= {str(FIRST + 1000)}
        assert uids
