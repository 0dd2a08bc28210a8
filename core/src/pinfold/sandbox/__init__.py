"""Sandboxes: the handle that callers hold, and how one is opened."""

from __future__ import annotations

from pinfold.sandbox._open import Opening as Opening
from pinfold.sandbox._open import open as open  # noqa: A004 - `pinfold.open`
from pinfold.sandbox._open import select as select
from pinfold.sandbox._runtime import Runtime as Runtime
from pinfold.sandbox._sandbox import Sandbox as Sandbox
from pinfold.sandbox._states import DesiredState as DesiredState
from pinfold.sandbox._states import LiveState as LiveState
from pinfold.sandbox._states import ObservedState as ObservedState
from pinfold.sandbox._stream import Chunk as Chunk
from pinfold.sandbox._stream import ExecStream as ExecStream
