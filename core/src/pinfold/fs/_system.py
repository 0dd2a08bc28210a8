"""The file system: fsspec's names for what a sandbox's files do."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, TypeVar

import anyio
from fsspec.asyn import AsyncFileSystem, sync, sync_wrapper
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.core import has_magic
from fsspec.utils import stringify_path

from pinfold import config, sandbox, transfer
from pinfold._tasks import iterating
from pinfold.errors import (
    AlreadyExists,
    IsADirectory,
    StaleGeneration,
    Unimplemented,
)
from pinfold.fs._errors import os_errors
from pinfold.fs._facts import is_there, listed, named, read
from pinfold.fs._file import SandboxFile, SandboxStream, spool
from pinfold.provider import Files, FileType
from pinfold.sandbox import DurableSandbox, Runtime, Store
from pinfold.spec import WORKSPACE

__all__ = ["SandboxFileSystem"]

T = TypeVar("T")

_DEFAULT_MODE: Final = 0o644


class _Held:
    """The handle, apart from the file system: it is let go of when that is gone."""

    box: DurableSandbox | None = None

    def let_go(self, loop: Any) -> None:
        box, self.box = self.box, None
        if box is not None and loop is not None:
            with suppress(Exception):  # the next controller finds the sandbox either way
                sync(loop, box.close, timeout=30)


class SandboxFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """The files of one durable sandbox.

    Its compute is made, or made again, when it is first needed, as by every handle. A link to a
    file is a file; a link to a directory is none in listings, so that no walk goes round in
    circles, and is one where it is named. A write replaces the file in one step; many writes of
    one call share a checkpoint (LC-3).

    Args:
        sandbox: its name or id.
        store: where it is kept: a folder or URL, as `url` of `[store]`, or a `pinfold.Store`; by
            default what the nearest pinfold.toml says, else the user's data folder.
        state: the file of the store's records, where it is not beside the checkpoints.
        more: as `fsspec.asyn.AsyncFileSystem`.

    Raises: what Python's own file functions raise, with ours as its cause. What these have no
        word for is raised as it is: `Lost`, `Unavailable`, and the rest.
    """

    protocol = "pinfold"
    root_marker = "/"

    def __init__(
        self,
        sandbox: str = "",
        *,
        store: str | Store | None = None,
        state: str | None = None,
        **more: Any,
    ) -> None:
        if not sandbox:
            raise ValueError("which sandbox? pinfold://SANDBOX/workspace/PATH")
        super().__init__(sandbox=sandbox, store=store, state=state, **more)
        self.sandbox = sandbox
        self._place = store, state
        self._held = _Held()
        self._opening = anyio.Lock()
        weakref.finalize(self, self._held.let_go, self._loop)

    # --- names --------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text: str = stringify_path(path)
        if text.startswith("pinfold://"):
            text = text.removeprefix("pinfold://").partition("/")[2]
        return "/" + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith("pinfold://"):
            return {}
        return {"sandbox": path.removeprefix("pinfold://").partition("/")[0]}

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path."""
        return f"pinfold://{self.sandbox}{self._strip_protocol(name)}"

    # --- the sandbox ----------------------------------------------------------------------------

    async def _box(self) -> DurableSandbox:
        async with self._opening:
            if self._held.box is None:
                store, state = self._place
                project = config.load()
                if store is None:
                    store = Store.configured(project.store)
                elif not isinstance(store, Store):
                    store = Store(store, state)
                runtime = Runtime(connections=project.registered())
                with os_errors(self.sandbox):
                    self._held.box = await sandbox.reopen(
                        self.sandbox, store=store, runtime=runtime
                    )
            return self._held.box

    async def _do(self, path: str, work: Callable[[Files], Awaitable[T]]) -> T:
        box = await self._box()
        try:
            with os_errors(path):
                return await work(box.files)
        except StaleGeneration:
            # Another controller replaced the instance; nothing was done, and we are the next.
            if self._held.box is box:
                self._held.box = None
            await box.close()
        box = await self._box()
        with os_errors(path):
            return await work(box.files)

    async def _close(self) -> None:
        box, self._held.box = self._held.box, None
        if box is not None:
            await box.close()

    close = sync_wrapper(_close)

    # --- facts ----------------------------------------------------------------------------------

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path == "/":
            return {"name": "/", "size": 0, "type": "directory"}

        return await self._do(path, lambda files: named(files, path))

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002 - fsspec's
        path = self._strip_protocol(path)
        if path == "/":
            infos = [await self._info(str(WORKSPACE))]
        else:
            infos = await self._do(path, lambda files: listed(files, path))
        return infos if detail else [info["name"] for info in infos]

    async def _exists(self, path: str, **_: Any) -> bool:
        try:
            await self._info(path)
        except OSError:  # what is out of reach is not there
            return False
        return True

    async def _modified(self, path: str) -> datetime:
        info = await self._info(path)
        return datetime.fromtimestamp(info["mtime"], tz=UTC)

    modified = sync_wrapper(_modified)

    # --- contents -------------------------------------------------------------------------------

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        first, last = start or 0, end
        if first < 0 or (last is not None and last < 0):
            size = (await self._info(path))["size"]
            first = max(0, size + first) if first < 0 else first
            last = size + last if last is not None and last < 0 else last

        async def work(files: Files) -> bytes:
            if start is None and end is None:
                async with iterating(files.download(path)) as chunks:
                    return b"".join([chunk async for chunk in chunks])
            return await read(files, path, first, last)

        return await self._do(path, work)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with spool() as data:
            data.write(value)
            data.seek(0)
            await self._upload(path, data, create=mode == "create")

    async def _put_file(
        self,
        lpath: str,
        rpath: str,
        mode: str = "overwrite",
        callback: Callback = DEFAULT_CALLBACK,
        **_: Any,
    ) -> None:
        if await anyio.to_thread.run_sync(os.path.isdir, lpath):
            await self._makedirs(rpath, exist_ok=True)
            return
        with await anyio.to_thread.run_sync(Path(lpath).open, "rb") as data:
            callback.set_size(os.fstat(data.fileno()).st_size)
            await self._upload(rpath, data, create=mode == "create", told=callback.relative_update)

    async def _get_file(
        self, rpath: str, lpath: Any, callback: Callback = DEFAULT_CALLBACK, **_: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        info = await self._info(rpath)
        if hasattr(lpath, "write"):
            await self._fill(rpath, lpath)
            return
        if info["type"] == "directory":
            await anyio.to_thread.run_sync(lambda: Path(lpath).mkdir(parents=True, exist_ok=True))
            return
        callback.set_size(info["size"])
        told = callback.relative_update
        with os_errors(rpath):
            await anyio.to_thread.run_sync(
                lambda: Path(lpath).parent.mkdir(parents=True, exist_ok=True)
            )
            await self._do(rpath, lambda files: transfer.get(files, rpath, lpath, told=told))

    async def _upload(
        self,
        path: str,
        data: BinaryIO,
        *,
        create: bool = False,
        told: Callable[[int], object] = lambda _: None,
    ) -> None:
        path = self._strip_protocol(path)
        begin = data.tell()

        async def work(files: Files) -> None:
            if create and await is_there(files, path):
                raise AlreadyExists(f"there is a {path!r} already")
            data.seek(begin)
            await transfer.put_from(files, data, path, told=told)

        await self._do(path, work)

    async def _fill(self, path: str, target: BinaryIO) -> None:
        path = self._strip_protocol(path)
        await self._do(path, lambda files: transfer.get_to(files, path, target))

    # --- changes --------------------------------------------------------------------------------

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: FBT001, FBT002 - fsspec's
        path = self._strip_protocol(path)
        await self._do(
            path, lambda f: f.make_directory(path, parents=create_parents, exist_ok=False)
        )

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - fsspec's
        path = self._strip_protocol(path)
        await self._do(path, lambda files: files.make_directory(path, exist_ok=exist_ok))

    async def _rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)

        async def work(files: Files) -> None:
            if await files.list(path):  # NotADirectory for what is none
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            await files.remove(path)

        await self._do(path, work)

    rmdir = sync_wrapper(_rmdir)

    async def _rm_file(self, path: str, **_: Any) -> None:
        path = self._strip_protocol(path)

        async def work(files: Files) -> None:
            if (await files.stat(path)).type is FileType.DIRECTORY:
                raise IsADirectory(f"{path!r} is a directory", hint="say recursive=True")
            await files.remove(path)

        await self._do(path, work)

    async def _rm(
        self,
        path: str | list[str],
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec's
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **_: Any,
    ) -> None:
        if maxdepth is not None:
            paths = await self._expand_path(path, recursive=recursive, maxdepth=maxdepth)
        else:
            paths = await self._expand_path(path)
        async with (await self._box()).batch():
            for each in sorted(paths, reverse=True):  # what is in a directory before it
                if not recursive:
                    await self._rm_file(each)
                elif maxdepth is None:
                    await self._remove(each)
                elif await self._isdir(each):
                    await self._rmdir(each)
                else:
                    await self._rm_file(each)

    async def _remove(self, path: str) -> None:
        await self._do(path, lambda files: files.remove(path, recursive=True))

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        info = await self._info(source)
        if info["type"] == "directory":
            await self._makedirs(target, exist_ok=True)
            return
        # By way of this machine: a target may do one thing at a time.
        with spool() as data:
            await self._fill(source, data)
            data.seek(0)
            await self._upload(target, data)
        if not info["islink"] and info["mode"] != _DEFAULT_MODE:
            with suppress(Unimplemented):
                await self._do(target, lambda files: files.chmod(target, info["mode"]))

    async def _copy(self, *args: Any, **more: Any) -> None:
        async with (await self._box()).batch():
            await super()._copy(*args, **more)

    async def _put(self, *args: Any, **more: Any) -> Any:
        async with (await self._box()).batch():
            return await super()._put(*args, **more)

    async def _pipe(self, *args: Any, **more: Any) -> Any:
        async with (await self._box()).batch():
            return await super()._pipe(*args, **more)

    async def _mv_file(self, path1: str, path2: str) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)

        async def work(files: Files) -> None:
            await files.make_directory(PurePosixPath(target).parent)
            await files.rename(source, target)

        await self._do(source, work)

    async def _mv(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec's
        maxdepth: int | None = None,
        **more: Any,
    ) -> None:
        """Move as `copy` copies: one name in one step, many by copying and removing them."""
        if isinstance(path1, str) and isinstance(path2, str) and not has_magic(path1):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if source == target:
                return
            if not recursive and await self._isdir(source):
                raise IsADirectoryError(errno.EISDIR, "say recursive=True", source)
            into = path2.endswith("/") or await self._isdir(target)
            if into and not path1.endswith("/"):
                target = f"{target.rstrip('/')}/{PurePosixPath(source).name}"
            if maxdepth is None and not await self._isdir(target):
                await self._mv_file(source, target)
                return
        async with (await self._box()).batch():
            await self._copy(
                path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise", **more
            )
            moved = await self._expand_path(path1)
            if not recursive:  # directories were not copied
                moved = [path for path in moved if not await self._isdir(path)]
            await self._rm(moved, recursive=recursive)

    mv = sync_wrapper(_mv)

    # --- open files -----------------------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,  # noqa: FBT001, FBT002 - fsspec's
        cache_options: dict[str, Any] | None = None,
        **more: Any,
    ) -> SandboxFile:
        size = sync(self.loop, self._size_to_open, path, mode)
        return SandboxFile(
            self,
            path,
            mode,
            block_size=block_size,
            autocommit=autocommit,
            cache_options=cache_options,
            size=size,
            **more,
        )

    async def open_async(self, path: str, mode: str = "rb", **more: Any) -> SandboxStream:
        """Open a file, `rb` or `wb`, whose methods are to be awaited."""
        if mode not in ("rb", "wb"):
            raise ValueError(f"a file is opened rb or wb here, not {mode}")
        path = self._strip_protocol(path)
        size = await self._size_to_open(path, mode)
        return SandboxStream(self, path, mode, size=size, **more)

    async def _size_to_open(self, path: str, mode: str) -> int | None:
        try:
            info = await self._info(path)
        except FileNotFoundError:
            if mode == "rb":
                raise
            return None
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if mode == "xb":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        size: int = info["size"]
        return size
