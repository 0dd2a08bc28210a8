"""An engine behind a connection: TCP with TLS, both sides known to each other (PR-5)."""

import socket
import ssl
import threading
from pathlib import Path

import anyio
import attrs
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from pinfold.connections import Connections
from pinfold.errors import InvalidArgument, NotFound, Unauthorized, Unavailable, Unreachable
from pinfold.provider import Context, ExecRequest, InstanceRef, Owner
from pinfold.spec import PinnedSpec
from pinfold_docker import DockerProvider
from pinfold_docker._socket import connect_tcp
from pinfold_docker._tls import TLSStream
from tests.providers.docker.support import pinned, resolved, said
from tools import docker_engine, docker_images

pytestmark = pytest.mark.anyio

OWNER = Owner(store="tests-of-tls", sandbox="sbx_tls")


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> dict[str, str]:
    """Who signed what: the right authority and another one, as paths of PEM files."""
    folder, paths = tmp_path_factory.mktemp("papers"), {}
    for name in ("right", "wrong"):
        authority = trustme.CA()
        paths[f"{name}-ca"] = folder / f"{name}-ca.pem"
        authority.cert_pem.write_to_path(str(paths[f"{name}-ca"]))
        for side, names in (
            ("server", ("127.0.0.1", "localhost")),
            ("client", ("client.example",)),
        ):
            leaf = authority.issue_cert(*names)
            cert, key = folder / f"{name}-{side}.pem", folder / f"{name}-{side}.key"
            leaf.cert_chain_pems[0].write_to_path(str(cert))
            leaf.private_key_pem.write_to_path(str(key))
            paths |= {f"{name}-{side}": cert, f"{name}-{side}-key": key}
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def remote(client, papers):
    """The port of an engine that asks for a certificate; and its socket, for setting it up."""
    reason = docker_engine.why_not()
    if reason:
        pytest.skip(f"no engine of our own can be started: {reason}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tls = (
        f"--host=tcp://127.0.0.1:{port}", "--tlsverify", f"--tlscacert={papers['right-ca']}",
        f"--tlscert={papers['right-server']}", f"--tlskey={papers['right-server-key']}",
    )  # fmt: skip
    with docker_engine.throwaway("--bridge=none", "--iptables=false", *tls) as engine:
        docker_images.load_busybox(engine.host)
        yield port


def context(papers, port: int, *, ca: str = "right", client: str = "right", **more: str) -> Context:
    table = {
        "host": f"tcp://127.0.0.1:{port}",
        "ca": f"file:{papers[ca + '-ca']}",
        "cert": f"file:{papers[client + '-client']}",
        "key": f"file:{papers[client + '-client-key']}",
        **more,
    }
    connections = Connections({"far": {k: v for k, v in table.items() if v}})
    return Context(owner=OWNER, connect=connections.resolve)


SPEC = resolved(connection="far")


async def test_a_sandbox_on_an_engine_behind_tls(remote, papers):
    provider, ctx = DockerProvider(), context(papers, remote)
    far = attrs.evolve(ctx, connection_id="far")
    instance = await provider.create(await pinned(provider, SPEC, ctx), ctx)
    try:
        assert instance.ref.data == {"connection": "far"}
        assert await said(instance, "id -u") == "1000\n"
        # The end of stdin is a half-close, which TLS has too.
        data = bytes(range(256)) * 8 * 1024
        done = await instance.exec(ExecRequest(shell="cat; echo end", stdin=data, stdout_cap=2**22))
        assert done.stdout == data + b"end\n"
        await instance.files.write("/workspace/f", data)
        assert await instance.files.read("/workspace/f") == data
        assert [ref.id for ref in await DockerProvider().list(OWNER, far)] == [instance.ref.id]
    finally:
        await DockerProvider().destroy(instance.ref, far)  # as another process would
        await instance.destroy()
    assert await provider.list(OWNER, far) == []


