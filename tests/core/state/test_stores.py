"""The state stores of core keep the contract that any implementation has to keep."""

import functools

import pytest

from pinfold.state import MemoryStateStore, SqliteStateStore
from pinfold.state.suite import StateStoreSuite

pytestmark = pytest.mark.anyio


class TestMemory(StateStoreSuite):
    shared = False

    def opener(self, place):
        return MemoryStateStore


class TestSqlite(StateStoreSuite):
    def opener(self, place):
        return functools.partial(SqliteStateStore, place / "state.db")
