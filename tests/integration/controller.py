"""A controller in a process of its own: takes calls as JSON lines, answers in JSON lines."""

from __future__ import annotations

import json
import sys

import anyio
from anyio import to_thread

import pinfold
from pinfold.errors import PinfoldError


async def main(*argv: str) -> None:
    place, name = argv
    async with pinfold.reopen(name, store=pinfold.Store(place)) as box:
        print(json.dumps({"ready": True}), flush=True)
        while line := await to_thread.run_sync(sys.stdin.readline):
            verb, *args = json.loads(line)
            try:
                if verb == "exec":
                    result = await box.exec(shell=args[0])
                    answer = {"stdout": result.stdout_text, "generation": result.generation}
                elif verb == "write":
                    await box.files.write(args[0], args[1].encode())
                    answer = {"generation": box.generation}
                else:
                    answer = {"read": (await box.files.read(args[0])).decode()}
            except PinfoldError as exc:
                answer = exc.to_dict()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