WRONG = {
    "another authority": ({"ca": "wrong"}, Unauthorized, "not who it should be"),
    "a stranger's certificate": ({"client": "wrong"}, Unauthorized, "does not accept us"),
    "no certificate": ({"cert": ""}, NotFound, "has no 'cert'"),
    "a certificate that is none": ({"cert": "nothing"}, Unauthorized, "PEM"),
    "no address": ({"host": "127.0.0.1"}, InvalidArgument, "tcp://HOST:PORT"),
    "plain http": ({"host": "http://127.0.0.1:1"}, InvalidArgument, "tcp://HOST:PORT"),
    "ssh": ({"host": "ssh://a@example"}, InvalidArgument, "tcp://HOST:PORT"),
    "nobody there": ({"host": "tcp://127.0.0.1:9"}, Unreachable, "nobody listens"),
    "a name that is unknown": ({"host": "tcp://nowhere.invalid:2376"}, Unreachable, "reached"),
}


@pytest.mark.parametrize(("change", "error", "words"), WRONG.values(), ids=WRONG)
async def test_wrong_papers_are_told_apart_before_anything_is_made(
    remote, papers, change, error, words
):
    with pytest.raises(error, match=words) as caught:
        await DockerProvider().pin(SPEC, context(papers, remote, **change))
    assert "PRIVATE KEY" not in str(caught.value)


async def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(papers, locked_key):
    """The library's own way is to ask the terminal, and to wait."""
    with pytest.raises(Unauthorized, match="passphrase"):
        await DockerProvider().pin(SPEC, context(papers, 9, key=f"file:{locked_key}"))


async def test_a_port_that_speaks_no_tls_is_said(papers):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unauthorized, match="TLS"):
            await DockerProvider().pin(SPEC, context(papers, listener.getsockname()[1]))
        thread.join()


async def test_an_engine_that_this_process_has_not_used_cannot_be_asked():
    """Its credentials come with a context, which gc does not have."""
    with pytest.raises(Unavailable, match="far"):
        await DockerProvider().destroy(
            InstanceRef(provider="docker", id="pinfold-x", data={"connection": "far"})
        )


def test_no_secret_is_in_a_spec_or_in_what_is_pinned(papers):
    text = repr(PinnedSpec(spec=SPEC, pins={"image_id": "sha256:0"}, provider="docker"))
    assert "PRIVATE" not in text


@pytest.fixture
def locked_key(papers, tmp_path) -> Path:
    """The client's key, with a passphrase."""
    key = serialization.load_pem_private_key(Path(papers["right-client-key"]).read_bytes(), None)
    path: Path = tmp_path / "locked.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return path


@pytest.fixture
def peers(papers):
    """A TLS server of ours, from the standard library, and what a client needs."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(papers["right-server"], papers["right-server-key"])
    client = ssl.create_default_context(cafile=papers["right-ca"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, server, client


async def test_one_direction_ends_and_the_other_goes_on(peers):
    listener, server, client = peers
    got: list[bytes] = []

    def serve() -> None:
        """Echo while it comes, and much more after its end."""
        raw, _ = listener.accept()
        raw.settimeout(10)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = server.wrap_bio(incoming, outgoing, server_side=True)

        def step(what):
            while True:
                try:
                    return what()
                except ssl.SSLWantReadError:
                    raw.sendall(outgoing.read())
                    incoming.write(raw.recv(65536))
                finally:
                    raw.sendall(outgoing.read())

        step(tls.do_handshake)
        while True:
            try:
                data = step(lambda: tls.read(65536))
            except ssl.SSLZeroReturnError:
                break
            if not data:
                break
            got.append(data)
            tls.write(data)
            raw.sendall(outgoing.read())
        for _ in range(64):
            tls.write(bytes(16384))
            raw.sendall(outgoing.read())
        tls.unwrap()
        raw.sendall(outgoing.read())
        raw.close()

    thread = threading.Thread(target=serve)
    thread.start()
    stream = await TLSStream.wrap(await connect_tcp(*listener.getsockname()), client, "127.0.0.1")
    await stream.send(b"x" * 100_000)
    await stream.send_eof()
    await stream.send_eof()
    chunks: list[bytes] = []
    with pytest.raises(anyio.EndOfStream):
        await _read_into(chunks, stream)
    await stream.aclose()
    thread.join()
    assert b"".join(got) == b"x" * 100_000
    assert b"".join(chunks) == b"x" * 100_000 + bytes(64 * 16384)


async def _read_into(chunks: list[bytes], stream: TLSStream) -> None:
    while True:
        chunks.append(await stream.receive())
