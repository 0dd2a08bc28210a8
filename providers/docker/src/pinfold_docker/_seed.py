"""Giving a fresh volume to the sandbox's user, without running anything as root.

A named volume belongs to root, and in a container without capabilities nobody can change that. An
image that has an empty /workspace of the user's passes its owner on when the volume is made: the
quick way. For other images a second container, never started, has the volume under a folder into
which the engine itself unpacks an archive that holds nothing but the owner.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from pinfold_docker._config import volume_name
from pinfold_docker._engine import Engine
from pinfold_docker._http import EngineError
from pinfold_docker._places import refuse_hiding

__all__ = ["SEED_SUFFIX", "Seeder"]

SEED_SUFFIX: Final = "-seed"
MOUNT: Final = "/pinfold-seed"
#: An archive that begins like this has told all that is asked.
ENOUGH_BYTES: Final = 4 * tarfile.BLOCKSIZE


class Seeder:
    """Remembers which images pass a workspace's owner on, and with which roots they can be used."""

    def __init__(self) -> None:
        self._fits: dict[tuple[str, int], bool] = {}
        self._usable: set[tuple[str, tuple[str, ...]]] = set()

    def fits(self, image: str, user: int, roots: Sequence[str]) -> bool:
        """Say whether an image is known to need no `seed`: it has an empty workspace of a user's.

        Args:
            image: its id.
            user: whose.
            roots: the writable roots.
        """
        return (image, tuple(roots)) in self._usable and self._fits.get((image, user), False)

    async def seed(
        self,
        engine: Engine,
        name: str,
        *,
        image: str,
        user: int,
        roots: Sequence[str],
        labels: Mapping[str, str],
    ) -> None:
        """Give the volume of a container to a user; `clear` removes what it took.

        Raises:
            EngineError: the engine refuses.
            SpecInvalid: the image can't be used, or not with these roots.
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
        if (image, tuple(roots)) not in self._usable:
            await refuse_hiding(engine, helper, roots)
            self._usable.add((image, tuple(roots)))
        if (image, user) not in self._fits:
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
