"""Whether an engine can limit the size of a volume: it tells by making one."""

from __future__ import annotations

from secrets import token_hex

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault
from pinfold_docker._config import NAME_PREFIX
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError
from pinfold_docker._removal import remove_one

__all__ = ["require_quota"]


async def require_quota(engine: Engine) -> None:
    """Refuse a size where the engine can't enforce it (RS-4)."""
    name = NAME_PREFIX + "quota-" + token_hex(8)
    config = {"Name": name, "DriverOpts": {"size": "1m"}}
    try:
        await engine.call("POST", "volumes", "create", body=config)
    except EngineError as exc:
        raise SpecInvalid(
            [
                Fault(
                    pointer="/target/options/workspace_bytes",
                    code="unsupported",
                    message=f"the engine can't limit a volume's size: {exc.message}",
                    hint="leave it out, or use an engine whose data lies on xfs with project quota",
                )
            ]
        ) from None
    await remove_one(engine, "volumes", name)
