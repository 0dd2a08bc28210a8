"""`pinfold new-provider`: a complete plugin project, which the suite certifies as it is.

The templates are projects named acme: what all share, and what each flavour has of its own. A new
project is a copy of both under another name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["FLAVOURS", "NameInvalid", "write_project"]

#: What a provider is made of, and where that fits.
FLAVOURS: Final[Mapping[str, str]] = {
    "posix": "anything that can spawn a process",
    "generic": "a service with an API of its own: every method is in your hands",
}

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


class NameInvalid(ValueError):
    """The name can't be a provider's; the message says what can."""


def write_project(name: str, flavour: str, into: Path) -> Path:
    """Write a project and return its folder, `pinfold-NAME` in `into`.

    Args:
        name: of the provider, as specs will say it.
        flavour: one of `FLAVOURS`.
        into: the folder to make it in.

    Raises:
        NameInvalid: the name is none; nothing was written.
        FileExistsError: the folder is there already; nothing was written.
    """
    from importlib.resources import files

    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > 40 or keyword.iskeyword(module):
        raise NameInvalid(
            f"{name!r} can't be a provider's name: lower-case letters, digits and single dashes, "
            "a letter first, at most 40"
        )
    folder = into / f"pinfold-{name}"
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; nothing was written")
    camel = "".join(part.capitalize() for part in name.split("-"))
    for part in ("shared", flavour):
        _copy(files("pinfold_conformance") / "_template" / part, folder, name, module, camel)
    return folder


def _copy(source: Traversable, target: Path, name: str, module: str, camel: str) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            inner = entry.name.removesuffix(".txt").replace("acme", module)
            _copy(entry, target / inner, name, module, camel)
        return
    text = source.read_text(encoding="utf-8")
    text = text.replace("pinfold_acme", f"pinfold_{module}").replace("Acme", camel)
    target.write_text(text.replace("acme", name), encoding="utf-8")
