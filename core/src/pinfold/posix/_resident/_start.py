"""How the helper gets into a target, and how it is found again (docs/helper.md)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import PurePosixPath
from typing import Final

import anyio
import attrs

from pinfold.errors import PinfoldError, Unavailable
from pinfold.posix._guest import Guest, Process
from pinfold.posix._resident._link import Connector, Link
from pinfold.posix._resident._session import Session
from pinfold.posix._resident._wire import Malformed

__all__ = ["NoHelper", "Running", "load", "remove", "start"]

#: Where it may be put, the best first; one that is full, read-only or noexec is passed over.
FOLDERS: Final = ("/tmp", "/dev/shm", "/var/tmp", "/run")  # noqa: S108 -- in the target
_START_SECONDS: Final = 20.0
_LINE_BYTES: Final = 512
#: How `helper connect` ends when there is no helper, or the program itself is gone.
_NOBODY: Final = (6, 126, 127)

#: $1 a random name, $2 what `helper purge` takes, or nothing, $3 the folder of a helper that was
#: killed, or nothing; then the folders. It says `machine folder`, then takes a line with a size and
#: that many bytes. `head` may read on: nothing else is sent before the helper greets.
_SCRIPT: Final = r"""
umask 077
name=$1 purge=$2 left=$3
shift 3
[ -z "$left" ] || rm -rf "$left"
for base in "$@"; do
  folder=$base/.pinfold-helper-$name
  mkdir "$folder" && printf '#!/bin/sh\nexit 7\n' >"$folder/helper" &&
    chmod 700 "$folder/helper" && "$folder/helper"
  [ $? = 7 ] && break
  rm -rf "$folder"
  folder=
done 2>/dev/null
[ "$folder" ] || { echo '- -'; exit 1; }
echo "$(uname -m) $folder"
read -r size || { rm -rf "$folder"; exit 1; }
rm -f "$folder/helper"
head -c "$size" >"$folder/helper" && chmod 700 "$folder/helper" || { rm -rf "$folder"; exit 1; }
[ -z "$purge" ] || "$folder/helper" purge $purge
exec "$folder/helper" serve "$folder"
"""


class NoHelper(Exception):
    """There is no helper here, and why; the shell path is what remains."""


def load(machine: str) -> bytes:
    """Return the program for a machine, as `uname -m` calls it; its digest has been checked.

    Raises:
        NoHelper: the dist isn't installed, is damaged, or has none for that machine.
    """
    try:
        package = import_module("pinfold_helper")
    except ModuleNotFoundError:
        raise NoHelper("the dist pinfold-helper is not installed") from None
    try:
        program: bytes = package.load(machine)
    except (LookupError, OSError, ValueError) as exc:
        raise NoHelper(str(exc)) from exc
    return program


class _ProcessLink(Link):
    """A connection over the pipes of a process in the target."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def receive(self, max_bytes: int) -> bytes:
        return await self._process.stdout.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        await self._process.stdin.send(data)

    def send_now(self, data: bytes) -> int:
        return self._process.send_now(data)

    def was_cut(self) -> bool:
        return self._process.was_cut()

    async def was_refused(self) -> bool:
        await self._end_input()
        return await self._process.wait() in _NOBODY

    async def aclose(self) -> None:
        try:
            await self._end_input()
        finally:
            await self._process.aclose()

    async def _end_input(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._process.stdin.aclose()


class _SpawnConnector(Connector):
    """Reaches a helper again, by its socket, through another spawn."""

    def __init__(self, guest: Guest, folder: str) -> None:
        self._guest = guest
        self._folder = folder

    async def connect(self) -> Link:
        argv = [f"{self._folder}/helper", "connect", self._folder]
        return _ProcessLink(await self._guest.spawn(argv, {}, PurePosixPath("/")))

    async def suspended(self) -> Unavailable | None:
        return await self._guest.suspended()


@attrs.frozen(kw_only=True)
class Running:
    """A helper that runs.

    Attributes:
        session: with it.
        machine: as `uname -m` says.
        folder: where it lies in the target.
    """

    session: Session
    machine: str
    folder: str


async def start(
    guest: Guest,
    *,
    purge: str = "",
    left: str = "",
    folders: tuple[str, ...] = FOLDERS,
    program: Callable[[str], bytes] = load,
    shell: str = "sh",
) -> Running:
    """Put the helper into a target, by one spawn, and start it.

    Args:
        guest: where.
        purge: what to end before, or nothing: `NAME=VALUE TICKS`, the beginning of a variable that
            marks the processes of earlier helpers, and the tick after which all was started by one
            (0: there is no such tick).
        left: the folder of a helper that was killed, which is removed; or nothing.
        folders: where it may be put.
        program: the machine's name to the program.
        shell: the target's.

    Raises:
        NoHelper: this target can't have one, and why.
        Lost, Unavailable: the target went away.
    """
    name = secrets.token_hex(8)
    argv = [shell, "-c", _SCRIPT, "pinfold", name, purge, left, *folders]
    process = await guest.spawn(argv, {}, PurePosixPath("/"))
    link = _ProcessLink(process)
    folder = ""
    try:
        with anyio.fail_after(_START_SECONDS):
            machine, folder = await _first_line(process)
            data = program(machine)
            await process.stdin.send(b"%d\n" % len(data))
            for at in range(0, len(data), 65536):
                await process.stdin.send(data[at : at + 65536])
            session = await Session.start(link, _SpawnConnector(guest, folder))
            digest = hashlib.sha256(data).hexdigest()
            if session.greeting.digest not in (digest, "0" * 64):
                raise NoHelper("the helper that runs is not the one that was sent")
            return Running(session=session, machine=machine, folder=folder)
    except BaseException as exc:
        with anyio.move_on_after(_START_SECONDS, shield=True):
            with suppress(PinfoldError):
                await process.signal(9)
            await link.aclose()
            if folder:  # what is not our helper leaves it there
                with suppress(PinfoldError):
                    await remove(guest, folder)
        if isinstance(exc, TimeoutError):
            raise NoHelper(f"the helper did not start within {_START_SECONDS:g} seconds") from exc
        if isinstance(exc, Malformed):
            raise NoHelper(str(exc)) from exc
        if isinstance(exc, (anyio.EndOfStream, anyio.BrokenResourceError)):
            raise NoHelper("the helper ended at once: the target does not let it run") from exc
        raise


async def remove(guest: Guest, folder: str) -> None:
    """Remove the folder of a helper that is gone.

    Raises:
        Lost, Unavailable: the target went away.
    """
    process = await guest.spawn(["rm", "-rf", folder], {}, PurePosixPath("/"))
    try:
        await process.wait()
    finally:
        await process.aclose()


async def _first_line(process: Process) -> tuple[str, str]:
    line = b""
    try:
        while b"\n" not in line:
            line += await process.stdout.receive(_LINE_BYTES)
            if len(line) > _LINE_BYTES:
                raise NoHelper("the target's shell says more than it was asked for")
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        raise NoHelper("the target has no shell that could start the helper") from None
    machine, _, folder = line.decode("utf-8", "replace").strip().partition(" ")
    if not folder.startswith("/"):
        raise NoHelper("no folder of the target is writable and lets programs run")
    return machine, folder
