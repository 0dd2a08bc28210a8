"""A target with a helper in it: started, used, and started again when it was killed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final

import anyio

from pinfold.errors import Effect, NotFound, PinfoldError, Unavailable
from pinfold.posix._gate import Gate
from pinfold.posix._guest import COOKIE, Guest
from pinfold.posix._resident._batches import ResidentFiles
from pinfold.posix._resident._exec import ResidentGuest
from pinfold.posix._resident._places import Places
from pinfold.posix._resident._session import Session
from pinfold.posix._resident._start import FOLDERS, NoHelper, Running, load, remove, start
from pinfold.posix._resident._stream import Refused
from pinfold.posix._resident._tree import ResidentTree
from pinfold.posix._resident._wire import Call, text
from pinfold.spec import WORKSPACE, Limits, TreeKill

__all__ = ["Resident"]

#: How `helper purge` ends when it found something.
_ENDED: Final = 7


class Resident:
    """A target whose commands, files and tree go through a helper; made by `start`.

    Attributes:
        guest: runs commands and terminals.
        files: its files.
        tree: its workspace as a whole.
        restarts: how often the helper had to be started again; each time all processes were lost.
    """

    def __init__(
        self,
        guest: Guest,
        *,
        root: PurePosixPath,
        writable_roots: Sequence[PurePosixPath],
        mark: str,
        limits: Limits,
        gate: Gate,
        owns_processes: bool,
        folders: tuple[str, ...],
        program: Callable[[str], bytes],
    ) -> None:
        self._outer = guest
        self._gate = gate
        self._names = (WORKSPACE, *writable_roots)
        #: The workspace and the writable roots, as the target names them, all links resolved.
        self.physical = (root, *writable_roots)
        self._mark = mark
        self._owns_processes = owns_processes
        self._folders = folders
        self._program = program
        self._running: Running | None = None
        self._places: Places | None = None
        self._first_tick = 0
        self._starting = anyio.Lock()
        self._closed = False
        self.restarts = 0
        cookies = (f"{mark}{number:x}" for number in itertools.count())
        self.guest = ResidentGuest(self._current, cookies)
        self.files = ResidentFiles(self._passed, limits)
        self.tree = ResidentTree(self._current, self.guest, gate, self._end_earlier)
        gate.mend = self.tree.recover

    @classmethod
    async def start(
        cls,
        guest: Guest,
        *,
        root: PurePosixPath,
        writable_roots: Sequence[PurePosixPath] = (),
        mark: str,
        limits: Limits = Limits(),
        gate: Gate | None = None,
        owns_processes: bool = False,
        folders: tuple[str, ...] = FOLDERS,
        program: Callable[[str], bytes] = load,
    ) -> Resident:
        """Put a helper into a target and start it.

        Args:
            guest: the way in.
            root: the workspace, as the target names it.
            writable_roots: likewise; callers name them so too.
            mark: the beginning of the cookie of every command of this instance.
            limits: the target's own.
            gate: what commands and file operations pass; closed while a restore is under way.
            owns_processes: every process that starts there is of this sandbox's (a container):
                before a helper is started again, all that the first one saw begin are ended, but
                what process 1 has in its session. Otherwise those that bear the mark.
            folders: where the program may be put.
            program: the machine's name to the program.

        Raises:
            NoHelper: this target can't have one, and why.
            Lost, Unavailable: the target went away.
        """
        self = cls(
            guest,
            root=root,
            writable_roots=writable_roots,
            mark=mark,
            limits=limits,
            gate=gate or Gate(),
            owns_processes=owns_processes,
            folders=folders,
            program=program,
        )
        await self._start("")
        return self

    @property
    def session(self) -> Session:
        """The present session, working or not."""
        if self._running is None:
            raise Unavailable("the helper was never started")
        return self._running.session

    @property
    def description(self) -> str:
        """For the view: which helper it is."""
        running = self._running
        text_ = f"resident {running.machine}" if running is not None else "resident"
        return text_ + (f", started again {self.restarts} times" if self.restarts else "")

    @property
    def lacks(self) -> tuple[str, ...]:
        """What the target withholds from it, each with what it costs."""
        greeting = self.session.greeting
        facts = (
            (greeting.proc, "/proc: a timeout ends the command's group only"),
            (greeting.openat2, "openat2: paths are opened component by component"),
            (greeting.counters, "memory counters: a memory limit's kill is not told apart"),
        )
        return tuple(what for there, what in facts if not there)

    async def _end_earlier(self) -> bool:
        """End the jobs that a controller before this one, which detached, has left."""
        running = self._running
        if running is None:
            return False
        argv = [f"{running.folder}/helper", "purge", f"{COOKIE}={self._mark}", "0"]
        process = await self.guest.spawn(argv, {COOKIE: ""}, self.physical[0])
        return await process.wait() == _ENDED

    async def _passed(self) -> tuple[Session, Places]:
        await self._gate()
        return await self._current()

    async def _current(self) -> tuple[Session, Places]:
        running, places = self._running, self._places
        if running is not None:
            await running.session.check()
        if running is not None and places is not None and running.session.failure is None:
            return running.session, places
        async with self._starting:
            self._check_open()
            if self._running is None or self._running.session.failure is not None:
                ticks = self._first_tick if self._owns_processes else 0
                purge = f"{COOKIE}={self._mark} {ticks}"
                self.restarts += 1
                try:
                    await self._start(purge)
                except NoHelper as exc:
                    raise Unavailable(
                        f"the helper was ended and can't be started again: {exc}",
                        effect=Effect.NONE,
                    ) from None
                self._check_open()  # whoever closes it now waits for us
            if self._running is None or self._places is None:
                raise Unavailable("the helper was ended again at once", effect=Effect.NONE)
            return self._running.session, self._places

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(
                "the helper was ended with its instance",
                hint="attach to the instance again",
                effect=Effect.NONE,
            )

    async def _start(self, purge: str) -> None:
        running = await start(
            self._outer,
            purge=purge,
            left=self._running.folder if self._running is not None else "",
            folders=self._folders,
            program=self._program,
        )
        try:
            roots = [await _root(running.session, place) for place in self.physical]
        except BaseException:
            await running.session.aclose()
            raise
        self._running = running
        self.physical = tuple(place for _, place in roots)
        self._places = Places(self._names, self.physical, [number for number, _ in roots])
        greeting = running.session.greeting
        self._first_tick = self._first_tick or greeting.started
        whole = greeting.proc and greeting.subreaper
        self.guest.tree_kill = TreeKill.SUBREAPER if whole else TreeKill.GROUP

    async def detach(self) -> None:
        """Let go of it and leave background jobs running (feature `attach`)."""
        self._closed = True
        async with self._starting:
            if self._running is not None:
                await self._running.session.detach()

    async def sweep(self) -> None:
        """Remove its folder, once it is closed: one that was killed has left it.

        Raises:
            Lost, Unavailable: the target went away.
        """
        if self._running is not None:
            await remove(self._outer, self._running.folder)

    async def aclose(self) -> None:
        """End the helper and all that it started; no later call starts it again."""
        self._closed = True
        async with self._starting:  # one that is on its way comes first: it, too, is ended
            if self._running is not None:
                await self._running.session.aclose()


async def _root(session: Session, place: PurePosixPath) -> tuple[int, PurePosixPath]:
    try:
        cursor = await session.call(Call.ROOT, text(str(place)))
        number, real = cursor.u8(), PurePosixPath(os.fsdecode(cursor.text()))
        cursor.end()
    except Refused as exc:
        raise NotFound(
            f"the root {str(place)!r} can't be used: {exc.code.name.lower()}",
            details={"path": str(place), "errno": exc.errno},
        ) from None
    except PinfoldError as exc:
        raise NoHelper(f"the helper ended at once: {exc.message}") from exc
    return number, real
