"""What an image is, when it is pinned and when it is used again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from pinfold.errors import NotFound, SpecInvalid, Unauthorized
from pinfold.faults import Fault
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError
from pinfold_docker._options import DockerOptions, Pull

__all__ = ["Image", "find_image", "require_image"]

PULL_SECONDS: Final = 600.0
#: What engines say where a registry answers 401; their own status is that of any other failure.
LOG_IN: Final = ("unauthorized", "no basic auth credentials", "authentication required")
IMAGE_ID: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}", re.ASCII)

#: As the engine's host and as images name processors.
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@attrs.frozen(kw_only=True)
class Image:
    """A pinned image.

    Attributes:
        id: `sha256:…` of its configuration: the very same image, wherever it is.
        digest: NAME@sha256:… by which a registry gives it again; empty for a local one.
    """

    id: str
    digest: str = ""


async def find_image(
    engine: Engine, options: DockerOptions, facts: Mapping[str, Any]
) -> tuple[Image, dict[str, Any]]:
    """Find the image that the options name, pulled first where they say so.

    Returns:
        The image, and all that the engine says of it.

    Raises:
        NotFound: it isn't there and can't be pulled.
        SpecInvalid: it is for another platform.
        Unauthorized, Unavailable: the registry can't be asked.
    """
    found, is_id = None, IMAGE_ID.fullmatch(options.image)
    if is_id or options.pull is not Pull.ALWAYS:
        found = await _inspect(engine, options.image)
    if found is None and is_id:  # a registry would be asked for a repository named sha256
        raise _missing(options.image, "a registry knows no image by its id")
    if found is None and options.pull is not Pull.NEVER:
        await _pull(engine, options.image, options.platform)
        found = await _inspect(engine, options.image)
    if found is None:
        raise _missing(options.image, "pull is never")
    _check_platform(options, found, facts)
    digests = found.get("RepoDigests") or [""]
    repository, _ = _split(options.image)
    same = (digest for digest in digests if digest.partition("@")[0] == repository)
    return Image(id=found["Id"], digest=next(same, digests[0])), found


async def require_image(engine: Engine, image: Image, options: DockerOptions) -> None:
    """Hold the engine to a pinned image: the very same one is there, or is fetched by its digest.

    Raises:
        NotFound: neither.
    """
    if await _inspect(engine, image.id) is not None:
        return
    if image.digest and options.pull is not Pull.NEVER:
        await _pull(engine, image.digest, options.platform)
        if await _inspect(engine, image.id) is not None:
            return
    raise _missing(image.id, "the sandbox is pinned to exactly this one")


async def _inspect(engine: Engine, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await engine.call("GET", "images", name, "json")
    except EngineError as exc:
        if exc.status == 404:
            return None
        raise
    return found


async def _pull(engine: Engine, name: str, platform: str | None) -> None:
    reference, tag = _split(name)
    if "@" in name:
        query: dict[str, Any] = {"fromImage": name}
    else:
        query = {"fromImage": reference, "tag": tag or "latest"}
    if platform is not None:
        query["platform"] = platform
    try:
        async with engine.exchange(
            "POST", "images", "create", query=query, seconds=PULL_SECONDS
        ) as connection:
            answer = await connection.read()
        for line in answer.splitlines():
            progress = json.loads(line)
            if "error" in progress:
                raise EngineError(0, str(progress["error"]))
    except EngineError as exc:
        if exc.status in (401, 403) or any(word in exc.message for word in LOG_IN):
            raise Unauthorized(
                f"the registry does not give {name!r}: {exc.message}",
                hint="log in there, or load the image with docker load or docker import",
            ) from None
        raise _missing(name, exc.message) from None


def _split(name: str) -> tuple[str, str]:
    """Return the repository and the tag of an image's name."""
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{head}{slash}{last}", tag


def _missing(name: str, reason: str) -> NotFound:
    return NotFound(
        f"the engine has no image {name!r} and could not get it: {reason}",
        hint="load it with docker load -i FILE, docker import or docker build, or check the name "
        "and the registry",
        details={"image": name},
    )


def _check_platform(
    options: DockerOptions, found: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    theirs = f"{found.get('Os', 'linux')}/{found.get('Architecture', '')}"
    machine = str(facts.get("Architecture", ""))
    ours = f"{facts.get('OSType', 'linux')}/{_MACHINES.get(machine, machine)}"
    wanted = options.platform or ours
    if theirs.endswith("/") or wanted == theirs or wanted.startswith(f"{theirs}/"):
        return
    raise SpecInvalid(
        [
            Fault(
                pointer="/target/options/image",
                code="wrong_platform",
                message=f"the image is for {theirs}; "
                + (f"platform asks for {wanted}" if options.platform else f"the engine is {ours}"),
                hint="use an image for it, or set platform where the engine can emulate it",
            )
        ]
    )
