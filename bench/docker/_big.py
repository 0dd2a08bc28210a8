"""One big file, up and down."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import attrs

from bench.docker._bench import MIB, Bench
from bench.harness import Way, compare
from pinfold_docker._instance import DockerInstance

__all__ = ["files"]

#: One of the two ways of a transfer.
Move = Callable[[DockerInstance], Coroutine[Any, Any, None]]


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

        def poured() -> None:
            with big.open("rb") as file:
                bench.raw.run(name, ["sh", "-c", "cat >/workspace/raw"], len, stdin=file)

        # What an exec's stream itself takes: whoever writes as the sandbox's user can't do better.
        yield compare(
            "upload of 100 MiB, beside what an exec takes",
            [
                Way(name="raw exec of `cat >file`, by sendfile", run=poured),
                *(attrs.evolve(way, limit=1.05) for way in ours(up)),
                Way(name="docker cp", run=lambda: bench.cli("cp", str(big), to)),
            ],
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
