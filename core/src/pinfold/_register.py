"""The register of ephemeral sandboxes (LC-9): who holds what, so that nothing outlives its holder.

A sandbox without a store is known to its controller alone. Before anything of it exists it is
entered here: a lock file that the controller holds locked for as long as it lives, and beside it a
record of the instances made. The operating system drops the lock however the controller ends;
`gc` then finds a lock that is free, and ends what the record names.

::

    <folder>/register.json      {"version": 1, "store": "<uuid>"}
    <folder>/<sandbox>.lock     held while its controller lives
    <folder>/<sandbox>.json     {"version": 1, "sandbox": ..., "refs": [...]}
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pinfold.errors import InvalidArgument, Locked, Unavailable
from pinfold.provider import InstanceRef
from pinfold.spec import from_json, to_json

__all__ = ["Claim", "Register"]

_VERSION = 1


class Claim:
    """One sandbox in the register, its lock held by this process until `close` or `release`.

    Attributes:
        sandbox: its id.
        refs: the instances made for it, oldest first.
    """

    def __init__(self, folder: Path, sandbox: str, lock: int) -> None:
        self.sandbox = sandbox
        self._folder = folder
        self._record = folder / f"{sandbox}.json"
        self._lock_path = folder / f"{sandbox}.lock"
        self._lock: int | None = lock
        self.refs: tuple[InstanceRef, ...] = _read_refs(self._record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, ref: InstanceRef) -> None:
        """Enter an instance; to be called before it exists.

        Raises:
            Unavailable: it can't be written.
        """
        self.refs = (*self.refs, ref)
        record = {
            "version": _VERSION,
            "sandbox": self.sandbox,
            "refs": [to_json(known) for known in self.refs],
        }
        with _told(self._folder):
            _write(self._record, record)

    def release(self) -> None:
        """Strike the sandbox out, once nothing of it is left; idempotent."""
        if self._lock is not None:
            self._record.unlink(missing_ok=True)
            self._lock_path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Let go of it and leave it in the register, for `gc`; idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Register:
    """The register in one folder.

    Args:
        folder: `ephemeral` in the user's data folder where none is given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            import platformdirs

            folder = platformdirs.user_data_path("pinfold") / "ephemeral"
        self.folder = folder

    @property
    def store(self) -> str:
        """The uuid that instances carry as their owner's `store`; made at first use.

        Raises:
            Unavailable: the folder can't be made, read or written.
        """
        path = self.folder / "register.json"
        while True:
            with _told(self.folder):
                with contextlib.suppress(FileNotFoundError):
                    return str(_read(path)["store"])
                self._make_folder()
                with contextlib.suppress(FileExistsError):
                    record = {"version": _VERSION, "store": str(uuid.uuid4())}
                    _write(path, record, exclusive=True)

    def claim(self, sandbox: str) -> Claim:
        """Enter a sandbox, before anything of it exists.

        Raises:
            Locked: it is entered already, and its controller lives.
            Unavailable: the folder can't be made, or nothing can be written to it.
        """
        if not sandbox or "/" in sandbox or sandbox.startswith("."):
            raise InvalidArgument(f"{sandbox!r} is no sandbox id")
        path = self.folder / f"{sandbox}.lock"
        with _told(self.folder):
            self._make_folder()
            while (lock := _new_lock(path) or _lock(path)) is None:
                if path.exists():
                    raise Locked(f"{sandbox} is held by another controller")
            return Claim(self.folder, sandbox, lock)

    def abandoned(self) -> Iterator[Claim]:
        """Yield, locked, each sandbox whose controller is gone; release it once it is ended."""
        for path in sorted(self.folder.glob("*.lock")):
            lock = _lock(path)
            if lock is not None:
                yield Claim(self.folder, path.stem, lock)

    def held(self) -> list[str]:
        """Return the ids of the sandboxes whose controllers live, this process's own included."""
        held = []
        for path in sorted(self.folder.glob("*.lock")):
            lock = _lock(path)
            if lock is not None:
                os.close(lock)
            elif path.exists():
                held.append(path.stem)
        return held

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Say what can't be written, and where: nothing may exist that isn't entered (LC-9)."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"sandboxes can't be entered in {folder}: {error.strerror}",
            hint="make that folder writable, or set XDG_DATA_HOME to one that is",
            details={"folder": str(folder)},
            retryable=False,
        ) from error


def _new_lock(path: Path) -> int | None:
    """Make a lock file and return a descriptor that holds it, or None where one is there.

    It gets its name when it is locked already: a collection would else take it for abandoned.
    """
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    fd = os.open(aside, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _flock(fd)
        os.link(aside, path)
    except FileExistsError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    finally:
        aside.unlink()
    return fd


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock, or None where another holds it or it is gone.

    A flock belongs to the open file: another open in this same process meets it too.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            _flock(fd)
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:
            pass  # it was struck out between open and lock
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _flock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:
        raise Unavailable(
            "the register of ephemeral sandboxes needs POSIX file locks",
            hint="use a store",
        ) from None
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read_refs(path: Path) -> tuple[InstanceRef, ...]:
    try:
        record = _read(path)
    except FileNotFoundError:
        return ()
    return tuple(from_json(ref, InstanceRef) for ref in record["refs"])


def _read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    if record.get("version") != _VERSION:
        raise Unavailable(
            f"{path.name} has version {record.get('version')!r}; this pinfold reads {_VERSION}",
            hint="use the pinfold that wrote it",
        )
    return record


def _write(path: Path, record: dict[str, Any], *, exclusive: bool = False) -> None:
    """Put a record in place, whole; `exclusive` raises FileExistsError where one is."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    aside.write_text(json.dumps(record))
    try:
        if exclusive:
            os.link(aside, path)
        else:
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
