"""What a target lacks is found once, at the start, and named with what it costs."""

import os
import shutil
from pathlib import PurePosixPath

import pytest

from pinfold.errors import Unavailable
from pinfold.posix import equip
from pinfold.provider import ExecRequest, FileType, RestorePlan
from tests.core.posix.guests import LocalGuest, end_all

pytestmark = pytest.mark.anyio

NEEDED = [
    "cat",
    "chmod",
    "env",
    "grep",
    "ln",
    "mkdir",
    "mv",
    "readlink",
    "rm",
    "rmdir",
    "sleep",
    "stat",
]
USEFUL = ["date", "dd", "find", "setsid", "sha256sum", "tail", "tar"]


class PoorGuest(LocalGuest):
    """The commands of this machine, but for some."""

    def __init__(self, folder, without) -> None:
        super().__init__()
        folder.mkdir()
        for name in {"sh", "true", *NEEDED, *USEFUL} - set(without):
            (folder / name).symlink_to(shutil.which(name))
        self.default_env = {"PATH": str(folder)}

    async def spawn(self, argv, env, cwd):
        argv = [f"{self.default_env['PATH']}/sh", *argv[1:]] if argv[0] == "sh" else argv
        return await super().spawn(argv, env, cwd)


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "w").mkdir()
    yield tmp_path / "w"
    end_all(str(tmp_path))


async def test_a_target_that_has_all_lacks_nothing(tmp_path, workspace) -> None:
    kit = await equip(PoorGuest(tmp_path / "bin", []), root=PurePosixPath(workspace))
    assert kit.details.lacks == ()
    assert kit.features.signals


@pytest.mark.parametrize("name", NEEDED)
async def test_without_a_command_that_is_needed_it_is_refused_by_name(
    tmp_path, workspace, name
) -> None:
    """Table row 33: at the start, not in the middle of something."""
    with pytest.raises(Unavailable, match=rf"\b{name}\b.*:") as caught:
        await equip(PoorGuest(tmp_path / "bin", [name]), root=PurePosixPath(workspace))
    assert name in caught.value.details["lacks"]
    assert caught.value.retryable is False
    assert caught.value.hint


async def test_all_that_is_missing_is_named_at_once(tmp_path, workspace) -> None:
    with pytest.raises(Unavailable) as caught:
        await equip(PoorGuest(tmp_path / "bin", ["mv", "grep"]), root=PurePosixPath(workspace))
    assert {"mv", "grep"} <= set(caught.value.details["lacks"])


@pytest.mark.parametrize("name", USEFUL)
async def test_without_a_command_that_is_useful_it_works_and_says_what_it_costs(
    tmp_path, workspace, name
) -> None:
    kit = await equip(PoorGuest(tmp_path / "bin", [name]), root=PurePosixPath(workspace))
    (said,) = kit.details.lacks
    assert said.startswith(f"{name}: ")
    files, data = kit.files, os.urandom(100_000)

    async def chunks():
        yield data

    await files.write("/workspace/a b", data)
    await files.upload("/workspace/d/up", chunks())
    await files.write_many({"/workspace/d/x": b"x", "/workspace/e/y": b"y"})
    await files.symlink("/workspace/l", "a b")
    assert await files.read("/workspace/d/up") == data
    assert await files.read("/workspace/a b", offset=70_000, length=10) == data[70_000:70_010]
    assert await files.read_many(["/workspace/d/x", "/workspace/l"]) == [b"x", data]
    assert [entry.path.name for entry in await files.list("/workspace")] == ["a b", "d", "e", "l"]
    tree = [item.path async for item in files.download_tree("/workspace/d")]
    assert {str(path) for path in tree} == {".", "up", "x"}
    result = await kit.runner.run(ExecRequest(shell="kill -9 $$"))
    assert (result.exit_code, result.signal) == (137, 9)
    result = await kit.runner.run(ExecRequest(shell="sleep 60 & sleep 60", timeout_seconds=0.2))
    assert result.timed_out
    if name == "find":
        with pytest.raises(Unavailable, match="find"):
            await kit.tree.scan()
        return
    scan = await kit.tree.scan()
    again = await kit.tree.scan(scan.state)
    assert again.entries == scan.entries
    blobs: dict[str, bytes] = {}
    held = b""
    async for blob in kit.tree.read([e for e in scan.entries if e.type is FileType.FILE]):
        held += blob.data
        if blob.last:
            blobs[blob.digest] = held
            held = b""

    async def fetch(digest):
        yield blobs[digest]

    await files.write("/workspace/a b", b"changed")
    await files.remove("/workspace/d", recursive=True)
    await kit.tree.restore(RestorePlan(entries=scan.entries, fetch=fetch))
    assert [entry.digest for entry in (await kit.tree.scan()).entries] == [
        entry.digest for entry in scan.entries
    ]


async def test_without_a_witness_of_signals_the_feature_is_absent(tmp_path, workspace) -> None:
    guest = PoorGuest(tmp_path / "bin", ["env", "true"])
    env = tmp_path / "bin" / "env"
    env.write_text(
        '#!/bin/sh\ncase $1 in --default-signal=*) exit 125 ;; esac\nexec /usr/bin/env "$@"\n'
    )
    env.chmod(0o755)
    kit = await equip(guest, root=PurePosixPath(workspace))
    assert kit.features.signals is False
    assert any("signal" in said for said in kit.details.lacks)
    result = await kit.runner.run(ExecRequest(shell="kill -9 $$"))
    assert (result.exit_code, result.signal) == (137, None)
