"""An engine that answers, with the test images: `python -m tools.docker_engine pytest ...`."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from weakref import WeakSet

import docker
import pytest

from pinfold_docker import DockerProvider
from pinfold_docker._guest import DockerGuest
from pinfold_docker._instance import DockerInstance
from pinfold_docker._socket import EngineSocket
from tests.providers.docker.support import BUSYBOX, DEBIAN, make, strays
from tools import docker_engine, docker_images

HOW = "run the tests by: python -m tools.docker_engine python -m pytest"


def counted(patch: pytest.MonkeyPatch, kind: type, add: Callable[[Any], object]) -> None:
    """Have every object of a class told, once it is made."""
    honest = kind.__init__  # type: ignore[misc]

    def made(self: Any, *args: Any, **settings: Any) -> None:
        honest(self, *args, **settings)
        add(self)

    patch.setattr(kind, "__init__", made)


@pytest.fixture(scope="session")
def guests() -> Iterator[WeakSet[DockerGuest]]:
    """All containers that anybody reaches."""
    known: WeakSet[DockerGuest] = WeakSet()
    with pytest.MonkeyPatch.context() as patch:
        counted(patch, DockerGuest, known.add)
        yield known


@pytest.fixture(autouse=True)
def nothing_is_left_open(
    guests: WeakSet[DockerGuest], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """What a test leaves open is told by that test: the collector would tell it in another one.

    Whoever makes an instance detaches or destroys it, a test as well as pinfold. A sandbox that a
    module's tests share may hold what it had to open anew.
    """
    shared = set(guests)
    opened: list[EngineSocket] = []
    counted(monkeypatch, EngineSocket, opened.append)
    yield
    theirs = [process._stream._socket for guest in shared for process in guest._open]
    left = [one for one in opened if not one._closed and one not in theirs]
    for one in left:
        one.close()
    assert left == [], "connections to the engine were left open"


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    """The engine, by docker-py: the second way, past the code under test."""
    host = docker_engine.present()
    if host is None:
        pytest.skip(f"no Docker engine answers here; {HOW}")
    client = docker.DockerClient(base_url=host, version="auto")
    present = {tag for image in client.images.list() for tag in image.tags}
    if BUSYBOX not in present:
        pytest.skip(f"the engine has no image {BUSYBOX}; {HOW}")
    yield client
    left = strays(client)
    client.close()
    assert left == []  # the suite leaves nothing of its own on an engine


@pytest.fixture(scope="module")
def provider(client) -> DockerProvider:
    return DockerProvider()


@pytest.fixture(scope="module", params=[BUSYBOX, DEBIAN], ids=["busybox", "debian"])
def flavour(request, client) -> str:
    """Both kinds of commands: busybox and GNU."""
    if request.param == DEBIAN and not docker_images.debian_tar().exists():
        pytest.skip("the Debian image was not made: python -m tools.docker_images fetch")
    image: str = request.param
    return image


@pytest.fixture(scope="module")
async def box(provider, anyio_backend) -> AsyncIterator[DockerInstance]:
    """A sandbox on busybox that a module's tests share."""
    instance = await make(provider)
    yield instance
    await instance.destroy()


@pytest.fixture(scope="module")
def own_engine(client, tmp_path_factory) -> Iterator[docker_engine.Engine]:
    """An engine of our own that may be killed: without bridge and filters, so beside another."""
    reason = docker_engine.why_not()
    if reason:
        pytest.skip(f"no engine of our own can be started: {reason}")
    with docker_engine.throwaway("--bridge=none", "--iptables=false") as engine:
        docker_images.load_busybox(engine.host)
        yield engine


@pytest.fixture
def there(own_engine, monkeypatch) -> Iterator[docker_engine.Engine]:
    """DOCKER_HOST names an engine of our own, which may be killed; nothing is left on it."""
    monkeypatch.setenv("DOCKER_HOST", own_engine.host)
    # How long a helper is looked for; long, since engines restart: too long for a test.
    monkeypatch.setattr("pinfold.posix._resident._session._GRACE_SECONDS", 2.0)
    yield own_engine
    with closing(docker.DockerClient(base_url=own_engine.host, version="auto")) as client:
        assert client.containers.list(all=True) == []
        assert client.volumes.list() == []


@pytest.fixture
def short_path(tmp_path: Path) -> Iterator[Path]:
    """A path for a socket: the kernel takes 107 bytes at most."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pf-") as folder:
        yield Path(folder) / "s"
