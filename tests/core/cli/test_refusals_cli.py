"""What is wrong with a call for a durable sandbox is one line and 125."""

from __future__ import annotations

import pytest

from pinfold.cli import _app
from pinfold.errors import Locked, Unavailable
from pinfold.sandbox import Upkeep


@pytest.mark.parametrize(
    "args",
    [
        ["exec", "-n", "none", "--", "x"],
        ["cp", "none:/workspace/f", "-"],
        ["cp", "-", "none:/workspace/f"],
        ["ls", "none"],
        ["view", "none"],
        ["attach", "none"],
        ["port", "none", "80"],
        ["checkpoint", "none"],
        ["checkpoints", "none"],
        ["restore", "none", "x"],
        ["fork", "none", "x"],
        ["migrate", "none", "x", "--provider", "bashkit"],
        ["drain", "none"],
        ["down", "none"],
        ["events", "none"],
        ["events", "--follow", "none"],
        ["exec", "-n", "sbx_" + "0" * 32, "--", "x"],
        ["exec", "-n", "", "--", "x"],
        ["ls", "a\nb"],
        ["view", "x" * 300],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_said_in_one_line(refused, args):
    assert "there is no sandbox" in refused(*args)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["up"], "NAME"),
        (["up", "a/b", "--provider", "bashkit"], "can't be called 'a/b'"),
        (["up", "a\nb", "--provider", "bashkit"], r"can't be called 'a\nb'"),
        (["exec", "box"], "give a command"),
        (["port", "box", "http"], "http"),
        (["restore", "box"], "CHECKPOINT"),
        (["cp", "x"], "TARGET"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_in_one_line(refused, args, text):
    assert text in refused(*args)


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "file"])
@pytest.mark.parametrize(
    "verb", [["list"], ["up", "box", "--provider", "bashkit"], ["gc"]], ids=str
)
def test_a_data_folder_that_cannot_be_is_said_in_one_line(
    refused, tmp_path, monkeypatch, place, verb
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / place))  # an absolute one stays as it is
    refused(*verb)


def test_a_store_that_cannot_be_is_said_in_one_line(refused, tmp_path):
    (tmp_path / "pinfold.toml").write_text('[store]\nurl = "nope://x"\n')
    assert "nope" in refused("list")


def test_a_store_that_is_away_for_a_while_ends_no_watch(tmp_path, monkeypatch, capfd):
    """LC-7: what reaps goes on when the store does; the same trouble is told once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    rounds = [Locked("busy"), Locked("busy"), Upkeep(done=("sbx_1",)), Unavailable("away")]

    async def reap(*_):
        if not rounds:
            raise Unavailable("it is no store", retryable=False)
        outcome = rounds.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("pinfold.sandbox.reap", reap)
    monkeypatch.setattr("pinfold.cli._upkeep.PAUSE_SECONDS", 0.0)
    assert _app._main(["reap", "--watch"]) == 125
    out, err = capfd.readouterr()
    assert out == "put to rest: sbx_1\n"
    assert err == ("pinfold: the store: busy\npinfold: the store: away\npinfold: it is no store\n")


def test_damaged_state_is_said_in_one_line(refused, tmp_path, capfd):
    assert _app._main(["list"]) == 0
    (state,) = (tmp_path / "data" / "pinfold").glob("*.sqlite")
    for path in state.parent.glob("*.sqlite*"):
        path.write_bytes(b"not a database" * 1000)
    refused("list")
