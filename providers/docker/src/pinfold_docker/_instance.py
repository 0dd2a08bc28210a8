"""One container as an instance."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from inspect import iscoroutinefunction
from time import time
from typing import Any, Final

import anyio
import anyio.lowlevel
import attrs

from pinfold.errors import (
    Effect,
    InvalidArgument,
    Lost,
    OutcomeUnknown,
    PinfoldError,
    Unavailable,
    Unreachable,
)
from pinfold.posix import Equipment, Found, PosixTerminalInstance
from pinfold.provider import (
    Endpoint,
    ExecRequest,
    ExecResult,
    Files,
    Instance,
    InstanceRef,
    InstanceStatus,
    Pausable,
    Ports,
    Sink,
    Terminal,
    Terminals,
    TerminalSize,
    Tree,
)
from pinfold_docker._guest import DockerGuest, status_of
from pinfold_docker._http import EngineError

__all__ = ["DockerInstance", "PublishedInstance"]

KILLED: Final = 137
DEFAULT_SIZE: Final = TerminalSize()
#: An engine tells of a kill for memory a moment after the command has ended.
TOLD_SECONDS: Final = 0.1


def _forwarding(kind: type, present: Callable[[], Awaitable[Any]]) -> Any:
    """Return an object of an abstract class that passes every call on to the present target."""

    def passing(name: str) -> Callable[..., Any]:
        async def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            return await getattr(await present(), name)(*args, **kwargs)

        return call

    def streaming(name: str) -> Callable[..., Any]:
        async def stream(_: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with aclosing(getattr(await present(), name)(*args, **kwargs)) as items:
                async for item in items:
                    yield item

        return stream

    methods = {
        name: (passing if iscoroutinefunction(value) else streaming)(name)
        for name, value in vars(kind).items()
        if callable(value) and name[0] != "_"
    }
    return type(f"Present{kind.__name__}", (kind,), methods)()


class _Inner(PosixTerminalInstance):
    """What runs in a container since its last start; its end is the container's."""

    async def status(self) -> InstanceStatus:
        return InstanceStatus.RUNNING

    async def destroy(self) -> None:
        return None


