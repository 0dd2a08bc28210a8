"""What a mutant is: an adapter with one bug, and the check that must kill it.

Most wrap any adapter and change one thing on the way in or out; some change the reference itself,
where the bug lies deeper.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import attrs

from pinfold.provider import (
    Availability,
    Blob,
    Context,
    Entry,
    ExecRequest,
    ExecResult,
    Features,
    Files,
    FileStat,
    Instance,
    InstanceRef,
    InstanceStatus,
    Owner,
    Pausable,
    Provider,
    RestorePlan,
    RestoreReport,
    Scan,
    ScanState,
    Sink,
    Tree,
)
from pinfold.spec import PinnedSpec, Spec
from pinfold.testing import Lane, Witness
from pinfold_conformance.adapters.toy import NOTHING, ToyInstance, ToyLane, ToyProvider
from pinfold_conformance.adapters.toy._files import ToyFiles
from pinfold_conformance.adapters.toy._instance import Body, PausableToy
from pinfold_conformance.adapters.toy._tree import ToyTree

__all__ = [
    "BugFiles",
    "BugInstance",
    "BugLane",
    "BugProvider",
    "BugToy",
    "BugTree",
    "Mutant",
    "Path",
    "bug",
    "mutant",
    "mutants",
    "table",
]

#: Where mutants are.
MODULES: Final = (
    "_exec",
    "_exec_calls",
    "_exec_time",
    "_files",
    "_files_errors",
    "_files_paths",
    "_tree_scan",
    "_tree_restore",
    "_life",
    "_claims",
    "_sandbox",
    "_alike",
    "_lane",
)

Path = PurePosixPath | str
C = TypeVar("C", bound=type[Any])


@attrs.frozen(kw_only=True)
class Mutant:
    """One bug.

    Attributes:
        name: `CHECK--what`, unique.
        kills: the check that must kill it.
        bug: what is wrong, one line.
        strict: it is a bug of a target that claims nothing.
        any_adapter: it wraps whatever adapter; else it is made from the reference.
        build: a lane to the lane with the bug.
    """

    name: str
    kills: str
    bug: str
    strict: bool
    any_adapter: bool
    build: Callable[[Lane], Lane] = attrs.field(repr=False, eq=False)

    def lane(self, base: Lane | None = None) -> Lane:
        """Return the lane with the bug, on the reference unless another lane is given."""
        if base is None:
            provider = ToyProvider(features=NOTHING) if self.strict else ToyProvider()
            base = ToyLane(provider=provider)
        return self.build(base)


_registry: Final[dict[str, Mutant]] = {}


def mutant(kills: str, *, strict: bool = False) -> Callable[[C], C]:
    """Register a class as a bug; its docstring says what is wrong.

    The class is a `BugInstance`, `BugProvider`, `BugLane`, `BugToy`, `ToyFiles` or `ToyTree`.
    """

    def register(cls: C) -> C:
        words = "".join(f"-{char.lower()}" if char.isupper() else char for char in cls.__name__)
        name = f"{kills}-{words}"
        if name in _registry:
            raise ValueError(f"there are two mutants {name}")
        if not cls.__doc__:
            raise ValueError(f"{name}: the docstring says what is wrong")
        _registry[name] = Mutant(
            name=name,
            kills=kills,
            bug=cls.__doc__.strip().splitlines()[0],
            strict=strict,
            any_adapter=issubclass(cls, BugInstance),
            build=lambda lane: _build(cls, lane),
        )
        return cls

    return register


def _build(cls: type[Any], lane: Lane) -> Lane:
    if issubclass(cls, BugLane):
        return cls(lane)
    if issubclass(cls, BugProvider):
        return BugLane(lane, provider=cls(lane.provider))
    if issubclass(cls, BugInstance):
        return BugLane(lane, wrap=cls)
    if not isinstance(lane, ToyLane) or not isinstance(lane.provider, ToyProvider):
        raise TypeError(f"{cls.__name__} is a bug of the reference alone")
    features = lane.provider.features
    if issubclass(cls, ToyFiles):
        return ToyLane(provider=_MutatedToy(features, files=cls))
    if issubclass(cls, ToyTree):
        return ToyLane(provider=_MutatedToy(features, tree=cls))
    return ToyLane(provider=_MutatedToy(features, instance=cls))


def mutants() -> tuple[Mutant, ...]:
    """Return every mutant."""
    for name in MODULES:  # imported for what they register
        import_module(f"pinfold_conformance.mutants.{name}")
    return tuple(_registry.values())


class BugFiles(Files):
    """Files that pass every call on; a bug overrides one."""

    def __init__(self, inner: Files) -> None:
        self.inner = inner

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        return await self.inner.read(path, offset=offset, length=length)

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self.inner.write(path, data, mode=mode)

    async def stat(self, path: Path) -> FileStat:
        return await self.inner.stat(path)

    async def list(self, path: Path) -> Sequence[FileStat]:
        return await self.inner.list(path)

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await self.inner.make_directory(path, parents=parents, exist_ok=exist_ok)

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        await self.inner.remove(path, recursive=recursive)

    async def rename(self, source: Path, target: Path) -> None:
        await self.inner.rename(source, target)

    async def symlink(self, path: Path, target: str) -> None:
        await self.inner.symlink(path, target)

    async def chmod(self, path: Path, mode: int) -> None:
        await self.inner.chmod(path, mode)

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        async for piece in self.inner.download(path):
            yield piece

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        return await self.inner.upload(path, chunks, mode=mode)


class BugTree(Tree):
    """A tree that passes every call on; a bug overrides one."""

    def __init__(self, inner: Tree) -> None:
        self.inner = inner

    async def scan(self, since: ScanState | None = None) -> Scan:
        return await self.inner.scan(since)

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        async for blob in self.inner.read(entries):
            yield blob

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        return await self.inner.restore(plan)

    async def recover(self) -> bool:
        return await self.inner.recover()


class BugInstance(Instance):
    """An instance that passes every call on; a bug overrides one thing.

    Attributes:
        files_class: wraps the files.
        tree_class: wraps the tree.
    """

    files_class: type[BugFiles] = BugFiles
    tree_class: type[BugTree] = BugTree

    def __init__(self, inner: Instance) -> None:
        self.inner = inner
        self.ref, self.features = inner.ref, inner.features
        self.files, self.tree = self.files_class(inner.files), self.tree_class(inner.tree)

    def asked(self, request: ExecRequest) -> ExecRequest:
        """What is passed on instead of a request."""
        return request

    def told(self, request: ExecRequest, result: ExecResult) -> ExecResult:
        """What is returned instead of a result."""
        return result

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        return self.told(request, await self.inner.exec(self.asked(request), sink))

    async def status(self) -> InstanceStatus:
        return await self.inner.status()

    async def destroy(self) -> None:
        await self.inner.destroy()

    async def detach(self) -> None:
        await self.inner.detach()


class _PausableBug(BugInstance, Pausable):
    async def pause(self) -> None:
        if isinstance(self.inner, Pausable):
            await self.inner.pause()

    async def resume(self) -> bool:
        return isinstance(self.inner, Pausable) and await self.inner.resume()


class BugProvider(Provider):
    """A provider that passes every call on; a bug overrides one."""

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.descriptor = inner.descriptor

    async def probe(self) -> Availability:
        return await self.inner.probe()

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        return await self.inner.create(pinned, ctx)

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        return await self.inner.attach(ref, pinned, ctx)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return await self.inner.list(owner, ctx)

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        await self.inner.destroy(ref, ctx)


class BugLane(Lane):
    """A lane whose instances, or whose provider, have a bug."""

    def __init__(
        self,
        inner: Lane,
        *,
        wrap: type[BugInstance] | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.inner, self.wrap = inner, wrap
        self.name, self.provider = inner.name, provider or inner.provider
        self.allow_attacks = inner.allow_attacks

    @property
    def specs(self) -> Sequence[Spec]:  # type: ignore[override]
        return self.inner.specs

    async def unavailable(self) -> str | None:
        return await self.inner.unavailable()

    async def make(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        made = await self.provider.create(pinned, ctx)
        if self.wrap is None:
            return made
        if isinstance(made, Pausable):
            pausable = type(self.wrap.__name__, (self.wrap, _PausableBug), {})
            wrapped: Instance = pausable(made)
            return wrapped
        return self.wrap(made)

    async def reset(self, instance: Instance) -> None:
        await self.inner.reset(_inner(instance))

    def witness(self, instance: Instance) -> Witness | None:
        return self.inner.witness(_inner(instance))

    def listener_address(self, instance: Instance) -> str | None:
        return self.inner.listener_address(_inner(instance))

    async def lose(self, ref: InstanceRef) -> bool:
        return await self.inner.lose(ref)

    async def cut(self, ref: InstanceRef) -> bool:
        return await self.inner.cut(ref)


def _inner(instance: Instance) -> Instance:
    return instance.inner if isinstance(instance, BugInstance) else instance


class BugToy(ToyInstance):
    """The reference's own instance; a bug overrides what lies inside."""


