"""What a caller's own code raises comes out as it is; a provider's failure is never taken for it."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

import pinfold
from pinfold.errors import Internal, NotFound, Unimplemented
from pinfold.provider import FileType, TreeItem
from pinfold.sandbox import Runtime
from tests.core.sandbox.durable_support import SPEC, Cloud, make_runtime, make_store

pytestmark = pytest.mark.anyio


class Mine(Exception):
    pass


@pytest.fixture(params=["ephemeral", "durable"])
def opening(request, tmp_path):
    """Open a sandbox of either life, on a provider whose files fail when they are told to."""
    cloud = Cloud()
    runtime: Runtime = make_runtime(cloud)

    def get():
        if request.param == "ephemeral":
            return pinfold.open({"target": {"kind": "container"}}, runtime=runtime)
        return pinfold.open(SPEC, name="box", store=make_store(tmp_path), runtime=runtime)

    return get


async def broken(error):
    yield b"half"
    raise error


async def tree(error, *, inside):
    yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY)
    if not inside:
        raise error
    yield TreeItem(path=PurePosixPath("f"), type=FileType.FILE, chunks=broken(error))


def lazy_tree(error):
    yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY)
    raise error


@pytest.mark.parametrize("error", [Mine(), NotFound("of another sandbox")], ids=["any", "typed"])
@pytest.mark.parametrize(
    "upload",
    [
        lambda files, error: files.upload("/workspace/f", broken(error)),
        lambda files, error: files.upload_tree("/workspace/t", tree(error, inside=False)),
        lambda files, error: files.upload_tree("/workspace/t", tree(error, inside=True)),
        lambda files, error: files.upload_tree("/workspace/t", lazy_tree(error)),
    ],
    ids=["chunks", "items", "chunks of items", "plain items"],
)
async def test_fs4_when_a_source_raises_the_error_propagates_and_the_old_file_stands(
    opening, upload, error
):
    async with opening() as box:
        await box.files.write("/workspace/f", b"old")
        with pytest.raises(type(error)) as caught:
            await upload(box.files, error)
        assert caught.value is error
        assert await box.files.read("/workspace/f") == b"old"


async def test_a_providers_failure_in_an_upload_is_still_the_providers(opening, monkeypatch):
    async with opening() as box:
        await box.files.write("/workspace/f", b"old")

        async def fail(*args, **kwargs):
            raise KeyError("a bug")

        async def chunks():
            yield b"x"

        instance = box._life._instance
        monkeypatch.setattr(instance.files, "upload", fail)
        with pytest.raises(Internal, match="bug of the provider"):
            await box.files.upload("/workspace/f", chunks())


async def test_a_terminal_where_there_is_none_is_unimplemented(opening):
    async with opening() as box:
        with pytest.raises(Unimplemented, match="no terminals"):
            async with box.terminal():
                pass
