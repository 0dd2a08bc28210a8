"""How a Docker target is tested: made, watched from outside, broken on purpose (PR-1).

A lane needs an engine with its image. In this repository `python -m tools.docker_engine COMMAND`
runs a command where there are both. Elsewhere the environment variable PINFOLD_LANE_DOCKER_IMAGE
names any image that has a POSIX shell and the commands of busybox, for the lanes `docker` and
`docker-shell`.
"""

from __future__ import annotations

import io
import os
import socket
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network
from pathlib import Path, PurePosixPath
from typing import Final

import anyio

from pinfold.errors import Internal, PinfoldError
from pinfold.provider import Context, ExecRequest, Instance, InstanceRef
from pinfold.spec import (
    WORKSPACE,
    Containment,
    Durability,
    Filesystem,
    Kind,
    Network,
    NetworkMode,
    PinnedSpec,
    Spec,
    Target,
    WritableRoot,
)
from pinfold.testing import Lane, Witness
from pinfold_docker._connect import Engines
from pinfold_docker._engine import Engine
from pinfold_docker._http import Connection, EngineError
from pinfold_docker._instance import DockerInstance
from pinfold_docker._provider import DockerProvider

__all__ = ["DockerLane", "DockerWitness", "busybox", "debian", "shell"]

BUSYBOX: Final = "pinfold-test:busybox"
DEBIAN: Final = "pinfold-test:debian"
SCRATCH: Final = "/scratch"
#: Restores write bits first: a guest may have taken them from its own folders.
WIPE: Final = (
    "cd /workspace && chmod -R u+rwX . 2>/dev/null; find . ! -name . -prune -exec rm -rf -- {} +; "
    'for d in "$@"; do find "$d" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +; done; chmod 755 .'
)


class DockerWitness(Witness):
    """The engine's archive API: as root, past the container's processes.

    What lies in memory (/tmp, writable roots) it can't see: there an exec of its own is used.

    Args:
        engine: that runs the container.
        container: its name.
        user: whose the files are.
    """

    def __init__(self, engine: Engine, container: str, user: int) -> None:
        self._engine = engine
        self._container = container
        self._user = user

    async def read(self, path: PurePosixPath) -> bytes:
        if not _on_disk(path):
            return await self._run('cat -- "$1"', path)
        async with self._archive("GET", path) as connection:
            stream = io.BytesIO(await connection.read())
        with tarfile.open(fileobj=stream) as tar:
            member = tar.next()
            content = tar.extractfile(member) if member is not None else None
            return b"" if content is None else content.read()

    async def write(self, path: PurePosixPath, data: bytes) -> None:
        if not _on_disk(path):
            await self._run('mkdir -p -- "${1%/*}" && cat >"$1"', path, stdin=data)
            return
        entry = tarfile.TarInfo()
        entry.size, entry.mode = len(data), 0o644
        await self._put(path, entry, data)

    async def link(self, path: PurePosixPath, target: str) -> None:
        if not _on_disk(path):
            await self._run('mkdir -p -- "${1%/*}" && ln -sfT -- "$2" "$1"', path, target)
            return
        entry = tarfile.TarInfo()
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
        await self._put(path, entry, b"")

    async def list(self, path: PurePosixPath) -> Sequence[str]:
        if not _on_disk(path):
            names = await self._run('cd -- "$1" && find . -mindepth 1 -maxdepth 1 -print0', path)
            return sorted(
                name.decode("utf-8", "surrogateescape").removeprefix("./")
                for name in names.split(b"\0")
                if name
            )
        async with self._archive("GET", path) as connection:
            stream = io.BytesIO(await connection.read())
        with tarfile.open(fileobj=stream, errors="surrogateescape") as tar:
            paths = [PurePosixPath(name).parts for name in tar.getnames()]
        return sorted(parts[1] for parts in paths if len(parts) == 2)

    async def is_alive(self, heartbeat: PurePosixPath) -> bool:
        before = len(await self.read(heartbeat))
        for _ in range(10):
            await anyio.sleep(0.12)
            if len(await self.read(heartbeat)) > before:
                return True
        return False

    @asynccontextmanager
    async def _archive(
        self, method: str, path: PurePosixPath, body: bytes | None = None
    ) -> AsyncIterator[Connection]:
        try:
            async with self._engine.exchange(
                method,
                "containers",
                self._container,
                "archive",
                query={"path": str(path)},
                body=body,
                headers={"Content-Type": "application/x-tar"} if body else None,
            ) as connection:
                yield connection
        except EngineError as exc:
            if exc.status == 404:
                raise FileNotFoundError(str(path)) from None
            raise

    async def _put(self, path: PurePosixPath, entry: tarfile.TarInfo, data: bytes) -> None:
        stream = io.BytesIO()
        inner = path.relative_to(WORKSPACE)
        with tarfile.open(fileobj=stream, mode="w", errors="surrogateescape") as tar:
            for parent in reversed(inner.parents[:-1]):
                folder = tarfile.TarInfo(str(parent))
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                folder.uid = folder.gid = self._user
                tar.addfile(folder)
            entry.name = str(inner)
            entry.uid = entry.gid = self._user
            tar.addfile(entry, io.BytesIO(data))
        async with self._archive("PUT", WORKSPACE, stream.getvalue()) as connection:
            await connection.read()

    async def _run(self, script: str, *args: object, stdin: bytes = b"") -> bytes:
        config = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Cmd": ["/bin/sh", "-c", script, "sh", *map(str, args)],
        }
        exec_id, stream = await self._engine.exec(self._container, config)
        output = bytearray()
        try:
            await stream.send(stdin)
            await stream.send_eof()
            while True:
                output += await stream.receive()
        except anyio.EndOfStream:
            pass
        finally:
            stream.close()
        facts = await self._engine.call("GET", "exec", exec_id, "json")
        if facts["ExitCode"] != 0:
            raise FileNotFoundError(args[0])
        return b"".join(_payloads(bytes(output)))


