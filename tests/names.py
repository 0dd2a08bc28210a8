"""Names that shells, tools and parsers of their output take for something else, and all that can
be done with them (FS-3).
"""

import os
from pathlib import Path, PurePosixPath

from pinfold.provider import FileStat, FileType, Instance, TreeItem

HOSTILE = (
    "plain", "a b", "'", '"', "$(touch pwned)", "`id`", ";", "&", "|", "<", " ", "-", "--", "-rf", "a-",
    "--help", "=", "a=b", "*", "?", "[", "[a]", "~", "#", "\n", "new\nline", "\t", "\\", "a\\nb", "%s",
    "é", "\udcff\udcfe", "\udc81\udc88", "{}", ".hidden", "...", "x" * 255, "-" * 255, "!", "\x01\x7f",
    "in ok",
)  # fmt: skip


def raw(name: str) -> bytes:
    """The bytes of a name, which are the content of its file as well."""
    return os.fsencode(name)


async def _tree(names: tuple[str, ...]):
    async def chunks(data: bytes):
        yield data

    for name in names:
        yield TreeItem(path=PurePosixPath(name), type=FileType.DIRECTORY, mode=0o755)
    for name in names:
        size, path = len(raw(name)), PurePosixPath(name, name)
        yield TreeItem(
            path=path, type=FileType.FILE, mode=0o644, size=size, chunks=chunks(raw(name))
        )


async def use_all(instance: Instance, workspace: Path, names: tuple[str, ...] = HOSTILE) -> None:
    """Do all there is to do with each name: of a directory, and of a file in it; one at a time,
    and all in one batch. `workspace` is the witness's own view.
    """
    files, root = instance.files, PurePosixPath("/workspace/d")
    paths = {root / name / name: raw(name) for name in names}

    def content() -> dict[bytes, bytes]:
        found = (path for path in (workspace / "d").rglob("*") if path.is_file())
        return {os.fsencode(path.relative_to(workspace / "d")): path.read_bytes() for path in found}

    whole = {raw(f"{name}/{name}"): raw(name) for name in names}
    assert await files.upload_tree(root, _tree(names)) == 2 * len(names)
    assert content() == whole
    facts = await files.stat_many([*paths, *(root / name for name in names)])
    assert [isinstance(fact, FileStat) and (fact.path, fact.type, fact.size) for fact in facts] == [
        *((path, FileType.FILE, len(data)) for path, data in paths.items()),
        *((root / name, FileType.DIRECTORY, 0) for name in names),
    ]
    assert await files.read_many(list(paths)) == list(paths.values())
    assert [entry.path.name for entry in await files.list(root)] == sorted(names)
    await files.write_many(dict.fromkeys(paths, b"many"))
    assert content() == dict.fromkeys(whole, b"many")
    downloaded = {}
    async for item in files.download_tree(root):
        if item.chunks is not None:
            downloaded[raw(str(item.path))] = b"".join([part async for part in item.chunks])
    assert downloaded == dict.fromkeys(whole, b"many")
    scan = await instance.tree.scan()
    assert {raw(entry.path) for entry in scan.entries if entry.type is FileType.FILE} == {
        b"d/" + path for path in whole
    }
    entries = [entry for entry in scan.entries if entry.type is FileType.FILE]
    contents = dict.fromkeys((entry.path for entry in entries), b"")
    async for blob in instance.tree.read(entries):
        contents[blob.path] += blob.data
    assert set(contents.values()) == {b"many"}

    for path, data in paths.items():
        await one_by_one(files, path, data, workspace / "d" / path.relative_to(root))
    for name in names:
        await files.remove(root / name, recursive=True)
    assert await files.list(root) == []
    assert await files.list("/workspace") == [await files.stat(root)], "nothing else came to be"


async def one_by_one(files, path: PurePosixPath, data: bytes, seen: Path) -> None:
    """Do all there is to do with one file, all alone."""
    name, spare = path.name, path.with_name(f"{path.name[:240]}-2")
    await files.write(path, data)
    assert look(seen) == (0o644, data), name
    assert await files.read(path) == data, name
    fact = await files.stat(path)
    assert (fact.path, fact.size) == (path, len(data)), name
    await files.chmod(path, 0o600)
    assert look(seen) == (0o600, data), name
    await files.rename(path, spare)
    await files.rename(spare, path)
    await files.symlink(spare, name)
    assert (await files.stat(spare)).link == name
    assert [entry.path.name for entry in await files.list(path.parent)] == sorted(
        (path.name, spare.name)
    )
    await files.remove(spare)
    await files.remove(path)
    await files.make_directory(path)
    assert (await files.stat(path)).type is FileType.DIRECTORY, name


def look(path: Path) -> tuple[int, bytes]:
    """The mode and the content of a file."""
    return path.stat().st_mode & 0o777, path.read_bytes()
