"""The same API without async, over one portal."""

from __future__ import annotations

import inspect
import threading

import anyio
import pytest

from pinfold import blocking
from pinfold.blocking import BlockingFiles, BlockingSandbox
from pinfold.errors import Conflict, InvalidArgument, NotFound
from pinfold.plugins import Catalog, Hooks
from pinfold.provider import ExecResult, Files, FileType
from pinfold.sandbox import Runtime, Sandbox
from tests.core.support import ToyProvider

SPEC = {"target": {"kind": "container"}}


@pytest.fixture
def runtime():
    return Runtime(catalog=Catalog([ToyProvider()]), hooks=Hooks())


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("face", "source"), [(BlockingFiles, Files), (BlockingSandbox, Sandbox)])
def test_every_public_name_has_its_counterpart(face, source):
    assert public(face) == public(source) | (
        {"id", "name", "pinned", "files"} if source is Sandbox else set()
    )


@pytest.mark.parametrize(("face", "source"), [(BlockingFiles, Files), (BlockingSandbox, Sandbox)])
def test_every_method_takes_what_its_counterpart_takes(face, source):
    for name in public(source):
        theirs = inspect.getattr_static(source, name)
        if not inspect.isfunction(theirs):
            continue
        mine = inspect.signature(getattr(face, name)).parameters
        assert list(mine) == list(inspect.signature(theirs).parameters), name


def test_a_sandbox_is_used_without_async(runtime):
    with blocking.open(SPEC, name="mine", runtime=runtime) as box:
        assert box.exec(["echo", "hi"]).stdout == b"echo hi"
        assert (box.name, box.generation, box.view().name) == ("mine", 1, "mine")
        assert box.environment().target.kind == "container"
        assert box.id == box.view().sandbox_id
        assert box.capabilities.pty
        assert box.features is not None
        assert box.pinned.provider == "toy"
        box.files.write("/workspace/a/b", b"12")
        assert box.files.read("/workspace/a/b") == b"12"
        assert b"".join(box.files.download("/workspace/a/b")) == b"12"
        assert box.files.upload("/workspace/c", iter([b"x", b"y"])) == 2
        assert [entry.path.name for entry in box.files.list("/workspace")] == ["a", "c"]
        with pytest.raises(NotFound):
            box.files.stat("/workspace/none")
        with pytest.raises(NotFound):
            next(box.files.download("/workspace/none"))
        assert [str(event.type) for event in box.events()] == ["sandbox.created", "sandbox.ready"]
    with pytest.raises(Conflict):
        box.exec(["x"])


def test_trees_go_out_and_in_again(runtime):
    with blocking.open(SPEC, runtime=runtime) as box:
        box.files.write("/workspace/t/a", b"123")
        items = list(box.files.download_tree("/workspace/t"))
        assert [(str(i.path), i.type) for i in items] == [
            (".", FileType.DIRECTORY),
            ("a", FileType.FILE),
        ]
        assert bytes(items[1].chunks) == b"123"
        box.files.upload_tree("/workspace/u", items)
        assert box.files.read("/workspace/u/a") == b"123"


def test_streams_are_iterators():
    async def run(request, sink):
        await sink("stdout", b"1")
        await sink("stderr", b"2")
        return ExecResult(exit_code=3)

    runtime = Runtime(catalog=Catalog([ToyProvider(run=run)]), hooks=Hooks())
    with blocking.open(SPEC, runtime=runtime) as box, box.stream(["x"]) as chunks:
        assert [(c.stream, c.data) for c in chunks] == [("stdout", b"1"), ("stderr", b"2")]
        assert chunks.result().exit_code == 3


def test_leaving_a_download_early_ends_it(runtime):
    with blocking.open(SPEC, runtime=runtime) as box:
        box.files.write("/workspace/f", b"x" * (3 << 20))
        pieces = box.files.download("/workspace/f")
        assert next(pieces)
        pieces.close()
        assert box.exec(["still", "there"]).exit_code == 0


def test_all_sandboxes_share_one_thread(runtime):
    before = threading.active_count()
    with blocking.open(SPEC, runtime=runtime) as one, blocking.open(SPEC, runtime=runtime) as two:
        one.exec(["x"])
        two.exec(["x"])
        loops = [t for t in threading.enumerate() if "worker" not in t.name.lower()]
        assert len(loops) <= before + 1
    assert threading.active_count() <= before + 1


def test_it_may_be_used_from_many_threads(runtime):
    results = []
    with blocking.open(SPEC, runtime=runtime) as box:
        threads = [
            threading.Thread(target=lambda n=n: results.append(box.exec([str(n)]).stdout))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [str(n).encode() for n in range(8)]


@pytest.mark.anyio
async def test_inside_a_running_loop_it_is_a_clear_error(runtime):
    with (
        pytest.raises(InvalidArgument, match="running event loop"),
        blocking.open(SPEC, runtime=runtime),
    ):
        pass
    with pytest.raises(InvalidArgument, match="running event loop"):
        blocking.targets(runtime.catalog)


def test_a_handle_taken_into_a_running_loop_is_the_same_error(runtime):
    with blocking.open(SPEC, runtime=runtime) as box:

        async def use():
            for call in (lambda: box.exec(["x"]), lambda: box.files.read("/workspace/x"), box.view):
                with pytest.raises(InvalidArgument, match="running event loop"):
                    call()

        anyio.run(use)


def test_targets_are_described():
    assert [row.provider for row in blocking.targets(Catalog([ToyProvider()]))] == ["toy"]
