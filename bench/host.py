"""Host sandboxes beside what they stand on: bare processes, bubblewrap, bare files, find."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from bench.harness import Way, compare, figure
from pinfold.posix import Equipment, Guest, PosixInstance, Process, equip
from pinfold.provider import Context, ExecRequest, Instance, Owner, Tree
from pinfold.resolve import Layer, resolve
from pinfold.spec import PinnedSpec
from pinfold_host import _boundary, _seccomp, provider

TRUE = "/usr/bin/true"
MIB = 1024 * 1024


def main() -> list[dict[str, Any]]:
    """Run them all."""
    with tempfile.TemporaryDirectory() as home, start_blocking_portal() as portal:
        os.environ["XDG_DATA_HOME"] = home
        results = []
        with sandbox(portal, "none") as none:
            results += [
                execs(portal, none),
                *files(portal, none),
                scans(portal, none, none.tree, "host"),
            ]
            results += [flood(portal, none), crowd(portal, none)]
            results += spawn_only(portal, none)
        if not _boundary.missing():
            with sandbox(portal, "native") as native:
                results.append(native_execs(portal, native))
        return results


@contextmanager
def sandbox(portal: BlockingPortal, level: str) -> Iterator[Instance]:
    """An instance of a level, made and destroyed."""
    containment: dict[str, Any] = {"level": level}
    if level == "native":
        containment["network"] = {"mode": "deny"}
    asked = {"target": {"kind": "host", "provider": "host"}, "containment": containment}
    pinned = PinnedSpec(spec=resolve([Layer(asked, "bench")]), provider="host")
    made = portal.call(provider.create, pinned, Context(owner=Owner(store="bench")))
    try:
        yield made
    finally:
        portal.call(made.destroy)


def times(
    portal: BlockingPortal, number: int, call: Callable[[], Awaitable[object]]
) -> Callable[[], object]:
    """Return what awaits a call so many times, on the loop that all ways share."""

    async def run() -> None:
        for _ in range(number):
            await call()

    return lambda: portal.call(run)


async def bare(*argv: str, pass_fds: tuple[int, ...] = ()) -> None:
    """A process with three pipes, run to its end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=pass_fds
    )
    await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{argv[0]} ended with {process.returncode}")


def execs(portal: BlockingPortal, instance: Instance) -> dict[str, Any]:
    """`true` at level none."""
    request = ExecRequest(argv=(TRUE,))
    return compare(
        "host, level none: exec of true",
        [
            Way(
                name="asyncio.create_subprocess_exec",
                run=times(portal, 50, lambda: bare(TRUE)),
                number=50,
            ),
            Way(
                name="pinfold",
                run=times(portal, 50, lambda: instance.exec(request)),
                number=50,
                limit=1.3,
            ),
            Way(
                name="subprocess.run",
                run=lambda: [subprocess.run([TRUE], check=True) for _ in range(50)],
                number=50,
            ),
        ],
    )


