"""Networks and containment levels, with listeners and canaries of our own (TR-1, section 0)."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pinfold.plugins import Catalog
from pinfold.resolve import resolve
from pinfold.spec import NetworkMode
from pinfold_conformance._case import Case
from pinfold_conformance._expect import Inconclusive, equal, require
from pinfold_conformance._registry import Kind, check
from pinfold_conformance.checks._listeners import Listener, listening
from pinfold_conformance.dialects import Means


async def attempt(case: Case, address: str, port: int, means: Means = "tcp") -> bytes:
    """Return what the guest says of reaching out: reached or refused.

    Raises:
        Inconclusive: it has no tool to try with, but could be given one.
    """
    result = await case.sh(case.dialect.connect(address, port, means), timeout=20)
    answer = result.stdout.strip()
    if answer == b"no tool":
        if case.capabilities.native_processes:
            raise Inconclusive("the guest has no tool to connect with")
        case.evidence[means] = "its interpreter has nothing to try it with"
        return b"refused"
    require(answer in (b"reached", b"refused"), f"the guest does not answer: {result.stdout!r}")
    return answer


async def held(case: Case, listener: Listener, *addresses: str, means: Means = "tcp") -> None:
    """Hold the target to reaching a listener of ours by no address."""
    # Its lane says that an address leads here; only TR-1.network-allow shows it.
    if not listener.at_its_address and NetworkMode.ALLOW not in _modes(case):
        raise Inconclusive(f"nothing proves that {addresses[0]} leads to this machine")
    before = listener.callers
    for address in dict.fromkeys(addresses):
        answer = await attempt(case, address, listener.port, means)
        equal(answer, b"refused", f"{means} to {address}")
    equal(listener.callers, before, f"callers that our listener ({means}) saw")


def _modes(case: Case) -> set[NetworkMode]:
    """Return the network modes that the lane tests."""
    catalog = Catalog([case.provider])
    specs = [resolve(spec, catalog) for spec in case.site.lane.specs]
    return {spec.containment.network.mode for spec in specs}


def address_of(case: Case) -> str:
    """Return where the guest would find a listener of ours."""
    address = case.site.lane.listener_address(case.inner)
    if address is None:
        raise Inconclusive("the lane can't say where a listener of ours would be")
    return address


def _network(mode: str, *hooks: str) -> set[str]:
    return {"exec", f"network:{mode}", *hooks}


@check(
    "TR-1.network-deny", needs=_network("deny", "hook:listener"), kind=Kind.CLAIM, each_spec=True,
    deadline_s=60,
)  # fmt: skip
async def network_deny(case: Case) -> None:
    """deny: nothing of ours is reached from inside, by address or by loopback."""
    with listening("tcp", address_of(case)) as listener:
        await held(case, listener, address_of(case), "127.0.0.1")


@check(
    "TR-1.network-deny-udp", needs=_network("deny", "hook:listener"), kind=Kind.CLAIM,
    each_spec=True, deadline_s=60,
)  # fmt: skip
async def network_deny_udp(case: Case) -> None:
    """deny: no datagram comes out, not even a question for a name's address."""
    with listening("udp", address_of(case)) as listener:
        await held(case, listener, address_of(case), "127.0.0.1", means="udp")


@check(
    "TR-1.network-deny-ipv6", needs=_network("deny"), kind=Kind.CLAIM, each_spec=True,
    deadline_s=60,
)  # fmt: skip
async def network_deny_ipv6(case: Case) -> None:
    """deny: IPv6 is denied as IPv4 is."""
    with listening("tcp", "::1") as listener:
        await held(case, listener, "::1")


@contextmanager
def _open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@check(
    "TR-1.network-deny-unix", needs=_network("deny"), kind=Kind.CLAIM, each_spec=True,
    deadline_s=60,
)  # fmt: skip
async def network_deny_unix(case: Case) -> None:
    """deny: no Unix socket of ours is reached, be it a file or a name in the kernel."""
    with _open_folder() as folder:
        for address in (f"{folder}/socket", f"@{case.name('abstract-')}"):
            with listening("unix", address) as listener:
                await held(case, listener, address, means="unix")


@check(
    "TR-1.network-allowlist", needs=_network("allowlist", "hook:listener"), kind=Kind.CLAIM,
    each_spec=True, deadline_s=60,
)  # fmt: skip
async def network_allowlist(case: Case) -> None:
    """allowlist: an address that is on no list is not reached."""
    with listening("tcp", address_of(case)) as listener:
        await held(case, listener, address_of(case), "127.0.0.1")
    with listening("udp", address_of(case)) as listener:
        await held(case, listener, address_of(case), "127.0.0.1", means="udp")


@check(
    "TR-1.network-allowlist-allowed", needs=_network("allowlist", "hook:listener"),
    kind=Kind.CLAIM, each_spec=True, deadline_s=90,
)  # fmt: skip
async def network_allowlist_allowed(case: Case) -> None:
    """allowlist: a host that is on the list is reached, on port 80."""
    hosts = [str(host) for host in case.pinned.spec.containment.network.allowed_hosts or ()]
    if "localhost" not in hosts:
        raise Inconclusive(f"none of the hosts allowed is ours to listen on: {', '.join(hosts)}")
    with listening("tcp", address_of(case), 80) as listener:
        before = listener.callers
        equal(await attempt(case, "localhost", 80), b"reached", "TCP to a host on the list")
        require(listener.seen(before + 1), "the guest says it got through; nobody came")


