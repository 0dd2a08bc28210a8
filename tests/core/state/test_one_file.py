"""One file, any number of stores in any number of processes: nobody's locks are lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from pinfold.state import Put, SqliteStateStore

pytestmark = pytest.mark.anyio

WRITER = """
import sys, anyio
from pinfold.state import Put, SqliteStateStore

async def main():
    store = SqliteStateStore(sys.argv[1])
    for n in range(20):
        await store.write([Put(kind="k", key=f"{sys.argv[2]}-{n}", value={"n": "x" * 2000}, expect=0)])
    await store.close()

anyio.run(main)
"""


def write_elsewhere(path, name):
    subprocess.run([sys.executable, "-c", WRITER, str(path), name], check=True)


async def test_another_store_of_this_process_takes_no_lock_away(tmp_path):
    """Were a lock lost, the other process would remove the log that the first store still reads."""
    path = tmp_path / "state.sqlite"
    first = SqliteStateStore(path)
    await first.write([Put(kind="k", key="first", value={}, expect=0)])
    count = 1
    for number in range(3):
        other = SqliteStateStore(path)
        assert len(await other.list("k")) == count
        if number % 2:
            await other.close()
        write_elsewhere(path, str(number))
        count += 20
        assert len(await first.list("k")) == count
        await first.write([Put(kind="k", key=f"mine-{number}", value={}, expect=0)])
        count += 1

    assert len(await first.list("k")) == count
    await first.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (there,) = connection.execute("SELECT count(*) FROM record WHERE kind = 'k'").fetchone()
    connection.close()
    assert there == count


async def test_the_file_is_for_its_owner_alone(tmp_path):
    store = SqliteStateStore(tmp_path / "state.sqlite")
    await store.list("k")
    assert (tmp_path / "state.sqlite").stat().st_mode & 0o777 == 0o600
    await store.close()
