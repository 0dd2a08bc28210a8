"""A store in a folder: the same layout as through fsspec, without its cost for each file."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from pinfold.checkpoint._objects import ObjectInfo, Objects, OnStep, no_step
from pinfold.errors import (
    NoSpace,
    NotFound,
    PermissionDenied,
    PinfoldError,
    Unavailable,
    Unreachable,
)

__all__ = ["LocalObjects", "translate"]

_TMP: Final = "tmp"
_STALE_SECONDS: Final = 86400.0
_ATTEMPTS: Final = 8
_MANY: Final = 64  # above it one call for the file system is cheaper than one for each object
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_T = TypeVar("_T")


class LocalObjects(Objects):
    """Objects in a folder of this machine, made when it is first written to; for its owner alone.

    Args:
        root: the folder.
        fsync: whether `sync` reaches the disk. Without it a power cut (not a killed process) may
            cost the newest checkpoints.
        on_step: told of each write and rename.
    """

    atomic_moves = True

    def __init__(self, root: Path | str, *, fsync: bool = True, on_step: OnStep = no_step) -> None:
        self.root = os.path.abspath(root)  # noqa: PTH100 - a Path costs too much for each object
        self._fsync = fsync
        self._step = on_step
        self._unsynced: set[str] = set()
        self._sync_lock = threading.Lock()
        self._numbers = itertools.count()
        self._token = secrets.token_hex(8)

    def __repr__(self) -> str:
        return f"LocalObjects({self.root!r})"

    def put(self, items: Mapping[str, bytes]) -> None:
        for key, data in items.items():
            with translated("write", key):
                self._put(key, data)

    def _put(self, key: str, data: bytes) -> None:
        place, part = (
            f"{self.root}/{key}",
            f"{self.root}/{_TMP}/{self._token}-{next(self._numbers)}",
        )
        self._step("write", key)
        fd = self._in_folder(part, lambda: os.open(part, _FLAGS, 0o600))
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
            self._step("rename", key)
            self._in_folder(place, lambda: os.rename(part, place))  # noqa: PTH104 - as abspath
        except Exception:
            with suppress(OSError):
                os.unlink(part)  # noqa: PTH108
            raise
        if self._fsync:
            self._unsynced.add(place)
        self._step("written", key)

    def _in_folder(self, place: str, act: Callable[[], _T]) -> _T:
        """Act in the folder of `place`; make it where it is missing, or was just pruned."""
        for _ in range(_ATTEMPTS):
            try:
                return act()
            except FileNotFoundError:
                self._make(place.rpartition("/")[0])
        return act()

    def _make(self, folder: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for key in keys:  # thousands of them: a context manager for each would be felt
            try:
                fd = os.open(f"{self.root}/{key}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    found[key] = _read_all(fd)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise translate(exc, "read", key) from exc
        return found

    def exists(self, keys: Collection[str]) -> set[str]:
        found: set[str] = set()
        for key in keys:
            with suppress(FileNotFoundError), translated("look up", key):
                os.stat(f"{self.root}/{key}")  # noqa: PTH116
                found.add(key)
        return found

    def rely(self, keys: Collection[str]) -> set[str]:
        found = self.exists(keys)
        if self._fsync:  # whoever put it may have died before it was on the disk
            self._unsynced.update(f"{self.root}/{key}" for key in found)
        return found

    def list(self, prefix: str) -> list[ObjectInfo]:
        with translated("list", prefix):
            return list(self._walk(prefix))

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        pending = [prefix]
        while pending:
            folder = pending.pop()
            try:
                scan = os.scandir(f"{self.root}/{folder}")
            except FileNotFoundError:
                continue
            with scan:
                for item in scan:
                    key = f"{folder}/{item.name}"
                    if item.is_dir(follow_symlinks=False):
                        pending.append(key)
                        continue
                    with suppress(FileNotFoundError):
                        stat = item.stat(follow_symlinks=False)
                        yield ObjectInfo(key, stat.st_size, stat.st_mtime)

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        for source, target in pairs:
            self._step("move", source)
            old, new = f"{self.root}/{source}", f"{self.root}/{target}"
            with suppress(FileNotFoundError), translated("move", source):
                os.stat(old)  # noqa: PTH116
                self._in_folder(new, lambda: os.rename(old, new))  # noqa: B023, PTH104
            self._step("moved", source)

    def delete(self, keys: Iterable[str]) -> None:
        folders: set[str] = set()
        for key in keys:
            self._step("delete", key)
            with suppress(FileNotFoundError), translated("delete", key):
                os.unlink(f"{self.root}/{key}")  # noqa: PTH108
            folders.add(key.rpartition("/")[0])
            self._step("deleted", key)
        for folder in sorted(folders, reverse=True):
            self._prune(folder)

    def _prune(self, folder: str) -> None:
        """Remove a folder that is empty now, and those above it."""
        while "/" in folder:
            try:
                os.rmdir(f"{self.root}/{folder}")  # noqa: PTH106
            except OSError:
                return
            folder = folder.rpartition("/")[0]

    def sync(self) -> None:
        with self._sync_lock:  # whoever waits here has its objects on disk when it goes on
            places = [self._unsynced.pop() for _ in range(len(self._unsynced))]
            try:
                with translated("sync", self.root):
                    self._sync(places)
            except BaseException:
                self._unsynced.update(places)
                raise

    def _sync(self, places: Sequence[str]) -> None:
        if len(places) > _MANY and _sync_file_system(self.root):
            return
        folders = {place.rpartition("/")[0] for place in places}
        folders |= {folder.rpartition("/")[0] for folder in folders}
        for place in [*places, *sorted(folders, reverse=True)]:
            with suppress(FileNotFoundError):  # a collection may have moved it
                _fsync(place)

    def sweep(self) -> None:
        with translated("sweep", _TMP):
            for info in self._walk(_TMP):
                if abs(time.time() - info.modified) > _STALE_SECONDS:
                    with suppress(FileNotFoundError):
                        os.unlink(f"{self.root}/{info.key}")  # noqa: PTH108


def _fsync(place: str) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file_system(place: str) -> bool:
    """Write one whole file system to its disk; False where the system has no such call."""
    import ctypes

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
    return True


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    pieces = [data]
    while data:
        data = os.read(fd, 1 << 20)
        pieces.append(data)
    return b"".join(pieces)


@contextmanager
def translated(verb: str, key: str) -> Iterator[None]:
    """Turn the errors of a file system into pinfold's; a missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise translate(exc, verb, key) from exc


def translate(exc: OSError, verb: str, key: str) -> PinfoldError:
    """Return pinfold's error for one of a file system."""
    what = f"the checkpoint store can't {verb} {key}: {exc.strerror or type(exc).__name__}"
    details = {"object": key, "errno": exc.errno}
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(what, hint="make room, or collect", details=details)
    if isinstance(exc, PermissionError) or exc.errno == errno.EROFS:
        return PermissionDenied(what, hint="the store must be writable", details=details)
    if isinstance(exc, FileNotFoundError):
        return NotFound(what, hint="make the bucket or folder first", details=details)
    if isinstance(exc, (ConnectionError, TimeoutError)):
        return Unreachable(what, details=details)
    return Unavailable(what, details=details)
