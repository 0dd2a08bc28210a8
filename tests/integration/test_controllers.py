"""LC-1, LC-2, LC-5, LC-9 between real processes, on real folders and a real SQLite file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import pinfold
from pinfold.sandbox import gc

pytestmark = pytest.mark.anyio

SPEC = {"target": {"kind": "host", "provider": "host"}, "durability": "checkpointed"}
SCRIPT = Path(__file__).with_name("controller.py")


class Controller:
    """Another process that holds the sandbox."""

    def __init__(self, place: Path, name: str = "box"):
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(place), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == {"ready": True}

    def _answer(self):
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the controller died"
        return json.loads(line)

    def send(self, *call):
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def call(self, *call):
        self.send(*call)
        return self._answer()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "store"


@pytest.fixture
async def controllers(place):
    made = []

    async def make():
        controller = await anyio.to_thread.run_sync(Controller, place)
        made.append(controller)
        return controller

    yield make
    for controller in made:
        controller.close()
    async with pinfold.reopen("box", store=pinfold.Store(place)) as box:
        await box.delete()


@pytest.fixture
async def sandbox(place):
    async with pinfold.open(SPEC, name="box", store=pinfold.Store(place)) as box:
        await box.files.write("/workspace/a", b"0")
        return box.id


def folders(place):
    """The folders of host sandboxes that there are, instances and half-made ones alike."""
    root = place.parent / "data" / "pinfold" / "host"
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


async def journal(place):
    async with pinfold.reopen("box", store=pinfold.Store(place)) as box:
        return [(str(event.type), event.generation) for event in await box.events()]


async def test_lc2_a_process_whose_instance_was_replaced_is_refused_with_both_numbers(
    place, sandbox, controllers
):
    one = await controllers()
    first = one.call("write", "/workspace/a", "1")["generation"]
    for folder in folders(place):
        shutil.rmtree(folder)
    two = await controllers()
    second = two.call("write", "/workspace/a", "2")["generation"]
    assert second == first + 1

    for call in (("write", "/workspace/a", "3"), ("exec", "echo 3 > a"), ("exec", "true")):
        answer = one.call(*call)
        assert (answer["code"], answer["details"]) == (
            "stale_generation",
            {"carried": first, "current": second},
        )
        assert answer["effect"] == "none"
    assert two.call("read", "/workspace/a") == {"read": "2"}


async def test_lc5_two_processes_find_one_loss_and_make_one_replacement(
    place, sandbox, controllers
):
    one = await controllers()
    before = one.call("exec", "cat a")
    assert before["stdout"] == "0"
    for folder in folders(place):
        shutil.rmtree(folder)
    two = await controllers()

    one.send("exec", "cat a")
    two.send("exec", "cat a")
    answers = [one._answer(), two._answer()]

    events = [kind for kind, _ in await journal(place)]
    assert events.count("sandbox.instance_lost") == 1
    assert events.count("sandbox.recovered") == 1
    assert sorted(answer.get("stdout", answer.get("code")) for answer in answers) in (
        ["0", "0"],
        ["0", "stale_generation"],
    )


async def test_lc9_a_killed_controller_leaves_nothing_that_the_next_one_does_not_find(
    place, sandbox, controllers
):
    heartbeat = place.parent / "heartbeat"
    one = await controllers()
    script = f"echo before > kept; while :; do echo x >> {heartbeat}; sleep 0.1; done"
    assert one.call("exec", "echo before > kept")["stdout"] == ""
    one.send("exec", script)
    await grows(heartbeat)
    one.kill()

    two = await controllers()
    assert two.call("exec", "cat kept")["stdout"] == "before\n"
    two.close()
    await gc(pinfold.Store(place))
    assert len(folders(place)) <= 1


async def grows(path):
    with anyio.fail_after(20):
        while not path.exists() or os.stat(path).st_size < 4:  # noqa: PTH116 - a file beside us
            await anyio.sleep(0.02)


async def test_ev1_ids_are_ordered_across_processes(place, sandbox, controllers):
    for number in range(3):
        controller = await controllers()
        controller.call("write", "/workspace/a", str(number))
        controller.close()
    async with pinfold.reopen("box", store=pinfold.Store(place)) as box:
        events = await box.events()
    assert [event.id for event in events] == sorted(event.id for event in events)
    generations = [event.generation for event in events]
    assert generations == sorted(generations)
