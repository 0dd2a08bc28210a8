"""The resident helper as data: one static program for each kind of machine.

What it is, and how it talks, is described in docs/helper.md; its source is in `source/`.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from pinfold_helper._digests import DIGESTS

__all__ = ["load", "machines"]

#: Other names of the same kinds of machine, as `uname -m` gives them.
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


def machines() -> tuple[str, ...]:
    """Return the kinds of machine that there is a program for."""
    return tuple(sorted(DIGESTS))


def load(machine: str) -> bytes:
    """Return the program for a kind of machine, as `uname -m` calls it.

    Raises:
        LookupError: there is none for it.
        OSError: it was never built.
        ValueError: it isn't the one whose digest was recorded.
    """
    name = _SAME.get(machine, machine)
    if name not in DIGESTS:
        raise LookupError(f"there is no helper for {machine}, only for {', '.join(machines())}")
    program = resources.files("pinfold_helper").joinpath("programs", name).read_bytes()
    digest = hashlib.sha256(program).hexdigest()
    if digest != DIGESTS[name]:
        raise ValueError(
            f"the helper for {name} is not the recorded one: its SHA-256 is {digest}; reinstall "
            "pinfold-helper or, in its repository, run python -m pinfold_helper._build"
        )
    return program
