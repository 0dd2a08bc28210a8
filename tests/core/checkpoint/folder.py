"""A Tree over a plain folder: a target whose every step a test can watch, and spoil."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256
from pathlib import Path

from pinfold.provider import (
    Blob,
    Entry,
    FileMark,
    FileType,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Tree,
)

PIECE = 2**20


def nothing(path: str) -> None:
    pass


def same(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return entries


class FolderTree(Tree):
    """The workspace is `root`; what a restore stages is beside it.

    Attributes:
        hashed: paths that scans read, in order.
        sent: paths that reads sent, in order.
        before_read: called with a path just before it is sent, to change the file under way.
        entries_hook: what a scan says instead of the entries that it found.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.hashed: list[str] = []
        self.sent: list[str] = []
        self.before_read: Callable[[str], None] = nothing
        self.entries_hook: Callable[[tuple[Entry, ...]], tuple[Entry, ...]] = same

    async def scan(self, since: ScanState | None = None) -> Scan:
        started = time.time_ns()
        old = since.files if since else {}
        before = since.started_ns - 2 * 10**9 if since else 0
        entries: list[Entry] = []
        skipped: list[str] = []
        marks: dict[str, FileMark] = {}
        pending = [""]
        while pending:
            folder = pending.pop()
            with os.scandir(self.root / folder) as items:
                for item in items:
                    path = f"{folder}/{item.name}" if folder else item.name
                    info = item.stat(follow_symlinks=False)
                    mode = stat.S_IMODE(info.st_mode)
                    if stat.S_ISDIR(info.st_mode):
                        pending.append(path)
                        entries.append(
                            Entry(
                                path=path,
                                type=FileType.DIRECTORY,
                                mode=mode,
                                mtime_ns=info.st_mtime_ns,
                            )
                        )
                    elif stat.S_ISLNK(info.st_mode):
                        entries.append(
                            Entry(
                                path=path,
                                type=FileType.SYMLINK,
                                mode=mode,
                                link=str((self.root / path).readlink()),
                                mtime_ns=info.st_mtime_ns,
                            )
                        )
                    elif stat.S_ISREG(info.st_mode):
                        mark = old.get(path)
                        if (
                            mark is None
                            or info.st_ctime_ns >= before
                            or (mark.size, mark.mtime_ns, mark.ctime_ns, mark.inode)
                            != (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
                        ):
                            self.hashed.append(path)
                            digest = sha256((self.root / path).read_bytes()).hexdigest()
                            mark = FileMark(
                                info.st_size,
                                info.st_mtime_ns,
                                info.st_ctime_ns,
                                info.st_ino,
                                digest,
                            )
                        marks[path] = mark
                        entries.append(
                            Entry(
                                path=path,
                                type=FileType.FILE,
                                mode=mode,
                                size=info.st_size,
                                digest=mark.digest,
                                mtime_ns=info.st_mtime_ns,
                            )
                        )
                    else:
                        skipped.append(path)
        entries.sort(key=lambda entry: entry.path)
        return Scan(
            entries=self.entries_hook(tuple(entries)),
            skipped=tuple(sorted(skipped)),
            state=ScanState(started_ns=started, files=marks),
        )

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        for entry in entries:
            self.before_read(entry.path)
            self.sent.append(entry.path)
            whole = sha256()
            try:
                file = (self.root / entry.path).open("rb")
            except FileNotFoundError:
                yield Blob(path=entry.path, data=b"", last=True)
                continue
            with file:
                data = file.read(PIECE)
                while True:
                    following = file.read(PIECE) if len(data) == PIECE else b""
                    whole.update(data)
                    last = not following
                    digest = whole.hexdigest() if last else ""
                    yield Blob(path=entry.path, data=data, last=last, digest=digest)
                    if last:
                        break
                    data = following

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        staged = self.root.with_name(self.root.name + ".staged")
        old = self.root.with_name(self.root.name + ".old")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        for entry in plan.entries:
            place = staged / entry.path
            if entry.type is FileType.DIRECTORY:
                place.mkdir()
            elif entry.type is FileType.SYMLINK:
                place.symlink_to(entry.link or "")
            else:
                with place.open("wb") as file:
                    async for piece in plan.fetch(entry.digest):
                        file.write(piece)
                place.chmod(entry.mode)
                os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        for entry in reversed(plan.entries):
            if entry.type is FileType.DIRECTORY:
                (staged / entry.path).chmod(entry.mode)
                os.utime(staged / entry.path, ns=(entry.mtime_ns, entry.mtime_ns))
        self.root.rename(old)
        staged.rename(self.root)
        shutil.rmtree(old)
        return RestoreReport()

    async def recover(self) -> bool:
        old = self.root.with_name(self.root.name + ".old")
        if not old.exists():
            return False
        if not self.root.exists():
            old.rename(self.root)
        else:
            shutil.rmtree(old)
        return True


def contents(root: Path) -> dict[str, object]:
    """All that CP-2 speaks of, by path: mode and bytes, mode, or a link's text."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            place = Path(folder, name)
            path = str(place.relative_to(root))
            info = place.lstat()
            if stat.S_ISLNK(info.st_mode):
                found[path] = str(place.readlink())
            elif stat.S_ISDIR(info.st_mode):
                found[path] = stat.S_IMODE(info.st_mode)
            elif stat.S_ISREG(info.st_mode):
                found[path] = (stat.S_IMODE(info.st_mode), place.read_bytes())
    return found
