"""State: versioned records with compare-and-swap, and an ordered journal (LC-2, EV-1)."""

from __future__ import annotations

from pinfold.state._memory import MemoryStateStore as MemoryStateStore
from pinfold.state._model import Delete as Delete
from pinfold.state._model import JournalEntry as JournalEntry
from pinfold.state._model import NewEntry as NewEntry
from pinfold.state._model import Put as Put
from pinfold.state._model import StateRecord as StateRecord
from pinfold.state._model import StateStore as StateStore
from pinfold.state._model import Written as Written
from pinfold.state._model import event_id as event_id
from pinfold.state._model import sequence_of as sequence_of
from pinfold.state._sqlite import SqliteStateStore as SqliteStateStore

__all__ = [
    "Delete",
    "JournalEntry",
    "MemoryStateStore",
    "NewEntry",
    "Put",
    "SqliteStateStore",
    "StateRecord",
    "StateStore",
    "Written",
    "event_id",
    "sequence_of",
]
