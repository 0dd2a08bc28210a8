"""docs/helper.md from the other side: what a controller that keeps to it gets, and one that doesn't."""

import errno
import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.core.resident.conftest import is_alive
from tests.helper import raw
from tests.helper.raw import Helper, frame, opened, path, refusal, text, u16, u32, u64

OLD_KERNEL = Path(__file__).parent.parent / "core" / "posix" / "old_kernel.py"
MIB = 1 << 20


@pytest.fixture
def root(tmp_path) -> Path:
    for name in ("w", "t", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "secret").write_text("OUTSIDE")
    return Path(tmp_path / "w")


@pytest.fixture
def helper(root, sanitized_program) -> Iterator[Helper]:
    """With sanitizers: to go on is to say that they have found nothing."""
    with Helper(root.parent / "t", root, program=sanitized_program) as one:
        yield one


@pytest.fixture(params=["openat2", "by hand"])
def either(request, root) -> Iterator[Helper]:
    """With openat2, and where the kernel has none."""
    prefix = () if request.param == "openat2" else (sys.executable, str(OLD_KERNEL), "openat2")
    with Helper(root.parent / "t", root, prefix) as one:
        assert one.facts & 1 == (request.param == "openat2")
        yield one


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


BROKEN = {
    "no frame is shorter than 5 bytes": u32(4) + bytes(9),
    "nor longer than 2 MiB": u32((2 << 20) + 1) + bytes(9),
    "there is no frame of that type": frame(12, 0),
    "nor of one that the helper sends": frame(raw.REPLY, 0, b"\0"),
    "no CALL of that operation": frame(raw.CALL, 1, b"\x0c"),
    "no CALL without one": frame(raw.CALL, 1),
    "no OPEN of that operation": opened(1, 31, path()),
    "a CALL is whole": frame(raw.CALL, 1, bytes((raw.STAT,)) + path(b"x")[:-1]),
    "and has nothing behind it": frame(raw.CALL, 1, bytes((raw.STAT,)) + path(b"x") + b"x"),
    "a text has no NUL in it": frame(raw.CALL, 1, bytes((raw.STAT,)) + path(b"a\0b")),
    "nor no length": frame(raw.CALL, 1, bytes((raw.STAT, 0)) + u32(0)),
    "nor the length of all there is": frame(raw.CALL, 1, bytes((raw.STAT, 0)) + u32(0xFFFFFFFF)),
    "a WRITE carries 1 MiB": frame(
        raw.CALL, 1, bytes((raw.WRITE,)) + path(b"x") + u32(raw.KEEP) + bytes(MIB + 1)
    ),
    "a command has an argv": opened(1, raw.EXEC, raw.command([])),
    "and as many as it says": opened(1, raw.EXEC, raw.command([b"true"])[:-4] + u32(0xFFFFFFFF)),
    "an id in use is none": opened(7, raw.EXEC, raw.command([b"true"])),
    "input comes as far as it was granted": frame(raw.DATA, 7, bytes(MIB + 1)),
    "an ACK is of what was sent": frame(raw.ACK, 0, u64(1 << 40)),
    "and not of less than before": frame(raw.ACK, 0, u64(0)),
    "there are two outputs": frame(raw.CREDIT, 7, b"\3" + u64(1)),
    "credit is bounded": frame(raw.CREDIT, 7, b"\1" + u64(1 << 63)),
    "an EOF has no payload": frame(raw.EOF, 7, b"x"),
    "a SIGNAL is one byte": frame(raw.SIGNAL, 7, b"\0\0"),
    "a KILL four": frame(raw.KILL, 7, b"\0\0\0"),
    "a RESIZE two times two": frame(raw.RESIZE, 7, u16(1)),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_frame_that_breaks_a_rule_ends_the_session_and_all_that_it_started(helper, root, rule):
    """Status 3; commands and background jobs go with it."""
    script = b"setsid -f sh -c 'echo $$ >>pids; exec sleep 300'; echo $$ >>pids; exec sleep 300"
    helper.send(opened(7, raw.EXEC, raw.command([b"sh", b"-c", script])))
    (root / "pids").touch()
    wait_for(lambda: len((root / "pids").read_text().splitlines()) == 2)
    pids = [int(line) for line in (root / "pids").read_text().split()]
    assert all(map(is_alive, pids))
    for _ in range(3000):  # so much that the first of it is let go of
        helper.call(raw.STAT, path())
    helper.send(BROKEN[rule])
    assert helper.status() == 3
    wait_for(lambda: not any(map(is_alive, pids)))
    assert not (root.parent / "t").exists()


@pytest.mark.parametrize("size", [4096, 20_000, MIB, 2 * MIB - 100])
def test_a_path_that_is_too_long_is_refused_in_few_words_and_little_time(either, size) -> None:
    """However it is used; the answer is a whole frame, and cites no more than a path can have."""
    long = (b"a/" * size)[: size - 1] + b"b"
    for operation, rest in (
        (raw.STAT, b""),
        (raw.READ, u64(0) + u32(1)),
        (raw.MKDIR, b"\3"),
        (raw.REMOVE, b""),
        (raw.CHMOD, u32(0o600)),
        (raw.SYMLINK, text(b"x")),
        (raw.WRITE, u32(raw.KEEP)),
    ):
        code, said = either.call(operation, path(long) + rest)
        assert code == 11, operation
        assert refusal(said) == (errno.ENAMETOOLONG, long[:4096])
    for operation, rest in (
        (raw.LIST, b""),
        (raw.SCAN, text(b"") + bytes(32)),
        (raw.FETCH, b"\0"),
        (raw.DOWNLOAD, u64(0) + u64(9)),
        (raw.UPLOAD, u32(raw.KEEP)),
        (raw.REMOVE_TREE, b""),
        (raw.RECOVER, text(b"x")),
        (raw.RESTORE, text(b"x")),
    ):
        either.send(opened(5, operation, path(long) + rest))
        code, said, _ = either.end(5)
        assert code == 11, operation
        assert refusal(said) == (errno.ENAMETOOLONG, long[:4096])
    code, said = either.call(raw.SYMLINK, path(b"l") + text(long))
    assert (code, refusal(said)[0]) == (11, errno.ENAMETOOLONG)


@pytest.mark.parametrize("name", [b"../outside/secret", b"d/../../outside/secret", b"/etc/passwd"])
def test_fs2_no_name_given_to_a_worker_leads_out(either, root, name) -> None:
    """Names come from manifests, and those from guests: also where they are opened by hand."""
    (root / "d").mkdir()
    either.send(opened(5, raw.FETCH, path() + b"\1"), frame(raw.DATA, 5, text(name)))
    either.send(frame(raw.EOF, 5))
    code, said, output = either.end(5)
    assert (code, refusal(said)[0], output) == (11, errno.EINVAL, b"")
    gone = b"\4" + text(name) + b"\6"
    either.send(opened(5, raw.RESTORE, path() + text(b".s")), frame(raw.DATA, 5, gone))
    code, _, _ = either.end(5)
    assert code == 11
    assert (root.parent / "outside" / "secret").read_text() == "OUTSIDE"


def test_replies_that_are_not_taken_are_bounded_and_nobody_is_cut_off_for_them(helper, root):
    """A READ beyond 32 MiB of them is refused by EAGAIN: it may come again, or be a DOWNLOAD."""
    (root / "m").write_bytes(os.urandom(MIB))
    want = bytes((raw.READ,)) + path(b"m") + u64(0) + u32(MIB)
    helper.send(*(frame(raw.CALL, number, want) for number in range(200)))
    codes = []
    for number in range(200):
        kind, got, payload = helper.receive()
        assert (kind, got) == (raw.REPLY, number)
        codes.append(payload[0])
        if payload[0]:
            assert (payload[0], refusal(payload[1:])[0]) == (12, errno.EAGAIN)
        else:
            assert payload[9:] == (root / "m").read_bytes()
    assert codes[:32] == [0] * 32
    assert 12 in codes
    assert helper.call(raw.READ, path(b"m") + u64(0) + u32(MIB))[0] == 0


def test_a_flood_of_signals_does_not_drown_the_order_to_end(helper, root) -> None:
    """Its supervisor takes none while it is stopped; the KILL behind them is there when it can."""
    argv = [b"sh", b"-c", b"echo $PPID >parent; exec sleep 300"]
    helper.send(opened(7, raw.EXEC, raw.command(argv)))
    wait_for(lambda: (root / "parent").exists() and (root / "parent").read_text().strip())
    supervisor = int((root / "parent").read_text())
    os.kill(supervisor, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{supervisor}/stat").read_text().rpartition(") ")[2][0] == "T")
    flood = frame(raw.SIGNAL, 7, bytes((signal.SIGWINCH,))) * 5000
    helper.send(flood, frame(raw.KILL, 7, u32(0)))
    assert helper.call(raw.PING) == (0, b"")  # all of it was taken
    os.kill(supervisor, signal.SIGCONT)
    code, rest, _ = helper.end(7)
    assert (code, rest[:2]) == (0, bytes((1, signal.SIGKILL)))


@pytest.mark.parametrize("seconds", [2**40, -(2**40), 9223372036, -9223372037, 0])
def test_a_time_that_nanoseconds_can_not_hold_is_the_nearest(helper, root, seconds) -> None:
    """The file system may hold less itself; what it has is told as far as 64 bits go."""
    (root / "f").touch()
    os.utime(root / "f", ns=(0, 0))
    os.utime(root / "f", (seconds, seconds))
    held = (root / "f").stat().st_mtime_ns
    code, rest = helper.call(raw.STAT, path(b"f"))
    assert code == 0
    told = int.from_bytes(rest[13:21], "little", signed=True)
    assert told == max(-(2**63), min(2**63 - 1, held))


def test_kill_ends_whatever_was_opened(helper, root) -> None:
    """With nothing done, or as the page says; the id is free again, and so is the helper."""
    (root / "large").write_bytes(bytes(8 * MIB))
    (root / "old").write_text("old")
    cases = {
        raw.EXEC: (raw.command([b"sleep", b"300"]), b"", 0),
        raw.UPLOAD: (path(b"old") + u32(raw.KEEP), b"new", 13),
        raw.DOWNLOAD: (path(b"large") + u64(0) + u64(1 << 40), b"", 0),
        raw.FETCH: (path() + b"\1", text(b"large"), 13),
        raw.RESTORE: (path() + text(b".s"), b"\4" + text(b"old"), 13),
    }
    for operation, (arguments, data, expected) in cases.items():
        helper.send(opened(5, operation, arguments, credit=MIB))
        if data:
            helper.send(frame(raw.DATA, 5, data))
        helper.send(frame(raw.KILL, 5, u32(0)))
        code, rest, _ = helper.end(5)
        assert code == expected, operation
        if expected:
            assert refusal(rest)[0] == errno.ECANCELED
    helper.send(opened(5, raw.RECOVER, path() + text(b".s")))
    code, rest, _ = helper.end(5)
    assert code == 0
    assert rest in (b"\0", b"\1")  # it had begun, or not yet
    assert (root / "old").read_text() == "old"
    assert {each.name for each in root.iterdir()} == {"large", "old"}


def test_a_restore_whose_input_ends_early_is_undone(helper, root) -> None:
    (root / "old").write_text("old")
    helper.send(opened(5, raw.RESTORE, path() + text(b".s")))
    helper.send(frame(raw.DATA, 5, b"\4" + text(b"old")), frame(raw.EOF, 5))
    code, rest, _ = helper.end(5)
    assert (code, refusal(rest)[0]) == (13, errno.ECANCELED)
    assert [each.name for each in root.iterdir()] == ["old"]


def test_jobs_answers_when_all_have_ended(helper, root) -> None:
    for number in range(3):
        helper.send(opened(number, raw.EXEC, raw.command([b"sh", b"-c", b"sleep 300 & exit 0"])))
    for _ in range(3):
        kind, _, payload = helper.receive()
        assert (kind, payload[:1], payload[5:6]) == (raw.END, b"\0", b"\1")  # background
    assert helper.call(raw.JOBS, b"\0") == (0, u32(3))
    assert helper.call(raw.JOBS, b"\1") == (0, u32(0))


ACTIONS = (
    b"\1" + text(b"d") + u32(0o755) + u64(5),
    b"\2" + text(b"d/f") + u32(0o644) + u64(5) + u64(3) + hashlib.sha256(b"abc").digest() + b"abc",
    b"\3" + text(b"d/l") + text(b"f"),
    b"\4" + text(b"old"),
    b"\5" + text(b"kept") + u32(0o600) + u64(5),
    b"\6",
)


def spoiled(draw: random.Random, good: bytes) -> bytes:
    """A message in which something is not as it was: cut, doubled, a number or a byte another."""
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        what = draw.randrange(5)
        if what == 0:
            del data[at:]
        elif what == 1:
            data[at:at] = data[at : at + draw.randrange(1, 40)]
        elif what == 2:
            data[at : at + 4] = u32(draw.choice((0, 1, 4096, 8193, 1 << 31, 0xFFFFFFFF)))
        elif what == 3:
            data[at : at + 8] = u64(draw.choice((0, 1 << 31, 1 << 63, (1 << 64) - 1)))
        else:
            data[at : at + 1] = bytes((draw.randrange(256),))
    return bytes(data)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_worker_is_sent_nothing_leads_out_and_all_stands_or_is_recovered(
    helper, root, seed
) -> None:
    """Names and actions come to it as a stream of their own, behind the parser of frames."""
    draw = random.Random(seed)  # noqa: S311
    outside = root.parent / "outside"
    taken = 0
    for number in range(300):
        for name in ("old", "kept"):
            (root / name).write_text(name)
        if draw.random() < 0.5:
            actions = list(ACTIONS)
            if draw.random() < 0.3:
                actions.insert(draw.randrange(6), b"\4" + text(b"../outside/secret"))
            data = b"".join(actions)
            helper.send(opened(number, raw.RESTORE, path() + text(b".s")))
        else:
            names = (b"old", b"none", b"../outside/secret", b"d", b"", b"kept")
            data = b"".join(text(draw.choice(names)) for _ in range(5))
            helper.send(opened(number, raw.FETCH, path() + b"\1"))
        data = spoiled(draw, data) if draw.random() < 0.9 else data
        if data:
            helper.send(frame(raw.DATA, number, data))
        helper.send(frame(raw.EOF, number))
        first, _, output = helper.end(number)
        taken += first == 0
        assert b"OUTSIDE" not in output
        assert [each.name for each in outside.iterdir()] == ["secret"]
        helper.send(opened(number, raw.RECOVER, path() + text(b".s")))
        code, _, _ = helper.end(number)
        assert code in (0, first)  # a journal in force that asks for what can't be is said to
        helper.send(opened(number, raw.REMOVE_TREE, path(b".s")))
        helper.end(number)
    assert 5 < taken < 295
    assert helper.call(raw.PING) == (0, b"")


@pytest.mark.nightly  # it needs what a machine that only tests may lack
@pytest.mark.parametrize("levels", [0, 14])
def test_a_name_longer_than_names_are_is_refused_where_it_would_not_fit(
    root, sanitized_program, levels
) -> None:
    """A user's own file system may have one; below a deep path it is longer than any path."""
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid():
        pytest.skip("a file system in user space can be mounted only by root, with /dev/fuse")
    fd = os.open(root, os.O_PATH)
    for _ in range(levels):
        os.mkdir("d" * 240, dir_fd=fd)
        fd, old = os.open("d" * 240, os.O_PATH, dir_fd=fd), fd
        os.close(old)
    os.mkdir("m", dir_fd=fd)
    os.close(fd)
    deep = "/".join(["d" * 240] * levels + ["m"])
    mounter = str(Path(__file__).with_name("long_names.py"))
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    prefix = (*alone, sys.executable, mounter, str(root / deep))
    with Helper(root.parent / "t", root, prefix, program=sanitized_program) as helper:
        helper.send(opened(5, raw.SCAN, path() + text(b"") + bytes(32)))
        code, said, _ = helper.end(5)
        assert (code, refusal(said)) == (11, (errno.ENAMETOOLONG, deep.encode()))
        helper.send(opened(5, raw.LIST, path(deep.encode())))
        code, _, output = helper.end(5)
        assert code == 0
        assert b"n" * 1000 in output
        assert helper.call(raw.PING) == (0, b"")
