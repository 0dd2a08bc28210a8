"""The register of ephemeral sandboxes (LC-9)."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pinfold._register import Register
from pinfold.errors import InvalidArgument, Locked, Unavailable
from pinfold.provider import InstanceRef

REF = InstanceRef(provider="toy", id="one", data={"a": [1, "ü\n"]}, sandbox="sbx_1")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "register"


@pytest.fixture
def register(folder):
    return Register(folder)


def test_what_is_held_is_not_abandoned(register, folder):
    """LC-9: not even by this same process."""
    with register.claim("sbx_1") as claim:
        claim.add(REF)
        assert list(Register(folder).abandoned()) == []
        assert register.held() == ["sbx_1"]
        with pytest.raises(Locked):
            register.claim("sbx_1")


def test_what_is_let_go_is_found_with_all_its_instances(register, folder):
    """LC-9: refs are entered before the instances exist, and come back as they were."""
    claim = register.claim("sbx_1")
    other = InstanceRef(provider="toy", id="two")
    claim.add(REF)
    claim.add(other)
    claim.close()
    claim.close()
    (found,) = Register(folder).abandoned()
    assert (found.sandbox, found.refs) == ("sbx_1", (REF, other))
    assert list(Register(folder).abandoned()) == [], "it is locked by whoever found it"
    found.release()
    assert list(Register(folder).abandoned()) == []
    assert sorted(path.name for path in folder.glob("sbx*")) == []


def test_one_that_never_got_an_instance_is_found_too(register, folder):
    """LC-9: a crash between claim and first record."""
    register.claim("sbx_1").close()
    (found,) = Register(folder).abandoned()
    assert found.refs == ()
    found.release()


def test_a_released_claim_leaves_nothing_and_can_be_made_again(register, folder):
    """LC-9."""
    for _ in range(3):
        claim = register.claim("sbx_1")
        claim.add(REF)
        claim.release()
        claim.release()
    assert list(folder.glob("sbx*")) == []


def test_the_lock_goes_with_its_process(register, folder):
    """LC-9: also when that is killed."""
    program = (
        "import sys, pathlib; from pinfold._register import Register; "
        "claim = Register(pathlib.Path(sys.argv[1])).claim('sbx_child'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert list(register.abandoned()) == []
        assert register.held() == ["sbx_child"]
        child.kill()
    (found,) = register.abandoned()
    assert found.sandbox == "sbx_child"
    found.release()


def test_the_store_is_made_once(register, folder):
    """LC-9: instances of this register carry one uuid, whoever asks first."""
    seen: set[str] = set()
    threads = [threading.Thread(target=lambda: seen.add(Register(folder).store)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {register.store}


def test_many_claim_and_collect_at_once(register, folder):
    """LC-9: no claim is ever struck out by another's collection."""
    stop = threading.Event()
    trouble: list[BaseException] = []

    def collect() -> None:
        while not stop.is_set():
            for claim in Register(folder).abandoned():
                claim.release()

    def work(name: str) -> None:
        try:
            for _ in range(100):
                claim = Register(folder).claim(name)
                claim.add(REF)
                assert (folder / f"{name}.json").exists()
                assert (folder / f"{name}.lock").exists()
                claim.release()
        except BaseException as error:  # noqa: BLE001 - told to the test
            trouble.append(error)

    collector = threading.Thread(target=collect)
    workers = [threading.Thread(target=work, args=(f"sbx_{n}",)) for n in range(4)]
    for thread in (collector, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    collector.join()
    assert trouble == []


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden"])
def test_a_name_that_is_no_id_is_refused(register, name):
    """Bad input: it would be a path."""
    with pytest.raises(InvalidArgument):
        register.claim(name)


def test_a_record_of_a_later_version_is_refused_by_name(register, folder):
    """SP-3: never half read."""
    claim = register.claim("sbx_1")
    claim.add(REF)
    claim.close()
    record = folder / "sbx_1.json"
    record.write_text(json.dumps({"version": 99, "refs": []}))
    with pytest.raises(Unavailable, match="version 99"):
        list(register.abandoned())
    assert record.exists()


def test_only_the_user_may_look(register, folder):
    """Refs hold no secret, and are nobody else's business."""
    register.claim("sbx_1").release()
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["a file in the way", "a file where the folder should be"])
def test_a_folder_that_cannot_be_made_is_told(tmp_path, kind):
    """Bad input: what, where, and what to do; no raw OSError."""
    if kind == "a file in the way":
        (tmp_path / "data").write_text("in the way")
        folder = tmp_path / "data" / "ephemeral"
    else:
        folder = tmp_path / "ephemeral"
        folder.write_text("in the way")
    register = Register(folder)
    for ask in (lambda: register.store, lambda: register.claim("sbx_a")):
        with pytest.raises(Unavailable, match=re.escape(str(folder))) as caught:
            ask()
        assert "XDG_DATA_HOME" in (caught.value.hint or "")
        assert not caught.value.retryable


def test_what_cannot_be_entered_is_told_before_anything_exists(tmp_path, monkeypatch):
    """LC-9: a full disk at the record of an instance."""
    register = Register(tmp_path / "ephemeral")
    with register.claim("sbx_a") as claim:

        def full(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(Unavailable, match="No space left"):
            claim.add(InstanceRef(provider="test", id="one"))
