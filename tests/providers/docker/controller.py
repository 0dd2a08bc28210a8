"""A controller in a process of its own: opens ephemeral sandboxes, one after the other.

`python -m tests.providers.docker.controller COUNT` says `opening` before each and `open` after it,
closes them all at the end of its standard input, and says `closed`.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

import anyio
from anyio import to_thread

import pinfold
from tests.providers.docker.support import BUSYBOX

SPEC = {"target": {"kind": "container", "provider": "docker", "options": {"image": BUSYBOX}}}


async def main(count: int) -> None:
    async with AsyncExitStack() as boxes:
        for number in range(count):
            print("opening", flush=True)
            box = await boxes.enter_async_context(pinfold.open(SPEC))
            result = await box.exec(shell=f"echo {number}")
            assert result.stdout == f"{number}\n".encode(), result
            print("open", flush=True)
        await to_thread.run_sync(sys.stdin.read)
    print("closed", flush=True)


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]))
