"""What a target has and lacks, found by trying, once, at the start."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import attrs

from pinfold.errors import NotFound, Unavailable
from pinfold.posix._call import ProgramFailed, Shell
from pinfold.posix._layout import Layout

__all__ = ["Found", "Tools", "probe"]

#: Without one of these nothing works as the contract says.
_NEEDED: Final = {
    "/proc": "links can't be kept inside, and processes can't be ended",
    "cat": "files can't be read",
    "chmod": "modes can't be set",
    "control": "there is no folder that can be written besides the workspace",
    "env": "commands can't be started",
    "grep": "process trees can't be ended",
    "ln": "links can't be made",
    "ln -T": "links can't be made without following others",
    "mkdir": "directories can't be made",
    "mv": "files can't be replaced",
    "mv -T": "files can't be replaced without following links",
    "readlink": "links can't be followed safely",
    "rm": "nothing can be removed",
    "rmdir": "directories can't be removed",
    "sleep": "process trees can't be ended",
    "stat": "nothing can be known about files",
    "stat -c": "nothing can be known about files",
}
#: What can be missed, and what it costs.
_USEFUL: Final = {
    "date": "every file is read anew for each checkpoint",
    "dd": "parts of files are cut from the whole",
    "find": "directories take one process for each entry to list, and there are no checkpoints",
    "sha256sum": "files are read through the controller for each checkpoint",
    "tail": "uploads of unknown size are held in memory",
    "tar": "many files at once take one round trip each",
}


@attrs.frozen(kw_only=True)
class Tools:
    """What a target has.

    Attributes:
        control: a private directory of ours in the target, outside the workspace; whoever uses it
            makes it, should it not be there.
        witness: how a death by a signal is told: `jobs`, `time`, or `` for not at all.
        setsid: a command gets a session of its own.
        find_printf: find has -printf (GNU).
        dd_bytes: dd can skip and count in bytes.
        date_ns: date tells nanoseconds.
        rm_by_descriptor: rm -r can't be led out by a link swapped in (GNU).
        tar: there is tar.
        tar_blocks: an option of its for blocks as large as a pipe, or ``: each is a wake-up.
        sha256sum: there is sha256sum.
        tail: there is tail.
        dd: there is dd.
        find: there is find.
        lacks: what is missing, each with what it costs.
    """

    control: str
    witness: str = ""
    setsid: bool = False
    find_printf: bool = False
    dd_bytes: bool = False
    date_ns: bool = False
    rm_by_descriptor: bool = False
    tar: bool = True
    tar_blocks: str = ""
    sha256sum: bool = True
    tail: bool = True
    dd: bool = True
    find: bool = True
    lacks: tuple[str, ...] = ()


@attrs.frozen
class Found:
    """What a probe found: true as well of every fresh target that is made in the same way."""

    layout: Layout
    tools: Tools

    def elsewhere(self) -> Found:
        """Return it for another target, in which our directory has a name of its own."""
        folder = PurePosixPath(self.tools.control).parent / _control_name()
        return Found(self.layout, attrs.evolve(self.tools, control=str(folder)))


def _control_name() -> str:
    return f".pinfold-{secrets.token_hex(8)}"


async def probe(
    shell: Shell, root: PurePosixPath, writable_roots: Sequence[PurePosixPath] = ()
) -> Found:
    """Find out what a target has, and where the workspace really is.

    Raises:
        NotFound: the workspace or a root isn't there.
        Unavailable: the target lacks something without which nothing works; all of it is named.
    """
    places = (root, *writable_roots)
    try:
        said = await shell.call("probe", args=(_control_name(), *(str(place) for place in places)))
    except ProgramFailed as exc:
        raise Unavailable(f"the target's shell can't be used: {exc}") from None
    text = said.decode("utf-8", "surrogateescape")
    facts: dict[str, list[str]] = {"root": [], "absent": [], "control": [], "has": [], "lacks": []}
    while text:
        kind, _, text = text.partition(" ")
        value, _, text = text.partition("\n" if kind in {"has", "lacks"} else "//\n")
        facts[kind].append(value)
    lacks, has = set(facts["lacks"]), set(facts["has"])
    for place in facts["absent"]:
        raise NotFound(f"the target has no directory {place!r}", details={"path": place})
    fatal = sorted(lacks & _NEEDED.keys())
    if fatal:
        raise Unavailable(
            "the target lacks " + "; ".join(f"{name}: {_NEEDED[name]}" for name in fatal),
            hint="use an image that has a POSIX shell and the commands of busybox",
            details={"lacks": fatal},
            retryable=False,
        )
    costs = [f"{name}: {_USEFUL[name]}" for name in sorted(lacks & _USEFUL.keys())]
    witness = next((name for name in ("jobs", "time") if name in has), "")
    if not witness:
        costs.append(
            "env --default-signal, time -o: a death by a signal can't be told from an exit code"
        )
    if "setsid" not in has:
        costs.append("setsid: a command that kills its own group ends what watches it, too")
    real = [PurePosixPath(place) for place in facts["root"]]
    layout = Layout(root=real[0], writable_roots=tuple(zip(writable_roots, real[1:], strict=True)))
    tools = Tools(
        control=facts["control"][0],
        witness=witness,
        setsid="setsid" in has,
        find_printf="find-printf" in has,
        dd_bytes="dd-bytes" in has,
        date_ns="date-ns" in has,
        rm_by_descriptor="rm-by-descriptor" in has,
        tar="tar" not in lacks,
        tar_blocks="-b128" if "tar-blocks" in has else "",
        sha256sum="sha256sum" not in lacks,
        tail="tail" not in lacks,
        dd="dd" not in lacks,
        find="find" not in lacks,
        lacks=tuple(costs),
    )
    return Found(layout, tools)
