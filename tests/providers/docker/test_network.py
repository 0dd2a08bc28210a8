"""Deny and allow, proved both ways with listeners of ours (TR-1).

The listeners are on the address at which this machine is seen from a container, and in another
sandbox. A control shows first that each can be reached at all.
"""

import socket
import threading

import pytest

from pinfold.errors import InvalidArgument, Unavailable
from pinfold.provider import ExecRequest
from pinfold_docker._engine import Engine, local_endpoint
from pinfold_docker._network import ensure_network
from pinfold_docker._trouble import facts_of
from tests.providers.docker.support import DEBIAN, box, eventually, make, said, sh

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What a network lets through does not depend on the event loop here."""
    return "asyncio"


@pytest.fixture(scope="module")
async def denied(provider):
    instance = await make(provider, image=DEBIAN)
    yield instance
    await instance.destroy()


@pytest.fixture(scope="module")
async def allowed(provider, client):
    if not client.info()["BridgeNfIptables"]:
        pytest.skip("the engine's host does not filter traffic on bridges")
    instance = await make(provider, image=DEBIAN, network="allow", ports=(8080,))
    yield instance
    await instance.destroy()


@pytest.fixture(scope="module")
def gateway(client, allowed) -> str:
    """Where this machine is seen from a sandbox with a network."""
    (network,) = client.networks.list(names=["pinfold"])
    network.reload()
    address: str = network.attrs["IPAM"]["Config"][0]["Gateway"]
    return address


@pytest.fixture(scope="module")
def listener(gateway):
    """A TCP listener of ours that says hello, and a UDP one that echoes; both bound there."""
    try:
        server = socket.create_server((gateway, 0))
    except OSError:
        pytest.skip("the engine runs on another machine than the tests")
    port = server.getsockname()[1]
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((gateway, port))

    def greet() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.sendall(b"hello from outside\n")

    def echo() -> None:
        while True:
            try:
                data, address = datagrams.recvfrom(100)
            except OSError:
                return
            if not data:
                return
            datagrams.sendto(data, address)

    threads = [threading.Thread(target=target) for target in (greet, echo)]
    for thread in threads:
        thread.start()
    with socket.create_connection((gateway, port)) as control:
        assert control.makefile().readline() == "hello from outside\n"
    yield gateway, port
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.sendto(b"", (gateway, port))
    datagrams.close()
    for thread in threads:
        thread.join()


# Only the Debian image can do all of it, by perl: TCP, UDP, IPv6, listening.
REACH = """
use IO::Socket::IP; alarm 4;
my ($proto, $host, $port) = @ARGV;
my $s = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Type => $proto eq "udp"
  ? SOCK_DGRAM : SOCK_STREAM, Proto => $proto, Timeout => 1) or exit 1;
$s->send("ping"); my $r = ""; vec($r, fileno($s), 1) = 1;
select($r, undef, undef, 1) or exit 1;
my $got; defined($s->recv($got, 100)) && length($got) or exit 1;
print "reached";
"""
SERVE = """
use IO::Socket::IP;
my ($proto, $port) = @ARGV;
my $s = IO::Socket::IP->new(LocalHost => "0.0.0.0", LocalPort => $port, Proto => $proto,
  Type => $proto eq "udp" ? SOCK_DGRAM : SOCK_STREAM, ReuseAddr => 1,
  $proto eq "udp" ? () : (Listen => 5)) or die $@;
while (1) {
  if ($proto eq "udp") { my $got; my $from = $s->recv($got, 100); $s->send($got, 0, $from); }
  else { my $c = $s->accept or next; print $c "served\n"; close $c; }
}
"""


async def reaches(instance, host: str, port: int, proto: str = "tcp") -> bool:
    argv = ["perl", "-e", REACH, proto, host, str(port)]
    return bool((await instance.exec(ExecRequest(argv=argv))).stdout == b"reached")


async def serve(instance, port: int, proto: str = "tcp") -> None:
    await said(instance, f"perl -e '{SERVE}' {proto} {port} >/dev/null 2>&1 </dev/null & :")

    async def listens() -> bool:
        return await reaches(instance, "127.0.0.1", port, proto)

    await eventually(listens)


async def test_allow_reaches_a_listener_outside(allowed, listener):
    for proto in ("tcp", "udp"):
        assert await reaches(allowed, listener[0], listener[1], proto)


async def test_deny_has_no_interface_but_the_loopback_and_no_route(denied):
    script = "cd /sys/class/net && echo *; tail -n +2 /proc/net/route; cat /proc/net/if_inet6"
    lines = (await said(denied, script)).splitlines()
    assert lines[0] == "lo"
    assert all(line.split()[-1] == "lo" for line in lines[1:])


async def test_deny_reaches_nothing_outside(denied, listener):
    for proto in ("tcp", "udp"):
        assert not await reaches(denied, listener[0], listener[1], proto)
        for host in ("192.0.2.1", "169.254.169.254", "172.17.0.1", "2001:db8::1", "fe80::1%lo"):
            assert not await reaches(denied, host, 53, proto), host


async def test_the_loopback_of_the_sandbox_is_its_own_and_works(denied, allowed):
    for instance in (denied, allowed):
        await serve(instance, 7777)
        await serve(instance, 7777, "udp")


async def test_the_loopback_of_the_machine_is_not_visible(denied, allowed, client):
    """Level isolated: also under allow."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
        for instance in (denied, allowed):
            assert not await reaches(instance, "127.0.0.1", port)


async def test_sandboxes_with_a_network_do_not_reach_each_other(provider, allowed, client):
    async with box(provider, image=DEBIAN, network="allow") as other:
        network = client.containers.get(other.ref.id).attrs["NetworkSettings"]["Networks"][
            "pinfold"
        ]
        address = network["IPAddress"]
        for proto in ("tcp", "udp"):
            await serve(other, 7001, proto)
            assert await reaches(other, address, 7001, proto)  # the control: it is there
            assert not await reaches(allowed, address, 7001, proto)
        v6 = "cat /proc/net/if_inet6 2>/dev/null | grep -v ' lo$'"
        assert (await sh(other, v6)).stdout == b""  # no second way, by link-local addresses


async def test_a_declared_port_is_published_on_the_loopback_alone(allowed, client):
    endpoint = await allowed.expose(8080)
    assert await allowed.expose(8080) == endpoint
    host, _, port = endpoint.url.removeprefix("tcp://").rpartition(":")
    assert host == "127.0.0.1"
    bindings = client.containers.get(allowed.ref.id).attrs["NetworkSettings"]["Ports"]
    assert [binding["HostIp"] for binding in bindings["8080/tcp"]] == ["127.0.0.1"]
    await serve(allowed, 8080)

    def served() -> bool:
        try:
            with socket.create_connection((host, int(port)), 2) as connection:
                return connection.makefile().readline() == "served\n"
        except OSError:
            return False

    await eventually(served)
    with pytest.raises(InvalidArgument, match="8080"):
        await allowed.expose(9090)


async def test_a_port_of_a_stopped_sandbox_is_not_said_to_be_undeclared(provider, allowed):
    async with box(provider, network="allow", ports=(8080,)) as instance:
        await instance.pause()
        with pytest.raises(Unavailable, match="stopped"):
            await instance.expose(8080)


async def test_without_filters_on_bridges_allow_is_refused_and_not_half_true(client):
    engine = Engine(local_endpoint())
    facts = {**await facts_of(engine), "BridgeNfIptables": False}
    with pytest.raises(Unavailable, match="reach each other"):
        await ensure_network(engine, facts)
