"""What the docker provider does; loaded when it is first asked to."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel

from pinfold.errors import (
    Lost,
    PinfoldError,
    Unavailable,
    Unreachable,
)
from pinfold.posix import Equipment, Found, equip
from pinfold.provider import (
    Availability,
    Context,
    InstanceRef,
    Owner,
    Pins,
    roots_of,
)
from pinfold.spec import WORKSPACE, NetworkMode, PinnedSpec, ResolvedSpec
from pinfold_docker._config import NAME_PREFIX, container_config, container_labels
from pinfold_docker._connect import Engines, lacks_of, missing_protection
from pinfold_docker._descriptor import (
    DESCRIPTOR,
    capabilities,
    features,
    limits,
    options_of,
)
from pinfold_docker._engine import Engine
from pinfold_docker._guest import RUNTIME_DIRECTORY, DockerGuest
from pinfold_docker._http import EngineError
from pinfold_docker._image import Image, find_image, require_image
from pinfold_docker._instance import DockerInstance, PublishedInstance
from pinfold_docker._network import ensure_network, release_network
from pinfold_docker._options import Helper
from pinfold_docker._quota import require_quota
from pinfold_docker._removal import remove_all
from pinfold_docker._seed import SEED_SUFFIX, Seeder
from pinfold_docker._trouble import facts_of, refused_options, unavailable, why_stopped

__all__ = ["Maker"]

CLEAN_UP_SECONDS: Final = 20.0
#: A create that was cancelled is waited for, so that what it made is known and removed.
EFFECT_SECONDS: Final = 60.0
REMOVE_SECONDS: Final = 15.0
#: More kinds of containers than one controller makes.
FOUND_KEPT: Final = 256

#: As `equip` has them.
_WORDS: Final[Mapping[Helper, Literal["auto", "required", "never"]]] = {
    Helper.AUTO: "auto",
    Helper.REQUIRED: "required",
    Helper.NEVER: "never",
}


class Maker:
    """Makes, finds and ends containers; its methods are those of `Provider`."""

    def __init__(self) -> None:
        self._engines = Engines()
        self._seeder = Seeder()
        #: What probes found in containers, by all that they were made of.
        self._found: dict[str, Found] = {}

    async def probe(self) -> Availability:
        """Ask the local engine."""
        try:
            engine = self._engines.local()
            engine.forget()  # what it said a while ago is no probe
            facts = await facts_of(engine)
        except PinfoldError as exc:
            return Availability(available=False, reason=exc.message, hint=exc.hint)
        lacking = missing_protection(facts)
        details = {
            "engine": str(facts.get("ServerVersion", "")),
            "api": await engine.version(),
            "lacks": lacks_of(facts),
        }
        if lacking:
            return Availability(
                available=False,
                reason="the engine can't contain: " + "; ".join(lacking),
                hint="use an engine with these",
                levels=(),
                details=details,
            )
        return Availability(available=True, details=details)

    async def pin(self, spec: ResolvedSpec, ctx: Context) -> Pins:
        """Pin the image."""
        engine = await self._engine_of(spec, ctx)
        options = options_of(spec)
        facts = await facts_of(engine)
        try:
            image, _ = await find_image(engine, options, facts)
            if options.workspace_bytes is not None:
                await require_quota(engine)
        except EngineError as exc:
            raise unavailable(exc) from None
        pins = {"image": options.image, "image_id": image.id}
        if image.digest:
            return Pins(pins=pins | {"image_digest": image.digest})
        return Pins(
            pins=pins,
            unpinned={
                "image_digest": "the image came from no registry: only this engine, or one that "
                "the image is loaded into, can run the sandbox"
            },
        )

    async def create(self, pinned: PinnedSpec, ctx: Context) -> DockerInstance:
        """Make a container and start it."""
        spec = pinned.spec
        engine = await self._engine_of(spec, ctx)
        facts = await facts_of(engine)
        lacking = missing_protection(facts)
        if lacking:
            raise Unavailable("the engine can't contain: " + "; ".join(lacking), retryable=False)
        name = NAME_PREFIX + token_hex(8)
        ref = self._ref(name, spec, ctx.owner.sandbox)
        await ctx.register(ref)
        try:
            made_of = await self._make(engine, name, pinned, ctx, facts)
            instance = self._instance(engine, ref, pinned, ctx, facts, self._found.get(made_of))
            if not await instance.refresh():
                raise await why_stopped(engine, name, options_of(spec).image)
            if instance.found is not None:
                self._found[made_of] = instance.found
                if len(self._found) > FOUND_KEPT:
                    del self._found[next(iter(self._found))]
        except BaseException as exc:
            with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True), suppress(PinfoldError):
                await self.destroy(ref, ctx)
            if isinstance(exc, EngineError):
                raise refused_options(exc) if exc.status == 400 else unavailable(exc) from None
            raise
        return instance

    async def _make(
        self,
        engine: Engine,
        name: str,
        pinned: PinnedSpec,
        ctx: Context,
        facts: dict[str, Any],
    ) -> str:
        """Make the container and its volume, and start it; return all that it was made of."""
        spec, options = pinned.spec, options_of(pinned.spec)
        image = Image(
            id=str(pinned.pins["image_id"]), digest=str(pinned.pins.get("image_digest", ""))
        )
        labels = container_labels(
            name, store=ctx.owner.store, sandbox=ctx.owner.sandbox, generation=ctx.generation
        )
        network = None
        if spec.containment.network.mode is NetworkMode.ALLOW:
            network = await ensure_network(engine, facts)
        roots = spec.containment.filesystem.writable_roots
        fits = self._seeder.fits(image.id, options.user, roots)
        config = container_config(
            name,
            options,
            image=image.id,
            labels=labels,
            network=network,
            writable_roots=roots,
            copies_image=fits,
        )
        query = {"name": name, "platform": options.platform}

        async def create() -> None:
            try:
                await engine.call("POST", "containers", "create", query=query, body=config)
            except EngineError as exc:
                if exc.status != 404:
                    raise
                await require_image(engine, image, options)
                await engine.call("POST", "containers", "create", query=query, body=config)

        async def start() -> None:
            await engine.call("POST", "containers", name, "start")

        # An engine goes on with what it was asked for, also when nobody waits for the answer.
        with anyio.CancelScope(shield=True), anyio.fail_after(EFFECT_SECONDS):
            await create()
            if fits:
                await start()
            else:
                await self._seeder.seed(
                    engine, name, image=image.id, user=options.user, roots=roots, labels=labels
                )
                await _both(start, lambda: self._seeder.clear(engine, name))
        await anyio.lowlevel.checkpoint()
        return _made_of(config, facts)

    async def attach(self, ref: InstanceRef, pinned: PinnedSpec, ctx: Context) -> DockerInstance:
        """Take a container up again."""
        engine = await self._engine_of(pinned.spec, ctx)
        try:
            facts = await facts_of(engine)
            found = await engine.call("GET", "containers", ref.id, "json")
        except EngineError as exc:
            if exc.status == 404:
                raise Lost(
                    f"the container {ref.id} is gone", details={"container": ref.id}
                ) from None
            raise Unreachable(f"the engine can't tell of {ref.id}: {exc.message}") from None
        except Unavailable as exc:
            raise Unreachable(exc.message, hint=exc.hint) from None
        labels = found["Config"].get("Labels") or {}
        if labels.get("pinfold.store") != ctx.owner.store or labels.get("pinfold.name") != ref.id:
            raise Lost(
                f"the container {ref.id} is not the sandbox's: it carries other labels",
                details={"container": ref.id},
            )
        instance = self._instance(engine, ref, pinned, ctx, facts)
        await instance.refresh()
        return instance

    def _ref(self, name: str, spec: ResolvedSpec, sandbox: str | None) -> InstanceRef:
        connection = spec.target.connection_id if spec.target else None
        data = {"connection": connection} if connection else {}
        if spec.containment.network.mode is NetworkMode.ALLOW:
            data["network"] = "allow"
        return InstanceRef(provider=DESCRIPTOR.name, id=name, data=data, sandbox=sandbox)

    def _instance(
        self,
        engine: Engine,
        ref: InstanceRef,
        pinned: PinnedSpec,
        ctx: Context,
        facts: dict[str, Any],
        found: Found | None = None,
    ) -> DockerInstance:
        ulimits = {limit.name: limit.soft for limit in options_of(pinned.spec).ulimits}
        guest = DockerGuest(engine, ref.id, open_files=ulimits.get("nofile"))

        async def outfit() -> Equipment:
            nonlocal found
            known, found = found, None  # true of a fresh container alone
            return await equip(
                guest,
                root=WORKSPACE,
                identity=ref.id,
                writable_roots=roots_of(pinned.spec),
                features=features(pinned.spec),
                limits=limits(pinned.spec),
                generation=ctx.generation,
                shell_path="/bin/sh",
                helper=_WORDS[options_of(pinned.spec).helper],
                owns_processes=True,
                helper_folders=(RUNTIME_DIRECTORY, "/tmp"),  # noqa: S108 - the container's
                found=known,
            )

        async def remove() -> None:
            await self.destroy(ref, ctx)

        kind = PublishedInstance if capabilities(pinned.spec).ports else DockerInstance
        instance = kind(guest, ref, outfit=outfit, lacks=tuple(lacks_of(facts)), remove=remove)
        instance.features = features(pinned.spec)
        return instance

    async def list(self, owner: Owner, ctx: Context | None = None) -> Sequence[InstanceRef]:
        """Find containers and volumes by their labels."""
        wanted = [f"pinfold.store={owner.store}"]
        if owner.sandbox is not None:
            wanted.append(f"pinfold.sandbox={owner.sandbox}")
        connection = ctx.connection_id if ctx is not None else None
        engine = await self._engine(connection, ctx)
        refs: dict[str, InstanceRef] = {}
        filters = {"label": wanted}
        try:
            containers = await engine.call(
                "GET", "containers", "json", query={"all": 1, "filters": filters}
            )
            volumes = await engine.call("GET", "volumes", query={"filters": filters})
        except EngineError as exc:
            raise unavailable(exc) from None
        found = [(item["Names"][0].lstrip("/"), item["Labels"]) for item in containers]
        found += [
            (item["Name"].removesuffix("-workspace"), item["Labels"])
            for item in volumes.get("Volumes") or ()
        ]
        for name, labels in found:
            if labels.get("pinfold.name") != name:
                continue  # made by somebody from a commit of ours
            base = name.removesuffix(SEED_SUFFIX)
            refs[base] = InstanceRef(
                provider=DESCRIPTOR.name,
                id=base,
                data={"connection": connection} if connection else {},
                sandbox=labels.get("pinfold.sandbox"),
            )
        return list(refs.values())

    async def destroy(self, ref: InstanceRef, ctx: Context | None = None) -> None:
        engine = await self._engine(ref.data.get("connection"), ctx)
        try:
            with anyio.fail_after(REMOVE_SECONDS):
                networks = await remove_all(engine, ref.id)
                if networks:
                    await release_network(engine)
        except EngineError as exc:
            raise unavailable(exc) from None
        except TimeoutError:
            raise Unreachable(
                f"the engine did not remove {ref.id} within {REMOVE_SECONDS:g} seconds"
            ) from None

    async def _engine_of(self, spec: ResolvedSpec, ctx: Context) -> Engine:
        return await self._engine(spec.target.connection_id if spec.target else None, ctx)

    async def _engine(self, connection: str | None, ctx: Context | None) -> Engine:
        if connection is None:
            return self._engines.local()
        if ctx is None:
            return self._engines.known(connection)
        return self._engines.use(await ctx.connect(connection))


def _made_of(config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return what containers have in common that are alike for a probe."""
    host = {**config["HostConfig"], "Mounts": None}  # of the workspace, which no probe looks at
    text = json.dumps({**config, "Labels": None, "HostConfig": host})
    return f"{facts.get('ID')} {facts.get('KernelVersion')} {text}"


async def _both(
    first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]]
) -> None:
    """Do two things at once; the first error is raised, as it is."""
    errors: list[Exception] = []

    async def guarded(what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except (EngineError, PinfoldError) as exc:
            errors.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(guarded, first)
        tasks.start_soon(guarded, second)
    if errors:
        raise errors[0]
