"""Docker: what pinfold adds to the engine's own cost, beside docker-py, the CLI and peers.

Needs an engine with the test images: `python -m tools.docker_engine python -m bench docker`. Peers
are measured where they are installed: `make bench` does that. One of them, inspect_ai, asks for an
engine and a `docker compose` newer than those of the machine: `python -m tools.docker_newer
.venv-bench/bin/python -m bench docker` has both.
"""

from __future__ import annotations

import http.client
import tempfile
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from bench.docker._bench import Bench
from bench.docker._big import files
from bench.docker._commands import helper_alone, round_trip
from bench.docker._life import checkpointed, life
from bench.docker._trees import trees
from tools import docker_engine

__all__ = ["main"]


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
