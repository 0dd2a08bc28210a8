"""What only shows where the guest is not root: permissions refuse, and owners shut themselves out."""

import hashlib
import os
import shutil
from pathlib import PurePosixPath

import pytest

from pinfold.errors import PermissionDenied
from pinfold.posix import equip
from pinfold.provider import ExecRequest, FileType, RestorePlan
from tests.core.posix.guests import LocalGuest, end_all

pytestmark = pytest.mark.anyio

NOBODY = 65534


class PlainUserGuest(LocalGuest):
    prefix: tuple[str, ...] = (
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs",
    )  # fmt: skip


@pytest.fixture
async def kit(open_path):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user can be taken on only by root, with setpriv")
    workspace = open_path / "w"
    workspace.mkdir()
    os.chown(workspace, NOBODY, NOBODY)
    kit = await equip(PlainUserGuest(), root=PurePosixPath(workspace))
    yield kit
    end_all(str(open_path))
    shutil.rmtree(kit.control)


async def test_fs5_what_permissions_refuse_is_permission_denied(kit, open_path) -> None:
    workspace, files = open_path / "w", kit.files
    (workspace / "others").write_text("root's")
    (workspace / "others").chmod(0o600)
    (workspace / "shut").mkdir(mode=0o700)
    (workspace / "shut" / "f").write_text("")
    (workspace / "readonly").mkdir(mode=0o755)
    (workspace / "readonly" / "f").write_text("x")
    for operation in (
        lambda: files.read("/workspace/others"),
        lambda: files.chmod("/workspace/others", 0o666),
        lambda: files.list("/workspace/shut"),
        lambda: files.read("/workspace/shut/f"),
        lambda: files.stat("/workspace/shut/f"),
        lambda: files.write("/workspace/shut/g", b""),
        lambda: files.write("/workspace/readonly/f", b""),
        lambda: files.write("/workspace/readonly/g", b""),
        lambda: files.write_many({"/workspace/readonly/g": b""}),
        lambda: files.upload_tree("/workspace/readonly/d", []),
        lambda: files.make_directory("/workspace/readonly/d"),
        lambda: files.remove("/workspace/readonly/f"),
        lambda: files.remove("/workspace/readonly", recursive=True),
        lambda: files.rename("/workspace/readonly/f", "/workspace/f"),
        lambda: files.symlink("/workspace/readonly/l", "x"),
    ):
        with pytest.raises(PermissionDenied):
            await operation()
    assert (workspace / "readonly" / "f").read_text() == "x"
    left = sorted(path.name for path in workspace.iterdir())
    assert left == ["others", "readonly", "shut"]


async def test_fs2_modes_of_what_its_owner_can_not_open(kit, open_path) -> None:
    await kit.files.write("/workspace/f", b"", mode=0)
    await kit.files.make_directory("/workspace/d")
    await kit.files.chmod("/workspace/d", 0)
    await kit.files.chmod("/workspace/f", 0o640)
    await kit.files.chmod("/workspace/d", 0o750)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (open_path / "w").iterdir()}
    assert modes == {"f": 0o640, "d": 0o750}


async def test_cp2_a_tree_that_its_owner_has_shut(kit, open_path) -> None:
    """It is scanned, read and restored all the same, and stays shut."""
    workspace = open_path / "w"
    script = (
        "mkdir -p a/b c; echo 1 >a/b/f; echo 2 >g; echo 3 >c/ro; "
        "chmod 0 g; chmod 0 a/b; chmod 100 a; chmod 555 c"
    )
    assert (await kit.runner.run(ExecRequest(shell=script))).exit_code == 0

    def modes() -> dict[str, int]:
        paths = sorted(workspace.rglob("*"))
        return {str(p.relative_to(workspace)): p.stat().st_mode & 0o777 for p in paths}

    before = modes()
    scan = await kit.tree.scan()
    assert {entry.path: entry.mode for entry in scan.entries} == before
    blobs: dict[str, bytes] = {}
    held = b""
    async for blob in kit.tree.read([e for e in scan.entries if e.type is FileType.FILE]):
        held += blob.data
        if blob.last:
            assert blob.digest == hashlib.sha256(held).hexdigest()
            blobs[blob.digest], held = held, b""
    assert sorted(blobs.values()) == [b"1\n", b"2\n", b"3\n"]
    assert modes() == before

    async def fetch(digest):
        yield blobs[digest]

    script = "chmod -R u+rwx .; echo x >a/b/f; rm g; touch c/new; chmod 0 c"
    assert (await kit.runner.run(ExecRequest(shell=script))).exit_code == 0
    await kit.tree.restore(RestorePlan(entries=scan.entries, fetch=fetch))
    assert modes() == before
    assert (workspace / "a" / "b" / "f").read_text() == "1\n"
    assert (workspace / "g").read_text() == "2\n"


async def test_ex_commands_run_as_the_guest(kit) -> None:
    result = await kit.runner.run(ExecRequest(shell="id -u; sleep 60", timeout_seconds=0.5))
    assert (result.stdout, result.timed_out) == (b"65534\n", True)
