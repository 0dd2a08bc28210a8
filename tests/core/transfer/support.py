"""What lies on this machine and in a sandbox, and a sandbox that lies."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from pinfold.memory import MemoryFiles, Store
from pinfold.provider import FileStat, FileType, TreeItem
from pinfold.spec import Limits


def shown(root: Path) -> dict[str, object]:
    """A tree of this machine: name to content, link text or mode."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "/"
        else:
            found[name] = path.read_bytes()
    return found


async def inside(files, root="/workspace") -> dict[str, object]:
    """The same of a sandbox."""
    found: dict[str, object] = {}
    async for item in files.download_tree(root):
        if item.type is FileType.SYMLINK:
            found[str(item.path)] = f"-> {item.link}"
        elif item.type is FileType.DIRECTORY:
            found[str(item.path)] = "/"
        else:
            found[str(item.path)] = b"".join([chunk async for chunk in item.chunks])
    del found["."]
    return dict(sorted(found.items()))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


class Liar(MemoryFiles):
    """Files whose trees and contents are what a test says."""

    def __init__(self, items=(), chunks=(b"x",), *, before=None):
        super().__init__(Store(), Limits())
        self.items, self.chunks, self.before = items, chunks, before

    async def stat(self, path):
        kind = FileType.DIRECTORY if self.items else FileType.FILE
        return FileStat(path=PurePosixPath(path), type=kind, mode=0o777)

    async def download(self, path):
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def download_tree(self, path):
        for number, item in enumerate(self.items):
            if self.before is not None:
                self.before(number)
            yield item


class Content:
    """A file's bytes, as often as they are asked for."""

    def __init__(self, data):
        self.data = data

    async def __aiter__(self):
        yield self.data


def a_file(path, data=b"evil", **more):
    return TreeItem(path=PurePosixPath(path), type=FileType.FILE, chunks=Content(data), **more)


def a_folder(path, **more):
    return TreeItem(path=PurePosixPath(path), type=FileType.DIRECTORY, **more)


def a_link(path, text):
    return TreeItem(path=PurePosixPath(path), type=FileType.SYMLINK, link=text)
