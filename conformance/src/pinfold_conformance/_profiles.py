"""How much is tried: four profiles, each a superset of the one before."""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["PROFILES", "Profile"]

KIB: Final = 1024
MIB: Final = 1024 * KIB


@attrs.frozen(kw_only=True)
class Profile:
    """The numbers of a run.

    Attributes:
        name: its name.
        rank: profiles of a smaller rank are part of it.
        examples: runs of each generated machine.
        steps: steps of each run.
        machine_seconds: after which a machine begins no further run.
        derandomize: the same examples every time; certificates are issued from such runs.
        replays: the most replays that minimising one failure may cost.
        all_codes: exit codes one by one, not a sample.
        flood_bytes: output of the command that floods.
        file_bytes: size of the large file.
        race_tries: operations after which a race has been tried enough.
        race_seconds: seconds after which a race has been tried enough.
        parallel: concurrent calls.
    """

    name: str
    rank: int
    examples: int
    steps: int
    machine_seconds: float = 180.0
    derandomize: bool = True
    replays: int = 80
    all_codes: bool = False
    flood_bytes: int = 8 * MIB
    file_bytes: int = 8 * MIB
    race_tries: int = 1_000
    race_seconds: float = 1.0
    parallel: int = 8


#: Measured on mutants: directed machines of 5 x 12 find 9 of 10, of 10 x 25 all; a golden script
#: finds as much for a fraction. So smoke has scripts alone.
PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile(name="smoke", rank=0, examples=0, steps=0),
        Profile(name="remote", rank=1, examples=5, steps=12),
        Profile(
            name="ci",
            rank=2,
            examples=25,
            steps=25,
            all_codes=True,
            flood_bytes=256 * MIB,
            file_bytes=64 * MIB,
            race_tries=20_000,
            race_seconds=3.0,
            parallel=32,
        ),
        Profile(
            name="nightly",
            rank=3,
            examples=200,
            steps=50,
            machine_seconds=15.0,
            derandomize=False,
            all_codes=True,
            flood_bytes=256 * MIB,
            file_bytes=512 * MIB,
            race_tries=100_000,
            race_seconds=15.0,
            parallel=32,
        ),
    )
}
