"""The suite on a target whose helper is killed again and again (EX-14).

Between operations: what was in flight would be unknown, as it has to be (tests/core/resident holds that
to the letter); what was not must never notice. The target is the tutorial's, with a helper in it.
"""

import importlib
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from pinfold.errors import Lost
from pinfold.posix import Equipment, equip
from pinfold.posix._resident import Resident
from pinfold_conformance import PROFILES, Options, Verdict, run
from pinfold_conformance._template import write_project
from tests.core.posix.guests import LocalGuest, end_all, living
from tests.core.resident.conftest import is_alive


class FolderGuest(LocalGuest):
    """Spawns on this machine, as long as the sandbox's folder is there."""

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self.workspace = workspace

    async def spawn(self, argv, env, cwd):
        if not self.workspace.is_dir():
            raise Lost("the sandbox's folder is gone")
        return await super().spawn(argv, env, cwd)


class Killer:
    """Kills the helper of a target, at drawn operations, before they are sent."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311
        self.kits: list[Equipment] = []
        self.kills = 0

    async def equip(self, _, **settings) -> Equipment:
        workspace = Path(settings["root"])
        kit = await equip(FolderGuest(workspace), **{**settings, "helper": "required"})
        self.kits.append(kit)
        return kit

    def end(self, folder: Path) -> None:
        """What the tutorial's `end` is to a sandbox that has a helper besides."""
        for kit in self.kits:
            if kit.resident is not None and folder in Path(kit.layout.root).parents:
                kill(kit.resident.session.greeting.pid)
                for pid in living(f"PINFOLD_EXEC={kit.mark}"):
                    kill(pid)

    def strike(self, resident: Resident) -> None:
        running = resident._running
        if running is None or running.session.failure is not None or self.draw.random() > 0.2:
            return
        session = running.session
        busy = session._pending or session._streams or resident.guest.running
        if busy or children(session.greeting.pid):
            return
        kill(session.greeting.pid)
        session._heard -= 10  # as if it had been idle: it is asked whether it lives
        self.kills += 1


def kill(pid: int) -> None:
    if is_alive(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> str:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return ""


@pytest.mark.parametrize("seed", [1])
def test_ex14_the_suite_passes_while_the_helper_is_killed_between_operations(
    tmp_path, monkeypatch, seed
) -> None:
    monkeypatch.syspath_prepend(str(write_project("killed", "posix", tmp_path) / "src"))
    lane = importlib.import_module("pinfold_killed.lane").lane
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    killer = Killer(seed)
    monkeypatch.setattr("pinfold_killed.equip", killer.equip)
    end = importlib.import_module("pinfold_killed._guest").end

    def ended(folder: Path) -> None:
        end(folder)
        killer.end(folder)

    monkeypatch.setattr("pinfold_killed._guest.end", ended)
    monkeypatch.setattr("pinfold_killed.lane.end", ended)
    current = Resident._current

    async def struck(self: Resident):
        killer.strike(self)
        return await current(self)

    monkeypatch.setattr(Resident, "_current", struck)
    try:
        report = run(lane, Options(profile=PROFILES["smoke"], seed=seed))
        odd = [one for one in report.outcomes if one.verdict is not Verdict.PASS]
        assert not odd, [(one.check, one.verdict, one.reason) for one in odd]
        assert report.outcomes
        assert killer.kills >= 20
        assert sum(kit.resident.restarts for kit in killer.kits if kit.resident) >= killer.kills / 2
    finally:
        killer.end(tmp_path)
        end_all(str(tmp_path))
