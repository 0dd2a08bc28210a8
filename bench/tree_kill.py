"""How long the processes of a command live on after it is cancelled."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskStatus

from bench.harness import figure
from pinfold.provider import Sink

__all__ = ["tree_kill"]

ROUNDS = 9
#: Nine processes that get away in all ways there are: sessions, daemons, a deaf one, no environment.
TREE = """
sleep 314159 &
(trap '' TERM; sleep 314159) &
setsid sleep 314159 &
(setsid sh -c 'sleep 314159; :' &)
(setsid sh -c '(setsid sleep 314159 &); sleep 314159; :' &)
env -i "$(command -v setsid)" "$(command -v sleep)" 314159 &
until [ $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^31415[9]$') -ge 7 ]
do :; done
echo ready
wait
"""
LEFT = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '^31415[9]$'"

#: Runs a script; the sink gets its output.
Execute = Callable[[str, Sink | None], Awaitable[Any]]


async def tree_kill(execute: Execute, where: str) -> dict[str, Any]:
    """Return the figure: from the cancellation until the call has come back and all are dead.

    Raises:
        RuntimeError: one is not.
    """
    seconds = []
    for _ in range(ROUNDS):
        began = 0.0
        async with anyio.create_task_group() as tasks:
            await tasks.start(_run, execute)
            began = anyio.current_time()
            tasks.cancel_scope.cancel()
        seconds.append(anyio.current_time() - began)
        if (await execute(LEFT, None)).stdout:
            raise RuntimeError("a process has survived")
    return figure(
        f"a tree of nine processes dies {where}, median",
        statistics.median(seconds) * 1000,
        "ms",
        at_most=100,
    )


async def _run(execute: Execute, *, task_status: TaskStatus[None]) -> None:
    async def sink(stream: str, data: bytes) -> None:
        if data:
            task_status.started()

    await execute(TREE, sink)
