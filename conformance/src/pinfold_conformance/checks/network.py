"""Networks and containment levels, with listeners and canaries of our own (TR-1, section 0)."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pinfold_conformance._case import Case
from pinfold_conformance._expect import Inconclusive, equal, require
from pinfold_conformance._registry import Kind, check


class Listener:
    """A TCP listener of ours; it remembers who came."""

    def __init__(self, address: str) -> None:
        self._host = address
        try:
            self._socket = socket.create_server((address, 0))
        except OSError:  # the address is somebody else's word for this machine
            self._host = "127.0.0.1"
            self._socket = socket.create_server(("", 0))
        self.port: int = self._socket.getsockname()[1]
        self.callers = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            self.callers += 1
            caller.close()

    def reached_from_here(self) -> bool:
        """Positive control: the listener can be reached at all."""
        try:
            socket.create_connection((self._host, self.port), 2).close()
        except OSError:
            return False
        return self.seen(1)

    def seen(self, count: int, within: float = 2.0) -> bool:
        """Say whether so many callers came, waiting a little for the last."""
        end = time.monotonic() + within
        while self.callers < count and time.monotonic() < end:
            time.sleep(0.005)
        return self.callers >= count

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listening(address: str) -> Iterator[Listener]:
    """Listen while the body runs.

    Raises:
        Inconclusive: not even we reach it.
    """
    listener = Listener(address)
    try:
        if not listener.reached_from_here():
            raise Inconclusive("our own listener can't be reached from here")
        yield listener
    finally:
        listener.close()


async def attempt(case: Case, address: str, port: int) -> bytes:
    """Return what the guest says of a connection."""
    result = await case.sh(case.dialect.connect(address, port), timeout=20)
    answer = result.stdout.strip()
    if answer == b"no tool":
        raise Inconclusive("the guest has no tool to connect with")
    require(answer in (b"reached", b"refused"), f"the guest does not answer: {result.stdout!r}")
    return answer


def address_of(case: Case) -> str:
    """Return where the guest would find a listener of ours."""
    address = case.site.lane.listener_address(case.inner)
    if address is None:
        raise Inconclusive("the lane can't say where a listener of ours would be")
    return address


@check(
    "TR-1.network-deny",
    needs={"exec", "network:deny", "hook:listener"},
    kind=Kind.CLAIM,
    each_spec=True,
    deadline_s=60,
)
async def network_deny(case: Case) -> None:
    """deny: nothing of ours is reached from inside, by address or by loopback."""
    with listening(address_of(case)) as listener:
        before = listener.callers
        for address in dict.fromkeys((address_of(case), "127.0.0.1")):
            equal(await attempt(case, address, listener.port), b"refused", f"TCP to {address}")
        equal(listener.callers, before, "callers that our listener saw")


@check(
    "TR-1.network-allowlist",
    needs={"exec", "network:allowlist", "hook:listener"},
    kind=Kind.CLAIM,
    each_spec=True,
    deadline_s=60,
)
async def network_allowlist(case: Case) -> None:
    """allowlist: an address that is on no list is not reached."""
    with listening(address_of(case)) as listener:
        before = listener.callers
        for address in dict.fromkeys((address_of(case), "127.0.0.1")):
            equal(await attempt(case, address, listener.port), b"refused", f"TCP to {address}")
        equal(listener.callers, before, "callers that our listener saw")
    case.evidence["allowed hosts"] = "not tried: they are not ours"


@check(
    "TR-1.network-allow",
    needs={"exec", "network:allow", "hook:listener"},
    kind=Kind.CLAIM,
    each_spec=True,
    deadline_s=60,
)
async def network_allow(case: Case) -> None:
    """allow: a listener of ours is reached from inside."""
    with listening(address_of(case)) as listener:
        before = listener.callers
        equal(await attempt(case, address_of(case), listener.port), b"reached", "TCP to a listener")
        require(listener.seen(before + 1), "the guest says it got through; nobody came")


@check(
    "TR-1.network-unenforced",
    needs={"exec", "!cap:network_enforced", "hook:listener"},
    kind=Kind.CLAIM,
    each_spec=True,
    deadline_s=60,
)
async def network_unenforced(case: Case) -> None:
    """Without network_enforced the mode is allow, and a listener of ours is reached."""
    equal(str(case.pinned.spec.containment.network.mode), "allow", "the network mode (RS-9)")
    with listening(address_of(case)) as listener:
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
    for folder in folders:
        secret = secrets.token_hex(16).encode()
        try:
            with canary(folder, secret) as path:
                result = await case.sh(d.load(str(path)))
                require(secret not in result.stdout, f"a file of the host in {folder} is readable")
                await case.sh(d.save(str(path), b"overwritten"))
                equal(path.read_bytes(), secret, f"a file of the host in {folder}")
        except PermissionError:
            continue
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
    with listening("127.0.0.1") as listener:
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
