"""Link-swap races: names exchanged under every operation, the attacker's swaps counted (FS-2)."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import PurePosixPath

import anyio
import anyio.lowlevel

from pinfold.errors import PinfoldError
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, Inconclusive, require
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.checks._attacks import Field, a_field
from pinfold_conformance.checks.files_paths import one_chunk

FAMILIES = ("read", "write", "list", "download", "upload", "remove", "rename", "mkdir", "chmod")

#: However busy the machine: so many tries of each operation, against so many swaps.
LEAST_TRIES, LEAST_SWAPS = 30, 50
MOST_SECONDS = 90.0


async def _one(case: Case, field: Field, family: str, turn: int) -> None:
    """Make one try; raise CheckFailed when it came out outside."""
    files, swapped = case.files, field.scratch / "real"
    match family:
        case "read" | "download":
            if family == "read":
                data = await files.read(swapped / "canary")
            else:
                data = b"".join([piece async for piece in files.download(swapped / "canary")])
            require(data != field.canary, f"{family} gave the file outside")
        case "write":
            await files.write(swapped / "canary", b"inside")
        case "upload":
            await files.upload(swapped / "canary", one_chunk(b"inside"))
        case "list":
            names = [entry.path.name for entry in await files.list(swapped)]
            require("only-outside" not in names, "list gave the folder outside")
        case "remove":
            await files.remove(swapped / "only-outside")
        case "rename":
            plain = field.scratch / f"plain{turn}"
            await files.write(plain, b"")
            await files.rename(plain, swapped / "planted")
        case "mkdir":
            await files.make_directory(swapped / "planted-folder")
        case "chmod":
            await files.chmod(swapped / "canary", 0o600)


async def _after(case: Case, field: Field) -> None:
    """Look at the outside: nothing of it may have changed."""
    d, out = case.dialect, field.outside
    canary = await case.sh(d.load(f"{out}/canary"))
    if canary.stdout != field.canary:
        raise CheckFailed(f"the file outside was changed: {canary.stdout[:80]!r}")
    kept = await case.sh(d.exists(f"{out}/only-outside"))
    require(kept.exit_code == 0, "a file outside was removed")
    for name in ("planted", "planted-folder"):
        made = await case.sh(d.exists(f"{out}/{name}"))
        require(made.exit_code == 1, f"{name} was made outside")


@check(
    "FS-2.race", needs={"exec", "symlinks", "attack"}, kind=Kind.STOCHASTIC, place=Place.OWN,
    deadline_s=240,
)  # fmt: skip
async def race(case: Case) -> None:
    """A folder is exchanged with a link that leads out, again and again, under every operation."""
    async with a_field(case) as field:
        await _race(case, field)


async def _race(case: Case, field: Field) -> None:
    d = case.dialect
    await case.sh(
        d.mkdir("real"), d.save("real/canary", b"inside"), d.link("link", field.outside),
        d.save(f"{field.outside}/only-outside", b"x"), cwd=field.scratch,
    )  # fmt: skip
    tries: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    families = [f for f in FAMILIES if f != "chmod" or case.features.modes]

    async def attack(scope: anyio.CancelScope) -> None:
        with scope:
            await case.sh(d.swap("real", "link", "count"), cwd=field.scratch, timeout=200)

    async with anyio.create_task_group() as group:
        attacker = anyio.CancelScope()
        group.start_soon(attack, attacker)

        async def begun() -> bool:
            return await _swaps(case, field.scratch) > 0

        try:
            await case.until(begun, "the attacker swaps", within=20)
            start, turn = time.monotonic(), 0
            while True:
                if turn % len(families) == 0:
                    elapsed = time.monotonic() - start
                    tried = turn >= case.profile.race_tries or (
                        turn >= LEAST_TRIES * len(families) and elapsed > case.profile.race_seconds
                    )
                    # A target may well be faster than the attacker: tries alone prove nothing.
                    if tried and (
                        elapsed > MOST_SECONDS or await _swaps(case, field.scratch) >= LEAST_SWAPS
                    ):
                        break
                family = families[turn % len(families)]
                turn += 1
                tries[family] += 1
                try:
                    await _one(case, field, family, turn)
                except PinfoldError as exc:
                    refused[type(exc).__name__] += 1
                await anyio.lowlevel.checkpoint()
        finally:
            attacker.cancel()
    swaps = await _swaps(case, field.scratch)
    case.evidence.update(swaps=swaps, tries=sum(tries.values()), refused=dict(refused))
    await _after(case, field)
    if swaps < LEAST_SWAPS:
        raise Inconclusive(f"{swaps} swaps against {sum(tries.values())} tries prove nothing")


async def _swaps(case: Case, scratch: PurePosixPath) -> int:
    try:
        size: int = (await case.files.stat(scratch / "count")).size
    except PinfoldError:
        return 0
    return size