class _MutatedToy(ToyProvider):
    """The reference, made of other parts."""

    def __init__(
        self,
        features: Features,
        *,
        files: type[ToyFiles] | None = None,
        tree: type[ToyTree] | None = None,
        instance: type[ToyInstance] | None = None,
    ) -> None:
        super().__init__(features=features)
        self._files, self._tree, self._instance = files, tree, instance

    def instance(self, body: Body, ref: InstanceRef, ctx: Context) -> Instance:
        if self._instance is None:
            made = super().instance(body, ref, ctx)
        else:
            kind: type[ToyInstance] = self._instance
            if self.features.pause:
                kind = type(kind.__name__, (kind, PausableToy), {})
            made = kind(
                body,
                ref=ref,
                features=self.features,
                limits=self.limits,
                generation=ctx.generation,
            )
        if self._files is not None and isinstance(made, ToyInstance):
            files = self._files(body.world, self.features, self.limits, made.ready)
            made.files = made.toy_files = files
        if self._tree is not None and isinstance(made.tree, ToyTree):
            fields = {field.name: getattr(made.tree, field.name) for field in attrs.fields(ToyTree)}
            made.tree = self._tree(**fields)
        return made


def bug(kills: str, *, strict: bool = False) -> Any:
    """Register a class of files, or of trees, as a bug of whatever adapter."""

    def register(cls: type[Any]) -> type[Any]:
        part = "tree_class" if issubclass(cls, BugTree) else "files_class"
        members = {part: cls, "__doc__": cls.__doc__}
        mutant(kills, strict=strict)(type(cls.__name__, (BugInstance,), members))
        return cls

    return register


def table() -> str:
    """Return the table of mutants and the checks that kill them, as Markdown."""
    lines = ["| check | bug | on |", "|---|---|---|"]
    for one in sorted(mutants(), key=lambda one: one.name):
        on = "any adapter" if one.any_adapter else "the reference"
        on = "a target that claims nothing" if one.strict else on
        lines.append(f"| `{one.kills}` | {one.bug.replace('|', chr(92) + '|')} | {on} |")
    return "\n".join(lines)
