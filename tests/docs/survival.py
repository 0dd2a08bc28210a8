"""What survives what, found out by doing it: the table of docs/durability.md.

`python -m tests.docs.survival` writes the table anew, for the targets that are there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import anyio
import attrs

from pinfold import blocking
from pinfold.blocking import BlockingDurableSandbox
from pinfold.errors import Lost, NotFound, Unimplemented
from pinfold.sandbox import Store
from pinfold.testing import Lane

PAGE = Path(__file__).parents[2] / "docs" / "durability.md"
DEADLINE = 60.0

BASHKIT = {"target": {"kind": "vfs", "provider": "bashkit"}}
HOST = {"target": {"kind": "host", "provider": "host"}}
DOCKER = {
    "target": {
        "kind": "container",
        "provider": "docker",
        "options": {"image": "pinfold-test:busybox"},
    }
}


@attrs.frozen(kw_only=True)
class Column:
    """A target and a durability of its, and where a migration from there goes."""

    spec: dict[str, Any]
    durability: str
    lane: str
    other: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.spec['target']['provider']}, {self.durability}"

    @property
    def layer(self) -> dict[str, Any]:
        return {**self.spec, "durability": self.durability}


COLUMNS = [
    Column(spec=spec, durability=durability, lane=lane, other={**other, "durability": "checkpointed"})
    for spec, lane, other, durabilities in (
        (BASHKIT, "bashkit", HOST, "checkpointed none"),
        (HOST, "host-none", BASHKIT, "checkpointed none"),
        (DOCKER, "docker", BASHKIT, "checkpointed provider_snapshot none"),
    )
    for durability in durabilities.split()
]  # fmt: skip


# --- what happens -------------------------------------------------------------------------------


@attrs.frozen
class World:
    """A store and a column, and a sandbox of that."""

    store: Store
    column: Column

    def open(self):
        return blocking.open(self.column.layer, name="box", store=self.store)

    def again(self, name: str = "box"):
        return blocking.reopen(name, store=self.store)

    def lose(self, box: BlockingDurableSandbox) -> None:
        """Take its compute away, behind everybody's back."""
        lane: Lane = entry_points(group="pinfold.lanes")[self.column.lane].load()
        ref = box._target._durable.record.ref
        assert ref is not None
        assert anyio.run(lane.lose, ref)

    def in_another_process(self, *, kill: bool) -> str:
        """Have a controller of its own begin, and end; return the job that it began."""
        place = str(self.store.checkpoints).partition("'")[2].partition("'")[0]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.docs.survival", "begin", place, json.dumps(self.column.layer)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        ) as controller:  # fmt: skip
            assert controller.stdout is not None
            job = controller.stdout.readline().strip()
            assert job.startswith("job"), job
            if kill:
                controller.kill()
            controller.communicate(timeout=DEADLINE)
        return job


def begin(box: BlockingDurableSandbox) -> str:
    """Write a file and start a job; return the job's name."""
    box.files.write("/workspace/kept", b"yes")
    job = f"job{time.monotonic_ns()}"
    # The name is an argument of the job: it is found by it, in the sandbox itself.
    if box.features.background:
        script = f'sh -c "while :; do sleep 1; done" {job} >/dev/null 2>&1 &'
        assert box.exec(shell=script).exit_code == 0
    return job


def left(box: BlockingDurableSandbox, job: str, generation: int) -> str:
    """Look what is left, as the next command finds it, and say it."""
    try:
        found = box.exec(["cat", "kept"])
    except Lost:
        return "lost, and said so"
    kept = ["files"] if found.stdout == b"yes" else []
    if box.features.background:
        # Without a boundary other sandboxes' jobs are seen, too: those run elsewhere.
        script = (
            "for p in /proc/[0-9]*; do"
            ' [ "$(readlink $p/cwd)" = "$(pwd -P)" ] && tr "\\0" " " <$p/cmdline && echo;'
            f" done 2>/dev/null | grep -c ' {job} $'"
        )
        if box.exec(shell=script).stdout.strip() != b"0":
            kept.append("jobs")
    words = " and ".join(kept) or "nothing"
    return words if box.generation == generation else f"{words}, in new compute"


