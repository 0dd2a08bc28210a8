"""Tests that any `StateStore` must pass; for whoever puts pinfold's state on a database.

Subclass it in a test module, on pytest with anyio's plugin, with `hypothesis` installed::

    pytestmark = pytest.mark.anyio


    class TestOurs(StateStoreSuite):
        def opener(self, place: Path) -> Callable[[], StateStore]:
            return functools.partial(OurStateStore, place / "state")

Nothing here imports a test framework but where a test needs it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import anyio

from pinfold.errors import AlreadyExists, Conflict, InvalidArgument, TooLarge
from pinfold.state import (
    Delete,
    JournalEntry,
    NewEntry,
    Put,
    StateStore,
    event_id,
    sequence_of,
)

__all__ = ["StateStoreSuite"]

_E = TypeVar("_E", bound=BaseException)


class StateStoreSuite(ABC):
    """The contract of `StateStore` as tests.

    Attributes:
        shared: several openings of one place, in several processes, are one store.
        processes, swaps: how many of them at once, and how many swaps each makes.
    """

    shared: ClassVar[bool] = True
    processes: ClassVar[int] = 4
    swaps: ClassVar[int] = 100

    @abstractmethod
    def opener(self, place: Path) -> Callable[[], StateStore]:
        """Return what opens a store that was empty at first; where `shared`, it can be pickled.

        Args:
            place: a folder that is this test's own.
        """

    # --- records ---

    async def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        async with self.opener(tmp_path)() as store:
            assert await store.get("sandbox", "a") is None
            value = {"text": "é\u2028\U0001f600", "list": [1, None, True, 1.5], "deep": {"": {}}}
            made = await store.put("sandbox", "a", value, expect=0)
            found = await store.get("sandbox", "a")
            assert found == made
            assert found is not None
            assert found.version > 0
            assert json.loads(json.dumps(value)) == found.value

    async def test_a_swap_needs_the_present_version(self, tmp_path: Path) -> None:
        """LC-2: one who carries an old version gets a conflict with both, and changes nothing."""
        async with self.opener(tmp_path)() as store:
            first = await store.put("sandbox", "a", {"n": 1}, expect=0)
            second = await store.put("sandbox", "a", {"n": 2}, expect=first.version)
            assert second.version > first.version
            for expect in (0, first.version, second.version + 1):
                error = await _raised(Conflict, store.put("sandbox", "a", {"n": 3}, expect=expect))
                assert error.details == {
                    "kind": "sandbox",
                    "key": "a",
                    "expected": expect,
                    "current": second.version,
                }
                assert isinstance(error, AlreadyExists) is (expect == 0)
            assert await store.get("sandbox", "a") == second

    async def test_a_deletion_needs_the_present_version(self, tmp_path: Path) -> None:
        async with self.opener(tmp_path)() as store:
            first = await store.put("sandbox", "a", {}, expect=0)
            await _raised(Conflict, store.delete("sandbox", "a", expect=first.version + 1))
            await store.delete("sandbox", "a", expect=first.version)
            assert await store.get("sandbox", "a") is None
            error = await _raised(Conflict, store.delete("sandbox", "a", expect=first.version))
            assert error.details["current"] == 0

    async def test_a_version_never_comes_back(self, tmp_path: Path) -> None:
        """Else a stale handle could take a sandbox of the same name for its own."""
        async with self.opener(tmp_path)() as store:
            seen = set()
            for _ in range(3):
                made = await store.put("sandbox", "a", {}, expect=0)
                await store.delete("sandbox", "a", expect=made.version)
                seen.add(made.version)
            assert len(seen) == 3

    async def test_a_write_is_whole_or_nothing(self, tmp_path: Path) -> None:
        async with self.opener(tmp_path)() as store:
            await store.put("name", "taken", {"id": "x"}, expect=0)
            changes = [
                Put(kind="sandbox", key="new", value={}, expect=0),
                Put(kind="name", key="taken", value={}, expect=0),
            ]
            entry = NewEntry(topic="new", data={"type": "created"}, time_ns=1)
            await _raised(AlreadyExists, store.write(changes, [entry]))
            assert await store.get("sandbox", "new") is None
            assert not await store.journal()
            changes[1] = Put(kind="name", key="free", value={"id": "new"}, expect=0)
            written = await store.write(changes, [entry])
            assert len(written.versions) == 2
            assert [e.topic for e in written.entries] == ["new"]
            assert await store.journal() == written.entries
            for change, version in zip(changes, written.versions, strict=True):
                found = await store.get(change.kind, change.key)
                assert found is not None
                assert found.version == version

    async def test_kinds_and_keys_do_not_mix(self, tmp_path: Path) -> None:
        async with self.opener(tmp_path)() as store:
            await store.put("a", "k", {"n": 1}, expect=0)
            await store.put("b", "k", {"n": 2}, expect=0)
            await store.put("b", "K", {"n": 3}, expect=0)
            for kind, key, n in [("a", "k", 1), ("b", "k", 2), ("b", "K", 3)]:
                found = await store.get(kind, key)
                assert found is not None
                assert found.value == {"n": n}

    async def test_lists_are_sorted_and_come_in_pages(self, tmp_path: Path) -> None:
        async with self.opener(tmp_path)() as store:
            keys = ["a", "aa", "Z", "é", "\ufffd", "\U0001f600", "b%", "b_", "b'"]
            for key in keys:
                await store.put("kind", key, {"key": key}, expect=0)
            await store.put("other", "x", {}, expect=0)
            pages, after = [], ""
            while page := await store.list("kind", after=after, limit=2):
                assert len(page) <= 2
                pages += [record.key for record in page]
                after = page[-1].key
            assert pages == sorted(keys)
            assert await store.list("none") == ()

    async def test_bad_input_is_refused_and_nothing_written(self, tmp_path: Path) -> None:
        """ER: what is wrong with a call is said before anything happens."""
        async with self.opener(tmp_path)() as store:
            good = Put(kind="sandbox", key="good", value={}, expect=0)
            entry = NewEntry(topic="t", data={}, time_ns=0)
            nan = float("nan")
            bad: list[tuple[list[Put | Delete], list[NewEntry]]] = [
                ([Put(kind="Bad Kind", key="k", value={}, expect=0)], []),
                ([Put(kind="k", key="", value={}, expect=0)], []),
                ([Put(kind="k", key="a\0b", value={}, expect=0)], []),
                ([Put(kind="k", key="\udc80", value={}, expect=0)], []),
                ([Put(kind="k", key="k" * 257, value={}, expect=0)], []),
                ([Put(kind="k", key="k", value={"x": nan}, expect=0)], []),
                ([Put(kind="k", key="k", value={"x": "\udc80"}, expect=0)], []),
                ([Put(kind="k", key="k", value={"x": object()}, expect=0)], []),
                ([Put(kind="k", key="k", value={}, expect=-1)], []),
                ([Delete(kind="k", key="k", expect=0)], []),
                ([good], []),  # twice in one write, below
                ([], [NewEntry(topic="", data={}, time_ns=0)]),
                ([], [NewEntry(topic="t", data={"x": nan}, time_ns=0)]),
                ([], [NewEntry(topic="t", data={}, time_ns=2**63)]),
            ]
            for changes, journal in bad:
                await _raised(InvalidArgument, store.write([good, *changes], [entry, *journal]))
            large = {"x": "y" * 2**20}
            await _raised(TooLarge, store.put("k", "k", large, expect=0))
            for call in (
                store.list("k", limit=0),
                store.journal(limit=0),
                store.journal(after="ev_1"),
                store.journal(topic=""),
                store.list("K"),
                store.list("k", after="\udc80"),
                store.get("k", ""),
            ):
                await _raised(InvalidArgument, call)
            assert await store.get("sandbox", "good") is None
            assert not await store.journal()

    # --- the journal ---

    async def test_the_journal_keeps_order(self, tmp_path: Path) -> None:
        """EV-1: ids are ordered as the writes were, whatever the clock said."""
        async with self.opener(tmp_path)() as store:
            wrote: list[JournalEntry] = []
            for number in range(12):
                wrote += await store.append(
                    NewEntry(topic="ab"[number % 2], data={"n": number}, time_ns=-number)
                )
            ids = [entry.id for entry in wrote]
            assert ids == sorted(set(ids))
            assert [sequence_of(i) for i in ids] == [entry.sequence for entry in wrote]
            assert list(await store.journal()) == wrote
            assert [e.data["n"] for e in await store.journal(topic="b")] == [1, 3, 5, 7, 9, 11]
            assert list(await store.journal(after=ids[4], limit=3)) == wrote[5:8]
            assert await store.journal(after=ids[-1]) == ()
            assert await store.journal(after=event_id(2**128 - 1)) == ()
            assert len(await store.journal(topic="b", after=ids[3], limit=2)) == 2

    async def test_the_store_has_one_identity(self, tmp_path: Path) -> None:
        """LC-9: labels carry it, and it never changes."""
        store = self.opener(tmp_path)()
        found: list[str] = []

        async def ask() -> None:
            found.append(await store.identity())

        async with store, anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
        async with store:
            found.append(await store.identity())
        assert len(set(found)) == 1

    # --- many at once ---

    async def test_tasks_lose_no_swap(self, tmp_path: Path) -> None:
        async with self.opener(tmp_path)() as store:
            await store.put("counter", "c", {"n": 0}, expect=0)
            async with anyio.create_task_group() as tasks:
                for worker in range(4):
                    tasks.start_soon(_count, store, f"w{worker}", 10)
            await _check_count(store, 4, 10)

    def test_processes_lose_no_swap(self, tmp_path: Path) -> None:
        """Every swap that was reported done is in the sum, and the journal has each once."""
        if not self.shared:
            return
        opener = self.opener(tmp_path)
        anyio.run(_prepare, opener)
        _in_processes(self.processes, functools.partial(_count_in_process, opener, self.swaps))
        anyio.run(_check_count_of, opener, self.processes, self.swaps)

    def test_it_is_a_register_and_a_log(self, tmp_path: Path) -> None:
        """Any sequence of calls answers as a plain dict and a plain list would."""
        from hypothesis.stateful import run_state_machine_as_test

        numbers = iter(range(10**9))

        def fresh() -> StateStore:
            place = tmp_path / str(next(numbers))
            place.mkdir()
            return self.opener(place)()

        run_state_machine_as_test(_machine(fresh))


async def _raised(kind: type[_E], call: Awaitable[object]) -> _E:
    try:
        await call
    except kind as exc:
        return exc
    raise AssertionError(f"{kind.__name__} was not raised")


async def _count(store: StateStore, name: str, times: int) -> None:
    for number in range(times):
        while True:
            found = await store.get("counter", "c")
            assert found is not None
            put = Put(
                kind="counter", key="c", value={"n": found.value["n"] + 1}, expect=found.version
            )
            entry = NewEntry(topic=name, data={"n": found.value["n"]}, time_ns=number)
            try:
                await store.write([put], [entry])
            except Conflict:
                continue
            break


async def _check_count(store: StateStore, workers: int, times: int) -> None:
    found = await store.get("counter", "c")
    assert found is not None
    assert found.value["n"] == workers * times
    entries = await store.journal(limit=workers * times + 1)
    # Each swap once, and the journal is in the order in which they happened.
    assert [entry.data["n"] for entry in entries] == list(range(workers * times))


async def _prepare(opener: Callable[[], StateStore]) -> None:
    async with opener() as store:
        await store.put("counter", "c", {"n": 0}, expect=0)


async def _check_count_of(opener: Callable[[], StateStore], workers: int, times: int) -> None:
    async with opener() as store:
        await _check_count(store, workers, times)


def _count_in_process(opener: Callable[[], StateStore], times: int, number: int) -> None:
    async def run() -> None:
        async with opener() as store:
            await _count(store, f"p{number}", times)

    anyio.run(run)


def _in_processes(count: int, act: Callable[[int], None]) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=act, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
    assert codes == [0] * count, codes


def _machine(fresh: Callable[[], StateStore]) -> Any:
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, rule

    keys = st.sampled_from(["a", "b", "é"])
    values = st.dictionaries(st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=3))

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store = fresh()
            self.records: dict[str, tuple[int, Any]] = {}
            self.log: list[tuple[str, Any]] = []
            self.versions: set[int] = set()

        def teardown(self) -> None:
            anyio.run(self.store.close)

        def expected(self, key: str, skew: int) -> int:
            return max(self.records.get(key, (0, None))[0] + skew, 0)

        @rule(key=keys, value=values, skew=st.sampled_from([0, 0, 0, 1, -1]), log=st.booleans())
        def put(self, key: str, value: Any, skew: int, log: bool) -> None:  # noqa: FBT001
            expect = self.expected(key, skew)
            change = Put(kind="k", key=key, value=value, expect=expect)
            entries = [NewEntry(topic=key, data=value, time_ns=0)] if log else []
            current = self.expected(key, 0)
            try:
                written = anyio.run(self.store.write, [change], entries)
            except Conflict:
                assert expect != current
                return
            assert expect == current
            (version,) = written.versions
            assert version > max(self.versions, default=0)
            self.versions.add(version)
            self.records[key] = (version, value)
            self.log += [(key, value)] if log else []

        @rule(key=keys, skew=st.sampled_from([0, 0, 1]))
        def delete(self, key: str, skew: int) -> None:
            expect = max(self.expected(key, skew), 1)
            change = Delete(kind="k", key=key, expect=expect)
            current = self.expected(key, 0)
            try:
                anyio.run(self.store.write, [change])
            except Conflict:
                assert expect != current
                return
            assert expect == current
            del self.records[key]

        @rule(key=keys)
        def get(self, key: str) -> None:
            found = anyio.run(self.store.get, "k", key)
            wanted = self.records.get(key)
            assert (None if found is None else (found.version, found.value)) == wanted

        @rule()
        def lists(self) -> None:
            found = anyio.run(self.store.list, "k")
            assert [(r.key, (r.version, r.value)) for r in found] == sorted(self.records.items())
            entries: Sequence[JournalEntry] = anyio.run(self.store.journal)
            assert [(e.topic, e.data) for e in entries] == self.log

        @rule()
        def reopen(self) -> None:
            anyio.run(self.store.close)

    return Machine
