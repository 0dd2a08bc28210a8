"""The workspace as a whole (CP): scanned by content, restored by exchanging the file system."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from pinfold.errors import (
    CheckpointCorrupt,
    Conflict,
    InvalidArgument,
    OutsideWorkspace,
    PinfoldError,
    TooLarge,
)
from pinfold.provider import (
    Blob,
    Entry,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Tree,
    guest_path,
)
from pinfold.spec import WORKSPACE, Limits
from pinfold_bashkit._errors import translated
from pinfold_bashkit._files import closing
from pinfold_bashkit._interpreter import WARM
from pinfold_bashkit._vfs import Vfs, walk

__all__ = ["BashkitTree"]

_TOP = str(WORKSPACE)
_PIECE = 1024 * 1024


class BashkitTree(Tree):
    """bashkit has no inodes and no ctimes, and guests can set mtimes: every scan hashes (CP-7).

    Only where nothing could have been written since, because nothing ran, it is not read again.
    """

    def __init__(
        self, vfs: Vfs, limits: Limits, turn: anyio.Lock, threads: anyio.CapacityLimiter
    ) -> None:
        self._vfs = vfs
        self._limits = limits
        self._turn = turn
        self._threads = threads

    def _token(self) -> str:
        # A file system is of this process, and so is its id: a token never fits another one.
        return f"{id(self._vfs):x}.{self._vfs.changes}"

    async def scan(self, since: ScanState | None = None) -> Scan:
        idle = not self._turn.locked()
        token = self._token() if idle else ""
        if since is not None and since.token and since.token == token:
            return Scan(state=since, unchanged=True)
        return await anyio.to_thread.run_sync(self._scan, token, limiter=self._threads)

    def _scan(self, token: str) -> Scan:
        entries: list[Entry] = []
        skipped: list[str] = []
        unsettled: list[str] = []
        root = self._vfs.root
        for path, meta in walk(root, _TOP):
            name = path.removeprefix(_TOP + "/")
            kind, mode = meta["file_type"], meta["mode"] & 0o7777
            mtime = round(meta["modified"] * 1_000_000) * 1000
            try:
                if kind == "directory":
                    entry = Entry(path=name, type=FileType.DIRECTORY, mode=mode, mtime_ns=mtime)
                elif kind == "symlink":
                    entry = Entry(
                        path=name,
                        type=FileType.SYMLINK,
                        mode=0o777,
                        link=root.read_link(path),
                        mtime_ns=mtime,
                    )
                elif kind == "file":
                    content, settled = self._settled(path)
                    if not settled:
                        unsettled.append(name)
                    entry = Entry(
                        path=name,
                        type=FileType.FILE,
                        mode=mode,
                        size=len(content),
                        digest=hashlib.sha256(content).hexdigest(),
                        mtime_ns=mtime,
                    )
                else:
                    skipped.append(name)
                    continue
            except RuntimeError:  # gone, or something else by now
                continue
            entries.append(entry)
        return Scan(
            entries=tuple(sorted(entries, key=lambda entry: entry.path)),
            skipped=tuple(sorted(skipped)),
            unsettled=tuple(sorted(unsettled)),
            state=ScanState(token=token),
        )

    def _settled(self, path: str) -> tuple[bytes, bool]:
        """Return a file's content, and whether it stood still while it was read."""
        root = self._vfs.root
        before = _stamp(root.stat(path))
        content = root.read_file(path)  # one moment's: bashkit reads under a lock
        return content, _stamp(root.stat(path)) == before

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        for entry in entries:
            await anyio.lowlevel.checkpoint()
            try:
                content = self._vfs.root.read_file(f"{_TOP}/{entry.path}")
            except (RuntimeError, UnicodeEncodeError):
                yield Blob(path=entry.path, data=b"", last=True)
                continue
            digest = hashlib.sha256(content).hexdigest()
            for start in range(0, len(content) or 1, _PIECE):
                piece, last = content[start : start + _PIECE], start + _PIECE >= len(content)
                yield Blob(path=entry.path, data=piece, last=last, digest=digest if last else "")

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        if self._turn.locked():
            raise Conflict("a command is running", hint="restore when it has ended")
        async with self._turn:
            root, _ = await anyio.to_thread.run_sync(
                lambda: self._vfs.copy(workspace=False), limiter=self._threads
            )
            fresh = Vfs(root)
            for entry in plan.entries:
                await self._place(fresh, entry, plan)
            links = [entry.path for entry in plan.entries if entry.type is FileType.SYMLINK]
            escaping = tuple(path for path in links if _escapes(fresh, path))
            # The live tree is exchanged in one step: there is nothing to journal (CP-3).
            self._vfs.root = fresh.root
            WARM.drop(self._vfs)
            state = ScanState(token=self._token())
        return RestoreReport(escaping_links=escaping, state=state)

    async def _place(self, vfs: Vfs, entry: Entry, plan: RestorePlan) -> None:
        path, root = f"{_TOP}/{entry.path}", vfs.root
        parent = vfs.stat(path.rpartition("/")[0])
        if str(guest_path(path)) != path or parent is None or parent["file_type"] != "directory":
            raise InvalidArgument(f"{entry.path!r} is no place in a tree")
        with translated(path):
            there = vfs.stat(path)
        if there is not None:
            raise InvalidArgument(f"{entry.path!r} is in the tree twice")
        if entry.type is FileType.DIRECTORY:
            with translated(path):
                root.mkdir(path)
                root.chmod(path, entry.mode)
        elif entry.type is FileType.SYMLINK:
            with translated(path):
                root.symlink(entry.link or "", path)
        else:
            content = await self._fetch(entry, plan)
            with translated(path):
                root.write_file(path, content)
                root.chmod(path, entry.mode)
        await anyio.lowlevel.checkpoint()

    async def _fetch(self, entry: Entry, plan: RestorePlan) -> bytes:
        limit = self._limits.file_bytes
        if limit is not None and entry.size > limit:
            raise TooLarge(
                f"{entry.path!r} has {entry.size} bytes; a file here has at most {limit}",
                details={"path": entry.path, "size": entry.size, "limit": limit},
            )
        content = bytearray()
        async with closing(plan.fetch(entry.digest)) as chunks:
            async for chunk in chunks:
                content += chunk
                if len(content) > entry.size:
                    break
        if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.digest:
            raise CheckpointCorrupt(
                f"the content of {entry.path!r} is not what the checkpoint says",
                details={"path": entry.path, "digest": entry.digest},
            )
        return bytes(content)

    async def recover(self) -> bool:
        return False  # a restore has happened, or it has not


def _stamp(meta: dict[str, Any]) -> tuple[Any, ...]:
    return meta["file_type"], meta["size"], meta["modified"]


def _escapes(vfs: Vfs, path: str) -> bool:
    try:
        vfs.locate(PurePosixPath(_TOP, path), follow=True)
    except OutsideWorkspace:
        return True
    except PinfoldError:
        return False
    return False
