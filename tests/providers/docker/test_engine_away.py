"""No engine, or none that can be used: what is wrong is said, with what to do (PR-4, ER-1)."""

import os
import socket
import threading

import pytest

from pinfold.errors import Unavailable, Unreachable
from pinfold.provider import Context, Owner
from pinfold.spec import PinnedSpec
from pinfold_docker import DockerProvider, _engine, _maker
from pinfold_docker._connect import lacks_of
from pinfold_docker._engine import Engine, local_endpoint
from pinfold_docker._http import Endpoint, EngineError
from tests.providers.docker.support import resolved

pytestmark = pytest.mark.anyio

OWNER = Owner(store="tests-of-engines", sandbox="sbx_away")


async def probe_at(host: str, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", host)
    return await DockerProvider().probe()


async def test_no_engine_is_said_with_what_to_do(monkeypatch):
    state = await probe_at("unix:///nowhere/docker.sock", monkeypatch)
    assert not state.available
    assert "no engine" in state.reason
    assert "DOCKER_HOST" in state.hint


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "ssh://somebody@example", "nonsense"])
async def test_a_remote_docker_host_is_a_connections_business(monkeypatch, host):
    state = await probe_at(host, monkeypatch)
    assert not state.available
    assert "connection" in state.hint


async def test_no_permission_on_the_socket_is_said_as_such(short_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path))
        listener.listen()
        short_path.parent.chmod(0o755)
        short_path.chmod(0o000)
        as_root = os.geteuid() == 0
        if as_root:
            os.seteuid(65534)
        try:
            state = await probe_at(f"unix://{short_path}", monkeypatch)
        finally:
            if as_root:
                os.seteuid(0)
    assert not state.available
    assert "permission" in state.reason
    assert "group" in state.hint


@pytest.fixture
def answering(short_path):
    """A listener that gives the same answer to everybody."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(short_path))
    listener.listen()
    answers: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(65536)
                client.sendall(answers[-1])

    thread = threading.Thread(target=serve)
    thread.start()

    def always(answer: bytes) -> Endpoint:
        answers.append(answer)
        return Endpoint(path=str(short_path))

    yield always
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize(
    ("theirs", "ours"), [("1.41", "v1.41"), ("1.45", "v1.45"), ("1.52", "v1.45")]
)
async def test_the_version_is_the_newest_that_both_sides_know(answering, theirs, ours):
    """A later engine is not refused."""
    assert await Engine(answering(answer(200, b"OK", Api_Version=theirs))).version() == ours


@pytest.mark.parametrize(
    "wrong",
    [
        answer(200, b"OK", Api_Version="1.40"),
        answer(200, b"OK"),
        answer(404),
        answer(200, Api_Version="x"),
    ],
    ids=["too old", "no version", "not found", "no number"],
)
async def test_what_is_no_engine_is_told_from_one(answering, wrong):
    with pytest.raises(Unavailable, match="no Docker engine") as caught:
        await Engine(answering(wrong)).version()
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "wrong", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nab"]
)
async def test_an_answer_that_breaks_off_is_unreachable(answering, wrong):
    with pytest.raises(Unreachable) as caught:
        await Engine(answering(wrong)).version()
    assert caught.value.effect == "unknown"


async def test_an_engine_that_does_not_answer_in_time_is_unreachable(short_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path))
        listener.listen()
        engine = Engine(Endpoint(path=str(short_path)))
        engine._prefix = "v1.41"
        with pytest.raises(Unreachable, match=r"within 0\.2 seconds"):
            await engine.call("GET", "info", seconds=0.2)


async def test_an_engines_refusal_has_its_own_words(answering):
    engine = Engine(answering(answer(500, b'{"message": "the disk is on fire"}')))
    engine._prefix = "v1.41"
    with pytest.raises(EngineError, match="the disk is on fire") as caught:
        await engine.call("GET", "info")
    assert caught.value.status == 500


#: What an engine tells of itself that has all there is to have.
WHOLE = {
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default", "name=userns"],
    "SwapLimit": True,
    "BridgeNfIptables": True,
    "DriverStatus": [["Backing Filesystem", "xfs"]],
}
LACKS = {
    "AppArmor or SELinux": {"SecurityOptions": ["name=userns"]},
    "user namespaces": {"SecurityOptions": ["name=selinux"]},
    "swap limit": {"SwapLimit": False},
    "bridge filtering": {"BridgeNfIptables": False},
    "workspace quota": {"DriverStatus": [["Backing Filesystem", "extfs"]]},
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_an_engine_lacks_is_named_and_nothing_else(lack):
    """TR-2: shown in the view's details."""
    assert lacks_of(WHOLE) == []
    (said,) = lacks_of(WHOLE | LACKS[lack])
    assert said.startswith(lack + ": ")


async def test_an_engine_that_cannot_contain_is_not_used(client, monkeypatch):
    """The level is claimed only with all of it in force."""
    honest = _maker.facts_of

    async def weaker(engine):
        facts = await honest(engine)
        return {**facts, "SecurityOptions": ["name=seccomp,profile=unconfined"], "PidsLimit": False}

    monkeypatch.setattr(_maker, "facts_of", weaker)
    provider = DockerProvider()
    state = await provider.probe()
    assert not state.available
    assert state.levels == ()
    assert "seccomp" in state.reason
    assert "pids" in state.reason
    spec = PinnedSpec(spec=resolved(), pins={"image_id": "sha256:" + "0" * 64}, provider="docker")
    with pytest.raises(Unavailable, match="seccomp"):
        await provider.create(spec, Context(owner=OWNER))


def test_the_local_engine_is_found_as_the_cli_finds_it(tmp_path, monkeypatch):
    assert local_endpoint({"DOCKER_HOST": "unix:///a/b"}).path == "/a/b"
    with pytest.raises(Unavailable):
        local_endpoint({"DOCKER_HOST": "unix://relative"})
    monkeypatch.setattr(_engine, "DEFAULT_SOCKET", str(tmp_path / "usual"))
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert local_endpoint(environ).path == str(tmp_path / "usual")
    (tmp_path / "docker.sock").touch()
    assert local_endpoint(environ).path == str(tmp_path / "docker.sock")
    (tmp_path / "usual").touch()
    assert local_endpoint(environ).path == str(tmp_path / "usual")