def native_execs(portal: BlockingPortal, instance: Instance) -> dict[str, Any]:
    """`true` at level native."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as program:
        for name in ("workspace", "tmp", "etc"):
            Path(folder, name).mkdir()
        for name, text in _boundary.etc_files("none").items():
            Path(folder, "etc", name).write_text(text)
        program.write(_seccomp.program(platform.machine()))
        argv = _boundary.bubblewrap_argv(folder=folder, roots=[], network="none")
        fd = program.fileno()

        async def plain() -> None:
            program.seek(0)
            await bare(argv[0], "--seccomp", str(fd), *argv[1:], TRUE, pass_fds=(fd,))

        request = ExecRequest(argv=(TRUE,))
        return compare(
            "host, level native: exec of true",
            [
                Way(
                    name="bubblewrap, the same flags",
                    run=times(portal, 30, plain),
                    number=30,
                ),
                Way(
                    name="pinfold",
                    run=times(portal, 30, lambda: instance.exec(request)),
                    number=30,
                    limit=1.2,
                ),
            ],
        )


def files(portal: BlockingPortal, instance: Instance) -> list[dict[str, Any]]:
    """1 KiB written and read."""
    root = Path(instance.ref.data["folder"]) / "workspace"
    data, number = os.urandom(1024), 300
    place, aside = str(root / "plain"), str(root / "plain.new")

    def write() -> None:
        for _ in range(number):
            with open(aside, "wb") as stream:  # noqa: PTH123 - the plainest way is the floor
                stream.write(data)
            os.rename(aside, place)  # noqa: PTH104

    def read() -> None:
        for _ in range(number):
            with open(place, "rb") as stream:  # noqa: PTH123
                stream.read()

    ours = PurePosixPath("/workspace/ours")
    return [
        compare(
            "host: 1 KiB written, atomically",
            [
                Way(name="open, write, rename", run=write, number=number),
                Way(
                    name="pinfold",
                    run=times(portal, number, lambda: instance.files.write(ours, data)),
                    number=number,
                    limit=3,
                ),
            ],
        ),
        compare(
            "host: 1 KiB read",
            [
                Way(name="open, read", run=read, number=number),
                Way(
                    name="pinfold",
                    run=times(portal, number, lambda: instance.files.read(ours)),
                    number=number,
                    limit=3,
                ),
            ],
        ),
    ]


def scans(portal: BlockingPortal, instance: Instance, tree: Tree, where: str) -> dict[str, Any]:
    """A scan of 5,000 files that finds nothing changed."""
    root = Path(instance.ref.data["folder"]) / "workspace" / "tree"
    for number in range(5000):
        folder = root / f"d{number % 50}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_bytes(b"x" * (number % 3000))
    old_enough = time.monotonic() + 2.5  # CP-7: what was younger than 2 s is read again
    first = portal.call(tree.scan)
    settled, began = first.state, 0.0
    while began < old_enough:
        began = time.monotonic()
        settled = portal.call(tree.scan, settled).state
    argv = ["find", str(root), "-printf", "%y %m %s %T@ %C@ %i %l %p\\n"]

    async def scan() -> None:
        found = await tree.scan(settled)
        if not found.unchanged and found.entries != first.entries:
            raise RuntimeError("something changed")

    result = compare(
        f"{where}: scan of 5,000 unchanged files",
        [
            Way(
                name="find -printf",
                run=lambda: subprocess.run(argv, stdout=subprocess.PIPE, check=True),
            ),
            Way(name="pinfold", run=times(portal, 1, scan), limit=3),
        ],
        rounds=15,
    )
    portal.call(lambda: instance.files.remove("/workspace/tree", recursive=True))
    return result


def flood(portal: BlockingPortal, instance: Instance) -> dict[str, Any]:
    """256 MiB of output under the default cap of 1 MiB."""
    request = ExecRequest(argv=("head", "-c", str(256 * MIB), "/dev/zero"))
    portal.call(instance.exec, ExecRequest(argv=("head", "-c", str(4 * MIB), "/dev/zero")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = portal.call(instance.exec, request)
    if result.stdout_total != 256 * MIB:
        raise RuntimeError("output was lost")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return figure("host: growth of the caller under 256 MiB of output", grown, "MiB", at_most=16)


def crowd(portal: BlockingPortal, instance: Instance) -> dict[str, Any]:
    """64 commands at once."""
    request = ExecRequest(argv=(TRUE,))

    async def many(one: Callable[[], Awaitable[object]]) -> None:
        await asyncio.gather(*(one() for _ in range(64)))

    return compare(
        "host, level none: 64 at once, each",
        [
            Way(
                name="asyncio.create_subprocess_exec",
                run=lambda: portal.call(many, lambda: bare(TRUE)),
                number=64,
            ),
            Way(
                name="pinfold",
                run=lambda: portal.call(many, lambda: instance.exec(request)),
                number=64,
            ),
        ],
    )


class SpawnOnly(Guest):
    """The primitive alone: this machine's shell and tools do the rest (dash and GNU on Debian)."""

    def __init__(self, guest: Guest, root: PurePosixPath) -> None:
        self._guest = guest
        self._root = root

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: PurePosixPath
    ) -> Process:
        """Start it in the workspace: our programs go where they go by themselves."""
        del cwd
        return await self._guest.spawn(argv, env, self._root)


def spawn_only(portal: BlockingPortal, instance: Instance) -> list[dict[str, Any]]:
    """1,000 small files in one batch, and an unchanged scan, where nothing but spawning is there."""
    if not isinstance(instance, PosixInstance):
        raise TypeError("the host provider is no longer made of the POSIX layer")
    root = Path(instance.ref.data["folder"]) / "workspace"
    guest = SpawnOnly(instance.equipment.guest, PurePosixPath(root))

    async def equipped() -> Equipment:
        return await equip(guest, root=PurePosixPath(root), helper="never")

    kit = portal.call(equipped)
    data: dict[PurePosixPath | str, bytes] = {
        f"/workspace/many/f{number}": os.urandom(1024) for number in range(1000)
    }
    portal.call(lambda: kit.files.write_many(dict(data)))
    aside = root / "aside"
    aside.mkdir()
    pack = ["tar", "-cf", "-", "-C", str(root / "many"), "."]

    def unpack() -> None:
        archive = subprocess.run(pack, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-xf", "-", "-C", str(aside)], input=archive, check=True)

    results = [
        compare(
            "spawn-only: 1,000 files of 1 KiB written by batch",
            [
                Way(name="one tar pipe, packed and unpacked", run=unpack, number=1),
                Way(
                    name="pinfold",
                    run=times(portal, 1, lambda: kit.files.write_many(dict(data))),
                    limit=2,
                ),
            ],
        ),
        compare(
            "spawn-only: 1,000 files of 1 KiB read by batch",
            [
                Way(
                    name="one tar pipe",
                    run=lambda: subprocess.run(pack, stdout=subprocess.PIPE, check=True),
                ),
                Way(
                    name="pinfold",
                    run=times(portal, 1, lambda: kit.files.read_many(list(data))),
                    limit=2,
                ),
            ],
        ),
    ]
    portal.call(lambda: instance.files.remove("/workspace/many", recursive=True))
    portal.call(lambda: instance.files.remove("/workspace/aside", recursive=True))
    results.append(scans(portal, instance, kit.tree, "spawn-only"))
    return results
