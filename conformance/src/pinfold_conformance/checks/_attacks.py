"""The attack matrix: what is planted, how it is referred to, what is done, what must not happen.

Each attack is planted by the guest, with links of its own making, and made through the api. It has
a canary outside of the workspace, and succeeds when the canary is read, changed, or gains company.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from pinfold.errors import OutsideWorkspace, PinfoldError
from pinfold.provider import FileType, TreeItem
from pinfold_conformance._case import Case
from pinfold_conformance._expect import CheckFailed, Inconclusive, equal
from pinfold_conformance.checks.files_paths import one_chunk

__all__ = ["Attack", "Field", "a_field", "attacks"]

Act = Callable[[Case, PurePosixPath, PurePosixPath], Awaitable[Any]]


@attrs.frozen(kw_only=True)
class Field:
    """Where attacks are made.

    Attributes:
        scratch: inside, in the caller's view.
        outside: a folder outside, as the guest names it.
        canary: the content of `outside/canary`.
    """

    scratch: PurePosixPath
    outside: str
    canary: bytes


@attrs.frozen(kw_only=True)
class Attack:
    """One cell of the matrix.

    Attributes:
        id: link form, reference form and operation.
        link: text of the link that is planted; `{out}` is the folder outside.
        path: through which it is used, relative to the scratch folder.
        act: what is done with it.
    """

    id: str
    link: str
    path: str
    act: Act = attrs.field(repr=False, eq=False)


@asynccontextmanager
async def a_field(case: Case) -> AsyncIterator[Field]:
    """Let the guest make a folder outside, with a canary in it, and remove it at the end.

    Raises:
        Inconclusive: it can't write outside; there is nothing to attack.
    """
    field = await _field(case)
    try:
        yield field
    finally:
        with case.site.ending(), suppress(PinfoldError):
            await case.sh(case.dialect.remove(field.outside))


async def _field(case: Case) -> Field:
    d, scratch = case.dialect, await case.scratch()
    outside, canary = f"/tmp/{case.name('out')}", case.name("canary-").encode()  # noqa: S108
    made = await case.sh(
        d.mkdir(outside), d.save(f"{outside}/canary", canary), d.load(f"{outside}/canary"),
        cwd=scratch,
    )  # fmt: skip
    if made.stdout != canary:
        raise Inconclusive("the guest can make nothing outside of its workspace")
    await case.files.write(scratch / "plain", b"plain")
    await case.files.write(scratch / "dir" / "file", b"inside")
    return Field(scratch=scratch, outside=outside, canary=canary)


# --- what is done ---------------------------------------------------------------------------


async def _read(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.read(path)


async def _range(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.read(path, offset=0, length=100)


async def _download(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return b"".join([piece async for piece in case.files.download(path)])


async def _write(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.write(path, b"overwritten")


async def _upload(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.upload(path, one_chunk(b"overwritten"))


async def _list(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return [entry.path.name for entry in await case.files.list(path)]


async def _stat(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.stat(path)


async def _remove(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.remove(path, recursive=True)


async def _rename_out(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.rename(path, plain.parent / "stolen")


async def _rename_in(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.rename(plain, path)


async def _mkdir(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.make_directory(path)


async def _symlink(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.symlink(path, "x")


async def _chmod(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.chmod(path, 0o4777)


async def _cwd(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return (await case.sh(case.dialect.pwd(), cwd=path)).stdout


async def _read_many(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return _only(await case.files.read_many([path]))


async def _stat_many(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return _only(await case.files.stat_many([path]))


def _only(found: Sequence[Any]) -> Any:
    (one,) = found
    if isinstance(one, PinfoldError):
        raise one
    return one


async def _write_many(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.write_many({path: b"overwritten"})


async def _tree_in(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return await case.files.upload_tree(path.parent, [_item(path.name)])


async def _name_in(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    inner = path.relative_to(plain.parent)
    return await case.files.upload_tree(plain.parent, [_item(str(inner))])


def _item(name: str) -> TreeItem:
    return TreeItem(path=PurePosixPath(name), type=FileType.FILE, size=3, chunks=one_chunk(b"bad"))


async def _tree_out(case: Case, path: PurePosixPath, plain: PurePosixPath) -> Any:
    return [item.path async for item in case.files.download_tree(path)]


#: Link forms: the text that the guest plants as `link`. In chains `{out}` is led to by another.
LINKS: Final = {
    "absolute": "{out}",
    "dotted": "{up}{out}",
    "chain": "first",
    "proc-root": "/proc/self/root{out}",
    "nested": "dir/inner",
}

#: Those of them that are links to a link.
LED: Final = ("first", "dir/inner")

FILES: Final[dict[str, Act]] = {
    "read": _read, "range": _range, "download": _download, "write": _write, "upload": _upload,
    "chmod": _chmod, "read-many": _read_many, "write-many": _write_many, "tree-name": _name_in,
}  # fmt: skip
FOLDERS: Final[dict[str, Act]] = {"list": _list, "cwd": _cwd}
BELOW: Final[dict[str, Act]] = {
    "read": _read, "download": _download, "write": _write, "upload": _upload, "stat": _stat,
    "remove": _remove, "rename-out": _rename_out, "chmod": _chmod, "read-many": _read_many,
    "stat-many": _stat_many, "write-many": _write_many, "tree-in": _tree_in, "tree-name": _name_in,
}  # fmt: skip
NEW: Final[dict[str, Act]] = {
    "write": _write, "upload": _upload, "mkdir": _mkdir, "rename-in": _rename_in,
    "symlink": _symlink, "write-many": _write_many, "tree-in": _tree_in, "tree-name": _name_in,
}  # fmt: skip


def attacks(case: Case) -> Iterator[Attack]:
    """Yield the matrix, as far as the target's features go."""
    lacking = set() if case.features.modes else {"chmod"}
    for form, text in LINKS.items():
        if form == "proc-root" and not case.capabilities.native_processes:
            continue  # there is no /proc
        for name, act in FILES.items():
            if name not in lacking:
                yield Attack(id=f"{form}.leaf.{name}", link=text, path="leaf", act=act)
        for name, act in FOLDERS.items():
            yield Attack(id=f"{form}.folder.{name}", link=text, path="link", act=act)
        for name, act in BELOW.items():
            if name not in lacking:
                yield Attack(id=f"{form}.below.{name}", link=text, path="link/canary", act=act)
        for name, act in NEW.items():
            yield Attack(id=f"{form}.new.{name}", link=text, path="link/planted", act=act)
        yield Attack(id=f"{form}.tree.download", link=text, path="link/", act=_tree_out)
    yield Attack(id="dangling.leaf.write", link="{out}/planted", path="link", act=_write)
    yield Attack(id="dangling.leaf.upload", link="{out}/planted", path="link", act=_upload)


