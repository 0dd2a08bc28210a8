"""What an engine refuses, and a container that ends at once, in the words of the contract (ER)."""

from __future__ import annotations

from typing import Any, Final

from pinfold.errors import NoSpace, NotFound, PinfoldError, SpecInvalid, Unavailable
from pinfold.faults import Fault
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError

__all__ = ["facts_of", "refused_options", "unavailable", "why_stopped"]

NOT_FOUND: Final = 127


def unavailable(exc: EngineError) -> PinfoldError:
    if "no space left" in exc.message:
        return NoSpace(f"the engine has no room: {exc.message}")
    if exc.status == 404:
        return NotFound(f"the engine does not have it: {exc.message}")
    return Unavailable(f"the engine refuses: {exc.message}", details={"status": exc.status})


def refused_options(exc: EngineError) -> SpecInvalid:
    """Return the fault of what an engine will never make: more processors than it has, say."""
    return SpecInvalid(
        [
            Fault(
                pointer="/target/options",
                code="refused",
                message=f"the engine refuses: {exc.message}",
                hint="choose what this engine has",
            )
        ]
    )


async def facts_of(engine: Engine) -> dict[str, Any]:
    """Return what an engine says of itself; what it said a moment ago is good enough."""
    try:
        return await engine.facts()
    except EngineError as exc:
        raise unavailable(exc) from None


async def why_stopped(engine: Engine, name: str, image: str) -> PinfoldError:
    """Say why a container has ended at once: it was to run /bin/sh, and that to run sleep."""

    async def has(path: str) -> bool:
        try:
            await engine.call("HEAD", "containers", name, "archive", query={"path": path})
        except EngineError:
            return False
        return True

    found = await engine.call("GET", "containers", name, "json")
    code = found["State"]["ExitCode"]
    if not await has("/bin/sh"):
        kind, message = "no_shell", f"the image {image!r} has no /bin/sh, and all is done by it"
        hint = "use an image that has a POSIX shell and the commands of busybox"
    elif code == NOT_FOUND:
        kind, message = "no_tools", f"the image {image!r} lacks the command sleep"
        hint = "use an image that has the commands of busybox"
    else:
        kind = "wrong_platform"
        message = f"the engine can't run /bin/sh of {image!r}: it ended with {code}"
        hint = "use an image for the engine's own platform"
    return SpecInvalid(
        [Fault(pointer="/target/options/image", code=kind, message=message, hint=hint)]
    )
