"""The foundation: resolving, starting up, and running a command in the embedded interpreter."""

from __future__ import annotations

import gc
import shlex
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from bashkit import Bash, ExecutionProfile

import pinfold
from bench.harness import Way, compare, figure
from pinfold import blocking
from pinfold.resolve import Layer, resolve

VFS = {"target": {"kind": "vfs", "provider": "bashkit"}}


def main() -> list[dict[str, Any]]:
    """Run them all."""
    return [
        imports(),
        *resolution(),
        listing(),
        anyio.run(execs),
        blocking_overhead(),
        anyio.run(sandboxes),
    ]


def _python(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def imports() -> dict[str, Any]:
    """`import pinfold` beside what it can't do without."""
    floor = "import attrs, cattrs, anyio, pluggy, importlib.metadata"
    return compare(
        "import",
        [
            Way(name="attrs, cattrs, anyio, pluggy, importlib.metadata", run=_python(floor)),
            Way(name="pinfold", run=_python("import pinfold"), limit=1.15),
            Way(name="pinfold, and open() looked up", run=_python("import pinfold; pinfold.open")),
            Way(name="an empty interpreter", run=_python("")),
        ],
        rounds=15,
    )


LAYERS = [
    Layer({"lifecycle": {"idle_after_seconds": 600}}, "deployment"),
    Layer({"target": VFS["target"], "durability": "checkpointed"}, "template", "tr_1"),
    Layer({"target": {**VFS["target"]}, "containment": {"network": {"mode": "deny"}}}, "profile"),
    Layer({"lifecycle": {"idle_action": "keep_running"}}, "team"),
    Layer(
        {
            "containment": {
                "network": {"mode": "allowlist", "allowed_hosts": ["a.example", "b.example"]}
            }
        },
        "session",
    ),
]


def resolution() -> list[dict[str, Any]]:
    """Five layers to one spec, from plain documents, nothing remembered between calls."""
    number = 2_000

    def run() -> None:
        for _ in range(number):
            resolve(LAYERS)

    row = compare("resolve five layers", [Way(name="resolve", run=run, number=number)])
    per_second = 1 / row["rows"][0]["median_s"]
    return [row, figure("resolve five layers", per_second, "a second", at_least=5_000)]


def listing() -> dict[str, Any]:
    """`pinfold targets --no-probe` beside `pinfold --version`."""
    command = [str(Path(sys.executable).with_name("pinfold"))]

    def run(*args: str) -> Callable[[], object]:
        return lambda: subprocess.run([*command, *args], check=True, stdout=subprocess.DEVNULL)

    return compare(
        "list the providers",
        [
            Way(name="pinfold --version", run=run("--version")),
            Way(name="pinfold targets --no-probe", run=run("targets", "--no-probe"), limit=2.0),
        ],
    )


async def execs() -> dict[str, Any]:
    """`echo hi`, isolated from the commands before it, without blocking the event loop."""
    number = 300
    bash = Bash(cwd="/tmp", profile=ExecutionProfile.Interactive)
    async with pinfold.open(VFS) as box:

        async def subprocess_bash() -> None:
            await anyio.run_process(["bash", "-c", "echo hi"])

        async def by_hand(script: str) -> None:
            result = await to_thread.run_sync(bash.execute_sync, script)
            if result.exit_code or result.stdout != "hi\n":
                raise AssertionError(result)

        async def with_care(script: str) -> None:
            # What the contract asks for, written by hand: a deadline that keeps what was written
            # so far, quoting, a cwd, no variable from the command before.
            parts: list[str] = []

            def run() -> Any:
                quoted = shlex.quote(script)
                return bash.execute_sync(
                    f"cd /tmp && bash -c {quoted}", on_output=lambda out, _: parts.append(out)
                )

            with anyio.move_on_after(120) as scope:
                result = await to_thread.run_sync(run, abandon_on_cancel=True)
            if scope.cancelled_caught:
                bash.cancel()
            if result.exit_code or "".join(parts) != "hi\n":
                raise AssertionError(result)

        async def ours() -> None:
            result = await box.exec(shell="echo hi")
            if result.exit_code or result.stdout != b"hi\n":
                raise AssertionError(result)

        def way(call: Callable[[], Awaitable[None]], times: int) -> Callable[[], object]:
            async def loop() -> None:
                for _ in range(times):
                    await call()

            return lambda: anyio.from_thread.run(loop)

        def measured() -> dict[str, Any]:
            return compare(
                "bashkit: one isolated `echo hi`",
                [
                    Way(
                        name="by hand: bash -c, deadline, partial output",
                        run=way(lambda: with_care("echo hi"), number),
                        number=number,
                    ),
                    Way(
                        name="pinfold, Sandbox.exec",
                        run=way(ours, number),
                        number=number,
                        limit=1.3,
                    ),
                    Way(
                        name="by hand, and no more: bash -c in a worker thread",
                        run=way(lambda: by_hand("bash -c 'echo hi'"), number),
                        number=number,
                    ),
                    Way(
                        name="by hand: a subshell in a worker thread",
                        run=way(lambda: by_hand("(cd /tmp; echo hi\n)"), number),
                        number=number,
                    ),
                    Way(
                        name="a real bash -c, as a process", run=way(subprocess_bash, 30), number=30
                    ),
                ],
            )

        return await to_thread.run_sync(measured)


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def sandboxes() -> dict[str, Any]:
    """200 sandboxes open at once: memory and threads for each."""
    count = 200
    async with pinfold.open(VFS) as box:
        await box.exec(shell="true")
    gc.collect()
    before, threads = _rss(), threading.active_count()
    boxes = [await pinfold.open(VFS) for _ in range(count)]
    for box in boxes:
        await box.exec(shell="echo hi > /workspace/x")
    grown = (_rss() - before) / count / (1 << 20)
    more = threading.active_count() - threads
    for box in boxes:
        await box.close()
    print(f"\n{count} sandboxes open: {more} more threads")
    result = figure(f"memory of one of {count} open bashkit sandboxes", grown, "MiB", at_most=2)
    return {**result, "threads": more}


def blocking_overhead() -> dict[str, Any]:
    """What the blocking face adds to one call."""
    number = 300
    with blocking.open(VFS) as box:

        def run() -> None:
            for _ in range(number):
                box.exec(shell="true")

        return compare("blocking: one `true`", [Way(name="blocking", run=run, number=number)])
