"""A fuzzer that sees the code looks for bytes that the controller takes badly (nightly)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.posix._resident._wire import From, frame, text

FACTS = b"\1" + bytes(44)
ENDING = bytes((0, 0, 0, 0, 0, 0)) + bytes(24)
#: What the fuzzer starts from: a byte that picks the parser, and a message as it should be.
SEEDS = (
    b"\0\0" + frame(From.OUT, 1, b"\1data") + frame(From.END, 1, ENDING),
    b"\0\0" + frame(From.GRANT, 2, bytes(8)) + frame(From.END, 2, b"\1\2\0\0\0" + text("x")),
    b"\1\x80" + frame(From.REPLY, 4, b"\0" + FACTS + text("")) + frame(From.ACK, 0, bytes(8)),
    b"\2" + FACTS + text("a/b") + text(""),
    b"\3\0\3\0\0\0abc" + b"\1" + FACTS + bytes(33) + b"\2",
    b"\4pinfold1\1\0\0\0" + bytes(80),
    b"\5\3\2\0\0\0" + text("why"),
)


@pytest.mark.nightly
def test_a_session_takes_any_bytes(tmp_path) -> None:
    pytest.importorskip("atheris", reason="there is none for this machine (requirements.in)")
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, raw in enumerate(SEEDS):
        (seeds / str(number)).write_bytes(raw)
    program = Path(__file__).with_name("fuzz.py")
    done = subprocess.run(
        [sys.executable, program, seeds, "-max_total_time=60", "-max_len=4096", "-seed=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.search(r"Done (\d+) runs", done.stderr)
    assert found is not None, done.stderr[-4000:]
    assert int(found[1]) >= 20_000
