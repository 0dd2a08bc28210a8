"""Between the checks and the adapter: every call is timed, and its form is held to the contract.

A wrong type, a result that contradicts itself or an error of no kind becomes an `AdapterFault`
here, so that a check reads as the clause alone, and a bug of the suite is never taken for one of
the adapter.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

import attrs

from pinfold.errors import PinfoldError
from pinfold.provider import (
    Blob,
    Entry,
    ExecRequest,
    ExecResult,
    Features,
    Files,
    FileStat,
    FileType,
    Instance,
    InstanceRef,
    InstanceStatus,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Sink,
    Tree,
    TreeItem,
)
from pinfold_conformance._expect import AdapterFault, short

__all__ = ["GuardedInstance", "Meter", "Sabotage", "guarded"]

T = TypeVar("T")
Path = PurePosixPath | str


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
            yield
        except (PinfoldError, AssertionError, Sabotage):
            raise
        except (Exception, SystemExit) as exc:
            raise AdapterFault(
                f"{name} raised {type(exc).__name__}: {short(str(exc))}; only the contract's own "
                "errors may leave an adapter (ER-1)"
            ) from exc
        finally:
            self.durations[name].append(time.perf_counter() - started)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def typed(name: str, value: Any, kind: Callable[..., T]) -> T:
    """Return a value that is of a type.

    Raises:
        AdapterFault: it is not.
    """
    wanted = cast(type[Any], kind)  # typed as a callable, since abstract classes are no type[T]
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise AdapterFault(f"{name} is {short(value)}, no {wanted.__name__}")
    return cast(T, value)


def _nothing(name: str, value: object) -> None:
    if value is not None:
        raise AdapterFault(f"{name} returned {short(value)}; it returns nothing")


def check_result(request: ExecRequest, result: Any, features: Features, *, streamed: bool) -> None:
    """Hold a result to what is true of every result (EX-1, EX-2, EX-4, EX-7).

    Raises:
        AdapterFault: it contradicts the contract or itself.
    """
    typed("the result of exec", result, ExecResult)
    for name in ("exit_code", "stdout_total", "stderr_total", "duration_ms", "generation"):
        typed(name, getattr(result, name), int)
    for name in ("timed_out", "stdout_truncated", "stderr_truncated"):
        typed(name, getattr(result, name), bool)
    if not 0 <= result.exit_code <= 255:
        raise AdapterFault(f"exit_code is {result.exit_code}; it is 0..255 (EX-2)")
    if result.timed_out and result.exit_code != 124:
        raise AdapterFault(f"timed_out with exit_code {result.exit_code}; it is 124 (EX-4)")
    if result.signal is not None:
        typed("signal", result.signal, int)
        if not features.signals:
            raise AdapterFault("signal is set without the feature signals (EX-2)")
        if not result.timed_out and result.exit_code != 128 + result.signal:
            raise AdapterFault(
                f"signal {result.signal} with exit_code {result.exit_code}; it is 128+n (EX-2)"
            )
    if result.duration_ms < 0:
        raise AdapterFault(f"duration_ms is {result.duration_ms}")
    for name in ("stdout", "stderr"):
        data = typed(name, getattr(result, name), bytes)
        total, cut = getattr(result, f"{name}_total"), getattr(result, f"{name}_truncated")
        if streamed:
            if data or cut:
                raise AdapterFault(f"{name} is kept or cut though it was streamed (EX-15)")
        elif len(data) > getattr(request, f"{name}_cap"):
            raise AdapterFault(f"{name} holds {len(data)} bytes, more than its cap (EX-7)")
        elif cut != (total > len(data)) or total < len(data):
            raise AdapterFault(
                f"{name} holds {len(data)} bytes of {total}, but {name}_truncated is {cut} (EX-7)"
            )


def check_stat(name: str, value: Any) -> FileStat:
    """Hold file facts to their form.

    Raises:
        AdapterFault: they are not of it.
    """
    stat = typed(name, value, FileStat)
    typed(f"{name}.path", stat.path, PurePosixPath)
    typed(f"{name}.type", stat.type, FileType)
    if typed(f"{name}.size", stat.size, int) < 0:
        raise AdapterFault(f"{name}.size is {stat.size}")
    if not 0 <= typed(f"{name}.mode", stat.mode, int) <= 0o7777:
        raise AdapterFault(f"{name}.mode is {stat.mode:#o}")
    typed(f"{name}.mtime_ns", stat.mtime_ns, int)
    if (stat.type is FileType.SYMLINK) != (stat.link is not None):
        raise AdapterFault(f"{name}.link is {short(stat.link)} of a {stat.type}")
    return stat


def check_item(value: Any) -> TreeItem:
    """Hold an entry of a tree that comes down to its form: its reader may trust its name.

    Raises:
        AdapterFault: it is not of it.
    """
    item = typed("an item of download_tree", value, TreeItem)
    path = typed("TreeItem.path", item.path, PurePosixPath)
    typed("TreeItem.type", item.type, FileType)
    if path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise AdapterFault(f"download_tree has an item {short(str(path))}, not in the tree")
    if (item.type is FileType.SYMLINK) != (item.link is not None):
        raise AdapterFault(f"the link of {short(str(path))} is {short(item.link)}")
    return item


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
        _nothing("write", value)

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
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise AdapterFault(f"list returned {short(value)}, no sequence")
        for entry in value:
            check_stat("an entry of list", entry)
            if entry.path.parent != PurePosixPath(path):
                raise AdapterFault(f"list of {path} has an entry {short(str(entry.path))}")
        return value

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        with self.meter.call("make_directory"):
            value: object = await self.inner.make_directory(  # type: ignore[func-returns-value]
                path, parents=parents, exist_ok=exist_ok
            )
        _nothing("make_directory", value)

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        with self.meter.call("remove"):
            value: object = await self.inner.remove(path, recursive=recursive)  # type: ignore[func-returns-value]
        _nothing("remove", value)

    async def rename(self, source: Path, target: Path) -> None:
        with self.meter.call("rename"):
            value: object = await self.inner.rename(source, target)  # type: ignore[func-returns-value]
        _nothing("rename", value)

    async def symlink(self, path: Path, target: str) -> None:
        with self.meter.call("symlink"):
            value: object = await self.inner.symlink(path, target)  # type: ignore[func-returns-value]
        _nothing("symlink", value)

    async def chmod(self, path: Path, mode: int) -> None:
        with self.meter.call("chmod"):
            value: object = await self.inner.chmod(path, mode)  # type: ignore[func-returns-value]
        _nothing("chmod", value)

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
            values = await self.inner.read_many(paths)
        if len(values) != len(paths):
            raise AdapterFault(f"read_many of {len(paths)} returned {len(values)}")
        for value in values:
            if not isinstance(value, (bytes, PinfoldError)):
                raise AdapterFault(f"read_many has {short(value)}")
        return values

    async def stat_many(self, paths: Sequence[Path]) -> Sequence[FileStat | PinfoldError]:
        with self.meter.call("stat_many"):
            values = await self.inner.stat_many(paths)
        if len(values) != len(paths):
            raise AdapterFault(f"stat_many of {len(paths)} returned {len(values)}")
        for value in values:
            if not isinstance(value, PinfoldError):
                check_stat("an entry of stat_many", value)
        return values

    async def write_many(self, files: Any) -> None:
        with self.meter.call("write_many"):
            value: object = await self.inner.write_many(files)  # type: ignore[func-returns-value]
        _nothing("write_many", value)

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
            scan = typed("the result of scan", await self.inner.scan(since), Scan)
        typed("Scan.state", scan.state, ScanState)
        for entry in scan.entries:
            typed("an entry of scan", entry, Entry)
            if not entry.path or entry.path.startswith("/") or ".." in entry.path.split("/"):
                raise AdapterFault(f"scan has an entry {short(entry.path)}")
            if (entry.type is FileType.FILE) != (len(entry.digest) == 64):
                raise AdapterFault(f"the digest of {entry.path} is {short(entry.digest)} (CP-1)")
            if (entry.type is FileType.SYMLINK) != (entry.link is not None):
                raise AdapterFault(f"the link of {entry.path} is {short(entry.link)}")
        paths = [entry.path for entry in scan.entries]
        if len(set(paths)) < len(paths) or paths not in (sorted(paths), sorted(paths, key=_order)):
            raise AdapterFault("the entries of scan are not sorted, or not unique (CP-1)")
        if scan.unchanged and scan.entries:
            raise AdapterFault("an unchanged scan has entries")
        return scan

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        with self.meter.call("read_blobs"):
            async for blob in self.inner.read(entries):
                typed("a piece of read", blob, Blob)
                if len(typed("Blob.data", blob.data, bytes)) > 1024 * 1024:
                    raise AdapterFault(f"a piece of {len(blob.data)} bytes; at most 1 MiB")
                yield blob

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        with self.meter.call("restore"):
            report = await self.inner.restore(plan)
        return typed("the result of restore", report, RestoreReport)

    async def recover(self) -> bool:
        with self.meter.call("recover"):
            value = await self.inner.recover()
        return typed("the result of recover", value, bool)


def _order(path: str) -> list[bytes]:
    return [part.encode("utf-8", "surrogateescape") for part in path.split("/")]


class GuardedInstance(Instance):
    """An instance whose every answer is of the contract's form.

    Attributes:
        inner: the adapter's own object, for its optional powers.
        meter: counts and times.
    """

    def __init__(self, inner: Instance, meter: Meter) -> None:
        self.inner, self.meter = inner, meter
        self.ref = typed("Instance.ref", inner.ref, InstanceRef)
        self.features = typed("Instance.features", inner.features, Features)
        self.files = GuardedFiles(typed("Instance.files", inner.files, Files), meter)
        self.tree = GuardedTree(typed("Instance.tree", inner.tree, Tree), meter)
        self.details = inner.details

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        with self.meter.call("exec"):
            result = await self.inner.exec(request, sink)
        check_result(request, result, self.features, streamed=sink is not None)
        return result

    async def status(self) -> InstanceStatus:
        with self.meter.call("status"):
            return typed("the result of status", await self.inner.status(), InstanceStatus)

    async def destroy(self) -> None:
        with self.meter.call("destroy"):
            value: object = await self.inner.destroy()  # type: ignore[func-returns-value]
        _nothing("destroy", value)

    async def detach(self) -> None:
        with self.meter.call("detach"):
            value: object = await self.inner.detach()  # type: ignore[func-returns-value]
        _nothing("detach", value)


def guarded(value: Any, meter: Meter) -> GuardedInstance:
    """Return an adapter's instance under guard.

    Raises:
        AdapterFault: it is no instance.
    """
    return GuardedInstance(typed("the result of create", value, Instance), meter)
