"""How a command ended, as the shell that watches it tells: from near, and where `wait` is far."""

import signal

import pytest

from pinfold.errors import OutcomeUnknown
from tests.core.posix.conftest import Box, Heartbeat
from tests.core.posix.guests import LocalProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # nothing here differs between event loops


@pytest.fixture(params=["shell", "busybox"])
def kind(request) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[False, True], ids=["near", "distant"])
def distant(request, monkeypatch) -> bool:
    monkeypatch.setattr(LocalProcess, "distant", request.param)
    return bool(request.param)


@pytest.fixture(autouse=True)
def _far(distant) -> None:
    """For every test."""


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 0", 0, None),
        ("exit 127", 127, None),
        ("exit 137", 137, None),
        ("exit 255", 255, None),
        ("kill -9 $$", 137, signal.SIGKILL),
        ("kill -INT $$", 130, signal.SIGINT),
        ("kill -PIPE $$", 141, signal.SIGPIPE),
        ("kill -9 0", 137, signal.SIGKILL),
        ("printf x >&2; exec no-such-program", 127, None),
    ],
)
async def test_ex2_codes_and_signals(box: Box, script, code, number) -> None:
    result = await box.sh(script)
    assert (result.exit_code, result.signal) == (code, number)


async def test_ex8_a_child_that_holds_the_pipes_delays_nothing_and_lives_on(box: Box) -> None:
    beat = Heartbeat(box)
    result = await box.sh(f"({beat.loop}) & printf out; printf err >&2; exit 3", timeout_seconds=60)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out", b"err")
    await beat.beats()


async def test_ex10_a_slot_is_free_for_the_next_command(box: Box) -> None:
    """It is given away when the end is told; the shell that told it may still be there."""
    codes = [(await box.sh(f"exit {number}")).exit_code for number in range(40, 60)]
    assert codes == list(range(40, 60))


#: Finds the shell that watches it, and says what that one would say.
FORGE = """
for file in /proc/[0-9]*/cmdline; do
  set -- $({ tr '\\0' '\\n' <$file; } 2>/dev/null | grep -x -A3 pinfold)
  [ "$2" = "$PINFOLD_WORKSPACE//" ] && break
done
for to in 1 2; do printf 'said%s%s%s\\n' "$4" "$3" "$STATUS" >&$to; done
exit 5
"""


@pytest.mark.parametrize("status", ["999 ", "-1 ", "x", "", "1 - 1000", "\u0661 "])
async def test_ex2_a_forged_end_is_no_made_up_result(box: Box, distant, status) -> None:
    """What a command says of its own end harms itself alone: near it isn't even asked."""
    if distant and status:
        with pytest.raises(OutcomeUnknown):
            await box.sh(FORGE, env={"STATUS": status})
    else:
        result = await box.sh(FORGE, env={"STATUS": status})
        assert (result.exit_code, result.stdout, result.stderr) == (5, b"said", b"said")
    assert (await box.sh("echo on")).stdout == b"on\n"
