"""Commands: one at a time and many at once, beside the raw API, peers and processes of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

import anyio

from bench.docker._bench import ECHO, IMAGE, Bench
from bench.docker._peers import peers
from bench.docker._small import small_files
from bench.harness import Way, compare, figure
from bench.tree_kill import tree_kill
from pinfold.posix._resident import Resident
from pinfold.provider import ExecRequest, ExecResult, Sink
from pinfold.spec import WORKSPACE
from pinfold_docker._instance import DockerInstance

__all__ = ["helper_alone", "round_trip"]


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


def helper_alone(bench: Bench) -> Iterator[dict[str, Any]]:
    """The resident helper in a container, beside a process of this machine, and its rivals."""
    true, many = shutil.which("true") or "true", 100

    def spawn() -> None:
        for _ in range(many):
            os.waitpid(os.posix_spawn(true, ["true"], os.environ), 0)

    with (
        bench.box(helper=True) as box,
        peers(bench.client, box.ref.id, IMAGE, bench.portal) as others,
    ):
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
        for inspect in (way for way in others if way.name.startswith("inspect_ai")):
            yield compare(f"{title}, 50 times as inspect_ai's", [inspect, ours(1 / 50)], rounds=15)
        yield many_at_once(bench, box, true)

        async def script(text: str, sink: Sink | None) -> ExecResult:
            return await box.exec(ExecRequest(shell=text, timeout_seconds=None), sink)

        yield bench.portal.call(tree_kill, script, "in a container")
        yield from small_files(bench, box, floor, many)
    yield from start_of_the_helper(bench)


def start_of_the_helper(bench: Bench) -> Iterator[dict[str, Any]]:
    started: list[Resident] = []
    with bench.box(helper=False) as box:

        async def start() -> None:
            root, folders = PurePosixPath(WORKSPACE), ("/run/pinfold",)
            started.append(await Resident.start(box._guest, root=root, mark="b-", folders=folders))

        raw = Way(
            name="raw exec of `sh -c exit`",
            run=lambda: bench.raw.exec(box.ref.id, ["sh", "-c", "exit"]),
        )
        ours = Way(name="pinfold, resident helper", run=lambda: bench.portal.call(start))
        try:
            result = compare("start of the helper in a container", [raw, ours], rounds=15)
        finally:
            for resident in started:
                bench.portal.call(resident.aclose)
    yield result
    floor, helper = (row["median_s"] for row in result["rows"])
    more = (helper - floor) * 1000
    yield figure("start of the helper, beyond an exec", more, "ms", at_most=10)


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
