"""What is installed, what it can do, and whether it is there now (PR-4, RS-6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from pinfold.errors import PinfoldError
from pinfold.plugins import Catalog, Loaded, Problem, installed
from pinfold.provider import Availability, Capabilities, Features, Provider
from pinfold.resolve._resolve import default_spec
from pinfold.spec import PROBE_TIMEOUT_SECONDS, Kind, Level, Limits, NetworkMode, to_json

__all__ = ["TargetInfo", "describe", "targets"]


@attrs.frozen(kw_only=True)
class TargetInfo:
    """One row: a provider and a kind that it makes, or a plugin that can't be used.

    Attributes:
        provider: its name.
        display_name: for people.
        kind: null for a plugin that can't be used.
        available: true, false, or null when it was not probed.
        reason: why it is not available; empty otherwise.
        hint: what to do then.
        capabilities: of its default spec; null for a plugin that can't be used.
        levels: weakest first.
        available_levels: those that can be had now; null when all, or not probed.
        networks: level to the network modes that it enforces there.
        durability: the modes offered.
        features: promised for its default spec.
        limits: for its default spec.
        version: of its dist.
        details: facts found by the probe.
    """

    provider: str
    display_name: str = ""
    kind: Kind | None = None
    available: bool | None = None
    reason: str = ""
    hint: str = ""
    capabilities: Capabilities | None = None
    levels: tuple[Level, ...] = ()
    available_levels: tuple[Level, ...] | None = None
    networks: dict[str, tuple[NetworkMode, ...]] = attrs.field(factory=dict)
    durability: tuple[str, ...] = ()
    features: Features | None = None
    limits: Limits | None = None
    version: str = ""
    details: dict[str, Any] = attrs.field(factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        form: dict[str, Any] = to_json(self)
        return form


async def targets(catalog: Catalog | None = None, *, probe: bool = True) -> list[TargetInfo]:
    """Describe every installed provider; nothing that is wrong with one hides another (PR-2).

    Args:
        catalog: the providers; by default those installed.
        probe: ask each, concurrently and under a deadline, whether it is available now.
    """
    found = (catalog or installed()).describe()
    return describe(found, await _probe_all(found) if probe else {})


def describe(
    found: Iterable[Loaded | Problem] | None = None,
    probed: Mapping[str, Availability] | None = None,
) -> list[TargetInfo]:
    """Describe providers without asking any of them; needs no event loop.

    Args:
        found: what a catalog describes; by default what is installed.
        probed: what each was found to be, where it was asked.
    """
    rows: list[TargetInfo] = []
    for item in installed().describe() if found is None else found:
        if isinstance(item, Loaded):
            rows += _describe(item, (probed or {}).get(item.name))
        else:
            rows.append(
                TargetInfo(provider=item.name, available=False, reason=item.message, hint=item.hint)
            )
    return rows


async def _probe_all(found: Iterable[Loaded | Problem]) -> dict[str, Availability]:
    import anyio

    probed: dict[str, Availability] = {}
    async with anyio.create_task_group() as group:
        for item in found:
            if isinstance(item, Loaded):
                group.start_soon(_probe, item.value, item.name, probed)
    return probed


async def _probe(provider: Provider, name: str, probed: dict[str, Availability]) -> None:
    import anyio

    try:
        with anyio.fail_after(PROBE_TIMEOUT_SECONDS):
            probed[name] = await provider.probe()
    except TimeoutError:
        probed[name] = Availability(
            available=False,
            reason=f"no answer within {PROBE_TIMEOUT_SECONDS:g} seconds",
            hint="see whether its service hangs",
        )
    except PinfoldError as exc:
        probed[name] = Availability(available=False, reason=exc.message, hint=exc.hint)
    except Exception as exc:  # noqa: BLE001 - shown as the reason (PR-4)
        probed[name] = Availability(
            available=False,
            reason=f"its probe failed: {type(exc).__name__}: {exc}",
            hint="this is a bug of the provider",
        )


def _describe(item: Loaded, found: Availability | None) -> list[TargetInfo]:
    descriptor = item.value.descriptor
    rows = []
    for kind in descriptor.kinds:
        try:
            spec = default_spec(descriptor, kind)
            capabilities = descriptor.capabilities(spec)
            features, limits = descriptor.features(spec), descriptor.limits(spec)
        except Exception as exc:  # noqa: BLE001 - shown as this provider's own error
            rows.append(
                TargetInfo(
                    provider=item.name,
                    kind=kind,
                    available=False,
                    reason=f"its descriptor fails: {type(exc).__name__}: {exc}",
                    hint="this is a bug of the provider",
                )
            )
            continue
        rows.append(
            TargetInfo(
                provider=item.name,
                display_name=descriptor.display_name,
                kind=kind,
                available=found.available if found else None,
                reason=found.reason if found else "",
                hint=found.hint if found else "",
                capabilities=capabilities,
                levels=tuple(row.level for row in descriptor.containment),
                available_levels=found.levels if found else None,
                networks={
                    str(row.level): tuple(mode for mode in NetworkMode if mode in row.networks)
                    for row in descriptor.containment
                },
                durability=tuple(sorted(descriptor.durabilities)),
                features=features,
                limits=limits,
                version=item.version,
                details=dict(found.details) if found else {},
            )
        )
    return rows
