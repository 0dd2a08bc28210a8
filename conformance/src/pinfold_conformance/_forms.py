"""The form of what an adapter returns: its types, and what is true of every value of them.

A value that has them is plain data: no subclass of a builtin type may say of itself what it likes.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar, cast, get_args

from pinfold.errors import PinfoldError
from pinfold.provider import (
    Blob,
    Entry,
    ExecRequest,
    ExecResult,
    Features,
    FileStat,
    FileType,
    InstanceRef,
    LimitMet,
    RestoreReport,
    Scan,
    ScanState,
    TreeItem,
)
from pinfold_conformance._expect import AdapterFault, short

__all__ = [
    "check_batch",
    "check_blob",
    "check_item",
    "check_listing",
    "check_ref",
    "check_refs",
    "check_report",
    "check_result",
    "check_scan",
    "check_stat",
    "nothing",
    "typed",
]

T = TypeVar("T")

_PIECE: Final = 1024 * 1024
_SIGNALS: Final = 64
_LIMITS: Final = (None, *get_args(LimitMet))


def typed(name: str, value: Any, kind: Callable[..., T]) -> T:
    """Return a value that is of a type; of a builtin one exactly.

    Raises:
        AdapterFault: it is not.
    """
    wanted = cast(type[Any], kind)  # typed as a callable, since abstract classes are no type[T]
    exact = wanted.__module__ == "builtins"
    if type(value) is not wanted if exact else not isinstance(value, wanted):
        raise AdapterFault(f"{name} is {short(value)}, no {wanted.__name__}")
    return cast(T, value)


def nothing(name: str, value: object) -> None:
    """Hold a call to returning nothing."""
    if value is not None:
        raise AdapterFault(f"{name} returned {short(value)}; it returns nothing")


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """Whatever else goes wrong with a value on its way is the adapter's fault as well."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as exc:
        raise AdapterFault(f"{name} is malformed: {type(exc).__name__}: {exc}") from exc


def _texts(name: str, values: Any, kind: Callable[..., Any] = tuple) -> None:
    for text in typed(name, values, kind):
        typed(f"an item of {name}", text, str)


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
    _texts("env_dropped", result.env_dropped)
    if not 0 <= result.exit_code <= 255:
        raise AdapterFault(f"exit_code is {result.exit_code}; it is 0..255 (EX-2)")
    if result.timed_out and result.exit_code != 124:
        raise AdapterFault(f"timed_out with exit_code {result.exit_code}; it is 124 (EX-4)")
    if result.signal is not None:
        if not 1 <= typed("signal", result.signal, int) <= _SIGNALS:
            raise AdapterFault(f"signal is {result.signal}")
        if not features.signals:
            raise AdapterFault("signal is set without the feature signals (EX-2)")
        if not result.timed_out and result.exit_code != 128 + result.signal:
            raise AdapterFault(
                f"signal {result.signal} with exit_code {result.exit_code}; it is 128+n (EX-2)"
            )
    if result.limit is not None:
        typed("limit", result.limit, str)
    if result.limit not in _LIMITS:
        raise AdapterFault(f"limit is {short(result.limit)} (contract, section 4)")
    if result.duration_ms < 0:
        raise AdapterFault(f"duration_ms is {result.duration_ms}")
    for name in ("stdout", "stderr"):
        _stream(request, result, name, streamed=streamed)


def _stream(request: ExecRequest, result: ExecResult, name: str, *, streamed: bool) -> None:
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


def _mode(name: str, value: Any) -> None:
    if not 0 <= typed(name, value, int) <= 0o7777:
        raise AdapterFault(f"{name} is {value:#o}")


def _link(name: str, kind: FileType, link: Any) -> None:
    if link is not None:
        typed(f"{name}.link", link, str)
    if (kind is FileType.SYMLINK) != (link is not None):
        raise AdapterFault(f"{name}.link is {short(link)} of a {kind}")


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
    _mode(f"{name}.mode", stat.mode)
    typed(f"{name}.mtime_ns", stat.mtime_ns, int)
    _link(name, stat.type, stat.link)
    return stat


def check_listing(path: PurePosixPath | str, value: Any) -> Sequence[FileStat]:
    """Hold a directory's entries to their form: a sequence, each right below the directory.

    Raises:
        AdapterFault: they are not of it.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise AdapterFault(f"list returned {short(value)}, no sequence")
    with _whole("the result of list"):
        for entry in value:
            check_stat("an entry of list", entry)
            if entry.path.parent != PurePosixPath(path):
                raise AdapterFault(f"list of {path} has an entry {short(str(entry.path))}")
    return value


def check_batch(
    name: str, count: int, values: Any, one: Callable[[Any], T]
) -> Sequence[T | PinfoldError]:
    """Hold the results of a batch to their form: as many as were asked for, errors among them.

    Raises:
        AdapterFault: they are not of it.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise AdapterFault(f"{name} returned {short(values)}, no sequence")
    if len(values) != count:
        raise AdapterFault(f"{name} of {count} returned {len(values)}")
    return [value if isinstance(value, PinfoldError) else one(value) for value in values]


