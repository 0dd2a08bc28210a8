"""A deliberately naive adapter: a folder of this machine, with paths joined and followed.

Every attack has to succeed against it; one that does not proves nothing and is to be deleted. This
machine comes to no harm by it: what it changes is its own, or what a check has put outside.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from pinfold.errors import IsADirectory, NotADirectory, NotFound, PermissionDenied
from pinfold.provider import (
    Availability,
    Blob,
    Capabilities,
    Context,
    Descriptor,
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
    Owner,
    Provider,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Sink,
    Supports,
    Tree,
)
from pinfold.spec import (
    Containment,
    Durability,
    Kind,
    Level,
    Network,
    NetworkMode,
    PinnedSpec,
    Spec,
    Target,
)
from pinfold.testing import Lane

__all__ = ["NaiveLane"]

GuestPath = PurePosixPath | str
T = TypeVar("T")

_FEATURES: Final = Features(modes=True, symlinks=True, special_files=True, concurrent_exec=True)
_CAPABILITIES: Final = Capabilities(
    native_processes=True,
    network_enforced=False,
    packages=False,
    portable_checkpoint=True,
    ports=False,
    pty=False,
)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except IsADirectoryError as exc:
        raise IsADirectory(str(exc)) from exc
    except NotADirectoryError as exc:
        raise NotADirectory(str(exc)) from exc
    except PermissionError as exc:
        raise PermissionDenied(str(exc)) from exc
    except OSError as exc:
        raise NotFound(str(exc)) from exc


class _Files(Files):
    def __init__(self, root: Path) -> None:
        self._root = root

    def at(self, path: GuestPath) -> Path:
        """Join, and hope."""
        return self._root / PurePosixPath(path).relative_to("/workspace")

    async def read(self, path: GuestPath, *, offset: int = 0, length: int | None = None) -> bytes:
        with _translated():
            data = await _thread(self.at(path).read_bytes)
        return data[offset:] if length is None else data[offset : offset + length]

    async def write(self, path: GuestPath, data: bytes, *, mode: int | None = None) -> None:
        _spare(self.at(path).resolve())
        with _translated():
            await anyio.Path(self.at(path).parent).mkdir(parents=True, exist_ok=True)
            await _thread(partial(self.at(path).write_bytes, data))

    async def stat(self, path: GuestPath) -> FileStat:
        with _translated():
            return _stat(PurePosixPath(path), self.at(path))

    async def list(self, path: GuestPath) -> Sequence[FileStat]:
        with _translated():
            names = sorted(os.listdir(self.at(path)))  # noqa: PTH208 - names
            return [_stat(PurePosixPath(path) / name, self.at(path) / name) for name in names]

    async def make_directory(
        self, path: GuestPath, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        _spare(self.at(path).resolve())
        with _translated():
            await anyio.Path(self.at(path)).mkdir(parents=parents, exist_ok=exist_ok)

    async def remove(self, path: GuestPath, *, recursive: bool = False) -> None:
        place = self.at(path)
        with _translated():
            _remove(place)

    async def rename(self, source: GuestPath, target: GuestPath) -> None:
        for path in (source, target):
            _spare(self.at(path).parent.resolve() / PurePosixPath(path).name)
        with _translated():
            await anyio.Path(self.at(source)).rename(self.at(target))

    async def symlink(self, path: GuestPath, target: str) -> None:
        _spare(self.at(path).parent.resolve() / PurePosixPath(path).name)
        with _translated():
            await anyio.Path(self.at(path)).symlink_to(target)

    async def chmod(self, path: GuestPath, mode: int) -> None:
        _spare(self.at(path).resolve())
        with _translated():
            await anyio.Path(self.at(path)).chmod(mode)

    async def download(self, path: GuestPath) -> AsyncIterator[bytes]:
        yield await self.read(path)

    async def upload(
        self, path: GuestPath, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        data = b"".join([chunk async for chunk in chunks])
        await self.write(path, data)
        return len(data)


#: What may change: folders of this adapter, and what checks put beside them (`Case.name`).
_PLAYTHING: Final = re.compile(r"pinfold-naive-.*|.*[0-9a-f]{12}")


def _spare(real: Path) -> None:
    """Let no attack go further than it needs to: it has won once it is told of the outside.

    Raises:
        PermissionDenied: that place is this machine's own.
    """
    base = Path(tempfile.gettempdir()).resolve()
    inner = real.relative_to(base).parts if real.is_relative_to(base) else ()
    if not inner or not _PLAYTHING.fullmatch(inner[0]):
        raise PermissionDenied(f"even a naive adapter leaves {str(real)!r} alone")


def _remove(place: Path) -> None:
    _spare(place.parent.resolve() / place.name)
    if place.is_dir():  # also where a link leads to one
        for inner in place.iterdir():
            _remove(inner)
        if not place.is_symlink():
            place.rmdir()
            return
    place.unlink()


async def _thread(call: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)  # a FIFO may hold it


def _stat(path: PurePosixPath, place: Path) -> FileStat:
    found = place.lstat()
    if place.is_symlink():
        kind, link = FileType.SYMLINK, os.readlink(place)  # noqa: PTH115 - text, verbatim
    elif place.is_dir():
        kind, link = FileType.DIRECTORY, None
    else:
        kind, link = FileType.FILE if place.is_file() else FileType.OTHER, None
    size = found.st_size if kind is not FileType.DIRECTORY else 0
    return FileStat(path=path, type=kind, size=size, mode=found.st_mode & 0o7777, link=link)


class _Tree(Tree):
    def __init__(self, root: Path) -> None:
        self._root = root

    async def scan(self, since: ScanState | None = None) -> Scan:
        entries = []
        for folder, folders, names in os.walk(self._root, followlinks=True):
            for name in sorted([*folders, *names]):
                place = Path(folder) / name
                path = str(place.relative_to(self._root))
                mode = place.stat().st_mode & 0o7777
                if place.is_dir():
                    entries.append(Entry(path=path, type=FileType.DIRECTORY, mode=mode))
                    continue
                data = place.read_bytes()
                digest = sha256(data).hexdigest()
                size = len(data)
                entries.append(
                    Entry(path=path, type=FileType.FILE, mode=mode, size=size, digest=digest)
                )
        return Scan(entries=tuple(sorted(entries, key=lambda entry: entry.path)))

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        for entry in entries:
            data = await anyio.Path(self._root / entry.path).read_bytes()
            yield Blob(path=entry.path, data=data, last=True, digest=sha256(data).hexdigest())

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        with _translated():
            for entry in plan.entries:
                place = anyio.Path(self._root / entry.path)
                _spare(Path(await place.resolve()))
                if entry.type is FileType.DIRECTORY:
                    await place.mkdir(exist_ok=True)
                elif entry.link is not None:
                    await place.symlink_to(entry.link)
                else:
                    data = b"".join([chunk async for chunk in plan.fetch(entry.digest)])
                    await place.write_bytes(data)
        return RestoreReport()

    async def recover(self) -> bool:
        return False


class _Instance(Instance):
    def __init__(self, ref: InstanceRef, root: Path) -> None:
        self.ref, self.features, self._root = ref, _FEATURES, root
        self.naive_files = _Files(root)
        self.files, self.tree = self.naive_files, _Tree(root)

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        argv = list(request.argv or ("sh", "-c", request.shell or ""))
        env: Mapping[str, str] = {"PATH": os.defpath, "PINFOLD_WORKSPACE": str(self._root)}
        cwd = self.naive_files.at(request.cwd)
        with _translated():
            process = await anyio.open_process(
                argv, cwd=cwd, env={**env, **request.env}, start_new_session=True, stdin=None
            )
        output: dict[str, bytes] = {}
        try:
            async with anyio.create_task_group() as group:
                for name in ("stdout", "stderr"):
                    group.start_soon(_drain, getattr(process, name), name, output)
                code = await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
            raise
        stdout, stderr = output["stdout"], output["stderr"]
        return ExecResult(
            exit_code=code if code >= 0 else 128 - code,
            stdout=stdout,
            stderr=stderr,
            stdout_total=len(stdout),
            stderr_total=len(stderr),
        )

    async def status(self) -> InstanceStatus:
        there = await anyio.Path(self._root).is_dir()
        return InstanceStatus.RUNNING if there else InstanceStatus.ABSENT

    async def destroy(self) -> None:
        shutil.rmtree(self._root.parent, ignore_errors=True)


async def _drain(stream: AsyncIterable[bytes], name: str, output: dict[str, bytes]) -> None:
    output[name] = b"".join([chunk async for chunk in stream])


class _Provider(Provider):
    descriptor = Descriptor(
        name="naive",
        display_name="Naive",
        kinds=(Kind.HOST,),
        contract=">=1.0,<2",
        containment=(Supports(level=Level.NONE, networks=frozenset({NetworkMode.ALLOW})),),
        durabilities=frozenset({Durability.CHECKPOINTED, Durability.NONE}),
        capabilities=lambda _: _CAPABILITIES,
        features=lambda _: _FEATURES,
    )

    async def probe(self) -> Availability:
        return Availability(available=True)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        ref = InstanceRef(provider="naive", id=uuid.uuid4().hex)
        await ctx.register(ref)
        root = _folder(ref) / "workspace"
        await anyio.Path(root).mkdir(parents=True)
        return _Instance(ref, root)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return ()

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        shutil.rmtree(_folder(ref), ignore_errors=True)


def _folder(ref: InstanceRef) -> Path:
    return Path(tempfile.gettempdir()) / f"pinfold-naive-{ref.id}"


class NaiveLane(Lane):
    """The control arm of every attack."""

    name = "naive"
    specs: Sequence[Spec] = (
        Spec(
            target=Target(kind=Kind.HOST, provider="naive"),
            containment=Containment(network=Network(mode=NetworkMode.ALLOW)),
        ),
    )

    def __init__(self) -> None:
        self.provider = _Provider()

    async def unavailable(self) -> str | None:
        return None

    async def reset(self, instance: Instance) -> None:
        for entry in await instance.files.list("/workspace"):
            await instance.files.remove(entry.path, recursive=True)
