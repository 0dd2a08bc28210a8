"""Killed anywhere (CP-1, CP-3, CP-10): old or new, never half; and the next operation works.

A crash point raises in the middle of a step, and from then on at every step, as nothing runs in a
process that is dead. A few tests at the end are killed by the kernel.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.checkpoint import CheckpointStore
from pinfold.errors import PinfoldError
from tests.core.checkpoint.folder import FolderTree, contents
from tests.core.checkpoint.stores import Crash, CrashAt
from tests.core.checkpoint.world import World, in_other_process

SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def commit(world: World, store: CheckpointStore) -> None:
    world.change()
    world.commit(store)


def commit_earlier(world: World, store: CheckpointStore) -> None:
    """Another sandbox is as this one was at first; all of that is garbage by now."""
    tree = FolderTree(world.place / "earlier")
    anyio.run(lambda: store.commit(tree, sandbox="sbx_other", generation=1))


def adopt(world: World, store: CheckpointStore) -> None:
    assert world.base is not None
    source = world.base
    anyio.run(lambda: store.adopt(source, sandbox="sbx_fork", generation=0))
    anyio.run(store.forget, "sbx_fork")


def tag(world: World, store: CheckpointStore) -> None:
    assert world.base is not None
    anyio.run(store.tag, world.base, "name")
    anyio.run(store.untag, "sbx_w", "name")


def retain(world: World, store: CheckpointStore) -> None:
    try:
        world.retain(store, 1)
    except BaseException:
        world.forget_dropped()
        raise


def collect(world: World, store: CheckpointStore) -> None:
    anyio.run(store.collect)


def restore(world: World, store: CheckpointStore) -> None:
    target = FolderTree(world.place / "restored")
    (target.root / "old").mkdir(exist_ok=True)
    before = contents(target.root)
    record, wanted = next(reversed(world.acknowledged.values()))
    try:
        anyio.run(store.restore, target, record)
    except BaseException:
        anyio.run(target.recover)
        assert contents(target.root) in (before, wanted)
        raise
    assert contents(target.root) == wanted


OPERATIONS: dict[str, Callable[[World, CheckpointStore], None]] = {
    "commit": commit,
    "adopt": adopt,
    "tag": tag,
    "retain": retain,
    "collect": collect,
    "restore": restore,
}


def history(place, moves):
    """Three checkpoints, two of them dropped: so there is something to keep, and to collect."""
    world = World(place, moves=moves)
    store = world.open()
    commit(world, store)
    shutil.copytree(world.tree.root, place / "earlier")
    for _ in range(2):
        commit(world, store)
    world.retain(store, 1)
    return world


def run_until(world, name, at):
    """Run an operation in a process that dies at a step; return its hook."""
    hook = CrashAt(at)
    try:
        OPERATIONS[name](world, world.open(hook))
    except Crash:
        assert hook.dead
    return hook


@pytest.fixture(scope="module")
def histories():
    """The world at the end of `history`, in a store of either kind; to be copied."""
    with tempfile.TemporaryDirectory(dir=SHM) as place:
        yield {moves: history(Path(place) / moves, moves) for moves in ("rename", "copy")}


NIGHTLY = settings().max_examples > 100
# Each example is several processes' work.
FEWER = settings(max_examples=180 if NIGHTLY else 30, suppress_health_check=[HealthCheck.too_slow])
# How many deaths there are: of each operation, in both kinds of store, and by drawn schedules.
# Each test counts its own.
OF_EACH = (
    {"commit": 60, "adopt": 40, "tag": 12, "retain": 10, "collect": 60, "restore": 19}
    if NIGHTLY
    else {"commit": 13, "adopt": 13, "tag": 12, "retain": 10, "collect": 13, "restore": 13}
)
SCHEDULED = 600 if NIGHTLY else 20


def test_there_are_as_many_kill_points_as_were_promised():
    assert OF_EACH.keys() == OPERATIONS.keys()
    assert 2 * sum(OF_EACH.values()) + SCHEDULED >= (1_000 if NIGHTLY else 150)


@pytest.mark.timeout(900 if NIGHTLY else 240)
def test_whatever_dies_whenever_nothing_acknowledged_is_lost(histories):
    """Processes die one after the other, each somewhere; then everything still works."""
    deaths = 0

    @FEWER
    @given(
        st.sampled_from(["rename", "copy"]),
        st.lists(
            st.tuples(st.sampled_from(list(OPERATIONS)), st.integers(0, 60)),
            min_size=6 if NIGHTLY else 1,
            max_size=8 if NIGHTLY else 4,
        ),
    )
    def holds(moves, schedule):
        nonlocal deaths
        with tempfile.TemporaryDirectory(dir=SHM) as place:
            world = histories[moves].copied(Path(place))
            for name, at in schedule:
                deaths += run_until(world, name, at).dead
                world.check(restore=False)
            world.check()
            for operate in OPERATIONS.values():  # the next operation works
                operate(world, world.open())
            world.check()
            world.check_clean()

    holds()
    assert deaths >= SCHEDULED


@pytest.mark.timeout(900 if NIGHTLY else 240)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("moves", ["rename", "copy"])
def test_every_single_step_may_be_the_last(name, moves, histories):
    """Each operation, killed at each of its steps: none is left out at night."""
    with tempfile.TemporaryDirectory(dir=SHM) as place:
        total = run_until(histories[moves].copied(Path(place)), name, None).steps
    stride = 1 if NIGHTLY else max(total // OF_EACH[name], 1)
    points = sorted({*range(0, total, stride), total - 1})
    assert len(points) >= OF_EACH[name]
    for at in points:
        with tempfile.TemporaryDirectory(dir=SHM) as place:
            world = histories[moves].copied(Path(place))
            hook = run_until(world, name, at)
            assert hook.dead, f"step {at} of {total} was not reached"
            world.check()
            world.number = 4  # the next change is a small one
            commit(world, world.open())
            world.check_clean()


# --- beside each other ---


class Meanwhile:
    """A step hook that runs other processes' work at chosen steps of this one's."""

    def __init__(self, plan: dict[int, list[Callable[[], None]]]) -> None:
        self.plan = plan
        self.steps = 0

    def __call__(self, step: str, key: str) -> None:
        at, self.steps = self.steps, self.steps + 1
        for act in self.plan.pop(at, ()):
            in_other_process(act)


def beside(world: World) -> dict[str, Callable[[], None]]:
    """What other processes may do at any moment."""

    def drop_all() -> None:
        # The retention of somebody who does not know what this sandbox is at.
        world.dropped.update(anyio.run(world.open().retain, "sbx_w", 0))

    def other_commit() -> None:
        """Another sandbox has what is garbage by now: what it finds there, it relies on."""
        commit_earlier(world, world.open())

    def hold() -> None:
        """A writer begins, and goes on for long."""
        (world.place / "store" / "leases").mkdir(exist_ok=True)
        (world.place / "store" / "leases" / "long").write_bytes(b"{}")

    def release() -> None:
        (world.place / "store" / "leases" / "long").unlink(missing_ok=True)

    return {
        "collect": lambda: anyio.run(world.open().collect),
        "collect-hastily": lambda: anyio.run(world.open(lease_seconds=0.0).collect),
        "drop-all": drop_all,
        "other-commit": other_commit,
        "hold": hold,
        "release": release,
        "forget-other": lambda: anyio.run(world.open().forget, "sbx_other") and None,
    }


ACTS = [
    "collect",
    "collect-hastily",
    "drop-all",
    "other-commit",
    "forget-other",
    "hold",
    "release",
]


@pytest.mark.timeout(900 if NIGHTLY else 240)
@FEWER
@given(
    st.sampled_from(["rename", "copy"]),
    st.sampled_from(["commit", "commit-earlier", "collect", "adopt", "restore"]),
    st.dictionaries(
        st.integers(0, 80), st.lists(st.sampled_from(ACTS), min_size=1, max_size=3), max_size=4
    ),
)
def test_a_collection_removes_nothing_that_is_needed(histories, moves, name, plan):
    """CP-10: at any step of one process, others commit, drop and collect; also hasty ones.

    An operation may then fail, with a typed error. What it acknowledged is whole.
    """
    with tempfile.TemporaryDirectory(dir=SHM) as place:
        world = histories[moves].copied(Path(place))
        acts = beside(world)
        operations = {**OPERATIONS, "commit-earlier": commit_earlier}
        hook = Meanwhile({at: [acts[act] for act in todo] for at, todo in plan.items()})
        try:
            operations[name](world, world.open(hook))
        except PinfoldError:
            hasty = any("collect-hastily" in todo for todo in plan.values())
            dropped = any("drop-all" in todo for todo in plan.values())
            assert hasty or dropped
            if hasty:
                world.drop_unreported()
        world.check(restore=False)
        anyio.run(world.open().collect)
        world.check()
        commit(world, world.open())
        world.check()
        anyio.run(world.open().forget, "sbx_other")
        world.check_clean()


def at_step(wanted: str, prefix: str, act: Callable[[], None]) -> Callable[[str, str], None]:
    """A hook that runs something once, at the first step of that name on such a key."""
    done: list[str] = []

    def hook(step: str, key: str) -> None:
        if not done and step == wanted and key.startswith(prefix):
            done.append(step)
            in_other_process(act)

    return hook


def test_a_base_that_went_is_not_relied_on(tmp_path):
    """CP-10: not even by a process that remembers all its manifests."""
    world = World(tmp_path)
    store = world.open()
    commit(world, store)
    world.dropped.update(anyio.run(world.open().retain, "sbx_w", 0))
    report = anyio.run(world.open().collect)
    assert report.deleted > 5
    commit(world, store)
    world.check()
    world.check_clean()


def test_a_record_that_comes_while_a_collection_begins_is_honoured(tmp_path):
    """CP-10: between the reading of the records and the setting aside."""
    world = history(tmp_path, "rename")
    hook = at_step("move", "", lambda: commit_earlier(world, world.open()))
    report = anyio.run(world.open(hook).collect)
    assert report.restored > 3
    world.check()
    world.check_clean()


def test_what_is_set_aside_is_not_relied_on(tmp_path):
    """CP-10: a base needs what a collection has set aside; the base goes; only we are left.

    One writer finds garbage by name, just before it is set aside, and commits. Another uses that
    commit as its base. Before it is done, the base is dropped, and the collection, which had waited
    for a third writer, goes on: it knows of nobody who needs the garbage.
    """
    world = history(tmp_path, "rename")
    acts = beside(world)
    acts["hold"]()
    collected = []
    hook = at_step(
        "exists.done", "objects/", lambda: collected.append(anyio.run(world.open().collect))
    )
    commit_earlier(world, world.open(hook))
    assert collected[0].pending > 3
    (base,) = anyio.run(world.open().list, "sbx_other")
    tree = FolderTree(tmp_path / "earlier")
    (tree.root / "one-more").write_bytes(b"one more")

    def go_on() -> None:
        acts["forget-other"]()
        acts["release"]()
        assert anyio.run(world.open().collect).deleted > 3

    hook = at_step("put", "objects/", go_on)
    anyio.run(lambda: world.open(hook).commit(tree, sandbox="sbx_fork", generation=1, base=base))
    world.check()
    world.check_clean()


def test_half_a_move_is_left_to_its_collector(tmp_path):
    """CP-10: another one must not take the copy for a fossil while its original is there.

    A writer finds the original by name; then it goes, and only the copy is left.
    """
    world = history(tmp_path, "copy")

    def meanwhile() -> None:
        anyio.run(world.open(lease_seconds=0.0).collect)
        commit_earlier(world, world.open())

    report = anyio.run(world.open(at_step("copied", "objects/", meanwhile)).collect)
    assert report.restored > 0
    world.check()
    world.check_clean()


def test_a_writer_that_began_before_the_move_is_waited_for(tmp_path):
    """CP-10: also by a collector that goes on with what another set aside and noted."""
    world = history(tmp_path, "rename")
    collected = []

    def collect_twice() -> None:
        collected.append(anyio.run(world.open().collect))
        collected.append(anyio.run(world.open().collect))

    commit_earlier(world, world.open(at_step("exists.done", "objects/", collect_twice)))
    assert [report.deleted for report in collected] == [0, 0]
    assert [report.pending > 3 for report in collected] == [True, True]
    assert anyio.run(world.open().collect).restored > 0
    world.check()
    world.check_clean()


def test_a_note_about_what_is_gone_by_now_is_removed(tmp_path):
    """CP-10: another collector deals with the fossils, between their listing and their note."""
    world = history(tmp_path, "rename")
    beside(world)["hold"]()
    hastily = beside(world)["collect-hastily"]
    anyio.run(world.open(at_step("put", "notes/", hastily)).collect)
    left = world.keys()
    assert any(key.startswith("notes/") for key in left)
    world.check()
    world.check_clean()


# --- killed by the kernel ---

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.core.checkpoint.test_crashes import OPERATIONS, World, resumed

at, name, place = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
steps = 0

def hook(step, key):
    global steps
    steps += 1
    if steps > at:
        os.kill(os.getpid(), signal.SIGKILL)

world = resumed(place)
OPERATIONS[name](world, world.open(hook))
print("survived")
"""


def resumed(place: Path) -> World:
    """The sandbox of `history`, in another process."""
    world = World(place)
    world.base = anyio.run(world.open().list, "sbx_w")[-1]
    world.number = 3
    return world


@pytest.mark.parametrize(
    ("name", "at"), [("commit", 3), ("commit", 17), ("commit", 40), ("collect", 9), ("retain", 4)]
)
def test_sigkill_is_survived(name, at, tmp_path):
    """The same, with a real process and a real signal."""
    world = history(tmp_path, "rename")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(at), name, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    world.number += 1
    world.check()
    commit(world, world.open())
    world.check()
    world.check_clean()
