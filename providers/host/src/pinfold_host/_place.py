"""The folder of one instance, and what is written down about it.

::

    <data folder>/pinfold/host/<id>/
        instance.json    whose it is, and what is to be ended with it
        workspace/       the workspace
        tmp/             native: the guest's /tmp
        etc/             native: the guest's own files of /etc
        roots/<n>/       native: writable roots
        ending           while it is being removed
        restore/         while a restore is under way
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import platformdirs

from pinfold.provider import Owner
from pinfold_host._remove import remove_tree

__all__ = ["GUEST_UIDS", "PROBE_UID", "Place", "Record", "base_folder", "places"]

_VERSION: Final = 1
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
#: Uids that no distribution and no container manager hands out, one for each sandbox of root's.
GUEST_UIDS: Final = range(0x70000001, 0x7FFE0000)
PROBE_UID: Final = 0x70000000


def base_folder() -> Path:
    """Return the folder that holds all instances of this user."""
    return platformdirs.user_data_path("pinfold") / "host"


@attrs.frozen(kw_only=True)
class Record:
    """What is known of an instance without its controller.

    Attributes:
        store: the owner's store.
        sandbox: the owner's sandbox.
        uid: native: who its processes and files are, outside; null for the controller's user.
        launcher: native: the launcher's pid and start time, as /proc tells it.
    """

    store: str
    sandbox: str | None = None
    uid: int | None = None
    launcher: tuple[int, int] | None = None


@attrs.frozen
class Place:
    """One instance's folder.

    Attributes:
        id: its name.
        base: the folder that holds all instances.
    """

    id: str = attrs.field(factory=lambda: secrets.token_hex(8))
    base: Path = attrs.field(factory=base_folder)

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.base / self.id

    @property
    def workspace(self) -> Path:
        """Where the workspace is."""
        return self.folder / "workspace"

    @property
    def is_valid(self) -> bool:
        """The id is one that pinfold makes: it names a folder here and nothing else."""
        return _ID.fullmatch(self.id) is not None

    def make(self, record: Record) -> None:
        """Make the folder, and write down whose it is before anything else is in it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.mkdir(mode=0o700)
        self.write(record)

    def write(self, record: Record) -> None:
        """Put the record in place, whole."""
        aside = self.folder / "instance.new"
        aside.write_text(json.dumps({"version": _VERSION, **attrs.asdict(record)}))
        aside.replace(self.folder / "instance.json")

    def begin_end(self) -> None:
        """Let whoever still holds it know that what dies from now on dies of its end."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "ending").touch()

    @property
    def is_ending(self) -> bool:
        """It has ended, or is about to."""
        return not self.workspace.exists() or (self.folder / "ending").exists()

    def read(self) -> Record | None:
        """Return the record; None where there is no such instance."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            fields: dict[str, Any] = json.loads((self.folder / "instance.json").read_text())
            if fields.pop("version", None) == _VERSION:
                launcher = fields.pop("launcher", None)
                return Record(**fields, launcher=tuple(launcher) if launcher else None)
        return None

    def remove(self) -> None:
        """Remove all of it; idempotent."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            base = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                remove_tree(base, self.id.encode())
            finally:
                os.close(base)


def places(owner: Owner) -> Iterator[Place]:
    """Yield the instances of an owner."""
    for folder in sorted(base_folder().glob("*")):
        place = Place(folder.name)
        record = place.read() if place.is_valid else None
        if (
            record is not None
            and record.store == owner.store
            and owner.sandbox in (None, record.sandbox)
        ):
            yield place
