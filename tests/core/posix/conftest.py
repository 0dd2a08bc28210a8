"""One box per kind of guest: every test of the contract runs on each."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import anyio
import attrs
import pytest

from pinfold.posix import Guest, PosixInstance, equip
from pinfold.provider import ExecRequest, ExecResult, InstanceRef, InstanceStatus
from tests.core.posix.guests import (
    BusyboxGuest,
    LocalGuest,
    OldKernelGuest,
    SupervisingLocalGuest,
    busybox_root,
    end_all,
)

KINDS = ("shell", "busybox", "supervising", "helper", "helper-old-kernel")


class LocalInstance(PosixInstance):
    async def status(self) -> InstanceStatus:
        return InstanceStatus.RUNNING

    async def destroy(self) -> None:
        return None


@attrs.frozen
class Box:
    """An instance, and its workspace as this machine sees it: the witness."""

    kind: str
    instance: PosixInstance
    guest: Guest
    workspace: Path
    outside: Path
    out: str  # as the target names it

    @property
    def files(self):
        return self.instance.files

    @property
    def tree(self):
        return self.instance.tree

    async def run(self, *argv: str, **more) -> ExecResult:
        return await self.instance.exec(ExecRequest(argv=argv, **more))

    async def sh(self, script: str, sink=None, **more) -> ExecResult:
        return await self.instance.exec(ExecRequest(shell=script, **more), sink)


@pytest.fixture(scope="session")
def busybox() -> Iterator[Path]:
    for tool in ("busybox", "bwrap", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: make system")
    with tempfile.TemporaryDirectory(prefix="busybox-") as folder:
        Path(folder).chmod(0o755)  # other users run it, too
        yield busybox_root(Path(folder))


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other users can reach: pytest shuts its own whenever a run begins."""
    with tempfile.TemporaryDirectory(prefix="open-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make_guest(
    kind: str, request: pytest.FixtureRequest, workspace: Path, outside: Path
) -> LocalGuest:
    if kind == "busybox":
        options = ("--bind", str(outside), "/outside")
        return BusyboxGuest(request.getfixturevalue("busybox"), workspace, *options)
    if kind == "helper-old-kernel":
        return OldKernelGuest()
    return SupervisingLocalGuest(workspace) if kind == "supervising" else LocalGuest()


def pytest_collection_modifyitems(config, items) -> None:
    """Leave out what would only be the same again.

    What differs between event loops differs for the fast kinds too; a guest that supervises
    commands has the files and the tree of one that does not.
    """

    def is_the_same(test: str) -> bool:
        once = ("[trio-busybox", "[trio-supervising", "[trio-helper-old-kernel")
        same = "supervising" in test and ("/test_files" in test or "/test_tree" in test)
        if "50_000" in test:
            return "[asyncio-shell" not in test and "[asyncio-helper]" not in test
        return same or any(part in test for part in once)

    dropped = [item for item in items if is_the_same(item.nodeid)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.fixture
async def box(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Box]:
    workspace = tmp_path / "w"
    workspace.mkdir(mode=0o755)
    outside = tmp_path / "outside"
    outside.mkdir()
    guest = make_guest(kind, request, workspace, outside)
    try:
        root = PurePosixPath("/workspace" if kind == "busybox" else workspace)
        helper: Literal["required", "never"]
        helper = "required" if kind.startswith("helper") else "never"
        kit = await equip(guest, root=root, identity=str(tmp_path), helper=helper)
        instance = LocalInstance(InstanceRef(provider="test", id=str(tmp_path)), kit)
        out = "/outside" if kind == "busybox" else str(outside)
        yield Box(kind, instance, guest, workspace, outside, out)
        if kit.resident is not None:
            await kit.resident.aclose()
        elif kind != "busybox":  # that one's /tmp goes with it
            shutil.rmtree(kit.control, ignore_errors=True)
    finally:
        guest.close()
        end_all(str(tmp_path))


async def until(condition, seconds: float = 10.0) -> None:
    """Poll until something is so."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


class Heartbeat:
    """A file that a process lets grow: whether it lives is seen without asking the sandbox."""

    script = "while :; do printf x >>{name}; sleep 0.05; done"

    def __init__(self, box: Box, name: str = "hb") -> None:
        self.path = box.workspace / name
        self.loop = self.script.format(name=name)

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    async def beats(self) -> None:
        start = self.size
        await until(lambda: self.size > start)

    async def is_still(self, seconds: float = 0.4) -> bool:
        start = self.size
        await anyio.sleep(seconds)
        return self.size == start
