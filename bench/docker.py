"""Docker: what pinfold adds to the engine's own cost, beside docker-py, the CLI and peers.

Needs an engine with the test images: `python -m tools.docker_engine python -m bench docker`. Peers
are measured where they are installed: `make bench` does that. One of them, inspect_ai, asks for an
engine and a `docker compose` newer than those of the machine: `python -m tools.docker_newer
.venv-bench/bin/python -m bench docker` has both.
"""

from __future__ import annotations

import http.client
import io
import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from unittest import mock

import anyio
import attrs
import docker
from anyio.from_thread import BlockingPortal, start_blocking_portal

import pinfold
from bench._docker_peers import peers
from bench._docker_raw import RawEngine
from bench.harness import Way, compare
from pinfold.plugins import Catalog
from pinfold.posix import equip
from pinfold.provider import Context, ExecRequest, FileType, Owner, TreeItem
from pinfold.resolve import pin, resolve
from pinfold.sandbox import DurableSandbox
from pinfold.spec import PinnedSpec
from pinfold_docker import DockerProvider
from pinfold_docker._config import container_config
from pinfold_docker._instance import DockerInstance
from pinfold_docker._options import DockerOptions
from tools import docker_engine

IMAGE = "pinfold-test:busybox"
MIB = 1 << 20
FILES = 5000
ECHO = ["echo", "hi"]
#: One of the two ways of a transfer.
Move = Callable[[DockerInstance], Coroutine[Any, Any, None]]


class Bench:
    """One engine, and the blocking way to ours."""

    def __init__(self, host: str, portal: BlockingPortal) -> None:
        self.host = host
        self.portal = portal
        self.raw = RawEngine(host.removeprefix("unix://"))
        self.client = docker.DockerClient(base_url=host, version="auto")
        self.provider = DockerProvider()
        self.pinned: PinnedSpec = portal.call(self._pin)

    async def _pin(self) -> PinnedSpec:
        target = {"kind": "container", "provider": "docker", "options": {"image": IMAGE}}
        catalog = Catalog([self.provider])
        return await pin(resolve({"target": target, "durability": "none"}, catalog), catalog)

    def create(self) -> DockerInstance:
        ctx = Context(owner=Owner(store="bench", sandbox="sbx_bench"))
        return self.portal.call(self.provider.create, self.pinned, ctx)

    def run(self, instance: DockerInstance) -> None:
        result = self.portal.call(instance.exec, ExecRequest(argv=ECHO))
        if result.stdout != b"hi\n":
            raise RuntimeError(result)

    @contextmanager
    def box(self, *, helper: bool) -> Iterator[DockerInstance]:
        with equipped("required" if helper else "never"):
            instance = self.create()
        try:
            yield instance
        finally:
            self.portal.call(instance.destroy)

    def cli(self, *argv: str) -> None:
        subprocess.run(["docker", "--host", self.host, *argv], check=True, capture_output=True)


def equipped(helper: Literal["required", "never"]) -> Any:
    """With the helper or a fault, or by the shell path: no row is named after the other's figures."""

    def by(guest: Any, **settings: Any) -> Any:
        return equip(guest, **{**settings, "helper": helper})

    return mock.patch("pinfold_docker._maker.equip", by)


def round_trip(bench: Bench) -> Iterator[dict[str, Any]]:
    with (
        bench.box(helper=False) as shell,
        bench.box(helper=True) as helped,
        peers(bench.client, shell.ref.id, IMAGE, bench.portal) as others,
    ):
        name = shell.ref.id
        container = bench.client.containers.get(name)
        floor = Way(name="raw API, three requests", run=lambda: bench.raw.exec(name, ECHO))
        cli = Way(name="docker exec", run=lambda: bench.cli("exec", name, *ECHO))
        yield compare(
            "exec of `echo hi`, beside the raw API",
            [
                floor,
                Way(name="pinfold, shell path", run=lambda: bench.run(shell), limit=1.1),
                Way(name="pinfold, resident helper", run=lambda: bench.run(helped), limit=0.2),
                Way(name="docker-py", run=lambda: container.exec_run(ECHO, demux=True)),
                cli,
                *others,
            ],
            rounds=31,
        )
        yield compare(
            "exec of `echo hi`, beside the CLI",
            [
                cli,
                Way(name="pinfold, shell path", run=lambda: bench.run(shell), limit=0.8),
                Way(name="pinfold, resident helper", run=lambda: bench.run(helped), limit=0.2),
            ],
            rounds=15,
        )
        yield from concurrent(bench, shell, helped)


