"""Arguments of file operations are held to their types, whatever the provider (FS-5, ER-2)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

import pinfold
from pinfold.errors import Effect, InvalidArgument, NotADirectory
from pinfold.provider import FileType, TreeItem

pytestmark = pytest.mark.anyio

HERE = "/workspace/x"


async def given(*items):
    for item in items:
        yield item


def tree(chunks: Any):
    return [TreeItem(path=PurePosixPath("x"), type=FileType.FILE, chunks=chunks)]


MALFORMED = {
    "read offset text": lambda f: f.read(HERE, offset="1"),
    "read offset float": lambda f: f.read(HERE, offset=1.0),
    "read offset negative": lambda f: f.read(HERE, offset=-1),
    "read length bool": lambda f: f.read(HERE, length=True),
    "read path": lambda f: f.read(b"/workspace/x"),
    "write text": lambda f: f.write(HERE, "text"),
    "write bytearray": lambda f: f.write(HERE, bytearray(b"x")),
    "write none": lambda f: f.write(HERE, None),
    "write mode": lambda f: f.write(HERE, b"", mode="644"),
    "write path": lambda f: f.write(3, b""),
    "chmod none": lambda f: f.chmod(HERE, None),
    "chmod large": lambda f: f.chmod(HERE, 0o10000),
    "chmod bool": lambda f: f.chmod(HERE, True),
    "link bytes": lambda f: f.symlink("/workspace/l", b"x"),
    "link empty": lambda f: f.symlink("/workspace/l", ""),
    "link surrogate": lambda f: f.symlink("/workspace/l", "\ud800"),
    "rename path": lambda f: f.rename(HERE, None),
    "read_many one": lambda f: f.read_many(HERE),
    "read_many none": lambda f: f.read_many(None),
    "stat_many number": lambda f: f.stat_many(3),
    "write_many list": lambda f: f.write_many([HERE]),
    "write_many text": lambda f: f.write_many({"/workspace/y": b"1", HERE: "2"}),
    "upload bytes": lambda f: f.upload(HERE, b"abc"),
    "upload list": lambda f: f.upload(HERE, [b"abc"]),
    "upload text": lambda f: f.upload(HERE, given(b"a", "b")),
    "upload numbers": lambda f: f.upload(HERE, given([65, 66])),
    "upload nothing": lambda f: f.upload(HERE, given(None)),
    "upload mode": lambda f: f.upload(HERE, given(b"a"), mode=-1),
    "tree none": lambda f: f.upload_tree("/workspace", None),
    "tree numbers": lambda f: f.upload_tree("/workspace", [1]),
    "tree text": lambda f: f.upload_tree("/workspace", tree(given("text"))),
    "tree chunks": lambda f: f.upload_tree("/workspace", tree([b"a"])),
}


@pytest.mark.parametrize("spec", [{"target": None}, {"target": {"kind": "vfs"}}], ids=str)
@pytest.mark.parametrize("name", MALFORMED)
async def test_fs_a_malformed_argument_is_typed_and_changes_nothing(spec, name):
    async with pinfold.open(spec) as box:
        await box.files.write(HERE, b"old", mode=0o600)

        with pytest.raises(InvalidArgument) as caught:
            await MALFORMED[name](box.files)

        (entry,) = await box.files.list("/workspace")
        assert (str(entry.path), entry.mode) == (HERE, 0o600)
        assert await box.files.read(HERE) == b"old"
        assert caught.value.effect is Effect.NONE


@pytest.mark.parametrize("spec", [{"target": None}, {"target": {"kind": "vfs"}}], ids=str)
@pytest.mark.parametrize("earlier", [0, 1])
async def test_er1_what_writes_many_says_whether_earlier_ones_stand(spec, earlier):
    names = [*["first"][:earlier], "taken/below"]
    many = {f"/workspace/{name}": b"new" for name in names}
    items = [
        TreeItem(path=PurePosixPath(name), type=FileType.FILE, chunks=given(b"new"))
        for name in names
    ]
    for act in (lambda f: f.write_many(many), lambda f: f.upload_tree("/workspace", items)):
        async with pinfold.open(spec) as box:
            await box.files.write("/workspace/taken", b"a file")

            with pytest.raises(NotADirectory) as caught:
                await act(box.files)

            assert caught.value.effect is (Effect.DONE if earlier else Effect.NONE)
            assert len(await box.files.list("/workspace")) == 1 + earlier


async def test_ex3_a_terminal_is_asked_for_as_a_command_is():
    async with pinfold.open({"target": None}) as box:
        wrong: Any
        for wrong in ({"cwd": 3}, {"argv": []}, {"argv": "sh"}, {"env": {"A=B": ""}}):
            with pytest.raises(InvalidArgument):
                async with box.terminal(**wrong):
                    pass
