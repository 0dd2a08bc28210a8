"""No check asks a target to change, or lets it find, what it could do harm with outside (FS-1, FS-2).

Whoever fails a check may well do what it asks: as root, on the machine of whoever runs the suite.
So what changes something aims at what a check has made itself, or at what is nobody's, and no link
that a check plants leads to a folder of the machine, which a removal that follows links would empty.
"""

import os
import posixpath
from pathlib import PurePosixPath
from typing import ClassVar

import pytest

from pinfold.errors import PinfoldError
from pinfold_conformance import PROFILES, Options, Verdict, run
from pinfold_conformance.adapters._naive import NaiveLane
from pinfold_conformance.adapters.toy import ToyLane
from pinfold_conformance.adapters.toy._world import Dir, Link
from pinfold_conformance.mutants._base import BugFiles, BugInstance, BugLane, BugTree
from tests.conformance.support import REMOTE, outcome_of

OURS = ("/workspace", "/pinfold-scratch")


def foreign(path):
    """Whether a canonical path is the machine's own: no workspace, and in no folder of a check's."""
    inside = any(str(path) == root or str(path).startswith(f"{root}/") for root in OURS)
    return not inside and not str(path).startswith("/tmp/")


def harm_at(world, path, *, follow):
    """Where an adapter that confines nothing would come to harm the machine, or None."""
    text = posixpath.normpath(str(path))
    if not text.startswith("/"):  # where the controller runs
        return text if os.path.lexists(text) else None
    try:
        found = world.find(PurePosixPath(text), follow=follow, confined=False)
    except PinfoldError:
        return None
    return found.path if found.node is not None and foreign(found.path) else None


def led_to(world):
    """The machine's folders that links in the workspace lead to."""
    for name, node in world.walk():
        if isinstance(node, Link):
            try:
                found = world.find(PurePosixPath("/workspace") / name, confined=False)
            except PinfoldError:
                continue
            if isinstance(found.node, Dir) and foreign(found.path):
                yield f"{name} -> {node.text}"


class Watched(BugInstance):
    """The reference, each change of which is looked at before it is made."""

    harm: ClassVar[list[str]] = []

    def __init__(self, inner):
        super().__init__(inner)
        self.files, self.tree = WatchedFiles(inner.files), WatchedTree(inner.tree)
        self.tree.world = inner.files.world

    async def destroy(self):
        self.harm.extend(led_to(self.inner.files.world))
        await super().destroy()


class WatchedFiles(BugFiles):
    def look(self, what, path, *, follow=True):
        place = harm_at(self.inner.world, path, follow=follow)
        if place is not None:
            Watched.harm.append(f"{what} of {path}: {place}")
        Watched.harm.extend(led_to(self.inner.world))

    async def write(self, path, data, *, mode=None):
        self.look("write", path)
        await self.inner.write(path, data, mode=mode)

    async def upload(self, path, chunks, *, mode=None):
        self.look("upload", path)
        return await self.inner.upload(path, chunks, mode=mode)

    async def remove(self, path, *, recursive=False):
        for follow in (False, True):
            self.look("remove", path, follow=follow)
        await self.inner.remove(path, recursive=recursive)

    async def rename(self, source, target):
        for path in (source, target):
            for follow in (False, True):
                self.look("rename", path, follow=follow)
        await self.inner.rename(source, target)

    async def symlink(self, path, target):
        self.look("symlink", path)
        await self.inner.symlink(path, target)

    async def chmod(self, path, mode):
        self.look("chmod", path)
        await self.inner.chmod(path, mode)


class WatchedTree(BugTree):
    async def restore(self, plan):
        Watched.harm.extend(led_to(self.world))
        try:
            return await self.inner.restore(plan)
        finally:
            Watched.harm.extend(led_to(self.world))


class WatchedLane(BugLane):
    async def reset(self, instance):
        Watched.harm.extend(led_to(instance.inner.files.world))
        await super().reset(instance)


def test_no_check_asks_for_what_would_do_harm_outside(monkeypatch):
    monkeypatch.setattr(Watched, "harm", [])
    report = run(WatchedLane(ToyLane(), wrap=Watched), Options(profile=REMOTE, other=ToyLane()))
    bad = [one for one in report.outcomes if one.verdict not in (Verdict.PASS, Verdict.NOT_CLAIMED)]
    assert bad == []
    assert sorted(set(Watched.harm)) == []


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc", "/", ".", "/workspace/../etc"])
def test_harm_would_be_seen(monkeypatch, path):
    monkeypatch.setattr(Watched, "harm", [])

    async def asks(case):
        with pytest.raises(PinfoldError):
            await case.files.remove(path, recursive=True)

    outcome_of(asks, WatchedLane(ToyLane(), wrap=Watched))
    assert Watched.harm


@pytest.mark.parametrize("text", ["/etc", "..", "/", "../../tmp"])
def test_a_link_to_the_machine_would_be_seen(monkeypatch, text):
    monkeypatch.setattr(Watched, "harm", [])

    async def plants(case):
        await case.files.symlink("/workspace/link", text)

    outcome_of(plants, WatchedLane(ToyLane(), wrap=Watched))
    assert f"link -> {text}" in Watched.harm


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.write("/workspace/link/file", b"harm"),
        lambda files: files.make_directory("/workspace/link/new"),
        lambda files: files.remove("/workspace/link", recursive=True),
        lambda files: files.remove("/workspace/link/file"),
        lambda files: files.rename("/workspace/link/file", "/workspace/stolen"),
        lambda files: files.rename("/workspace/own", "/workspace/link/file"),
        lambda files: files.symlink("/workspace/link/new", "x"),
        lambda files: files.chmod("/workspace/link/file", 0o600),
    ],
    ids="write mkdir remove-all remove rename-out rename-in symlink chmod".split(),
)
def test_even_the_naive_adapter_leaves_the_machine_alone(change, tmp_path):
    """Every attack succeeds against it: so it must not be one that could be repeated in earnest."""
    (tmp_path / "file").write_bytes(b"kept")

    async def attacks(case):
        await case.files.write("/workspace/own", b"own")
        await case.files.symlink("/workspace/link", str(tmp_path))
        await change(case.files)

    outcome = outcome_of(attacks, NaiveLane(), Options(profile=PROFILES["remote"]))
    assert "leaves" in outcome.reason
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"kept"}
