"""What the host provider's tests share."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from pinfold.provider import Context, ExecRequest, ExecResult, Instance, Owner
from pinfold.spec import (
    Durability,
    Escalation,
    IdleAction,
    Kind,
    Level,
    Network,
    PinnedSpec,
    ResolvedContainment,
    ResolvedFilesystem,
    ResolvedLifecycle,
    ResolvedSpec,
    ResolvedTarget,
    WritableRoot,
)
from pinfold_host import provider

STORE = "store-of-these-tests"


def pinned(
    level: str = "none",
    network: str | None = None,
    *,
    roots: Sequence[str] = (),
    options: dict[str, Any] | None = None,
) -> PinnedSpec:
    """A spec of the host provider with every field decided."""
    network = network or ("allow" if level == "none" else "deny")
    return PinnedSpec(
        spec=ResolvedSpec(
            target=ResolvedTarget(kind=Kind.HOST, provider="host", options=options or {}),
            containment=ResolvedContainment(
                level=Level(level),
                network=Network(mode=network),
                filesystem=ResolvedFilesystem(writable_roots=tuple(map(WritableRoot, roots))),
                escalation=Escalation.NEVER,
            ),
            durability=Durability.NONE,
            lifecycle=ResolvedLifecycle(idle_after_seconds=180, idle_action=IdleAction.STOP),
        ),
        provider="host",
    )


def context(sandbox: str = "sbx_test", **fields) -> Context:
    return Context(owner=Owner(store=STORE, sandbox=sandbox), **fields)


async def create(*args, sandbox: str = "sbx_test", **kwargs) -> Instance:
    return await provider.create(pinned(*args, **kwargs), context(sandbox))


async def sh(instance: Instance, script: str, **kwargs) -> ExecResult:
    """Run a script."""
    return await instance.exec(ExecRequest(shell=script, **kwargs))


async def run(instance: Instance, *argv: str, **kwargs) -> ExecResult:
    """Run a program."""
    return await instance.exec(ExecRequest(argv=argv, **kwargs))


async def out(instance: Instance, script: str, **kwargs) -> str:
    """Run a script that has to succeed; return what it says."""
    result = await sh(instance, script, **kwargs)
    assert result.exit_code == 0, result.stderr_text
    return result.stdout_text


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Poll a condition, plain or async, until it holds."""
    deadline = time.monotonic() + seconds
    while True:
        holds = condition()
        if hasattr(holds, "__await__"):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await anyio.sleep(0.01)


def size(path: Path) -> int:
    """The size of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def names(instance: Instance) -> list[str]:
    """What is in the workspace."""
    return sorted(path.name for path in workspace(instance).iterdir())


async def grows(path: Path, seconds: float = 5.0) -> None:
    """Wait until a heartbeat file grows."""
    before = size(path)
    await until(lambda: size(path) > before, seconds)


async def are_still(*paths: Path) -> bool:
    """Say whether all of some heartbeats, of one beat in 20 ms, have stopped."""
    before = [size(path) for path in paths]
    await anyio.sleep(0.3)
    return [size(path) for path in paths] == before


def workspace(instance: Instance) -> Path:
    """Where an instance's workspace really is: the witness's way in."""
    return Path(instance.ref.data["folder"]) / "workspace"


def is_there(instance: Instance) -> bool:
    """Say whether anything of an instance is left on the disk."""
    return Path(instance.ref.data["folder"]).exists()


def plant(instance: Instance, name: str, data: bytes = b"", mode: int = 0o644) -> Path:
    """Put a file into the workspace past the code under test, as the guest's."""
    root = workspace(instance)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    own(instance, path)
    return path


def own(instance: Instance, path: Path) -> None:
    """Give a path and its parents to the guest, where that is another user."""
    root = workspace(instance)
    uid = root.stat().st_uid
    while path != root:
        os.chown(path, uid, uid, follow_symlinks=False)
        path = path.parent


HEARTBEAT = "while :; do printf x >> {file}; sleep 0.02; done"


def heartbeat(file: str) -> str:
    """A loop that shows that it lives."""
    return HEARTBEAT.format(file=file)
