"""The virtual file system of one sandbox.

A stand-alone `bashkit.FileSystem` takes every path by the letter: it never follows a link, only the
interpreter does. So a link can lead an operation nowhere: `locate` follows links name by name, and
what is done then is done to a literal name. A name that is swapped for a link in between is simply
not there any more (FS-2).
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import attrs

from pinfold.errors import InvalidArgument, Lost, NotADirectory, NotFound, OutsideWorkspace
from pinfold.provider import FileStat, FileType
from pinfold.spec import WORKSPACE
from pinfold_bashkit._errors import translated

if TYPE_CHECKING:
    from bashkit import FileSystem

__all__ = ["HOME", "SYSTEM", "Place", "Vfs", "walk"]

HOME: Final = "/home/sandbox"
#: Directories that all sandboxes share, read-only: bashkit's own commands and seeded facts.
SYSTEM: Final = ("bin", "etc", "proc", "usr")
#: Where files are put together before they get their name; guests have no reason to look there.
_STAGING: Final = "/dev/.pinfold"
_MAX_LINKS: Final = 40
#: What bashkit gives a file that it writes, also one that had another mode.
_DEFAULT_MODE: Final = 0o644

_TYPES: Final = {
    "file": FileType.FILE,
    "directory": FileType.DIRECTORY,
    "symlink": FileType.SYMLINK,
}


def _new_file_system() -> FileSystem:
    from bashkit import FileSystem

    with translated("/"):
        return FileSystem()


@attrs.frozen
class Place:
    """Where a path leads.

    Attributes:
        path: absolute and literal: no part of it but the last is a link.
        meta: what bashkit tells of it; null when there is nothing of that name.
    """

    path: str
    meta: dict[str, Any] | None

    @property
    def type(self) -> FileType | None:
        """What is there, or None."""
        if self.meta is None:
            return None
        return _TYPES.get(self.meta["file_type"], FileType.OTHER)


class Vfs:
    """A sandbox's files; `root` can be replaced as a whole, by a copy or a restored tree.

    Attributes:
        changes: grows whenever something may have been written.
    """

    def __init__(self, root: FileSystem | None = None) -> None:
        self.changes = 0
        self._moving: anyio.Event | None = None
        self._temporary = itertools.count()
        self._root: FileSystem | None = root or self.blank()

    @property
    def root(self) -> FileSystem:
        """The file system in force.

        Raises:
            Lost: the sandbox was destroyed.
        """
        if self._root is None:
            raise Lost("the bashkit sandbox is gone", hint="its files were in this process only")
        return self._root

    @root.setter
    def root(self, root: FileSystem) -> None:
        self._root = root
        self.changes += 1

    async def ready(self) -> None:
        """Wait until the files may be used; what then happens before the next await is one step."""
        await anyio.lowlevel.checkpoint()
        while self._moving is not None:
            await self._moving.wait()

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Hold file operations back while the root is exchanged, so that none is lost."""
        self._moving = moved = anyio.Event()
        try:
            yield
        finally:
            self._moving = None
            moved.set()

    @property
    def gone(self) -> bool:
        """It was destroyed."""
        return self._root is None

    def destroy(self) -> None:
        """Drop every file."""
        self._root = None

    @staticmethod
    def blank() -> FileSystem:
        """Return a file system as a new sandbox has it."""
        root = _new_file_system()
        with translated("/"):
            root.remove("/home/user", recursive=True)
            for path in (HOME, str(WORKSPACE), _STAGING):
                root.mkdir(path)
        return root

    def copy(self, *, workspace: bool) -> tuple[FileSystem, list[str]]:
        """Return a copy of everything, or of all but the workspace, and the FIFOs left out.

        A file that goes away meanwhile is left out: what copies may race with a guest.
        """
        source, target, fifos = self.root, self.blank(), []
        for name, meta in _entries(source, "/"):
            if name == "dev" or (name == WORKSPACE.name and not workspace):
                continue
            for path, item in itertools.chain([("/" + name, meta)], walk(source, "/" + name)):
                if item["file_type"] == "fifo":
                    fifos.append(path)
                else:
                    _copy_one(source, path, item, target, path)
        return target, fifos

    # --- names ---

    def stat(self, path: str) -> dict[str, Any] | None:
        """Return what is at a literal path, links not followed, or None."""
        root = self.root
        try:
            return root.stat(path)
        except RuntimeError as exc:
            if "not found" in str(exc) or "not a directory" in str(exc):
                return None
            with translated(path):
                raise

    def locate(self, path: PurePosixPath, *, follow: bool) -> Place:
        """Follow `path` name by name to where it really leads (FS-2).

        Missing names at the end are kept as they are, so that they can be made.

        Args:
            path: lies in the workspace by its text.
            follow: follow the last name too when it is a link.

        Raises:
            OutsideWorkspace: it leads out.
            NotADirectory: a name on the way is a file.
            NotFound: there is nothing where a link on the way leads.
            InvalidArgument: more than 40 links; a name that bashkit refuses.
        """
        todo = list(reversed(path.parts[1:]))
        done: list[str] = []
        meta: dict[str, Any] | None = None
        links = 0
        with translated(str(path)):
            while todo:
                name = todo.pop()
                if name == "..":
                    del done[-1:]
                    meta = self.root.stat("/" + "/".join(done))
                    continue
                if not done and name != WORKSPACE.name:
                    raise _outside(path)
                done.append(name)
                literal = "/" + "/".join(done)
                meta = self.stat(literal) if len(done) > 1 else self._workspace()
                if meta is None:
                    if ".." in todo:
                        raise NotFound(f"there is no {str(path)!r}", details={"path": str(path)})
                    done.extend(reversed(todo))
                    break
                if meta["file_type"] == "symlink":
                    if todo or follow:
                        links += 1
                        if links > _MAX_LINKS:
                            raise InvalidArgument(f"{str(path)!r} goes through too many links")
                        text = self.root.read_link(literal)
                        done = [] if text.startswith("/") else done[:-1]
                        parts = [part for part in text.split("/") if part not in ("", ".")]
                        todo.extend(reversed(parts))
                        if done and not todo:  # the text has no part, as `.`: it leads here
                            meta = self.root.stat("/" + "/".join(done))
                elif todo and meta["file_type"] != "directory":
                    raise NotADirectory(
                        f"{str(path)!r} goes through {literal!r}, which is no directory",
                        details={"path": str(path)},
                    )
        if not done:
            raise _outside(path)
        return Place("/" + "/".join(done), meta)

    def _workspace(self) -> dict[str, Any]:
        """Return what is known of the workspace; make it anew where a guest put anything else."""
        return self._directory(str(WORKSPACE))

    def _directory(self, path: str) -> dict[str, Any]:
        root, meta = self.root, self.stat(path)
        if meta is None or meta["file_type"] != "directory":
            if meta is not None:
                root.remove(path)
            root.mkdir(path)
            self.changes += 1
            meta = root.stat(path)
        return meta

    def _staged(self, name: str) -> str:
        """Return a free path to put a file together at, whatever a guest did to the place."""
        self._directory(_STAGING.rpartition("/")[0])
        self._directory(_STAGING)
        path = f"{_STAGING}/{name}"
        if self.root.exists(path):
            self.root.remove(path, recursive=True)
        return path

    @contextmanager
    def parents(self, path: str) -> Iterator[None]:
        """Make the directories above a literal path that are missing, for a block that fills them.

        When it fails they are removed again, but for those that others have used since (FS-4).
        """
        root, missing, made = self.root, [], []
        parent = path.rpartition("/")[0]
        while self.stat(parent) is None:
            missing.append(parent)
            parent = parent.rpartition("/")[0]
        try:
            for directory in reversed(missing):
                self.changes += 1
                root.mkdir(directory)
                made.append(directory)
            yield
        except BaseException:
            for directory in reversed(made):
                with suppress(RuntimeError):
                    root.remove(directory)
            raise

    def put(self, path: str, data: bytes, mode: int) -> None:
        """Give a literal path new content and mode, at once and whole (FS-4)."""
        root = self.root
        self.changes += 1
        if mode == _DEFAULT_MODE:
            root.write_file(path, data)
            parent = self.stat(path.rpartition("/")[0])
            if parent is None or parent["file_type"] != "directory":
                root.remove(path)  # bashkit takes a name below a link, where nobody finds it again
                raise NotFound(f"the directory of {path!r} is gone", details={"path": path})
            return
        temporary = self._staged(str(next(self._temporary)))
        try:
            root.write_file(temporary, data)
            root.chmod(temporary, mode)
            root.rename(temporary, path)
        except BaseException:
            if root.exists(temporary):
                root.remove(temporary)
            raise

    def stage(self, data: bytes) -> str:
        """Put bytes where only an interpreter is told to look; return the path."""
        with translated("stdin"):
            path = self._staged("stdin")
            self.root.write_file(path, data)
        return path

    def unstage(self) -> None:
        """Drop what `stage` put there."""
        if not self.gone and self.root.exists(f"{_STAGING}/stdin"):
            self.root.remove(f"{_STAGING}/stdin", recursive=True)

    def facts(self, path: PurePosixPath, literal: str, meta: dict[str, Any]) -> FileStat:
        """Return what is known of a name, as the caller sees it."""
        kind = _TYPES.get(meta["file_type"], FileType.OTHER)
        link = self.root.read_link(literal) if kind is FileType.SYMLINK else None
        size = 0
        if kind is FileType.FILE:
            size = meta["size"]
        elif link is not None:
            size = len(link.encode())
        return FileStat(
            path=path,
            type=kind,
            size=size,
            mode=meta["mode"] & 0o7777,
            mtime_ns=round(meta["modified"] * 1_000_000) * 1000,
            link=link,
        )