async def plant(case: Case, field: Field, attack: Attack) -> None:
    """Let the guest make the links of an attack afresh.

    Raises:
        Inconclusive: it could not.
    """
    d, out = case.dialect, field.outside
    text = attack.link.format(out=out, up=("../" * 16).removesuffix("/"))
    if text in LED:  # by way of another link
        links = {text: out, f"{text}-leaf": f"{out}/canary", "link": text, "leaf": f"{text}-leaf"}
    else:
        links = {"link": text, "leaf": f"{text}/canary"}
    old = [name for text in LED for name in (text, f"{text}-leaf")]
    done = await case.sh(
        d.remove("link", "leaf", *old, "stolen", f"{out}/planted"),
        d.save(f"{out}/canary", field.canary), d.chmod(f"{out}/canary", 0o644),
        d.save("plain", b"plain"), *[d.link(name, text) for name, text in links.items()],
        cwd=field.scratch,
    )  # fmt: skip
    if done.exit_code != 0:
        raise Inconclusive(f"the guest can't plant {attack.id}: {done.stderr_text[:200]}")


async def escaped(case: Case, field: Field, attack: Attack) -> str | None:
    """Make an attack; return how it succeeded, or None when it was held.

    Raises:
        CheckFailed: it was held, but by an error of the wrong type, or silently.
    """
    await plant(case, field, attack)
    path = field.scratch / attack.path
    outcome: Any
    try:
        outcome = await attack.act(case, path, field.scratch / "plain")
    except PinfoldError as exc:
        outcome = exc
    seen = await _damage(case, field, outcome)
    if seen is not None:
        return seen
    if not isinstance(outcome, PinfoldError):
        return f"it was not refused, and gave {outcome!r}"[:200]
    if not isinstance(outcome, OutsideWorkspace):
        raise CheckFailed(
            f"{attack.id}: refused by {type(outcome).__name__}, not OutsideWorkspace: {outcome}"
        )
    equal(await case.files.read(field.scratch / "dir" / "file"), b"inside", "a file beside")
    return None


async def _damage(case: Case, field: Field, outcome: Any) -> str | None:
    """Return what an attack did to the canary, or got of it."""
    d, out = case.dialect, field.outside
    if outcome == field.canary:
        return "the canary was read"
    if isinstance(outcome, list) and any("canary" in str(name) for name in outcome):
        return "the folder outside was listed"
    if isinstance(outcome, bytes) and out.encode() in outcome:
        return "a command ran outside"
    after = await case.sh(d.load(f"{out}/canary"), d.exists(f"{out}/planted"), cwd=field.scratch)
    if after.stdout != field.canary:
        return "the canary was changed or removed"
    if after.exit_code == 0:
        return "something was made beside the canary"
    return None
