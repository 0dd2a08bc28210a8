"""Streams, devices and the operator's own links."""

from __future__ import annotations

import io
import os
import stat

import pytest

from pinfold.transfer import get, get_to, put_from
from tests.core.transfer.support import shown

pytestmark = pytest.mark.anyio


async def test_streams_go_in_and_out_of_any_size(files):
    data = os.urandom((5 << 20) + 7)
    moved: list[int] = []
    await put_from(files, io.BytesIO(data), "/workspace/f", told=moved.append)
    assert sum(moved) == len(data)
    out = io.BytesIO()
    await get_to(files, "/workspace/f", out, told=moved.append)
    assert out.getvalue() == data
    assert sum(moved) == 2 * len(data)


async def test_a_stream_that_takes_less_gets_all(files):
    class Small(io.BytesIO):
        taken = b""

        def write(self, data):
            self.taken += bytes(data[:3])
            return len(data[:3])

    await files.write("/workspace/f", b"0123456789")
    small = Small()
    await get_to(files, "/workspace/f", small)
    assert small.taken == b"0123456789"


async def test_a_device_is_written_to_and_never_replaced(files, disk):
    """As root, a rename over /dev/null would take it away from everybody."""
    await files.write("/workspace/f", b"12")
    os.mkfifo(disk / "fifo")
    (disk / "link").symlink_to("fifo")
    for target in ("fifo", "link"):
        reader = os.open(disk / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        await get(files, "/workspace/f", target)
        assert os.read(reader, 10) == b"12"
        os.close(reader)
    assert stat.S_ISFIFO((disk / "fifo").lstat().st_mode)
    assert (disk / "link").is_symlink()


async def test_the_operators_own_link_is_copied_through(files, disk):
    await files.write("/workspace/f", b"new")
    (disk / "real").write_bytes(b"old")
    (disk / "link").symlink_to("real")
    await get(files, "/workspace/f", "link")
    assert shown(disk) == {"link": "-> real", "real": b"new"}
