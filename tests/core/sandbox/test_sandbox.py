"""Ephemeral sandboxes: the handle, its events and audit, its beginning and its end."""

from __future__ import annotations

import threading

import anyio
import pytest

import pinfold
from pinfold.errors import (
    Conflict,
    Effect,
    Internal,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    OutsideWorkspace,
    SpecInvalid,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from pinfold.events import AuditAction, EventType
from pinfold.plugins import Catalog, Hooks, Loaded, _hooks, hookimpl
from pinfold.provider import ExecResult, Features
from pinfold.resolve import resolve
from pinfold.sandbox import Runtime, Store
from pinfold.spec import TreeKill
from pinfold.state import MemoryStateStore
from tests.core.support import ToyProvider

pytestmark = pytest.mark.anyio

SPEC = {"target": {"kind": "container"}}


class Journal:
    def __init__(self):
        self.events, self.records = [], []

    @hookimpl
    def pinfold_event(self, event):
        self.events.append(event)

    @hookimpl
    def pinfold_audit(self, record):
        self.records.append(record)


@pytest.fixture
def journal():
    return Journal()


@pytest.fixture
def make(journal):
    def runtime(provider):
        hooks = Hooks()
        hooks.register(journal)
        return Runtime(catalog=Catalog([provider]), hooks=hooks)

    return runtime


def types(events):
    return [event.type for event in events]


async def test_a_sandbox_is_opened_used_and_closed(make, journal):
    provider = ToyProvider()

    async with pinfold.open(SPEC, runtime=make(provider)) as box:
        result = await box.exec(["echo", "hi"])
        assert (result.exit_code, result.stdout, result.generation) == (0, b"echo hi", 1)
        assert box.generation == 1
        assert provider.alive

    assert provider.alive == {}
    assert types(journal.events) == [EventType.CREATED, EventType.READY, EventType.DELETED]
    assert tuple(journal.events) == await box.events()


async def test_opening_may_be_awaited_and_closing_is_idempotent(make, journal):
    provider = ToyProvider()
    box = await pinfold.open(SPEC, runtime=make(provider))

    await box.close()
    await box.close()

    assert types(journal.events).count(EventType.DELETED) == 1
    with pytest.raises(Conflict):
        await box.exec(["x"])
    with pytest.raises(Conflict):
        await box.files.read("/workspace/x")


async def test_ev1_event_ids_are_ordered(make, journal):
    async with pinfold.open(SPEC, runtime=make(ToyProvider())):
        pass

    ids = [event.id for event in journal.events]
    assert ids == sorted(ids)
    assert all(len(event_id) == len("ev_") + 32 for event_id in ids)


async def test_a_sandbox_of_nothing_has_files_and_no_commands(make):
    async with pinfold.open({"target": None}, runtime=make(ToyProvider())) as box:
        await box.files.write("/workspace/a", b"1")
        assert await box.files.read("/workspace/a") == b"1"
        with pytest.raises(Unimplemented):
            await box.exec(["true"])
        assert not any(vars_of(box.capabilities))


def vars_of(value):
    import attrs

    return attrs.asdict(value).values()


async def test_rs3_the_pinned_spec_is_what_was_resolved(make):
    runtime = make(ToyProvider())
    async with pinfold.open(SPEC, runtime=runtime) as box:
        assert box.pinned.spec == resolve(SPEC, runtime.catalog, ephemeral=True)
        assert box.pinned.digest.startswith("sha256:")


# --- what is refused, and what is left then --------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, InvalidArgument),
        ({"argv": ["x"], "shell": "x"}, InvalidArgument),
        ({"argv": []}, InvalidArgument),
        ({"argv": "ls -l"}, InvalidArgument),
        ({"argv": ["a\0"]}, InvalidArgument),
        ({"argv": [b"x"]}, InvalidArgument),
        ({"argv": ["\ud800"]}, InvalidArgument),
        ({"argv": 3}, InvalidArgument),
        ({"shell": "a\0"}, InvalidArgument),
        ({"shell": 3}, InvalidArgument),
        ({"argv": ["x"], "env": {"A=B": "1"}}, InvalidArgument),
        ({"argv": ["x"], "env": {"": "1"}}, InvalidArgument),
        ({"argv": ["x"], "env": {"1A": "1"}}, InvalidArgument),
        ({"argv": ["x"], "env": {"A": "\0"}}, InvalidArgument),
        ({"argv": ["x"], "env": {"A": 1}}, InvalidArgument),
        ({"argv": ["x"], "env": [("A", "1")]}, InvalidArgument),
        ({"argv": ["x"], "cwd": "relative"}, InvalidArgument),
        ({"argv": ["x"], "cwd": 3}, InvalidArgument),
        ({"argv": ["x"], "cwd": "/workspace/../etc"}, InvalidArgument),
        ({"argv": ["x"], "cwd": "/etc"}, OutsideWorkspace),
        ({"argv": ["x"], "stdin": "text"}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": 0}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": -1}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": float("nan")}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": float("inf")}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": 10**400}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": True}, InvalidArgument),
        ({"argv": ["x"], "timeout_seconds": "1"}, InvalidArgument),
        ({"argv": ["x"], "stdout_cap": -1}, InvalidArgument),
        ({"argv": ["x"], "stderr_cap": 1.5}, InvalidArgument),
    ],
    ids=range(30),
)
async def test_ex3_a_malformed_request_runs_nothing_and_is_not_recorded(
    make, journal, arguments, error
):
    ran = []

    async def run(request, sink):
        ran.append(request)
        return ExecResult(exit_code=0)

    async with pinfold.open(SPEC, runtime=make(ToyProvider(run=run))) as box:
        with pytest.raises(error) as caught:
            await box.exec(**arguments)

    assert type(caught.value) is error
    assert caught.value.effect is Effect.NONE
    assert ran == []
    assert journal.records == []


