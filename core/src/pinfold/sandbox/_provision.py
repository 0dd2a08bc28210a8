"""Making an instance: pin, create, bootstrap; or leave nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import anyio
import attrs

from pinfold.connections import Connection, provider_failure, scrub_error
from pinfold.errors import PinfoldError, SpecInvalid, Unavailable
from pinfold.memory import NoCompute
from pinfold.provider import (
    Context,
    Descriptor,
    ExecRequest,
    Features,
    Instance,
    InstanceRef,
    Owner,
    Provider,
)
from pinfold.resolve import provider_of
from pinfold.sandbox._runtime import Runtime
from pinfold.spec import (
    BOOTSTRAP_TIMEOUT_SECONDS,
    CREATE_TIMEOUT_SECONDS,
    KILL_GRACE_SECONDS,
    PinnedSpec,
    ResolvedSpec,
)

__all__ = ["Maker", "bootstrap", "typed_errors"]

#: How long ending an instance may take, in seconds.
END_TIMEOUT_SECONDS = KILL_GRACE_SECONDS * 6


@contextmanager
def typed_errors() -> Iterator[None]:
    """Let nothing but typed errors out of a provider, and no secret in them (PR-5)."""
    try:
        yield
    except SpecInvalid:
        raise
    except PinfoldError as exc:
        raise scrub_error(exc)  # noqa: B904 - the same error, without secrets
    except Exception as exc:  # noqa: BLE001 - nothing untyped comes out of a sandbox
        failure = provider_failure(exc)
        raise failure from failure.__cause__


async def _nowhere(_: InstanceRef) -> None:
    return None


@attrs.frozen(kw_only=True)
class Maker:
    """Makes, finds and ends the instances of one sandbox.

    Attributes:
        runtime: plugins and connections.
        spec: resolved; names the provider, or none.
        owner: the labels.
        register: told of every ref before the effect that it names (LC-9).
    """

    runtime: Runtime
    spec: ResolvedSpec
    owner: Owner
    register: Callable[[InstanceRef], Awaitable[None]] = _nowhere

    @property
    def provider(self) -> Provider | None:
        """The provider, or None without compute.

        Raises:
            SpecInvalid: it is not installed (any more).
        """
        if self.spec.target is None:
            return None
        provider: Provider = provider_of(self.spec, self.runtime.catalog).value
        return provider

    @property
    def descriptor(self) -> Descriptor | None:
        """The provider's descriptor, or None without compute."""
        provider = self.provider
        return None if provider is None else provider.descriptor

    @property
    def promised(self) -> Features:
        """The features that the descriptor promises; those of core's own without compute."""
        descriptor = self.descriptor
        return NoCompute.features if descriptor is None else descriptor.features(self.spec)

    def context(
        self, generation: int, register: Callable[[InstanceRef], Awaitable[None]] | None = None
    ) -> Context:
        """Return what a provider is handed."""
        runtime = self.runtime

        async def connect(connection_id: str) -> Connection:
            return await runtime.registered.resolve(connection_id)

        return Context(
            owner=self.owner,
            generation=generation,
            register=register or self.register,
            connect=connect,
            connection_id=self.spec.target.connection_id if self.spec.target is not None else None,
        )

    async def create(self, pinned: PinnedSpec, generation: int) -> Instance:
        """Make an instance; after an error or a cancellation nothing of it is left.

        Raises:
            Unavailable: too slow, or a promised feature is missing (PR-7). Else as the provider.
        """
        provider = self.provider
        if provider is None:
            return NoCompute(self.owner.sandbox or "")
        made: list[InstanceRef] = []

        async def register(ref: InstanceRef) -> None:
            made.append(ref)
            await self.register(ref)

        ctx = self.context(generation, register)
        try:
            with typed_errors():
                return await _create(provider, pinned, ctx)
        except BaseException:
            # The first error is the one to be seen; what can't be ended now, gc finds.
            with anyio.move_on_after(END_TIMEOUT_SECONDS, shield=True):
                await self.end(made, ctx)
            raise

    async def end(self, refs: Sequence[InstanceRef], ctx: Context) -> None:
        """End instances by their refs, the last made first; what fails is left to `gc`."""
        provider = self.provider
        for ref in reversed(refs):
            if provider is not None:
                with suppress(Exception):
                    await provider.destroy(ref, ctx)

    async def discard(self, instance: Instance) -> None:
        """End an instance that is not to be used; finishes when cancelled, raises nothing."""
        with (
            anyio.move_on_after(END_TIMEOUT_SECONDS, shield=True),
            suppress(Exception),
        ):
            await instance.destroy()


async def _create(provider: Provider, pinned: PinnedSpec, ctx: Context) -> Instance:
    try:
        with anyio.fail_after(CREATE_TIMEOUT_SECONDS):
            instance = await provider.create(pinned, ctx)
    except TimeoutError:
        raise Unavailable(
            f"{provider.descriptor.name} made nothing within {CREATE_TIMEOUT_SECONDS:g} seconds",
            hint="see `pinfold targets`",
        ) from None
    missing = instance.features.missing(provider.descriptor.features(pinned.spec))
    if missing:
        await instance.destroy()
        raise Unavailable(
            f"{provider.descriptor.name} promised {', '.join(missing)}, and this instance lacks it",
            hint="choose a level or target that needs less, or mend the target",
            retryable=False,
            details={"missing": list(missing)},
        )
    return instance


async def bootstrap(instance: Instance, pinned: PinnedSpec) -> None:
    """Run the bootstrap commands, in order, on the empty workspace (LC-5, LC-6).

    Raises:
        Unavailable: one failed; its output is in the details.
    """
    for command in pinned.spec.bootstrap.commands:
        request = ExecRequest(shell=command, timeout_seconds=BOOTSTRAP_TIMEOUT_SECONDS)
        result = await instance.exec(request)
        if result.exit_code != 0:
            said = (result.stderr_text or result.stdout_text).strip().rpartition("\n")[2]
            raise Unavailable(
                f"a bootstrap command ended with exit code {result.exit_code}: {command!r}",
                hint=f"it said {said[:200]!r}; all its output is in the details"
                if said
                else "it said nothing",
                retryable=False,
                details={
                    "command": command,
                    "exit_code": result.exit_code,
                    "stdout": result.stdout_text,
                    "stderr": result.stderr_text,
                },
            )
