"""What a bashkit sandbox can reach: nothing, or exactly the hosts of an allowlist (SP-1, TR-1).

Each denial has its counterpart: the same request, in a sandbox that may, arrives.
"""

from __future__ import annotations

import http.server
import threading
from typing import Any

import pytest

from tests.providers.bashkit.support import Stopwatch, make, sh

pytestmark = pytest.mark.anyio

#: A name that means this machine everywhere; its addresses are private ones.
HOST = "localhost"
ALLOWED: dict[str, Any] = {
    "containment": {"network": {"mode": "allowlist", "allowed_hosts": [HOST, "example.com"]}},
    "target": {"options": {"private_hosts": True}},
}


class Listener(http.server.ThreadingHTTPServer):
    """An HTTP server on the loopback interface that notes who came."""

    def __init__(self, port):
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", port), _Handler)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        assert isinstance(self.server, Listener)
        self.server.seen.append(self.path)
        if self.path.startswith("/redirect?"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
        else:
            self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


@pytest.fixture
def listener():
    """On any port."""
    with Listener(0) as server:
        yield server


@pytest.fixture
def web():
    """On port 80, which is one of the two that an allowlist means."""
    try:
        server = Listener(80)
    except OSError as exc:
        pytest.skip(f"port 80 of 127.0.0.1 can't be had here: {exc}")
    with server:
        yield server


CLIENTS = ["curl -sS {url}", "wget -q -O - {url}", "http GET {url}"]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("host", [HOST, "127.0.0.1", "[::1]"])
async def test_deny_lets_nothing_out(box, listener, client, host):
    """TR-1: deny, with every client that there is."""
    url = f"http://{host}:{listener.server_port}/"
    result = await sh(box, client.format(url=url), timeout_seconds=10)
    assert b"network access not configured" in result.stdout + result.stderr
    assert listener.seen == []


async def test_deny_lets_nothing_out_by_other_ways(box, listener):
    """TR-1: no sockets, no resolver, no other program."""
    port = listener.server_port
    script = (
        f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hi > /dev/tcp/{HOST}/{port};"
        f"echo hi > /dev/udp/{HOST}/{port}; nc 127.0.0.1 {port}; ssh {HOST}; git clone {HOST};"
        f"openssl s_client -connect {HOST}:{port}; python3 -c 1; true"
    )
    assert (await sh(box, script, timeout_seconds=10)).exit_code == 0
    assert listener.seen == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_allowed_host_is_reached(web, client):
    """TR-1: the other half of deny."""
    box = await make(**ALLOWED)
    result = await sh(box, client.format(url=f"http://{HOST}/hello"), timeout_seconds=30)
    assert (result.exit_code, result.stdout[-3:]) == (0, b"ok\n"), result.stderr
    assert web.seen == ["/hello"]


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1/", id="its address"),
        pytest.param("http://2130706433/", id="its address as a number"),
        pytest.param("http://[::1]/", id="its other address"),
        pytest.param(f"http://{HOST}.evil.example/", id="a longer name"),
        pytest.param(f"http://evil{HOST}/", id="a name that ends so"),
        pytest.param(f"http://sub.{HOST}/", id="a name below"),
        pytest.param(f"http://{HOST}./", id="with a trailing dot"),
        pytest.param(f"http://{HOST}@127.0.0.1/", id="as a user"),
        pytest.param(f"http://{HOST}:%40@127.0.0.1/", id="as a user with a password"),
        pytest.param(f"http://127.0.0.1#@{HOST}/", id="behind a fragment"),
        pytest.param(f"ftp://{HOST}/", id="another scheme"),
        pytest.param("file:///etc/passwd", id="a file"),
        pytest.param(f"http://{HOST}:81/", id="another port"),
        pytest.param(f"https://{HOST}:80/", id="the other scheme's port"),
    ],
)
async def test_what_only_looks_like_an_allowed_host_is_not(web, url):
    """SP-1: name and port exactly, not a prefix of a text."""
    box = await make(**ALLOWED)
    result = await sh(box, f"curl -sS '{url}'", timeout_seconds=30)
    assert result.exit_code != 0
    assert b"not in allowlist" in result.stderr
    assert web.seen == []


async def test_only_the_two_ports_are_meant(web, listener):
    """SP-1: 80 and 443; a listener of ours on another port is not reached."""
    box = await make(**ALLOWED)
    url = f"http://{HOST}:{listener.server_port}/"
    assert (await sh(box, f"curl -sS {url}", timeout_seconds=30)).exit_code != 0
    assert (await sh(box, f"curl -sS http://{HOST}:80/", timeout_seconds=30)).exit_code == 0
    assert (listener.seen, web.seen) == ([], ["/"])


@pytest.mark.parametrize(
    "client", ["curl -sS -L {url}", "curl -sS --location {url}", "wget -q -O - {url}"]
)
async def test_a_redirect_is_no_way_round(web, listener, client):
    """SP-1: the host that it leads to is judged as any other."""
    box = await make(**ALLOWED)
    url = f"'http://{HOST}/redirect?http://127.0.0.1:{listener.server_port}/'"
    await sh(box, client.format(url=url), timeout_seconds=30)
    assert len(web.seen) == 1
    assert listener.seen == []


@pytest.mark.parametrize("how", ["-x http://127.0.0.1:{port}", "--resolve {host}:80:127.0.0.9"])
async def test_options_of_the_client_are_no_way_round(web, listener, how):
    """SP-1."""
    box = await make(**ALLOWED)
    options = how.format(port=listener.server_port, host=HOST)
    await sh(box, f"curl -sS {options} http://{HOST}/x", timeout_seconds=30)
    assert web.seen in ([], ["/x"])
    assert listener.seen == []


async def test_a_proxy_in_the_environment_is_no_way_round(web, listener, monkeypatch):
    """SP-1, EX-12: neither the guest's nor this process's own."""
    proxy = f"http://127.0.0.1:{listener.server_port}"
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("ALL_PROXY", proxy)
    box = await make(**ALLOWED)
    env = {"http_proxy": proxy, "ALL_PROXY": proxy}
    result = await sh(box, f"curl -sS http://{HOST}/x", env=env, timeout_seconds=30)
    assert result.stdout == b"ok\n"
    assert (web.seen, listener.seen) == (["/x"], [])


async def test_private_addresses_need_the_option(web):
    """SP-1: a name of the list that means an address of this network does not count."""
    box = await make(**{**ALLOWED, "target": {}})
    result = await sh(box, f"curl -sS http://{HOST}/", timeout_seconds=30)
    assert result.exit_code != 0
    assert b"private" in result.stderr
    assert web.seen == []


async def test_a_server_that_never_answers_is_cut_by_the_timeout():
    """EX-4: also where bashkit waits for a socket."""

    class Silent(_Handler):
        def do_GET(self):
            release.wait(20)

    release = threading.Event()
    try:
        server = Listener(80)
    except OSError as exc:
        pytest.skip(f"port 80 of 127.0.0.1 can't be had here: {exc}")
    server.RequestHandlerClass = Silent
    with server:
        box = await make(**ALLOWED)
        watch = Stopwatch()
        try:
            result = await sh(
                box, f"echo out; curl -sS http://{HOST}/; touch late", timeout_seconds=1
            )
            assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"out\n")
            assert watch.seconds < 1 + 5
            assert await box.files.list("/workspace") == []
        finally:
            release.set()
