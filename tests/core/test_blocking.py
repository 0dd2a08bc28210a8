"""The same API without async, over one portal."""

from __future__ import annotations

import inspect
import threading

import anyio
import pytest

import pinfold
from pinfold import blocking
from pinfold.blocking import (
    BlockingDurableSandbox,
    BlockingFiles,
    BlockingSandbox,
    BlockingStream,
    BlockingTerminal,
)
from pinfold.errors import AlreadyExists, Conflict, InvalidArgument, NoSpace, NotFound
from pinfold.plugins import Catalog, Hooks
from pinfold.provider import (
    Endpoint,
    ExecResult,
    Files,
    FileType,
    Ports,
    Terminal,
    Terminals,
    TerminalSize,
)
from pinfold.sandbox import DurableSandbox, ExecStream, Runtime, Sandbox
from tests.core.sandbox.durable_support import SPEC as DURABLE
from tests.core.sandbox.durable_support import Cloud, make_runtime, make_store
from tests.core.support import ToyInstance, ToyProvider

SPEC = {"target": {"kind": "container"}}


@pytest.fixture
def runtime():
    return Runtime(catalog=Catalog([ToyProvider()]), hooks=Hooks())


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


#: A facade, what it stands for, and the attributes that this sets on itself.
FACES = [
    (BlockingFiles, Files, ""),
    (BlockingSandbox, Sandbox, "id name pinned files"),
    (BlockingDurableSandbox, DurableSandbox, "id name pinned files store"),
    (BlockingStream, ExecStream, ""),
    (BlockingTerminal, Terminal, ""),
]


@pytest.mark.parametrize(("face", "source", "more"), FACES)
def test_every_public_name_has_its_counterpart(face, source, more):
    assert public(face) == public(source) | set(more.split())


def test_every_function_of_pinfold_has_its_counterpart():
    functions = {
        name: value
        for name in pinfold.__all__
        if inspect.isfunction(value := getattr(pinfold, name)) and name[0].islower()
    }
    assert functions
    for name, theirs in functions.items():
        mine = inspect.signature(getattr(blocking, name)).parameters
        assert list(mine) == list(inspect.signature(theirs).parameters), name
        assert name in blocking.__all__


@pytest.mark.parametrize(("face", "source", "more"), FACES)
def test_every_method_takes_what_its_counterpart_takes(face, source, more):
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


class Talker(Terminal):
    """Says back what it is told, until it is told to end."""

    def __init__(self, size):
        self.size = size
        self.closed = False
        self._send, self._receive = anyio.create_memory_object_stream(100)

    async def receive(self, max_bytes=65_536):
        return await self._receive.receive()

    async def send(self, data):
        if data == b"exit":
            self._send.close()
        else:
            await self._send.send(data)

    async def resize(self, size):
        self.size = size

    async def wait(self):
        return 7

    async def aclose(self):
        self._send.close()
        self._receive.close()
        self.closed = True


class Rich(ToyInstance, Terminals, Ports):
    async def open_terminal(self, request=None, size=None):
        self.talker = Talker(size)
        return self.talker

    async def expose(self, port):
        return Endpoint(port=port, url=f"tcp://127.0.0.1:{port}")


class RichProvider(ToyProvider):
    async def create(self, pinned, ctx):
        made = await super().create(pinned, ctx)
        made.__class__ = Rich
        return made


@pytest.fixture
def rich():
    return Runtime(catalog=Catalog([RichProvider()]), hooks=Hooks())


def test_a_terminal_is_typed_into_and_read_from(rich):
    with blocking.open(SPEC, runtime=rich) as box, box.terminal(size=TerminalSize(3, 4)) as term:
        talker = term._target._inner
        assert talker.size == TerminalSize(3, 4)
        term.send(b"a")
        assert term.receive() == b"a"
        term.resize(TerminalSize(5, 6))
        assert talker.size == TerminalSize(5, 6)
        term.send(b"b")
        term.send(b"exit")
        assert list(term) == [b"b"]
        with pytest.raises(anyio.EndOfStream):
            term.receive()
        assert term.wait() == 7
        assert not talker.closed
    assert talker.closed


def test_a_port_is_exposed(rich):
    with blocking.open(SPEC, runtime=rich) as box:
        assert box.expose(80).url == "tcp://127.0.0.1:80"