def check_item(value: Any) -> TreeItem:
    """Hold an item of a downloaded tree to its form; what it names lies in the tree.

    Raises:
        AdapterFault: it is not of it.
    """
    item = typed("an item of download_tree", value, TreeItem)
    path = typed("TreeItem.path", item.path, PurePosixPath)
    if path.is_absolute() or ".." in path.parts:
        raise AdapterFault(f"download_tree has an item {short(str(path))} (FS-2)")
    if typed("TreeItem.type", item.type, FileType) is FileType.OTHER:
        raise AdapterFault(f"download_tree has {short(str(path))}: no file, folder or link")
    if item.mode is not None:
        _mode("TreeItem.mode", item.mode)
    if typed("TreeItem.size", item.size, int) < 0:
        raise AdapterFault(f"TreeItem.size is {item.size}")
    _link("TreeItem", item.type, item.link)
    sound = (
        isinstance(item.chunks, AsyncIterable) if item.type is FileType.FILE else not item.chunks
    )
    if not sound:
        raise AdapterFault(f"TreeItem.chunks is {short(item.chunks)} of a {item.type}")
    return item


def _entry(entry: Any) -> str:
    typed("an entry of scan", entry, Entry)
    path = typed("Entry.path", entry.path, str)
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise AdapterFault(f"scan has an entry {short(path)}")
    if typed("Entry.type", entry.type, FileType) is FileType.OTHER:
        raise AdapterFault(f"scan has {short(path)}, which is no file, folder or link (CP-6)")
    _mode("Entry.mode", entry.mode)
    if typed("Entry.size", entry.size, int) < 0:
        raise AdapterFault(f"Entry.size is {entry.size}")
    typed("Entry.mtime_ns", entry.mtime_ns, int)
    if (entry.type is FileType.FILE) != (len(typed("Entry.digest", entry.digest, str)) == 64):
        raise AdapterFault(f"the digest of {path} is {short(entry.digest)} (CP-1)")
    _link("Entry", entry.type, entry.link)
    return path


def check_scan(value: Any) -> Scan:
    """Hold a scan to its form: entries sorted and unique, none where nothing changed (CP-1).

    Raises:
        AdapterFault: it is not of it.
    """
    scan = typed("the result of scan", value, Scan)
    _state("Scan.state", scan.state)
    with _whole("Scan.entries"):
        paths = [_entry(entry) for entry in typed("Scan.entries", scan.entries, tuple)]
    _texts("Scan.skipped", scan.skipped)
    _texts("Scan.unsettled", scan.unsettled)
    if len(set(paths)) < len(paths) or paths not in (sorted(paths), sorted(paths, key=_order)):
        raise AdapterFault("the entries of scan are not sorted, or not unique (CP-1)")
    if typed("Scan.unchanged", scan.unchanged, bool) and scan.entries:
        raise AdapterFault("an unchanged scan has entries")
    return scan


def _state(name: str, value: Any) -> None:
    state = typed(name, value, ScanState)
    typed(f"{name}.files", state.files, Mapping)
    typed(f"{name}.token", state.token, str)
    typed(f"{name}.started_ns", state.started_ns, int)


def _order(path: str) -> list[bytes]:
    return [part.encode("utf-8", "surrogateescape") for part in path.split("/")]


def check_blob(value: Any) -> Blob:
    """Hold a piece of a file to its form: at most 1 MiB of bytes.

    Raises:
        AdapterFault: it is not of it.
    """
    blob = typed("a piece of read", value, Blob)
    typed("Blob.path", blob.path, str)
    typed("Blob.last", blob.last, bool)
    typed("Blob.digest", blob.digest, str)
    if len(typed("Blob.data", blob.data, bytes)) > _PIECE:
        raise AdapterFault(f"a piece of {len(blob.data)} bytes; at most 1 MiB")
    return blob


def check_report(value: Any) -> RestoreReport:
    """Hold what a restore tells to its form.

    Raises:
        AdapterFault: it is not of it.
    """
    report = typed("the result of restore", value, RestoreReport)
    _texts("RestoreReport.escaping_links", report.escaping_links)
    typed("RestoreReport.processes_ended", report.processes_ended, bool)
    if report.state is not None:
        _state("RestoreReport.state", report.state)
    return report


def check_ref(name: str, value: Any) -> InstanceRef:
    """Hold a ref to its form.

    Raises:
        AdapterFault: it is not of it.
    """
    ref = typed(name, value, InstanceRef)
    typed(f"{name}.provider", ref.provider, str)
    if not typed(f"{name}.id", ref.id, str):
        raise AdapterFault(f"{name}.id is empty")
    typed(f"{name}.data", ref.data, Mapping)
    if ref.sandbox is not None:
        typed(f"{name}.sandbox", ref.sandbox, str)
    return ref


def check_refs(value: Any) -> Sequence[InstanceRef]:
    """Hold what list returns to its form.

    Raises:
        AdapterFault: it is not of it.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise AdapterFault(f"Provider.list returned {short(value)}, no sequence")
    with _whole("the result of Provider.list"):
        for ref in value:
            check_ref("a ref of list", ref)
    return value
