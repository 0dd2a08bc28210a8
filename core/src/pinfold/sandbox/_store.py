"""Where durable sandboxes are kept: checkpoints in one place, records and journal in another."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinfold._paths import expanded
from pinfold.errors import InvalidArgument

if TYPE_CHECKING:
    from pinfold.checkpoint import CheckpointStore
    from pinfold.state import StateStore

__all__ = ["Store"]


class Store:
    """A place for durable sandboxes. Several processes may use one at once.

    Args:
        checkpoints: a folder, a URL that fsspec knows, or a `CheckpointStore`.
        state: a file for SQLite, or a `StateStore`; by default a file beside a folder of
            checkpoints, or in the user's data folder for a URL.
        keep: how many checkpoints of a sandbox are kept; None keeps all. The current one and
            tagged ones always are.

    Raises:
        InvalidArgument: there can be no store at such a place.
    """

    def __init__(
        self,
        checkpoints: str | os.PathLike[str] | CheckpointStore,
        state: str | os.PathLike[str] | StateStore | None = None,
        *,
        keep: int | None = None,
    ) -> None:
        from pinfold.checkpoint import CheckpointStore
        from pinfold.state import SqliteStateStore, StateStore

        if keep is not None and keep < 1:
            raise InvalidArgument(f"keep is {keep}", hint="1 or more; None keeps all")
        if not isinstance(checkpoints, CheckpointStore):
            state = _state_beside(os.fspath(checkpoints)) if state is None else state
            checkpoints = CheckpointStore(checkpoints)
        if state is None:
            raise InvalidArgument("a CheckpointStore comes with a state store of its own")
        if not isinstance(state, StateStore):
            state = SqliteStateStore(state)
        self.checkpoints: CheckpointStore = checkpoints
        self.state: StateStore = state
        self.keep = keep

    @classmethod
    def default(cls, *, keep: int | None = None) -> Store:
        """Return the store in the user's data folder."""
        return cls(_user_folder() / "checkpoints", keep=keep)

    @classmethod
    def configured(cls, config: Any) -> Store:
        """Return the store that a project's `[store]` names, or the default one."""
        if config.url is None:
            return cls.default(keep=config.keep)
        return cls(config.url, keep=config.keep)

    def __repr__(self) -> str:
        return f"Store({self.checkpoints!r}, {self.state!r})"


def _user_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("pinfold")


def _state_beside(place: str) -> Path:
    if "://" in place:
        name = sha256(place.encode()).hexdigest()[:32]
        return _user_folder() / "state" / f"{name}.sqlite"
    folder = Path(os.path.abspath(expanded(place)))  # noqa: PTH100 - without following links
    if not folder.name:
        raise InvalidArgument(f"{place!r} can be no store", hint="name a folder of its own")
    return folder.with_name(folder.name + ".sqlite")