def walk(fs: FileSystem, top: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and facts of everything below a directory, sorted, parents first."""
    pending = [top]
    while pending:
        directory = pending.pop()
        below = []
        for name, meta in _entries(fs, directory):
            path = f"{directory}/{name}"
            yield path, meta
            if meta["file_type"] == "directory":
                below.append(path)
        pending.extend(reversed(below))


def _entries(fs: FileSystem, directory: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        entries = fs.read_dir(directory)
    except RuntimeError:  # no directory, or gone meanwhile
        return []
    return sorted((entry["name"], entry["metadata"]) for entry in entries)


def _copy_one(
    source: FileSystem, path: str, meta: dict[str, Any], target: FileSystem, new_path: str
) -> None:
    kind, content = meta["file_type"], b""
    try:
        if kind == "symlink":
            target.symlink(source.read_link(path), new_path)
            return
        if kind == "file":
            content = source.read_file(path)
    except RuntimeError:  # gone meanwhile
        return
    if kind == "file":
        target.write_file(new_path, content)
    elif not target.exists(new_path):
        target.mkdir(new_path)
    target.chmod(new_path, meta["mode"])


@cache
def system_directories() -> dict[str, FileSystem]:
    """Return what bashkit seeds under `SYSTEM`; made once, mounted read-only everywhere."""
    from bashkit import Bash

    seeded = Bash().fs()
    made = {}
    for name in SYSTEM:
        target = _new_file_system()
        for entry in target.read_dir("/"):
            target.remove("/" + entry["name"], recursive=True)
        for path, meta in walk(seeded, "/" + name):
            _copy_one(seeded, path, meta, target, path.removeprefix("/" + name))
        made[name] = target
    for place in ("bin", "usr"):
        # By its path too, sleep must be the one that can be ended (see Interpreter).
        path = "/sleep" if place == "bin" else "/bin/sleep"
        made[place].write_file(path, b'#!/bin/sh\nsleep "$@"\n')
        made[place].chmod(path, 0o755)
    return made


def _outside(path: PurePosixPath) -> OutsideWorkspace:
    return OutsideWorkspace(
        f"{str(path)!r} leads out of the workspace",
        hint="links are followed only where they stay inside",
        details={"path": str(path)},
    )