@check(
    "TR-1.network-allow", needs=_network("allow", "hook:listener"), kind=Kind.CLAIM,
    each_spec=True, deadline_s=60,
)  # fmt: skip
async def network_allow(case: Case) -> None:
    """allow: a listener of ours is reached from inside."""
    with listening("tcp", address_of(case)) as listener:
        before = listener.callers
        equal(await attempt(case, address_of(case), listener.port), b"reached", "TCP to a listener")
        require(listener.seen(before + 1), "the guest says it got through; nobody came")


@check(
    "TR-1.network-unenforced", needs={"exec", "!cap:network_enforced", "hook:listener"},
    kind=Kind.CLAIM, each_spec=True, deadline_s=60,
)  # fmt: skip
async def network_unenforced(case: Case) -> None:
    """Without network_enforced the mode is allow, and a listener of ours is reached."""
    equal(str(case.pinned.spec.containment.network.mode), "allow", "the network mode (RS-9)")
    with listening("tcp", address_of(case)) as listener:
        equal(await attempt(case, address_of(case), listener.port), b"reached", "TCP to a listener")


@contextmanager
def canary(folder: Path, secret: bytes, mode: int = 0o644) -> Iterator[Path]:
    """Put a secret into a file of this machine while the body runs."""
    path = folder / f".canary-{secrets.token_hex(8)}"
    path.write_bytes(secret)
    path.chmod(mode)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


async def _out_of_reach(case: Case, folders: list[Path]) -> None:
    d = case.dialect
    await case.sh(d.save("control", b"mine"))
    equal((await case.sh(d.load("control"))).stdout, b"mine", "a file of the guest's own")
    tried = []
    for folder in folders:
        secret = secrets.token_hex(16).encode()
        try:
            with canary(folder, secret) as path:
                result = await case.sh(d.load(str(path)))
                require(secret not in result.stdout, f"a file of the host in {folder} is readable")
                await case.sh(d.save(str(path), b"overwritten"))
                equal(path.read_bytes(), secret, f"a file of the host in {folder}")
        except OSError:  # nothing can be put there to be stolen: no permission, or read-only
            continue
        tried.append(str(folder))
    case.evidence["canaries"] = tried
    if not tried:
        raise Inconclusive(f"none of {', '.join(map(str, folders))} can be written to from here")
    environ = await case.sh(d.load(f"/proc/{os.getpid()}/environ"))
    mine = b"\0".join(os.fsencode(f"{k}={v}") for k, v in os.environ.items())
    shared = set(environ.stdout.split(b"\0")) & set(mine.split(b"\0")) - {b""}
    require(len(shared) < 3, "the controller's environment is readable by its process number")


@check(
    "TR-1.level-isolated",
    needs={"exec", "level:isolated"},
    kind=Kind.CLAIM,
    each_spec=True,
    deadline_s=60,
)
async def level_isolated(case: Case) -> None:
    """isolated: the host's files, processes and loopback are not visible at all."""
    await _out_of_reach(case, [Path(tempfile.gettempdir()), Path.home(), Path("/var/tmp")])  # noqa: S108
    with listening("tcp", "127.0.0.1") as listener:
        try:
            answer = await attempt(case, "127.0.0.1", listener.port)
        except Inconclusive as exc:
            case.evidence["loopback"] = str(exc)
        else:
            equal(answer, b"refused", "the host's loopback")
            equal(listener.callers, 1, "callers that our listener saw, we among them")


@check(
    "TR-1.level-native",
    needs={"exec", "level:native"},
    kind=Kind.CLAIM,
    each_spec=True,
    deadline_s=60,
)
async def level_native(case: Case) -> None:
    """native: homes, /run, /var, other sandboxes and other processes are out of reach."""
    folders = [Path.home(), Path("/var/tmp"), Path("/run"), Path(tempfile.gettempdir())]  # noqa: S108
    await _out_of_reach(case, folders)
    d = case.dialect
    async with case.another() as other:
        from pinfold.provider import ExecRequest

        where = await other.exec(ExecRequest(shell=d.seq(d.save("theirs", b"secret"), d.pwd())))
        place = where.stdout.strip().decode("utf-8", "surrogateescape")
        mine = await case.sh(d.load("theirs"))
        equal(mine.stdout, b"", "another sandbox's file under the same name")
        if place != "/workspace":
            stolen = await case.sh(d.load(f"{place}/theirs"))
            equal(stolen.stdout, b"", "another sandbox's file by its physical path")
    for place in ("/etc", "/usr", "/", "/var"):
        name = case.name("planted-")
        await case.sh(d.save(f"{place}/{name}", b"x"))
        require(not (Path(place) / name).exists(), f"a command wrote into the host's {place}")
