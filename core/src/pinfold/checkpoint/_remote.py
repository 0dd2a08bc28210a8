"""A store on any fsspec file system."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pinfold._paths import expanded
from pinfold.checkpoint._local import LocalObjects, translate
from pinfold.checkpoint._objects import ObjectInfo, Objects, OnStep, no_step
from pinfold.errors import InvalidArgument, PinfoldError, Unavailable

__all__ = ["FsspecObjects", "open_objects"]

#: Where a put is whole or not at all by itself; elsewhere a temporary name and a rename make it so.
_ATOMIC: Final = frozenset(
    {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a"}
)
_TMP: Final = "tmp"
_THREADS: Final = 16
_SEVERAL: Final = 256  # from here on listing the shards costs less than asking for each key
#: fsspec's memory is one dict for the whole process, and listing it is not safe beside a put.
_MEMORY: Final = threading.RLock()

_T = TypeVar("_T")
_R = TypeVar("_R")


class FsspecObjects(Objects):
    """Objects below a path of a fsspec file system, through its blocking interface.

    An asynchronous file system runs on fsspec's own thread, so that the caller may be on any event
    loop; its bulk calls, and a few threads where there are none, keep many requests in flight.

    Args:
        fs: an `fsspec.AbstractFileSystem`.
        root: the path in it.
    """

    def __init__(self, fs: Any, root: str = "") -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
        self._name = protocols[0] if protocols else type(fs).__name__
        self._atomic = not _ATOMIC.isdisjoint(protocols)
        self._guard: AbstractContextManager[Any] = (
            _MEMORY if "memory" in protocols else nullcontext()
        )
        self._numbers = itertools.count()
        self._token = secrets.token_hex(8)

    def __repr__(self) -> str:
        return f"FsspecObjects({self._name!r}, {self._root!r})"

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        try:
            with self._guard:
                yield
        except (PinfoldError, FileNotFoundError):
            raise
        except OSError as exc:
            raise translate(exc, verb, key) from exc
        except Exception as exc:  # a file system's own, of any class; its text may hold a secret
            raise Unavailable(
                f"the checkpoint store ({self._name}) can't {verb} {key}: {type(exc).__name__}",
                details={"object": key},
            ) from exc

    def _each(self, act: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        if len(items) < 2 or not getattr(self._fs, "async_impl", False):
            return [act(item) for item in items]
        with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
            return list(pool.map(act, items))

    def put(self, items: Mapping[str, bytes]) -> None:
        verb, key = "write", next(iter(items), "")
        try:
            with self._translated(verb, key):
                if self._atomic:
                    self._fs.pipe({self._path(key): data for key, data in items.items()})
                else:
                    for name, data in items.items():
                        self._put_by_rename(name, data)
        except FileNotFoundError as exc:
            raise translate(exc, verb, key) from exc

    def _put_by_rename(self, key: str, data: bytes) -> None:
        part, place = self._path(f"{_TMP}/{self._token}-{next(self._numbers)}"), self._path(key)
        self._fs.makedirs(part.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(part, data)
        self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        self._fs.mv(part, place)

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        paths = {self._path(key).lstrip("/"): key for key in keys}
        found: dict[str, bytes] = {}
        with self._translated("read", keys[0] if keys else ""):
            if not paths:
                return found
            answers = self._fs.cat(list(map(self._path, keys)), on_error="return")
            for path, answer in answers.items():
                if isinstance(answer, FileNotFoundError):
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                found[paths[path.lstrip("/")]] = bytes(answer)
        return found

    def exists(self, keys: Collection[str]) -> set[str]:
        wanted = list(keys)
        with self._translated("look up", wanted[0] if wanted else ""):
            self._fs.invalidate_cache()
            if len(wanted) < _SEVERAL:
                answers = self._each(self._there, wanted)
                return {key for key, there in zip(wanted, answers, strict=True) if there}
        shards = sorted({key.rpartition("/")[0] for key in wanted})
        tops = sorted({shard.rpartition("/")[0] for shard in shards})
        there = {shard for top in tops for shard in self._folders(top)}
        listings = self._each(self._names, [shard for shard in shards if shard in there])
        return {key for names in listings for key in names} & set(wanted)

    def _there(self, key: str) -> bool:
        try:
            self._fs.info(self._path(key))  # not exists(): it takes any failure for a no
        except FileNotFoundError:
            return False
        return True

    def _folders(self, prefix: str) -> list[str]:
        return [f"{prefix}/{name}" for name, kind in self._ls(prefix) if kind == "directory"]

    def _names(self, prefix: str) -> list[str]:
        return [f"{prefix}/{name}" for name, kind in self._ls(prefix) if kind == "file"]

    def _ls(self, prefix: str) -> list[tuple[str, str]]:
        with self._translated("list", prefix):
            try:
                items = self._fs.ls(self._path(prefix), detail=True)
            except FileNotFoundError:
                return []
            return [(item["name"].rstrip("/").rpartition("/")[2], item["type"]) for item in items]

    def list(self, prefix: str) -> list[ObjectInfo]:
        base = self._path(prefix).strip("/")
        with self._translated("list", prefix):
            self._fs.invalidate_cache()
            try:
                items = self._fs.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return []
            return [
                ObjectInfo(prefix + key, int(info["size"] or 0), _modified(info))
                for path, info in items.items()
                if (key := path.strip("/").removeprefix(base)) and info["type"] == "file"
            ]

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._each(self._move, list(pairs))

    def _move(self, pair: tuple[str, str]) -> None:
        source, target = pair
        with self._translated("move", source):
            try:
                if not self._atomic:
                    self._fs.makedirs(self._path(target).rpartition("/")[0], exist_ok=True)
                self._fs.cp_file(self._path(source), self._path(target))
            except FileNotFoundError:
                return
        self._delete(source)

    def delete(self, keys: Iterable[str]) -> None:
        self._each(self._delete, list(keys))

    def _delete(self, key: str) -> None:
        with self._translated("delete", key):
            try:
                self._fs.rm_file(self._path(key))
            except FileNotFoundError:
                return

    def sweep(self) -> None:
        parts = self.list(_TMP)
        if parts:
            newest = max(part.modified for part in parts)
            self.delete(part.key for part in parts if newest - part.modified > 86400)


def _modified(info: Mapping[str, Any]) -> float:
    for name in ("LastModified", "mtime", "modified", "created", "updated", "last_modified"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


def open_objects(
    place: str | os.PathLike[str] | Objects,
    options: Mapping[str, Any] | None = None,
    *,
    fsync: bool = True,
    on_step: OnStep = no_step,
) -> Objects:
    """Return the objects at a place: a folder, a URL that fsspec knows, or themselves.

    Args:
        place: `s3://bucket/prefix`, `memory://name`, `file:///folder`, a path, ...
        options: what fsspec's file system is made with; no secret belongs in the URL.
        fsync, on_step: for a folder of this machine.

    Raises:
        InvalidArgument: a URL that fsspec does not know, that lacks its extra package, or that
            holds a credential.
    """
    if isinstance(place, Objects):
        return place
    if not isinstance(place, (str, os.PathLike)):
        raise InvalidArgument(f"a checkpoint store is a path or a URL, not {type(place).__name__}")
    text = os.fspath(place)
    if "://" not in text:
        return LocalObjects(expanded(text), fsync=fsync, on_step=on_step)
    scheme = text.partition("://")[0]
    if scheme in ("file", "local"):
        return LocalObjects(text.partition("://")[2], fsync=fsync, on_step=on_step)
    if urlsplit(text).password is not None:
        raise InvalidArgument(
            f"the store's {scheme} URL holds a credential",
            hint="give it by the options, or by the environment that the service's own tools read",
        )
    import fsspec

    # A listing that is remembered hides what other writers did.
    settings = {"use_listings_cache": False, "skip_instance_cache": scheme != "memory"}
    try:
        fs, root = fsspec.url_to_fs(text, **{**settings, **dict(options or {})})
    except (ValueError, ImportError, TypeError) as exc:
        raise InvalidArgument(
            f"no checkpoint store at a {scheme!r} URL: {exc}",
            hint="fsspec names the package that a protocol needs",
        ) from exc
    return FsspecObjects(fs, root)