async def test_1b_limits_are_refused_one_past_them(make):
    from pinfold.errors import TooLarge

    async with pinfold.open(SPEC, runtime=make(ToyProvider())) as box:
        assert (await box.exec(["x", "y" * 131_071])).exit_code == 0
        with pytest.raises(TooLarge):
            await box.exec(["x", "y" * 131_072])
        with pytest.raises(TooLarge):
            await box.exec(["x"] * 600_000)
        assert (await box.exec(["x"], stdin=b"x" * (16 << 20))).exit_code == 0
        with pytest.raises(TooLarge):
            await box.exec(["x"], stdin=b"x" * ((16 << 20) + 1))


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (3, InvalidArgument),
        ([], InvalidArgument),
        ({}, SpecInvalid),
        ({"target": {"kind": "vfs"}}, SpecInvalid),
        ({**SPEC, "durability": "checkpointed"}, SpecInvalid),
        ("no/such/file.json", NotFound),
    ],
    ids=range(6),
)
async def test_what_cannot_be_opened_is_refused_before_anything_is_made(make, what, error):
    provider = ToyProvider()

    with pytest.raises(error):
        await pinfold.open(what, runtime=make(provider))

    assert provider.seen == []


async def test_pr7_a_promised_feature_that_is_missing_fails_the_create(make):
    provider = ToyProvider(features=Features(signals=True, tree_kill=TreeKill.COOKIE))
    provider.features_in_force = Features(tree_kill=TreeKill.GROUP)

    with pytest.raises(Unavailable, match="signals, tree_kill") as caught:
        await pinfold.open(SPEC, runtime=make(provider))

    assert caught.value.details == {"missing": ["signals", "tree_kill"]}
    assert provider.alive == {}


async def test_pr7_tree_kill_may_be_stronger_than_promised(make):
    provider = ToyProvider(features=Features(tree_kill=TreeKill.COOKIE))
    provider.features_in_force = Features(tree_kill=TreeKill.NAMESPACE)

    async with pinfold.open(SPEC, runtime=make(provider)) as box:
        assert box.features.tree_kill is TreeKill.NAMESPACE


async def test_lc6_a_bootstrap_command_that_fails_tells_its_output_and_leaves_nothing(
    make, journal
):
    async def run(request, sink):
        ran.append(request.shell)
        code = 3 if request.shell == "two" else 0
        return ExecResult(exit_code=code, stderr=b"why")

    ran: list[str] = []
    provider = ToyProvider(run=run)

    with pytest.raises(Unavailable, match=r"exit code 3: 'two'.*'why'") as caught:
        await pinfold.open(
            {**SPEC, "bootstrap": {"commands": ["one", "two", "three"]}}, runtime=make(provider)
        )

    assert ran == ["one", "two"]
    assert caught.value.details["stderr"] == "why"
    assert provider.alive == {}
    assert types(journal.events) == [EventType.CREATED, EventType.FAILED]


@pytest.mark.parametrize("when", ["before register", "after register", "after effect"])
async def test_lc9_a_create_that_fails_or_is_cancelled_leaves_nothing(make, when):
    class Slow(ToyProvider):
        async def create(self, pinned, ctx):
            if when == "before register":
                await anyio.sleep_forever()
            ref = pinfold_ref(self)
            await ctx.register(ref)
            if when == "after effect":
                self.alive[ref.id] = ref
            await anyio.sleep_forever()
            raise AssertionError

    provider = Slow()

    with anyio.move_on_after(0.05) as scope:
        await pinfold.open(SPEC, runtime=make(provider))

    assert scope.cancelled_caught
    assert provider.alive == {}


def pinfold_ref(provider):
    from pinfold.provider import InstanceRef

    return InstanceRef(provider=provider.descriptor.name, id="half-made")