def helper_alone(bench: Bench) -> Iterator[dict[str, Any]]:
    """The resident helper in a container, beside a process of this machine, and its rivals."""
    true, many = shutil.which("true") or "true", 20

    def spawn() -> None:
        for _ in range(many):
            os.waitpid(os.posix_spawn(true, ["true"], os.environ), 0)

    with bench.box(helper=True) as box:
        container = bench.client.containers.get(box.ref.id)
        request = ExecRequest(argv=["true"])

        async def execute() -> None:
            for _ in range(many):
                await box.exec(request)

        def ours(limit: float) -> Way:
            return Way(
                name="pinfold, resident helper",
                run=lambda: bench.portal.call(execute),
                number=many,
                limit=limit,
            )

        cli = Way(name="docker exec", run=lambda: bench.cli("exec", box.ref.id, "true"))
        docker_py = Way(name="docker-py", run=lambda: container.exec_run(["true"], demux=True))
        title = "exec of `true` by the helper"
        floor = Way(name="posix_spawn and wait, here", run=spawn, number=many)
        yield compare(f"{title}, beside a process here", [floor, ours(2.2)], rounds=15)
        yield compare(f"{title}, 25 times as fast as the CLI", [cli, ours(1 / 25)], rounds=15)
        yield compare(f"{title}, 20 times as docker-py", [docker_py, ours(1 / 20)], rounds=15)
        yield many_at_once(bench, box, true)
        yield from small_files(bench, box, floor, many)


def many_at_once(bench: Bench, box: DockerInstance, true: str) -> dict[str, Any]:
    request = ExecRequest(argv=["true"])

    async def execute(_: int) -> None:
        for _ in range(10):
            await box.exec(request)

    async def together() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(32):
                tasks.start_soon(execute, number)

    def run(_: int) -> None:
        subprocess.run([true], check=True, capture_output=True)

    def threads() -> None:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(run, range(320)))

    return compare(
        "exec of `true` by the helper, 32 in flight, at 0.6 of what this machine does",
        [
            Way(name="subprocess.run in 32 threads", run=threads, number=320),
            Way(
                name="pinfold, resident helper",
                run=lambda: bench.portal.call(together),
                number=320,
                limit=1 / 0.6,
            ),
        ],
    )


def small_files(
    bench: Bench, box: DockerInstance, process: Way, many: int
) -> Iterator[dict[str, Any]]:
    """1 KiB by the yardsticks of `bench.resident.small_files`."""
    data, path = secrets.token_bytes(1024), "/workspace/small"

    async def write() -> None:
        for _ in range(many):
            await box.files.write(path, data)

    async def read() -> None:
        for _ in range(many):
            await box.files.read(path)

    with tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder:
        here = Path(folder, "file")

        def write_here() -> None:
            for _ in range(many):
                draft = here.with_suffix(".draft")
                draft.write_bytes(data)
                draft.rename(here)

        def read_here() -> None:
            for _ in range(many):
                here.read_bytes()

        for name, ours, local, call, limit, share in (
            ("write", write, write_here, "open, write, rename", 1.5, 1.5 * 0.84 / 1.94),
            ("read", read, read_here, "open, read", 8, 8 * 0.11 / 1.94),
        ):
            run = partial(bench.portal.call, ours)
            helper = Way(name="pinfold, resident helper", run=run, number=many, limit=limit)
            floor = Way(name=f"{call}, on this disk", run=local, number=many)
            yield compare(f"{name} of 1 KiB by the helper", [floor, helper], rounds=15)
            yield compare(
                f"{name} of 1 KiB by the helper, beside a process",
                [process, attrs.evolve(helper, limit=share)],
                rounds=15,
            )