def command(world: World) -> str:
    with world.open() as box:
        job = begin(box)
        return left(box, job, box.generation)


def pause(world: World) -> str:
    with world.open() as box:
        job, generation = begin(box), box.generation
        try:
            box.pause()
        except Unimplemented:
            return "refused, and running on"
        return left(box, job, generation)


def end(world: World) -> str:
    job = world.in_another_process(kill=False)
    with world.again() as box:
        return left(box, job, 1)


def killed(world: World) -> str:
    job = world.in_another_process(kill=True)
    with world.again() as box:
        return left(box, job, 1)


def lost(world: World) -> str:
    with world.open() as box:
        job, generation = begin(box), box.generation
        world.lose(box)
        return left(box, job, generation)


def rollback(world: World) -> str:
    with world.open() as box:
        job = begin(box)
        kept = box.checkpoint()
        box.files.write("/workspace/kept", b"no")
        box.restore(kept.checkpoint_id)
        return left(box, job, box.generation)


def forked(world: World) -> str:
    with world.open() as box:
        job = begin(box)
        return left(box.fork(name="other"), job, 1)


def migrated(world: World) -> str:
    with world.open() as box:
        job = begin(box)
        return left(box.migrate(world.column.other, name="other"), job, 1)


def deleted(world: World) -> str:
    with world.open() as box:
        begin(box)
        box.delete()
    try:
        with world.again():
            return "still there"
    except NotFound:
        return "nothing"


ROWS: dict[str, Callable[[World], str]] = {
    "a command ends": command,
    "it rests (`pause`, or idle)": pause,
    "its controller lets it go, another takes it up": end,
    "its controller is killed, another takes it up": killed,
    "its compute is destroyed from outside": lost,
    "it is rolled back to a checkpoint": rollback,
    "a fork is taken: what that has": forked,
    "it is migrated to another provider": migrated,
    "it is deleted (`down`)": deleted,
}


def cells(column: Column) -> list[str]:
    """Do all of it to sandboxes of one target."""
    found = []
    for happens in ROWS.values():
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "store")
            try:
                found.append(happens(World(store, column)))
            finally:
                for view in blocking.list(store=store):
                    with blocking.reopen(view.name or "", store=store) as box:
                        box.delete()
    return found


# --- the page -----------------------------------------------------------------------------------


def shown(page: str) -> dict[str, list[str]]:
    """Return the columns that a page shows; refuse one without the table."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    head, _, *body = rows
    assert [row[0] for row in body] == list(ROWS), "the rows of the table are others"
    return {name: [row[at] for row in body] for at, name in enumerate(head) if at}


def table(columns: dict[str, list[str]]) -> str:
    """Return the table as Markdown."""
    lines = [["when", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(cells[at] for cells in columns.values())] for at, row in enumerate(ROWS)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rewrite(columns: dict[str, list[str]]) -> None:
    """Put the columns that were found into the page, in place of what it shows of them."""
    page = PAGE.read_text(encoding="utf-8")
    try:
        known = shown(page)
    except (AssertionError, ValueError):
        known = {}
    merged = {
        column.name: columns.get(column.name) or known.get(column.name, ["?"] * len(ROWS))
        for column in COLUMNS
    }
    new, count = re.subn(
        r"(?:^\|.*\n)+", lambda _: table(merged), page, count=1, flags=re.MULTILINE
    )
    assert count == 1, f"{PAGE} has no table to be written anew"
    PAGE.write_text(new, encoding="utf-8")


def is_there(column: Column) -> bool:
    """Say whether a target, with what its column asks of it, can be had now."""
    from tools import docker_engine

    provider = column.spec["target"]["provider"]
    return provider != "docker" or docker_engine.present() is not None


def main(argv: list[str]) -> None:
    """Write the table anew; or be the controller that begins, and waits for its end."""
    if argv[:1] == ["begin"]:
        layer = json.loads(argv[2])
        with blocking.open(layer, name="box", store=Store(argv[1])) as box:
            print(begin(box), flush=True)
            sys.stdin.read()
        return
    rewrite({column.name: cells(column) for column in COLUMNS if is_there(column)})


if __name__ == "__main__":
    main(sys.argv[1:])
