"""Places for checkpoints, and ways to spoil them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from pinfold.checkpoint import ObjectInfo, Objects, OnStep
from pinfold.errors import Unavailable


class Crash(BaseException):
    """The process died here. No handler may take it for an error."""


class CrashAt:
    """A step hook that kills the process at its nth step, and keeps it dead.

    Attributes:
        steps: how many there were; with `at` None it only counts.
        log: what they were.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.steps = 0
        self.log: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    @property
    def dead(self) -> bool:
        return self.at is not None and self.steps > self.at

    def __call__(self, step: str, key: str) -> None:
        with self._lock:
            if not self.dead:
                self.steps += 1
                self.log.append((step, key))
            if self.dead:
                raise Crash(f"at step {self.at}: {step} {key}")


class OneByOne(Objects):
    """Another store's objects, each of a batch on its own, with a step around each effect."""

    def __init__(self, inner: Objects, on_step: OnStep) -> None:
        self.inner = inner
        self.on_step = on_step

    def put(self, items: Mapping[str, bytes]) -> None:
        for key, data in items.items():
            self.on_step("write", key)
            self.inner.put({key: data})
            self.on_step("written", key)

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for key in keys:
            self.on_step("fetch", key)
            found |= self.inner.get([key])
        return found

    def exists(self, keys: Collection[str]) -> set[str]:
        return self.inner.exists(keys)

    def list(self, prefix: str) -> list[ObjectInfo]:
        return self.inner.list(prefix)

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        for source, target in pairs:
            # What a store without renames does, so that a crash may leave both.
            data = self.inner.get([source])
            if source in data:
                self.on_step("copy", source)
                self.inner.put({target: data[source]})
                self.on_step("copied", source)
                self.inner.delete([source])
                self.on_step("moved", source)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.on_step("delete", key)
            self.inner.delete([key])
            self.on_step("deleted", key)


class Failing(OneByOne):
    """Every nth effect fails, as a store's network does."""

    def __init__(self, inner: Objects, every: int) -> None:
        super().__init__(inner, self._count)
        self.every = every
        self.count = 0

    def _count(self, step: str, key: str) -> None:
        self.count += 1
        if self.count % self.every == 0:
            raise Unavailable(f"the network failed at {step} {key}")


class AnyError:
    """Stands for a file system of fsspec whose every call fails in one way."""

    protocol = "s3"
    async_impl = False

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name):
        def fail(*args, **kwargs):
            raise self._error

        return fail


def os_error(code: int) -> OSError:
    return OSError(code, errno.errorcode[code])
