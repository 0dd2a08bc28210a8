"""Small files by the helper."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from bench.docker._bench import Bench
from bench.harness import Way, compare
from pinfold_docker._instance import DockerInstance

__all__ = ["small_files"]


def small_files(
    bench: Bench, box: DockerInstance, process: Way, many: int
) -> Iterator[dict[str, Any]]:
    """1 KiB by the yardsticks of `bench.resident.small_files`; told besides is the way there alone."""
    data, path = secrets.token_bytes(1024), "/workspace/small"

    async def write() -> None:
        for _ in range(many):
            await box.files.write(path, data)

    async def read() -> None:
        for _ in range(many):
            await box.files.read(path)

    with (
        tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder,
        bench.raw.echo(box.ref.id) as echo,
    ):
        here = Path(folder, "file")

        def write_here() -> None:
            for _ in range(many):
                draft = here.with_suffix(".draft")
                draft.write_bytes(data)
                draft.rename(here)

        def read_here() -> None:
            for _ in range(many):
                here.read_bytes()

        def there_and_back() -> None:
            for _ in range(many):
                echo(data)

        way = Way(name="to a cat in the container, and back", run=there_and_back, number=many)
        for name, ours, local, call, limit in (
            ("write", write, write_here, "open, write, rename", 1.5),
            ("read", read, read_here, "open, read", 8),
        ):
            run = partial(bench.portal.call, ours)
            helper = Way(name="pinfold, resident helper", run=run, number=many, limit=limit)
            floor = Way(name=f"{call}, on this disk", run=local, number=many)
            yield compare(f"{name} of 1 KiB by the helper", [floor, helper, way], rounds=15)
            yield compare(
                f"{name} of 1 KiB by the helper, 2 ms where a process takes 1.94",
                [process, attrs.evolve(helper, limit=2 / 1.94)],
                rounds=15,
            )
