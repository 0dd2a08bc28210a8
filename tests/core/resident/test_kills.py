"""The helper is killed at drawn moments: each operation was done, was not, or is said to be unknown.

The moments are byte offsets of what passes between the two: in the middle of a frame, of a command,
of a file, between operations, and while the next helper finds its roots.
"""

import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

import anyio
import attrs
import pytest

from pinfold.errors import Effect, OutcomeUnknown, PinfoldError
from pinfold.posix._resident import Resident
from pinfold.posix._resident._files import TEMPORARY
from tests.core.posix.guests import LocalGuest, LocalProcess, Pipe
from tests.core.resident.conftest import Place, end_marked, new_mark

pytestmark = pytest.mark.anyio

KILLS = 20
LARGE = 300_000
#: What a file has, or None for a directory, by its name.
State = dict[str, bytes | None]


class KillingGuest(LocalGuest):
    """A transport on which the helper is killed after so many bytes, again and again."""

    def __init__(self, offsets: list[int]) -> None:
        super().__init__()
        self.offsets = offsets
        self.passed = 0
        self.killed = 0
        self.resident: Resident | None = None

    async def spawn(self, argv, env, cwd) -> LocalProcess:
        process = await super().spawn(argv, env, cwd)
        for index in (0, 1):
            process.pipes[index] = CountedPipe(process.pipes[index], self)
        process.stdin, process.stdout = process.pipes[:2]
        return process

    def count(self, size: int) -> None:
        if self.resident is None or self.resident.session.failure is not None:
            return  # none is there: it is only being started
        pid = self.resident.session.greeting.pid
        if pid == self.killed:
            return  # nobody has noticed yet
        self.passed += size
        if self.offsets and self.passed > self.offsets[0]:
            self.passed = 0
            self.offsets.pop(0)
            self.killed = pid
            os.kill(pid, signal.SIGKILL)


class CountedPipe(Pipe):
    def __init__(self, pipe: Pipe, guest: KillingGuest) -> None:
        super().__init__(pipe.fd)
        self.guest = guest

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await super().receive(max_bytes)
        self.guest.count(len(data))
        return data

    async def send(self, item: bytes) -> None:
        half = len(item) // 2  # so that an offset falls into a frame, too
        for part in (item[:half], item[half:]):
            if part:
                await super().send(part)
                self.guest.count(len(part))

    def send_now(self, item: bytes) -> int:
        sent = super().send_now(item[: (len(item) + 1) // 2])
        self.guest.count(sent)
        return sent


def seen(workspace: Path) -> State:
    """The witness: what is there, but for what nobody sees of an interrupted write."""
    return {
        path.name: path.read_bytes() if path.is_file() else None
        for path in workspace.iterdir()
        if not path.name.startswith(TEMPORARY)
    }


@attrs.frozen
class Step:
    """One operation, and what is there after it."""

    name: str
    run: Callable[[], Awaitable[object]]
    after: State


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 50_000):
        yield data[start : start + 50_000]


def step(place: Place, draw: random.Random, number: int, before: State) -> Step:
    """Draw the next operation, such that it is possible."""
    files, text = place.resident.files, f"{number} ".encode() * draw.choice((1, 500))
    old = draw.choice(sorted(before) or ["none"])
    new = f"n{number}"

    async def command() -> None:
        result = await place.sh(f"printf %s {number} >>log; head -c {LARGE} /dev/zero; exit 3")
        assert (result.exit_code, result.stdout) == (3, bytes(LARGE))

    async def look() -> None:
        assert {entry.path.name for entry in await files.list("/workspace")} == set(before)
        content = before.get(old)
        if content is not None:
            assert await files.read(f"/workspace/{old}") == content

    log = before.get("log") or b""
    without = {name: content for name, content in before.items() if name != old}
    choices = [
        Step("exec", command, before | {"log": log + b"%d" % number}),
        Step("write", lambda: files.write(f"/workspace/{new}", text), before | {new: text}),
        Step("look", look, before),
        Step("mkdir", lambda: files.make_directory(f"/workspace/{new}"), before | {new: None}),
        Step(
            "upload",
            lambda: files.upload(f"/workspace/{new}", pieces(text * 100)),
            before | {new: text * 100},
        ),
    ]
    if old in before:
        choices += [
            Step(
                "rename",
                lambda: files.rename(f"/workspace/{old}", f"/workspace/{new}"),
                without | {new: before[old]},
            ),
            Step("remove", lambda: files.remove(f"/workspace/{old}", recursive=True), without),
        ]
    return draw.choice(choices)


async def settled(resident: Resident) -> None:
    """Wait until a helper answers: before it does, what the last one has left is ended."""
    for _ in range(KILLS + 1):
        with suppress(PinfoldError):  # that one may be killed, too
            await resident.files.stat("/workspace")
            return
    pytest.fail("no helper answers any more")


@pytest.mark.parametrize("seed", range(2))
async def test_ex14_a_helper_killed_at_drawn_moments_leaves_no_doubt_unsaid(tmp_path, seed) -> None:
    """FS-4, EX-14: whole or not at all; what is not known is said; the next operation works."""
    draw = random.Random(seed)  # noqa: S311
    offsets = [draw.choice((draw.randrange(300), draw.randrange(60_000))) for _ in range(KILLS)]
    workspace = tmp_path / "w"
    workspace.mkdir()
    guest, mark = KillingGuest(offsets), new_mark()
    resident = await Resident.start(guest, root=PurePosixPath(workspace), mark=mark)
    guest.resident = resident
    place = Place(resident, guest, workspace, tmp_path, mark)  # type: ignore[arg-type]
    state: State = {}
    unknown = 0
    try:
        for number in range(4000):
            if not offsets:
                break
            one = step(place, draw, number, state)
            allowed = [one.after]
            refused: PinfoldError | None = None
            with anyio.fail_after(60):
                try:
                    await one.run()
                except OutcomeUnknown:
                    allowed.append(state)
                    unknown += 1
                    await settled(resident)
                except PinfoldError as exc:
                    refused = exc
                    allowed = [state]
                    await settled(resident)
            if refused is not None and one.name != "look":
                assert refused.effect is Effect.NONE, (one.name, refused)
            found = seen(workspace)
            assert found in allowed, (number, one.name)
            state = found
        assert not offsets, "the kills do not come"
        assert resident.restarts >= KILLS - 1  # but for the last, perhaps
        assert unknown, "none was in flight"
    finally:
        guest.offsets = []
        with anyio.CancelScope(shield=True):
            await resident.aclose()
        end_marked(mark)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
async def test_many_more_kills(tmp_path, seed) -> None:
    await test_ex14_a_helper_killed_at_drawn_moments_leaves_no_doubt_unsaid(tmp_path, seed)