class DockerLane(Lane):
    """One image on the local engine.

    Args:
        name: the entry point's name.
        image: the image.
        options: of the provider's, besides.
    """

    def __init__(self, name: str, image: str, **options: str) -> None:
        self.name = name
        self.image = image
        self.provider = DockerProvider()
        self._gateways: dict[str, str] = {}
        self.specs = tuple(
            Spec(
                target=Target(
                    kind=Kind.CONTAINER, provider="docker", options={"image": image, **options}
                ),
                containment=Containment(
                    network=Network(mode=mode), filesystem=Filesystem(writable_roots=roots)
                ),
                durability=durability,
            )
            for mode, durability, roots in (
                (NetworkMode.DENY, Durability.CHECKPOINTED, ()),
                (NetworkMode.ALLOW, Durability.NONE, ()),
                (NetworkMode.DENY, Durability.PROVIDER_SNAPSHOT, (WritableRoot(SCRATCH),)),
            )
        )

    async def unavailable(self) -> str | None:
        state = await self.provider.probe()
        if not state.available:
            return f"{state.reason} ({state.hint})"
        try:
            await Engines().local().call("GET", "images", self.image, "json")
        except EngineError:
            return f"the engine has no image {self.image} (python -m tools.docker_engine COMMAND)"
        return None

    async def make(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        instance = await super().make(pinned, ctx)
        network = (
            "pinfold" if pinned.spec.containment.network.mode is NetworkMode.ALLOW else "bridge"
        )
        with suppress(EngineError):  # an engine may have no bridge at all
            found = await _docker(instance).engine.call("GET", "networks", network)
            (subnet, *_) = found["IPAM"]["Config"]
            first = next(ip_network(subnet["Subnet"]).hosts())  # what a bridge takes for itself
            self._gateways[instance.ref.id] = subnet.get("Gateway") or str(first)
        return instance

    async def reset(self, instance: Instance) -> None:
        docker = _docker(instance)
        await docker.engine.call("POST", "containers", docker.ref.id, "restart", query={"t": 0})
        await docker.refresh()
        done = await docker.exec(ExecRequest(shell=WIPE))
        if done.exit_code != 0:
            raise Internal(f"the workspace could not be wiped: {done.stderr_text}")

    def witness(self, instance: Instance) -> Witness | None:
        return DockerWitness(_docker(instance).engine, instance.ref.id, 1000)

    def listener_address(self, instance: Instance) -> str | None:
        return self._gateways.get(instance.ref.id)

    async def cut(self, ref: InstanceRef) -> bool:
        """Cut all of this process's connections to the engine, whoever holds them.

        They are found by the name of their other end and shut down beneath those who use them, as
        a proxy between the two would do it.
        """
        return _cut_all(Engines().local().endpoint.path) > 0

    async def lose(self, ref: InstanceRef) -> bool:
        try:
            await Engines().local().call("DELETE", "containers", ref.id, query={"force": 1})
        except (EngineError, PinfoldError):
            return False
        return True


def _cut_all(path: str) -> int:
    """Shut down each socket of this process whose other end has this name; say how many."""
    count = 0
    with suppress(FileNotFoundError):  # not Linux
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # no socket, not connected, or closed by now
                count += _cut(int(entry.name), path)
    return count


def _cut(descriptor: int, path: str) -> bool:
    """Shut a socket down if its other end has this name; say whether."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getpeername() != path:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    return True


def _docker(instance: Instance) -> DockerInstance:
    if not isinstance(instance, DockerInstance):
        raise TypeError(f"not an instance of docker: {instance!r}")
    return instance


def _payloads(stream: bytes) -> Iterator[bytes]:
    while stream:
        size = int.from_bytes(stream[4:8], "big")
        if stream[0] == 1:
            yield stream[8 : 8 + size]
        stream = stream[8 + size :]


def _on_disk(path: PurePosixPath) -> bool:
    return path == WORKSPACE or WORKSPACE in path.parents


_any = os.environ.get("PINFOLD_LANE_DOCKER_IMAGE", BUSYBOX)
busybox = DockerLane("docker", _any)
shell = DockerLane("docker-shell", _any, helper="never")
debian = DockerLane("docker-debian", DEBIAN)
