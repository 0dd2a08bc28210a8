"""Adapters that keep nothing of the contract: no check at all may pass on any of them.

A check that passes here asserts nothing, or asserts only that an error came back.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import anyio
import attrs

from pinfold.errors import Internal
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
    Limits,
    Network,
    NetworkMode,
    PinnedSpec,
    Spec,
    Target,
)
from pinfold.testing import Lane
from pinfold_conformance.adapters.toy import EVERYTHING

__all__ = ["DEGENERATES", "Manner", "degenerate_lane"]

Path = PurePosixPath | str

_ALL: Final = Capabilities(
    native_processes=True,
    network_enforced=True,
    packages=True,
    portable_checkpoint=True,
    ports=True,
    pty=True,
)
_NONE: Final = Capabilities(
    native_processes=False,
    network_enforced=True,
    packages=False,
    portable_checkpoint=True,
    ports=False,
    pty=False,
)


class Manner:
    """What an adapter does with every call, whatever it is.

    Attributes:
        name: of the adapter.
        features: that it claims.
        capabilities: that it claims.
    """

    name = "always-ok"
    features: Features = EVERYTHING
    capabilities: Capabilities = _ALL

    async def answer(self, value: Any) -> Any:
        """Answer a call whose friendliest answer would be `value`."""
        return value


class AlwaysRaises(Manner):
    """Raises an error of the contract, always the same."""

    name = "always-raises"

    async def answer(self, value: Any) -> Any:
        raise Internal("as always")


class AlwaysHangs(Manner):
    """Never answers, but can be cancelled."""

    name = "always-hangs"

    async def answer(self, value: Any) -> Any:
        await anyio.sleep_forever()


class Empty(Manner):
    """Claims nothing and does nothing, without complaint."""

    name = "empty"
    features = Features()
    capabilities = _NONE


#: By name.
DEGENERATES: Final = {
    manner.name: manner for manner in (Manner(), AlwaysRaises(), AlwaysHangs(), Empty())
}


class _Files(Files):
    def __init__(self, manner: Manner) -> None:
        self._answer = manner.answer

    async def read(self, path: Path, *, offset: int = 0, length: int | None = None) -> bytes:
        return bytes(await self._answer(b""))

    async def write(self, path: Path, data: bytes, *, mode: int | None = None) -> None:
        await self._answer(None)

    async def stat(self, path: Path) -> FileStat:
        stat: FileStat = await self._answer(
            FileStat(path=PurePosixPath(path), type=FileType.FILE, mode=0o644)
        )
        return stat

    async def list(self, path: Path) -> Sequence[FileStat]:
        entries: Sequence[FileStat] = await self._answer(())
        return entries

    async def make_directory(
        self, path: Path, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        await self._answer(None)

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        await self._answer(None)

    async def rename(self, source: Path, target: Path) -> None:
        await self._answer(None)

    async def symlink(self, path: Path, target: str) -> None:
        await self._answer(None)

    async def chmod(self, path: Path, mode: int) -> None:
        await self._answer(None)

    async def download(self, path: Path) -> AsyncIterator[bytes]:
        yield bytes(await self._answer(b""))

    async def upload(
        self, path: Path, chunks: AsyncIterable[bytes], *, mode: int | None = None
    ) -> int:
        return int(await self._answer(0))


class _Tree(Tree):
    def __init__(self, manner: Manner) -> None:
        self._answer = manner.answer

    async def scan(self, since: ScanState | None = None) -> Scan:
        scan: Scan = await self._answer(Scan())
        return scan

    async def read(self, entries: Sequence[Entry]) -> AsyncIterator[Blob]:
        for entry in entries:
            yield await self._answer(Blob(path=entry.path, data=b"", last=True))

    async def restore(self, plan: RestorePlan) -> RestoreReport:
        report: RestoreReport = await self._answer(RestoreReport())
        return report

    async def recover(self) -> bool:
        return bool(await self._answer(False))


class _Instance(Instance):
    def __init__(self, manner: Manner, ref: InstanceRef) -> None:
        self.ref, self.features = ref, manner.features
        self.files, self.tree = _Files(manner), _Tree(manner)
        self._answer = manner.answer

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        result: ExecResult = await self._answer(ExecResult(exit_code=0))
        return result

    async def status(self) -> InstanceStatus:
        status: InstanceStatus = await self._answer(InstanceStatus.UNREACHABLE)
        return status

    async def destroy(self) -> None:
        await self._answer(None)


class _Provider(Provider):
    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._made = 0
        self.descriptor = Descriptor(
            name=manner.name,
            display_name=manner.name,
            kinds=(Kind.CONTAINER,),
            contract=">=1.0,<2",
            containment=(
                Supports(
                    level=Level.ISOLATED,
                    networks=frozenset({NetworkMode.DENY, NetworkMode.ALLOW}),
                    writable_roots=True,
                ),
            ),
            durabilities=frozenset({Durability.CHECKPOINTED, Durability.NONE}),
            capabilities=lambda _: manner.capabilities,
            features=lambda _: manner.features,
            limits=lambda _: Limits(file_bytes=1_000_000, workspace_bytes=10_000_000),
        )

    async def probe(self) -> Availability:
        return Availability(available=True)

    async def create(self, pinned: PinnedSpec, ctx: Context) -> Instance:
        self._made += 1
        ref = InstanceRef(provider=self._manner.name, id=str(self._made))
        await ctx.register(ref)
        return _Instance(self._manner, ref)

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> Instance:
        return _Instance(self._manner, ref)

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        return ()

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        await self._manner.answer(None)


@attrs.define(eq=False)
class _Lane(Lane):
    name: str
    provider: Provider

    @property
    def specs(self) -> Sequence[Spec]:  # type: ignore[override]
        target = Target(kind=Kind.CONTAINER, provider=self.name)
        return [
            Spec(target=target, containment=Containment(network=Network(mode=mode)))
            for mode in (NetworkMode.DENY, NetworkMode.ALLOW)
        ]

    async def unavailable(self) -> str | None:
        return None

    async def reset(self, instance: Instance) -> None:
        return

    def listener_address(self, instance: Instance) -> str | None:
        return "127.0.0.1"


def degenerate_lane(name: str) -> Lane:
    """Return the lane of a degenerate adapter."""
    return _Lane(name, _Provider(DEGENERATES[name]))