def test_what_is_raised_in_a_block_comes_out_of_it_as_it_is(rich):
    class Mine(Exception):
        pass

    with blocking.open(SPEC, runtime=rich) as box:
        for block in (box.batch, box.terminal, lambda: box.stream(["x"])):
            with pytest.raises(Mine), block():
                raise Mine
    for block in (box.batch, box.terminal, lambda: box.stream(["x"])):
        with pytest.raises(Conflict), block():
            pass


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


def test_a_facade_made_for_one_thing_only_says_closed_when_it_is(runtime):
    with blocking.open(SPEC, runtime=runtime) as box:
        files = box.files
    for use in (lambda: files.read("/workspace/x"), lambda: list(files.download("/workspace/x"))):
        with pytest.raises(Conflict, match="closed"):
            use()


# --- durable ------------------------------------------------------------------------------------


@pytest.fixture
def cloud():
    return Cloud()


@pytest.fixture
def kept(cloud, tmp_path):
    """The keywords that keep a sandbox."""
    return {"store": make_store(tmp_path), "runtime": make_runtime(cloud)}


def test_a_durable_sandbox_outlives_its_block_and_is_taken_up_again(kept, cloud):
    with blocking.open(DURABLE, name="box", **kept) as box:
        assert box.store is kept["store"]
        box.files.write("/workspace/a", b"1")
        box_id = box.id
    (view,) = blocking.list(**kept)
    assert (view.name, view.observed_state, view.generation) == ("box", "ready", 1)

    cloud.lose()
    with blocking.reopen("box", **kept) as box:
        assert box.files.read("/workspace/a") == b"1"
        assert (box.id, box.generation) == (box_id, 2)
        first = box.checkpoints()[-1]
        box.files.write("/workspace/a", b"2")
        assert box.checkpoint(tag="two").checkpoint_id == box.checkpoints()[-1].checkpoint_id
        box.restore(first.checkpoint_id)
        assert box.files.read("/workspace/a") == b"1"
        box.pause()
        assert box.view().observed_state == "paused"
        box.start()
        assert box.view().observed_state == "ready"
        last = box.events()[-1]
        assert box.events(after=last.id) == ()
        box.delete()
    assert blocking.list(**kept) == []
    assert [view.name for view in blocking.list(deleted=True, **kept)] == ["box"]
    with pytest.raises(NotFound), blocking.reopen("box", **kept):
        pass


def test_forks_are_used_within_the_block_and_reopened_after_it(kept):
    with blocking.open(DURABLE, name="box", **kept) as box:
        box.files.write("/workspace/a", b"1")
        other = box.fork(name="other")
        other.files.write("/workspace/a", b"2")
        assert (box.files.read("/workspace/a"), other.name) == (b"1", "other")
        moved = other.migrate(DURABLE, name="moved")
        assert moved.files.read("/workspace/a") == b"2"
        with pytest.raises(Conflict, match="draining"):
            other.files.write("/workspace/a", b"3")
        with pytest.raises(AlreadyExists):
            box.fork(name="moved")
        assert box.drain(timeout_seconds=1.0) is True
    with pytest.raises(Conflict, match="closed"):
        moved.files.read("/workspace/a")
    with blocking.reopen("moved", **kept) as box:
        assert box.files.read("/workspace/a") == b"2"


def test_a_batch_makes_one_checkpoint_and_its_failure_comes_out(kept, monkeypatch):
    with blocking.open(DURABLE, name="box", **kept) as box:
        with box.batch():
            box.files.write("/workspace/a", b"1")
            box.files.write("/workspace/b", b"2")
            assert len(box.checkpoints()) == 0
        assert len(box.checkpoints()) == 1

        async def full(*args, **kwargs):
            raise NoSpace("the store is full")

        monkeypatch.setattr(kept["store"].checkpoints, "commit", full)
        with pytest.raises(NoSpace) as caught, box.batch():
            box.files.write("/workspace/a", b"3")
        assert caught.value.effect == "done"


def test_stores_are_kept_clean(kept, cloud):
    with blocking.open(DURABLE, name="box", **kept) as box:
        box.files.write("/workspace/a", b"1")
        cloud.unreachable = True
        with pytest.raises(pinfold.PinfoldError):
            box.delete()
    cloud.unreachable = False
    assert blocking.gc(**kept).done == (box.id,)
    assert (blocking.reap(**kept).done, cloud.machines) == ((), {})


def test_targets_are_described():
    assert [row.provider for row in blocking.targets(Catalog([ToyProvider()]))] == ["toy"]
