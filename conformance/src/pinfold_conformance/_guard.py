"""Between the checks and an instance: every call is timed, and its form is held to the contract.

A wrong type, a result that contradicts itself or an error of no kind becomes an `AdapterFault`
here, so that a check reads as the clause alone, and a bug of the suite is never taken for one of
the adapter.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Final

import anyio
import attrs

from pinfold.errors import PinfoldError
from pinfold.provider import (
    Blob,
    Details,
    Entry,
    ExecRequest,
    ExecResult,
    Features,
    Files,
    FileStat,
    Instance,
    InstanceStatus,
    Pausable,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Sink,
    Tree,
)
from pinfold_conformance._expect import AdapterFault, short
from pinfold_conformance._forms import (
    check_batch,
    check_blob,
    check_item,
    check_listing,
    check_ref,
    check_report,
    check_result,
    check_scan,
    check_stat,
    nothing,
    typed,
)

__all__ = ["GuardedInstance", "Meter", "Sabotage", "blamed", "guarded"]

Path = PurePosixPath | str

_CLOCKS_DIFFER_MS: Final = 500  # a target's from ours, over a call


class Sabotage(Exception):
    """What checks raise inside callbacks; an adapter has to let it through."""


@attrs.define
class Meter:
    """How often and how long the adapter was called, by operation."""

    durations: dict[str, list[float]] = attrs.field(factory=lambda: defaultdict(list))

    @property
    def operations(self) -> int:
        """All calls."""
        return sum(len(values) for values in self.durations.values())

    def summary(self) -> dict[str, dict[str, float]]:
        """Return count, p50, p95 and max in milliseconds, by operation."""
        result = {}
        for name, values in sorted(self.durations.items()):
            ordered = sorted(values)
            result[name] = {
                "count": len(ordered),
                "p50_ms": round(_quantile(ordered, 0.5) * 1000, 3),
                "p95_ms": round(_quantile(ordered, 0.95) * 1000, 3),
                "max_ms": round(ordered[-1] * 1000, 3),
            }
        return result

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Time one call; an error that is none of the contract's becomes an `AdapterFault`."""
        started = time.perf_counter()
        try:
            with blamed(name):
                yield
        finally:
            self.durations[name].append(time.perf_counter() - started)


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Take an error that is none of the contract's for a fault of who was called.

    That is any error but a cancellation: also one that would end the suite, as SystemExit does.

    Raises:
        AdapterFault: there was one.
    """
    try:
        yield
    except (PinfoldError, AssertionError, Sabotage, GeneratorExit):
        raise
    except BaseException as exc:
        if _cancels(exc):
            raise
        raise AdapterFault(
            f"{name} raised {type(exc).__name__}: {short(str(exc))}; only the contract's own "
            "errors may leave an adapter (ER-1)"
        ) from exc


def _cancels(exc: BaseException) -> bool:
    """Say whether this is how a cancellation goes through."""
    try:
        kind = anyio.get_cancelled_exc_class()
    except RuntimeError:  # a hook that is asked outside of the event loop
        return False
    if isinstance(exc, BaseExceptionGroup):
        return exc.split(kind)[1] is None
    return isinstance(exc, kind)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class GuardedFiles(Files):
    """Files whose every answer is of the contract's form."""

    def __init__(self, inner: Files, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        with self.meter.call("read"):
            data = await self.inner.read(path, offset=offset, length=length)
        return typed("the result of read", data, bytes)

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        with self.meter.call("write"):
            value: object = await self.inner.write(path, data, mode=mode)  # type: ignore[func-returns-value]
        nothing("write", value)

    async def stat(self, path: Path) -> FileStat:
        with self.meter.call("stat"):
            value = await self.inner.stat(path)
        stat = check_stat("the result of stat", value)
        if stat.path != PurePosixPath(path):
            raise AdapterFault(f"stat of {short(str(path))} tells of {short(str(stat.path))}")
        return stat

    async def list(self, path: Path) -> Sequence[FileStat]:
        with self.meter.call("list"):
            value: Any = await self.inner.list(path)
        return check_listing(path, value)

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        with self.meter.call("make_directory"):
            value: object = await self.inner.make_directory(  # type: ignore[func-returns-value]
                path, parents=parents, exist_ok=exist_ok
            )
        nothing("make_directory", value)

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        with self.meter.call("remove"):
            value: object = await self.inner.remove(path, recursive=recursive)  # type: ignore[func-returns-value]
        nothing("remove", value)

    async def rename(self, source: Path, target: Path) -> None:
        with self.meter.call("rename"):
            value: object = await self.inner.rename(source, target)  # type: ignore[func-returns-value]
        nothing("rename", value)

    async def symlink(self, path: Path, target: str) -> None:
        with self.meter.call("symlink"):
            value: object = await self.inner.symlink(path, target)  # type: ignore[func-returns-value]
        nothing("symlink", value)

    async def chmod(self, path: Path, mode: int) -> None:
        with self.meter.call("chmod"):
            value: object = await self.inner.chmod(path, mode)  # type: ignore[func-returns-value]
        nothing("chmod", value)

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        with self.meter.call("download"):
            async for chunk in self.inner.download(path):
                yield typed("a chunk of download", chunk, bytes)

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        with self.meter.call("upload"):
            count = await self.inner.upload(path, chunks, mode=mode)
        return typed("the result of upload", count, int)

    async def read_many(self, paths: Sequence[Path]) -> Sequence[bytes | PinfoldError]:
        with self.meter.call("read_many"):
            values: Any = await self.inner.read_many(paths)
        return check_batch(
            "read_many", len(paths), values, lambda one: typed("an entry of read_many", one, bytes)
        )

    async def stat_many(self, paths: Sequence[Path]) -> Sequence[FileStat | PinfoldError]:
        with self.meter.call("stat_many"):
            values: Any = await self.inner.stat_many(paths)
        return check_batch(
            "stat_many", len(paths), values, lambda one: check_stat("an entry of stat_many", one)
        )

    async def write_many(self, files: Any) -> None:
        with self.meter.call("write_many"):
            value: object = await self.inner.write_many(files)  # type: ignore[func-returns-value]
        nothing("write_many", value)

    async def download_tree(self, path: Path) -> AsyncIterator[Any]:
        with self.meter.call("download_tree"):
            async for item in self.inner.download_tree(path):
                yield check_item(item)

    async def upload_tree(self, path: Path, items: Any) -> int:
        with self.meter.call("upload_tree"):
            count = await self.inner.upload_tree(path, items)
        return typed("the result of upload_tree", count, int)


class GuardedTree(Tree):
    """A tree whose every answer is of the contract's form."""

    def __init__(self, inner: Tree, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    async def scan(self, since: ScanState | None = None) -> Scan:
        with self.meter.call("scan"):
            scan = await self.inner.scan(since)
        return check_scan(scan)

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        with self.meter.call("read_blobs"):
            async for blob in self.inner.read(entries):
                yield check_blob(blob)

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        with self.meter.call("restore"):
            report = await self.inner.restore(plan)
        return check_report(report)

    async def recover(self) -> bool:
        with self.meter.call("recover"):
            value = await self.inner.recover()
        return typed("the result of recover", value, bool)


class GuardedInstance(Instance):
    """An instance whose every answer is of the contract's form.

    Attributes:
        inner: the adapter's own object, for its optional powers.
        meter: counts and times.
    """

    def __init__(self, inner: Instance, meter: Meter) -> None:
        self.inner, self.meter = inner, meter
        self.ref = check_ref("Instance.ref", inner.ref)
        self.features = typed("Instance.features", inner.features, Features)
        self.files = GuardedFiles(typed("Instance.files", inner.files, Files), meter)
        self.tree = GuardedTree(typed("Instance.tree", inner.tree, Tree), meter)
        self.details = typed("Instance.details", inner.details, Details)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        began = time.monotonic()
        with self.meter.call("exec"):
            result = await self.inner.exec(request, sink)
        took = (time.monotonic() - began) * 1000
        check_result(request, result, self.features, streamed=sink is not None)
        if result.duration_ms > took + _CLOCKS_DIFFER_MS:
            raise AdapterFault(f"duration_ms is {result.duration_ms} of a call of {took:.0f} ms")
        return result

    async def status(self) -> InstanceStatus:
        with self.meter.call("status"):
            return typed("the result of status", await self.inner.status(), InstanceStatus)

    async def destroy(self) -> None:
        with self.meter.call("destroy"):
            value: object = await self.inner.destroy()  # type: ignore[func-returns-value]
        nothing("destroy", value)

    async def detach(self) -> None:
        with self.meter.call("detach"):
            value: object = await self.inner.detach()  # type: ignore[func-returns-value]
        nothing("detach", value)


class GuardedPausable(GuardedInstance, Pausable):
    """A guarded instance that can be paused, as the adapter's own can."""

    inner: Any

    async def pause(self) -> None:
        with self.meter.call("pause"):
            value: object = await self.inner.pause()
        nothing("pause", value)

    async def resume(self) -> bool:
        with self.meter.call("resume"):
            value = await self.inner.resume()
        return typed("the result of resume", value, bool)


def guarded(value: Any, meter: Meter) -> GuardedInstance:
    """Return an adapter's instance under guard.

    Raises:
        AdapterFault: it is no instance, or has not what one has.
    """
    inner = typed("the result of create", value, Instance)
    with blamed("an attribute of the instance"):
        kind = GuardedPausable if isinstance(inner, Pausable) else GuardedInstance
        return kind(inner, meter)
