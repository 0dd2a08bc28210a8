"""Every resource is written down before it is made, and cleaned up last-in-first-out.

The ledger is also kept on disk while a run lasts: `sweep` reads what crashed runs left behind.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from pinfold.provider import InstanceRef
from pinfold.spec import from_json, to_json

__all__ = ["Ledger", "left_behind"]


@attrs.define
class Ledger:
    """The refs of one run.

    Attributes:
        run: the run's own uuid; every instance carries it as the store's label.
        target: the lane's name.
        file: where it is kept while the run lasts; None keeps it in memory alone.
    """

    run: str
    target: str
    file: Path | None = None
    refs: list[InstanceRef] = attrs.field(factory=list)

    async def register(self, ref: InstanceRef) -> None:
        """Write a ref down; what `Context.register` is."""
        if ref not in self.refs:
            self.refs.append(ref)
            self._save()

    def forget(self, ref: InstanceRef) -> None:
        """Strike a ref out: it is gone."""
        if ref in self.refs:
            self.refs.remove(ref)
            self._save()

    def knows(self, ref: InstanceRef) -> bool:
        """Say whether a ref's id was written down."""
        return any(one.id == ref.id for one in self.refs)

    def close(self) -> None:
        """Drop the file once nothing is left."""
        if self.file is not None and not self.refs:
            self.file.unlink(missing_ok=True)

    def _save(self) -> None:
        if self.file is None:
            return
        form = {
            "run": self.run,
            "target": self.target,
            "pid": os.getpid(),
            "saved": time.time(),
            "refs": [to_json(ref) for ref in self.refs],
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        whole = self.file.with_suffix(".tmp")
        whole.write_text(json.dumps(form))
        whole.replace(self.file)


def left_behind(folder: Path) -> Iterator[Ledger | Path]:
    """Yield the ledgers of runs whose process is gone, and the files of damaged ones."""
    for file in sorted(folder.glob("*.json")):
        try:
            form: dict[str, Any] = json.loads(file.read_text())
            refs = [from_json(ref, InstanceRef) for ref in form["refs"]]
            pid, run, target = int(form["pid"]), str(form["run"]), str(form["target"])
        except (ValueError, KeyError, TypeError):
            yield file
            continue
        if not _lives(pid):
            yield Ledger(run, target, file, refs)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
