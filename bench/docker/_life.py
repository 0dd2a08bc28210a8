"""From nothing to a first result, and what durability adds to a command."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pinfold
from bench.docker._bench import ECHO, IMAGE, Bench
from bench.harness import Way, compare
from pinfold.sandbox import DurableSandbox
from pinfold_docker._config import container_config
from pinfold_docker._instance import DockerInstance
from pinfold_docker._options import DockerOptions

__all__ = ["checkpointed", "life"]


def life(bench: Bench) -> Iterator[dict[str, Any]]:
    options = DockerOptions(image=IMAGE)

    def raw() -> None:
        name = f"bench-{secrets.token_hex(8)}"
        config = container_config(
            name,
            options,
            image=str(bench.pinned[True].pins["image_id"]),
            labels={},
            network=None,
            writable_roots=(),
            copies_image=True,
        )
        bench.raw.call("POST", f"/containers/create?name={name}", config)
        bench.raw.call("POST", f"/containers/{name}/start")
        bench.raw.exec(name, ECHO)
        made.append(name)

    def ours(*, helper: bool) -> None:
        instance = bench.create(helper=helper)
        bench.run(instance)
        instances.append(instance)

    made: list[str] = []
    instances: list[DockerInstance] = []
    try:
        yield compare(
            "create to first result",
            [
                Way(name="raw create, start, exec", run=raw),
                Way(name="pinfold, shell path", run=lambda: ours(helper=False), limit=1.15),
                Way(name="pinfold, resident helper", run=lambda: ours(helper=True), limit=1.15),
            ],
            rounds=9,
        )
    finally:
        for name in made:
            bench.raw.call("DELETE", f"/containers/{name}?force=1")
            bench.raw.call("DELETE", f"/volumes/{name}-workspace")
        for instance in instances:
            bench.portal.call(instance.destroy)


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
