"""Giving a fresh volume to the sandbox's user, without running anything as root.

A named volume belongs to root, and in a container without capabilities nobody can change that. An
image that has an empty /workspace of the user's passes its owner on when the volume is made: the
quick way. For other images a second container, never started, has the volume under a folder into
which the engine itself unpacks an archive that holds nothing but the owner.
"""

from __future__ import annotations

import io
import json
import tarfile
from base64 import b64decode
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import Any, Final

from pinfold.errors import SpecInvalid
from pinfold.faults import Fault
from pinfold.spec import WORKSPACE
from pinfold_docker._config import volume_name
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError

__all__ = ["SEED_SUFFIX", "Seeder"]

SEED_SUFFIX: Final = "-seed"
MOUNT: Final = "/pinfold-seed"
#: An archive that begins like this has told all that is asked.
ENOUGH_BYTES: Final = 4 * tarfile.BLOCKSIZE


class Seeder:
    """Remembers which images pass a workspace's owner on."""

    def __init__(self) -> None:
        self._fits: dict[tuple[str, int], bool] = {}

    def fits(self, image: str, user: int) -> bool:
        """Say whether an image is known to have an empty workspace of a user's."""
        return self._fits.get((image, user), False)

    async def seed(
        self, engine: Engine, name: str, *, image: str, user: int, labels: Mapping[str, str]
    ) -> None:
        """Give the volume of a container to a user; `clear` removes what it took.

        Raises:
            EngineError: the engine refuses.
            SpecInvalid: the image can't be used.
        """
        helper = name + SEED_SUFFIX
        config: dict[str, Any] = {
            "Image": image,
            "Entrypoint": ["/nothing"],
            "Labels": {**labels, "pinfold.name": helper},
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": volume_name(name),
                        "Target": f"{MOUNT}/volume",
                        "VolumeOptions": {"NoCopy": True, "Labels": dict(labels)},
                    }
                ],
            },
        }
        await engine.call("POST", "containers", "create", query={"name": helper}, body=config)
        await engine.call(
            "PUT",
            "containers",
            helper,
            "archive",
            query={"path": MOUNT},
            body=_owner_archive(user),
            headers={"Content-Type": "application/x-tar"},
        )
        if (image, user) not in self._fits:
            await _refuse_tmp_in_workspace(engine, helper)
            self._fits[image, user] = await _passes_on(engine, helper, user)

    async def clear(self, engine: Engine, name: str) -> None:
        """Remove what `seed` took."""
        query = {"force": 1, "v": 1}
        await engine.call("DELETE", "containers", name + SEED_SUFFIX, query=query)


def _owner_archive(user: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        entry = tarfile.TarInfo("volume")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        entry.uid = entry.gid = user
        tar.addfile(entry)
    return stream.getvalue()


async def _refuse_tmp_in_workspace(engine: Engine, container: str) -> None:
    """Refuse an image whose /tmp leads into the workspace: its memory would hide the volume."""
    try:
        async with engine.exchange(
            "HEAD",
            "containers",
            container,
            "archive",
            query={"path": "/tmp"},  # noqa: S108
        ) as connection:
            facts = json.loads(b64decode(connection.headers["x-docker-container-path-stat"]))
    except EngineError:
        return  # there is none
    where = PurePosixPath(str(facts.get("linkTarget") or "/tmp"))  # noqa: S108
    if WORKSPACE in (where, *where.parents):
        raise SpecInvalid(
            [
                Fault(
                    pointer="/target/options/image",
                    code="tmp_in_workspace",
                    message=f"the image's /tmp is a link to {str(where)!r}, in the workspace",
                    hint="use an image whose /tmp is a directory",
                )
            ]
        )


async def _passes_on(engine: Engine, container: str, user: int) -> bool:
    """Say whether the image of a container has an empty /workspace of a user's."""
    head = b""
    try:
        async with (
            engine.exchange(
                "GET", "containers", container, "archive", query={"path": "/workspace"}
            ) as connection,
            aclosing(connection.chunks()) as chunks,
        ):
            async for chunk in chunks:
                head += chunk
                if len(head) >= ENOUGH_BYTES:
                    break
    except EngineError:
        return False  # there is none
    try:
        with tarfile.open(fileobj=io.BytesIO(head)) as tar:
            entries = [tar.next(), tar.next()]
    except tarfile.TarError:
        return False
    root, more = entries
    return (
        root is not None
        and more is None
        and root.isdir()
        and (root.uid, root.gid, root.mode & 0o7777) == (user, user, 0o755)
    )