class DockerInstance(Instance, Pausable, Terminals):
    """A container.

    Args:
        guest: the container.
        ref: its name, and the connection it is reached by.
        outfit: makes what runs in it, anew after each start.
        lacks: what the engine could have and hasn't.
        remove: ends it.
    """

    def __init__(
        self,
        guest: DockerGuest,
        ref: InstanceRef,
        *,
        outfit: Callable[[], Awaitable[Equipment]],
        lacks: tuple[str, ...],
        remove: Callable[[], Awaitable[None]],
    ) -> None:
        self.engine = guest.engine
        self.ref = ref
        # Kept by callers, so that they outlive a pause: what they lead to is made anew.
        self.files: Files = _forwarding(Files, self._present_files)
        self.tree: Tree = _forwarding(Tree, self._present_tree)
        self._guest = guest
        self._outfit = outfit
        self._lacks = lacks
        self._remove = remove
        self._inner: _Inner | None = None
        self._started_at = ""
        self._oom_nanoseconds = 0
        self._destroyed = False

    async def refresh(self) -> bool:
        """Learn how the container is, and equip it if it runs.

        Returns:
            Whether it runs, or did until somebody froze it.

        Raises:
            Lost, Unreachable, Unavailable: it can't be used.
        """
        facts = await self._inspect()
        state = facts["State"]
        if not state.get("Running"):
            await self._let_go()
            return False
        if state.get("Paused") and self._inner is None:
            return False  # nothing can be started in it before it is resumed
        if self._inner is None or state["StartedAt"] != self._started_at:
            await self._let_go()  # what was made of an earlier start is of no use
            try:
                equipment = await self._outfit()
            except PinfoldError:
                if (await self._inspect())["State"].get("Running"):
                    raise
                return False  # it has ended since it was looked at
            self._inner = inner = _Inner(self.ref, equipment)
            self._started_at = state["StartedAt"]
            self.features = inner.features
            lacks = (*self._lacks, *inner.details.lacks)
            self.details = attrs.evolve(inner.details, lacks=lacks)
        return True

    @property
    def found(self) -> Found | None:
        """What was found in it when it was equipped."""
        return None if self._inner is None else self._inner.equipment.found

    @property
    def _helper_counts(self) -> bool:
        """The helper itself tells a kill for memory, by the container's own counters."""
        lacking = any(lack.startswith("memory counters") for lack in self.details.lacks)
        return self.details.helper is not None and not lacking

    async def _present(self) -> _Inner:
        """Return what runs in the container.

        Raises:
            Lost: it is gone: also one that was stopped is asked for.
            Unavailable: it is stopped.
            Unreachable: the engine can't tell.
        """
        if self._destroyed:
            raise self._gone()
        if self._inner is None:
            await self._inspect()
            raise await self._guest.suspended() or self._stopped()
        return self._inner

    async def _present_files(self) -> Files:
        return (await self._present()).files

    async def _present_tree(self) -> Tree:
        return (await self._present()).tree

    async def exec(self, request: ExecRequest, sink: Sink | None = None) -> ExecResult:
        if self._guest.was_cut():  # before anything is sent: nothing has run then (EX-14)
            await self.refresh()
        try:
            result = await (await self._present()).exec(request, sink)
        except OutcomeUnknown as exc:
            if await self._out_of_memory():
                exc.details["limit"] = "memory"
                exc.hint = "the memory limit was reached; raise target.options.memory_bytes"
            raise
        killed = result.exit_code == KILLED and not result.timed_out and result.limit is None
        if killed and not self._helper_counts and await self._out_of_memory():
            return attrs.evolve(result, limit="memory")
        return result

    async def open_terminal(
        self, request: ExecRequest | None = None, size: TerminalSize = DEFAULT_SIZE
    ) -> Terminal:
        return await (await self._present()).open_terminal(request, size)

    async def status(self) -> InstanceStatus:
        return await status_of(self.engine, self.ref.id)

    async def pause(self) -> None:
        await self._let_go()
        await self._change("stop", query={"t": 0})

    async def resume(self) -> bool:
        state = (await self._inspect())["State"]
        await self._change("unpause" if state.get("Paused") else "start")  # frozen by somebody else
        await self.refresh()
        return self._started_at != str(state["StartedAt"])

    async def destroy(self) -> None:
        self._destroyed = True
        await self._let_go()
        await self._remove()

    async def detach(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None and inner.equipment.resident is not None:
            await inner.equipment.resident.detach()  # background jobs live on
        self._guest.release()
        await anyio.lowlevel.checkpoint()

    async def _let_go(self) -> None:
        """End the helper and free what is held on this side."""
        inner, self._inner = self._inner, None
        if inner is not None and inner.equipment.resident is not None:
            await inner.equipment.resident.aclose()
        self._guest.release()

    async def _change(self, what: str, *, query: dict[str, Any] | None = None) -> None:
        try:
            await self.engine.call("POST", "containers", self.ref.id, what, query=query)
        except EngineError as exc:
            if exc.status == 404:
                raise self._gone() from None
            raise Unreachable(
                f"the engine could not {what} {self.ref.id}: {exc.message}", effect=Effect.UNKNOWN
            ) from None

    async def _inspect(self) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = await self.engine.call("GET", "containers", self.ref.id, "json")
        except EngineError as exc:
            if exc.status == 404:
                self._inner, self._destroyed = None, True
                self._guest.release()
                raise self._gone() from None
            raise Unreachable(f"the engine can't tell of {self.ref.id}: {exc.message}") from None
        return facts

    def _stopped(self) -> Unavailable:
        return Unavailable(
            f"the container {self.ref.id} is stopped",
            hint="resume the sandbox",
            details={"container": self.ref.id},
        )

    def _gone(self) -> Lost:
        return Lost(f"the container {self.ref.id} is gone", details={"container": self.ref.id})

    async def _out_of_memory(self) -> bool:
        """Say whether the kernel has killed for memory in it since the last time we asked."""
        query = {
            "since": f"{_seconds(self._started_at):.6f}",
            "until": f"{time():.6f}",
            "filters": {"container": [self.ref.id], "event": ["oom"]},
        }
        with anyio.move_on_after(TOLD_SECONDS):
            while True:
                try:
                    async with self.engine.exchange("GET", "events", query=query) as connection:
                        lines = (await connection.read()).splitlines()
                except (EngineError, PinfoldError):
                    return False
                moments = [int(json.loads(line)["timeNano"]) for line in lines]
                new = [moment for moment in moments if moment > self._oom_nanoseconds]
                if new:
                    self._oom_nanoseconds = max(new)
                    return True
                await anyio.sleep(TOLD_SECONDS / 10)
        return False


def _seconds(moment: str) -> float:
    """Return the seconds since the epoch of an engine's time, `2026-01-31T12:00:00.123456789Z`."""
    whole, _, _ = moment.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp()


class PublishedInstance(DockerInstance, Ports):
    """A container with ports on the engine's loopback."""

    async def expose(self, port: int) -> Endpoint:
        facts = await self._inspect()
        if not facts["State"].get("Running"):
            raise self._stopped()
        bindings = (facts["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp")
        if not bindings:
            declared = sorted(facts["Config"].get("ExposedPorts") or ())
            raise InvalidArgument(
                f"port {port} was not declared",
                hint=f"list it in target.options.ports; declared: {', '.join(declared) or 'none'}",
            )
        return Endpoint(port=port, url=f"tcp://127.0.0.1:{bindings[0]['HostPort']}")