def checkpointed(bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    """What durability costs: a command is over when a checkpoint covers what it changed."""
    target = {"kind": "container", "provider": "docker", "options": {"image": IMAGE}}
    store = pinfold.Store(folder / "checkpoints")
    spec = {"target": target, "durability": "checkpointed"}
    with (
        bench.box(helper=True) as plain,
        bench.portal.wrap_async_context_manager(pinfold.open(spec, store=store)) as box,
    ):

        def ours(name: str, script: str) -> Way:
            return Way(name=name, run=lambda: bench.portal.call(partial(box.exec, shell=script)))

        try:
            yield compare(
                "exec of `echo hi`, durability",
                [
                    Way(name="none", run=lambda: bench.run(plain)),
                    ours("checkpointed, nothing changed", "echo hi"),
                    ours("checkpointed, one file changed", "echo $$ >f"),
                ],
                rounds=15,
            )
        finally:
            assert isinstance(box, DurableSandbox)
            bench.portal.call(box.delete)


def concurrent(bench: Bench, shell: DockerInstance, helped: DockerInstance) -> Iterator[Any]:
    with ThreadPoolExecutor(32) as threads:

        def many(what: Callable[[], object]) -> Callable[[], object]:
            return lambda: [f.result() for f in [threads.submit(what) for _ in range(32)]]

        yield compare(
            "32 execs at once",
            [
                Way(
                    name="raw API",
                    run=many(lambda: bench.raw.exec(shell.ref.id, ECHO)),
                    number=32,
                ),
                Way(
                    name="pinfold, shell path",
                    run=many(lambda: bench.run(shell)),
                    number=32,
                    limit=1.12,
                ),
                Way(
                    name="pinfold, resident helper",
                    run=many(lambda: bench.run(helped)),
                    number=32,
                    limit=0.2,
                ),
            ],
            rounds=5,
        )


def files(bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    big = folder / "big"
    big.write_bytes(secrets.token_bytes(100 * MIB))

    async def chunks() -> AsyncIterator[bytes]:
        with big.open("rb") as file:
            while piece := file.read(MIB):
                yield piece

    async def up(box: DockerInstance) -> None:
        assert await box.files.upload("/workspace/big", chunks()) == 100 * MIB

    async def down(box: DockerInstance) -> None:
        with (folder / "back").open("wb") as file:
            async for piece in box.files.download("/workspace/big"):
                file.write(piece)

    with bench.box(helper=False) as shell, bench.box(helper=True) as helped:
        name = shell.ref.id
        rows = {"pinfold, shell path": shell, "pinfold, resident helper": helped}
        to, back = f"{name}:/workspace/big", str(folder / "copied")

        def ours(what: Move) -> list[Way]:
            return [
                Way(name=row, run=lambda box=box: bench.portal.call(what, box), limit=1.35)  # type: ignore[misc]
                for row, box in rows.items()
            ]

        yield compare(
            "upload of 100 MiB",
            [Way(name="docker cp", run=lambda: bench.cli("cp", str(big), to)), *ours(up)],
            rounds=5,
        )
        yield compare(
            "download of 100 MiB",
            [Way(name="docker cp", run=lambda: bench.cli("cp", to, back)), *ours(down)],
            rounds=5,
        )
        assert (folder / "back").read_bytes() == big.read_bytes()
        container = bench.client.containers.get(name)

        def put() -> None:
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode="w") as tar:
                tar.add(big, "big")
            stream.seek(0)
            container.put_archive("/workspace", stream)

        def cat() -> None:
            with (folder / "raw").open("wb") as file:
                bench.raw.run(name, ["cat", "/workspace/big"], file.write)

        def helper(what: Move, limit: float) -> Way:
            return Way(
                name="pinfold, resident helper",
                run=lambda: bench.portal.call(what, helped),
                limit=limit,
            )

        yield compare(
            "100 MiB in", [Way(name="docker-py put_archive", run=put), helper(up, 1.0)], rounds=5
        )
        yield compare(
            "100 MiB out", [Way(name="raw exec of cat", run=cat), helper(down, 1.05)], rounds=5
        )


def beside_cp(
    bench: Bench, folder: Path, container: str, helped: DockerInstance, up: Move, down: Move
) -> Iterator[dict[str, Any]]:
    def copied_up() -> None:
        bench.cli("cp", f"{folder / 'tree'}/.", f"{container}:/workspace/tree")

    def copied_down() -> None:
        shutil.rmtree(folder / "copied-tree", ignore_errors=True)
        bench.cli("cp", f"{container}:/workspace/tree", str(folder / "copied-tree"))

    def helper(what: Move, limit: float) -> Way:
        return Way(
            name="pinfold, resident helper",
            run=lambda: bench.portal.call(what, helped),
            limit=limit,
        )

    title = f"{FILES} files of 4 KiB"
    cp_up, cp_down = (Way(name="docker cp", run=run) for run in (copied_up, copied_down))
    yield compare(f"{title}, up beside docker cp", [cp_up, helper(up, 0.8)], rounds=3)
    yield compare(f"{title}, down beside docker cp", [cp_down, helper(down, 1.0)], rounds=3)


def trees(bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    tree = folder / "tree"
    for number in range(FILES):
        place = tree / f"d{number % 50}" / f"f{number}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(secrets.token_bytes(4096))

    async def one(data: bytes) -> AsyncIterator[bytes]:
        yield data

    async def items() -> AsyncIterator[TreeItem]:
        for path in [tree, *sorted(tree.rglob("*"))]:
            inner = PurePosixPath(path.relative_to(tree))
            if path.is_dir():
                yield TreeItem(path=inner, type=FileType.DIRECTORY, mode=0o755)
            else:
                data = path.read_bytes()
                yield TreeItem(
                    path=inner, type=FileType.FILE, mode=0o644, size=len(data), chunks=one(data)
                )

    async def up(box: DockerInstance) -> None:
        await box.files.upload_tree("/workspace/tree", items())

    async def down(box: DockerInstance) -> None:
        target = folder / "down"
        shutil.rmtree(target, ignore_errors=True)
        async for item in box.files.download_tree("/workspace/tree"):
            place = target / item.path
            if item.type is FileType.DIRECTORY:
                place.mkdir(parents=True, exist_ok=True)
            elif item.chunks is not None:
                place.write_bytes(b"".join([piece async for piece in item.chunks]))

    with bench.box(helper=False) as shell, bench.box(helper=True) as helped:
        prefix = ["docker", "--host", bench.host, "exec", "-i", shell.ref.id, "tar", "-C"]

        def tar_up() -> None:
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode="w") as tar:
                tar.add(tree, "piped")
            subprocess.run([*prefix, "/workspace", "-xf", "-"], input=stream.getvalue(), check=True)

        def tar_down() -> None:
            target = folder / "piped"
            shutil.rmtree(target, ignore_errors=True)
            done = subprocess.run(
                [*prefix, "/workspace", "-cf", "-", "piped"], check=True, capture_output=True
            )
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
                tar.extractall(target, filter="data")

        def ours(what: Move) -> list[Way]:
            return [
                Way(name=row, run=lambda box=box: bench.portal.call(what, box), limit=1.3)  # type: ignore[misc]
                for row, box in (
                    ("pinfold, shell path", shell),
                    ("pinfold, resident helper", helped),
                )
            ]

        title = f"{FILES} files of 4 KiB"
        yield compare(f"{title}, up", [Way(name="tar pipe", run=tar_up), *ours(up)], rounds=3)
        yield compare(f"{title}, down", [Way(name="tar pipe", run=tar_down), *ours(down)], rounds=3)
        yield from beside_cp(bench, folder, shell.ref.id, helped, up, down)


def life(bench: Bench) -> Iterator[dict[str, Any]]:
    options = DockerOptions(image=IMAGE)

    def raw() -> None:
        name = f"bench-{secrets.token_hex(8)}"
        config = container_config(
            name,
            options,
            image=str(bench.pinned.pins["image_id"]),
            labels={},
            network=None,
            writable_roots=(),
            copies_image=True,
        )
        bench.raw.call("POST", f"/containers/create?name={name}", config)
        bench.raw.call("POST", f"/containers/{name}/start")
        bench.raw.exec(name, ECHO)
        made.append(name)

    def ours() -> None:
        instance = bench.create()
        bench.run(instance)
        instances.append(instance)

    def shell() -> None:
        with equipped("never"):
            ours()

    def helped() -> None:
        with equipped("required"):
            ours()

    made: list[str] = []
    instances: list[DockerInstance] = []
    try:
        yield compare(
            "create to first result",
            [
                Way(name="raw create, start, exec", run=raw),
                Way(name="pinfold, shell path", run=shell),
                Way(name="pinfold, resident helper", run=helped, limit=1.15),
            ],
            rounds=9,
        )
    finally:
        for name in made:
            bench.raw.call("DELETE", f"/containers/{name}?force=1")
            bench.raw.call("DELETE", f"/volumes/{name}-workspace")
        for instance in instances:
            bench.portal.call(instance.destroy)


def main() -> list[dict[str, Any]]:
    """Run the benchmarks."""
    host = docker_engine.present()
    if host is None:
        print("docker: no engine answers; run it by python -m tools.docker_engine COMMAND")
        return []
    with start_blocking_portal() as portal, tempfile.TemporaryDirectory() as folder:
        bench = Bench(host, portal)
        try:
            return [
                *round_trip(bench),
                *helper_alone(bench),
                *checkpointed(bench, Path(folder)),
                *life(bench),
                *files(bench, Path(folder)),
                *trees(bench, Path(folder)),
            ]
        except http.client.HTTPException as exc:
            raise RuntimeError("the engine broke off") from exc
        finally:
            bench.client.close()