async def test_lc9_registering_comes_with_the_owner_and_generation(make):
    provider = ToyProvider()

    async with pinfold.open(SPEC, runtime=make(provider)) as box:
        (ctx,) = provider.seen
        assert ctx.owner.sandbox == box.id
        assert ctx.generation == 1


async def test_a_create_that_takes_too_long_is_unavailable(make, monkeypatch):
    monkeypatch.setattr("pinfold.sandbox._provision.CREATE_TIMEOUT_SECONDS", 0.05)

    class Hangs(ToyProvider):
        async def create(self, pinned, ctx):
            await anyio.sleep_forever()
            raise AssertionError

    with pytest.raises(Unavailable, match="toy made nothing"):
        await pinfold.open(SPEC, runtime=make(Hangs()))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Unreachable("no answer"), Unreachable),
        (RuntimeError("no answer"), Internal),
        (TimeoutError("no answer"), Internal),
    ],
    ids=repr,
)
async def test_a_sandbox_that_cannot_be_ended_says_so_and_can_be_closed_again(make, error, raised):
    class Sticky(ToyProvider):
        stuck = True

        async def destroy(self, ref, ctx=None):
            if self.stuck:
                raise error
            await super().destroy(ref)

    provider = Sticky()
    box = await pinfold.open(SPEC, runtime=make(provider))

    with pytest.raises(raised, match="no answer"):
        await box.close()
    provider.stuck = False
    await box.close()

    assert provider.alive == {}


async def test_closing_finishes_although_it_is_cancelled(make):
    class Slow(ToyProvider):
        async def destroy(self, ref, ctx=None):
            await anyio.sleep(0.05)
            await super().destroy(ref)

    provider = Slow()
    box = await pinfold.open(SPEC, runtime=make(provider))

    with anyio.CancelScope() as scope:
        scope.cancel()
        await box.close()

    assert provider.alive == {}


# --- errors of commands, and what is recorded ------------------------------------------------


@pytest.mark.parametrize(
    ("error", "raised", "recorded"),
    [
        (Unavailable("x"), Unavailable, None),
        (OutcomeUnknown("x"), OutcomeUnknown, "unknown"),
        (Unavailable("x", effect=Effect.DONE), Unavailable, "unavailable"),
        (RuntimeError("x"), Internal, "internal"),
    ],
    ids=["never reached", "unknown", "done", "a bug"],
)
async def test_ev2_what_never_started_leaves_no_record(make, journal, error, raised, recorded):
    async def run(request, sink):
        raise error

    async with pinfold.open(SPEC, runtime=make(ToyProvider(run=run))) as box:
        with pytest.raises(raised):
            await box.exec(["x"])

    outcomes = [record.data["outcome"] for record in journal.records]
    assert outcomes == ([recorded] if recorded else [])


async def test_ev2_each_exec_and_file_is_recorded(make, journal):
    async with pinfold.open(SPEC, runtime=make(ToyProvider())) as box:
        await box.exec(["echo", "a b"], cwd="/workspace", env={"X": "1"})
        await box.exec(shell="echo x")
        await box.files.write("/workspace/f", b"12345")
        await box.files.read("/workspace/f", length=2)
        async for _ in box.files.download("/workspace/f"):
            pass

    assert [(r.action, r.data) for r in journal.records] == [
        (
            AuditAction.EXEC,
            {
                "argv": ["echo", "a b"],
                "cwd": "/workspace",
                "env_names": ["X"],
                "exit_code": 0,
                "timed_out": False,
            },
        ),
        (
            AuditAction.EXEC,
            {
                "shell": "echo x",
                "cwd": "/workspace",
                "env_names": [],
                "exit_code": 0,
                "timed_out": False,
            },
        ),
        (AuditAction.FILE_WRITE, {"path": "/workspace/f", "size": 5}),
        (AuditAction.FILE_READ, {"path": "/workspace/f", "size": 2}),
        (AuditAction.FILE_READ, {"path": "/workspace/f", "size": 5}),
    ]


async def test_ev2_a_download_that_is_left_half_way_is_recorded(make, journal):
    data = bytes(3 << 20)
    async with pinfold.open({"target": None}, runtime=make(ToyProvider())) as box:
        await box.files.write("/workspace/d/f", data)
        journal.records.clear()
        for half, path, of in (
            (box.files.download("/workspace/d/f"), "/workspace/d/f", range(1, len(data))),
            (box.files.download_tree("/workspace/d"), "/workspace/d", [len(data)]),
        ):
            async for piece in half:
                if isinstance(piece, bytes) or piece.chunks is not None:
                    break
            await half.aclose()
            (record,) = journal.records
            journal.records.clear()
            assert (record.action, record.data["path"]) == (AuditAction.FILE_READ, path)
            assert record.data["size"] in of
        with pytest.raises(NotFound):
            await anext(box.files.download("/workspace/none"))
        assert journal.records == []


