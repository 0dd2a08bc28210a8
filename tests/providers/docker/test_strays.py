"""LC-9: whatever ends a controller, `gc` leaves nothing of its sandboxes, and all of others'."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Self

import anyio
import docker
import pytest
from anyio import to_thread

from pinfold._register import Register
from pinfold.provider import InstanceStatus, Owner
from pinfold.sandbox import gc_ephemeral
from tests.providers.docker.support import BUSYBOX, eventually, make, strays

pytestmark = pytest.mark.anyio

#: Of one controller; so many of them that all sandboxes together are those of the issue.
SANDBOXES = 5
#: At once: an engine takes most of a processor for each start.
CONTROLLERS_AT_ONCE = 4
OPENED = (b"opening", b"open")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The controllers are processes of their own."""
    return "asyncio"


class Controller:
    """A process that opens sandboxes."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.providers.docker.controller", str(SANDBOXES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"XDG_DATA_HOME": str(home)},
            start_new_session=True,
        )

    def hears(self, *words: bytes) -> None:
        assert self._process.stdout is not None
        for word in words:
            assert self._process.stdout.readline() == word + b"\n"

    def closes(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.hears(b"closed")
        assert self._process.wait(60) == 0

    def is_killed(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_killed()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.mark.parametrize(
    ("controllers", "killed"),
    [
        pytest.param(8, 5, id="40 sandboxes"),
        pytest.param(40, 20, id="200 sandboxes", marks=pytest.mark.nightly),
    ],
)
async def test_nothing_is_left_of_controllers_that_ended_or_were_killed(
    client: docker.DockerClient, provider, tmp_path, monkeypatch, controllers: int, killed: int
):
    """SIGKILL while the first of its sandboxes is made, the second, …, and when all are open."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    register = Register()
    store = register.store
    strangers = client.containers.create(BUSYBOX, ["true"], labels={"pinfold.sandbox": "sbx_x"})
    others = await make(provider)  # another store's
    limiter = anyio.CapacityLimiter(CONTROLLERS_AT_ONCE)
    seen: list[str] = []

    def one(number: int) -> None:
        with Controller(tmp_path) as controller:
            if number < killed:
                whole = number % (SANDBOXES + 1)
                controller.hears(*OPENED * whole)
                if whole < SANDBOXES:  # at some moment of the next one's making
                    controller.hears(b"opening")
                    time.sleep(number * 0.07 % 0.5)
                controller.is_killed()
            else:
                controller.hears(*OPENED * SANDBOXES)
                seen.extend(strays(client, store))
                controller.closes()

    try:
        async with anyio.create_task_group() as tasks:
            for number in range(controllers):
                tasks.start_soon(partial(to_thread.run_sync, one, number, limiter=limiter))
        assert len(set(seen)) >= 2 * SANDBOXES * (controllers - killed)  # containers and volumes
        assert strays(client, store)  # what the killed ones left

        async def none_left() -> bool:
            """An engine may still be at what it was asked for by a controller that was killed."""
            report = await gc_ephemeral()
            assert report.failed == ()
            return strays(client, store) == []

        await eventually(none_left, 60)
        assert register.held() == []
        assert await others.status() is InstanceStatus.RUNNING
        strangers.reload()
    finally:
        await others.destroy()
        strangers.remove(force=True)


async def test_what_an_engine_makes_after_its_controllers_entry_was_acted_on_is_found_by_its_label(
    client: docker.DockerClient, provider, tmp_path, monkeypatch
):
    """An engine that is slow goes on with a create whose asker is dead and struck out."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    register = Register()
    late = await make(provider, owner=Owner(store=register.store, sandbox="sbx_late"))
    with register.claim("sbx_held") as claim:
        held = await make(provider, owner=Owner(store=register.store, sandbox="sbx_held"))
        report = await gc_ephemeral()
        assert (report.done, report.failed) == ((late.ref.id,), ())
        assert await late.status() is InstanceStatus.ABSENT
        await late.detach()
        assert await held.status() is InstanceStatus.RUNNING
        await held.destroy()
        claim.release()
    assert strays(client, register.store) == []