async def test_ev2_a_cancelled_exec_is_recorded(make, journal):
    async def run(request, sink):
        await anyio.sleep_forever()

    async with pinfold.open(SPEC, runtime=make(ToyProvider(run=run))) as box:
        with anyio.move_on_after(0.05):
            await box.exec(["x"])

    assert [record.data["outcome"] for record in journal.records] == ["cancelled"]


# --- streams -------------------------------------------------------------------------------


async def chatty(request, sink):
    for number in range(5):
        await sink("stdout" if number % 2 == 0 else "stderr", str(number).encode())
    return ExecResult(exit_code=7, stdout_total=3, stderr_total=2)


async def test_ex15_output_arrives_in_order_and_the_result_after_it(make):
    async with (
        pinfold.open(SPEC, runtime=make(ToyProvider(run=chatty))) as box,
        box.stream(["x"]) as chunks,
    ):
        seen = [(chunk.stream, chunk.data) async for chunk in chunks]
        result = await chunks.result()

    assert seen == [
        ("stdout", b"0"),
        ("stderr", b"1"),
        ("stdout", b"2"),
        ("stderr", b"3"),
        ("stdout", b"4"),
    ]
    assert (result.exit_code, result.stdout, result.stdout_total) == (7, b"", 3)


async def test_ex15_the_result_may_be_asked_for_at_once(make):
    async with (
        pinfold.open(SPEC, runtime=make(ToyProvider(run=chatty))) as box,
        box.stream(["x"]) as chunks,
    ):
        assert (await chunks.result()).exit_code == 7


async def test_ex15_a_result_that_is_known_is_known_after_the_block_too(make):
    async with pinfold.open(SPEC, runtime=make(ToyProvider(run=chatty))) as box:
        async with box.stream(["x"]) as chunks:
            assert len([chunk async for chunk in chunks]) == 5
        assert (await chunks.result()).exit_code == 7
        async with box.stream(["x"]) as chunks:
            await anext(chunks)
        with pytest.raises(Conflict):
            await chunks.result()
        with pytest.raises(Conflict):
            await anext(chunks)


async def test_ex15_a_reader_that_waits_holds_the_command_back(make):
    sent = []

    async def run(request, sink):
        for number in range(100):
            await sink("stdout", b"x")
            sent.append(number)
        return ExecResult(exit_code=0)

    async with (
        pinfold.open(SPEC, runtime=make(ToyProvider(run=run))) as box,
        box.stream(["x"]) as chunks,
    ):
        await anext(chunks)
        await anyio.wait_all_tasks_blocked()
        assert len(sent) <= 2


async def test_ex5_leaving_a_stream_ends_the_command(make):
    ended = anyio.Event()

    async def run(request, sink):
        try:
            await sink("stdout", b"x")
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with pinfold.open(SPEC, runtime=make(ToyProvider(run=run))) as box:
        async with box.stream(["x"]) as chunks:
            await anext(chunks)
        assert ended.is_set()


async def test_a_stream_raises_what_the_command_raised_and_what_the_block_raises(make):
    async def run(request, sink):
        await sink("stdout", b"x")
        raise OutcomeUnknown("cut")

    async with pinfold.open(SPEC, runtime=make(ToyProvider(run=run))) as box:
        with pytest.raises(OutcomeUnknown):
            async with box.stream(["x"]) as chunks:
                await chunks.result()
        with pytest.raises(ZeroDivisionError):
            async with box.stream(["x"]) as chunks:
                raise ZeroDivisionError
        with pytest.raises(InvalidArgument):
            box.stream([])


async def test_pr1_plugins_are_loaded_before_the_first_event_and_not_in_the_event_loop(
    monkeypatch, journal, tmp_path
):
    """An import may take long: whatever else the program does goes on meanwhile."""
    threads = []

    class Installed:
        def __init__(self, group):
            assert group == "pinfold.plugins"

        def load_all(self):
            threads.append(threading.current_thread())
            return [Loaded(name="journal", value=journal, dist="d")]

    monkeypatch.setattr(_hooks, "Entries", Installed)
    store = Store(tmp_path, state=MemoryStateStore())
    for begin in (
        lambda runtime: pinfold.open(SPEC, runtime=runtime),
        lambda runtime: pinfold.open(SPEC, name="box", store=store, runtime=runtime),
        lambda runtime: pinfold.reopen("box", store=store, runtime=runtime),
    ):
        runtime = Runtime(catalog=Catalog([ToyProvider()]), hooks=Hooks(discover=True))
        async with begin(runtime) as box:
            await box.exec(["true"])
        assert threading.main_thread() not in threads
        assert len(journal.events) > 0
        journal.events.clear()
    assert len(threads) == 3
