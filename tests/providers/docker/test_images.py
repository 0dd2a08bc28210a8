"""Images of every bad kind: each works, or gives a clear fault; and pins hold (RS-3)."""

import io
import json
import shutil
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from pinfold.errors import NotFound, SpecInvalid
from pinfold.provider import Context
from pinfold.spec import PinnedSpec
from pinfold_docker import _maker
from tests.providers.docker.support import (
    BUSYBOX,
    OWNER,
    STORE,
    box,
    eventually,
    image,
    make,
    pinned,
    resolved,
    said,
    sh,
    strays,
)

pytestmark = pytest.mark.anyio


WORKS = {
    "an entrypoint that exits": ('ENTRYPOINT ["/bin/false"]', 'CMD ["nothing"]'),
    "a user root": ("USER root",),
    "a user by name": ("USER user",),
    "a volume on the workspace": ("VOLUME /workspace",),
    "a volume elsewhere": ("VOLUME /data",),
    "a working directory that is missing": ("WORKDIR /not/here",),
    "a health check that fails": ('HEALTHCHECK --interval=1s CMD ["/bin/false"]',),
    "a long environment": tuple(f"ENV V{n}={'x' * 50}" for n in range(300)),
    "labels that look like ours": ("LABEL pinfold.store=x pinfold.name=y",),
    "an exposed port": ("EXPOSE 80",),
}


@pytest.mark.parametrize("changes", WORKS.values(), ids=WORKS)
async def test_an_image_with_settings_of_its_own_works(client, provider, changes):
    """LC-9: and what the engine makes for it, without a name or a label, goes with it."""
    volumes = {volume.name for volume in client.volumes.list()}
    async with image(client, changes=changes) as name, box(provider, image=name) as instance:
        script = "id -u; pwd; touch x; ls; env | grep -c '^V[0-9]'; :"
        count = str(sum(change.startswith("ENV") for change in changes))
        assert (await said(instance, script)).split() == ["1000", "/workspace", "x", count]
        await instance.pause()
        await instance.resume()
        assert await said(instance, "ls") == "x\n"
    assert strays(client) == []
    assert {volume.name for volume in client.volumes.list()} == volumes


@pytest.mark.parametrize("target", ["var/tmp", "/nowhere", "/dev/shm"])
async def test_an_image_whose_tmp_is_a_link_has_one_that_can_be_written(client, provider, target):
    """What it leads to has a mode that was not meant for it, and the runtime keeps that mode."""
    async with (
        image(client, files={"var/tmp/x": b"", "opt/x": b""}, links={"tmp": target}) as name,
        box(provider, image=name, roots=("/opt",)) as instance,
    ):
        script = "cd /tmp && printf '#!/bin/sh\necho ran' >x && chmod +x x && ./x && touch /opt/y"
        assert await said(instance, script) == "ran\n"
        await instance.pause()
        await instance.resume()
        assert await said(instance, script) == "ran\n"


@pytest.mark.parametrize("target", ["/workspace", "workspace/tmp", "l"])
async def test_an_image_whose_tmp_would_hide_the_workspace_is_refused(client, provider, target):
    links = {"l": "./workspace", "tmp": target}
    async with image(client, links=links) as name:
        error = await refused(provider, SpecInvalid, image=name)
    assert [fault.code for fault in error.faults] == ["tmp_in_workspace"]
    assert strays(client) == []


async def refused(provider, error, **options):
    with pytest.raises(error) as caught:
        await make(provider, **options)
    return caught.value


async def test_an_image_that_is_not_there_says_how_to_load_one(provider):
    error = await refused(provider, NotFound, image="pinfold-test:nowhere", pull="never")
    assert "docker load" in str(error)
    assert error.details["image"] == "pinfold-test:nowhere"


@pytest.mark.parametrize("pull", ["missing", "always", "never"])
@pytest.mark.parametrize("prefix", ["sha256:", ""])
async def test_an_id_that_is_not_there_is_asked_of_no_registry(provider, monkeypatch, pull, prefix):
    """It would be taken for a tag of a repository named sha256, which is somebody's."""

    async def asked(*_: object) -> None:
        raise AssertionError("a registry was asked")

    monkeypatch.setattr("pinfold_docker._image._pull", asked)
    error = await refused(provider, NotFound, image=prefix + "0" * 64, pull=pull)
    assert "docker load" in str(error)


async def test_an_image_named_by_its_id_is_taken(client, provider):
    name = client.images.get(BUSYBOX).id
    spec = await pinned(provider, resolved(image=name, pull="always"))
    assert spec.pins["image_id"] == name


async def test_a_registry_that_is_not_there_is_named(provider):
    """A port on our own loopback, where nobody listens."""
    error = await refused(provider, NotFound, image="127.0.0.1:9/nothing/here:1")
    assert "127.0.0.1:9" in str(error)
    assert "docker load" in str(error)


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


@pytest.fixture
def scratch(client):
    """Images made of nothing but files, as `docker save` writes them."""
    made = []

    def build(tag: str, files: dict[str, bytes], architecture: str | None = None) -> str:
        layer, name = archive(files), f"pinfold-test:{tag}"
        config = {
            "architecture": architecture or client.version()["Arch"],
            "os": "linux",
            "config": {"StopSignal": "SIGUSR1", "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        parts = {"config.json": config, "manifest.json": manifest}
        texts = {part: json.dumps(value).encode() for part, value in parts.items()}
        client.images.load(archive({**texts, "layer.tar": layer}))
        made.append(name)
        return name

    yield build
    for name in made:
        client.images.remove(name, force=True)


async def test_an_image_without_a_shell_is_a_fault_of_the_image(client, provider, scratch):
    error = await refused(provider, SpecInvalid, image=scratch("no-sh", {"hello": b"hi"}))
    (fault,) = error.faults
    assert (fault.pointer, fault.code) == ("/target/options/image", "no_shell")
    assert strays(client) == []


async def test_an_image_for_another_platform_is_a_fault_of_the_image(provider, scratch):
    name = scratch("other", {"bin/sh": b"\x7fELF"}, architecture="s390x")
    error = await refused(provider, SpecInvalid, image=name)
    (fault,) = error.faults
    assert (fault.pointer, fault.code) == ("/target/options/image", "wrong_platform")
    assert "linux/s390x" in str(fault)


async def test_programs_for_another_platform_under_a_wrong_name_are_found_at_the_start(
    client, provider, scratch
):
    # An ELF head for another machine, in an image that says it is the engine's own.
    elf = b"\x7fELF\x02\x02\x01" + bytes(9) + b"\0\x02\0\x16" + bytes(44)
    name = scratch("wrong-elf", {"bin/sh": elf})
    error = await refused(provider, SpecInvalid, image=name)
    assert error.faults[0].code == "wrong_platform"
    assert strays(client) == []


@pytest.fixture(scope="module")
def busybox() -> bytes:
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("there is no static busybox here")
    return Path(program).read_bytes()


async def test_an_image_without_sleep_is_a_fault_of_the_image(provider, scratch, busybox):
    # An ash that does not run the applets that it has itself.
    name = scratch("no-sleep", {"bin/sh": b"#!/bin/ash\nexit 127\n", "bin/ash": busybox})
    error = await refused(provider, SpecInvalid, image=name)
    assert error.faults[0].code == "no_tools"


async def test_a_container_that_ends_while_it_is_equipped_tells_the_same_fault(
    client, provider, scratch, busybox, monkeypatch
):
    """However late the end is seen: between the look at it and its first use, too."""
    equip = _maker.equip

    async def later(guest, **more):
        await eventually(lambda: client.containers.get(guest.container).status == "exited", 20)
        return await equip(guest, **more)

    monkeypatch.setattr(_maker, "equip", later)
    shell = b"#!/bin/ash\n/bin/busybox sleep 1\nexit 127\n"  # seen running, and then no more
    name = scratch("late", {"bin/sh": shell, "bin/ash": busybox, "bin/busybox": busybox})
    error = await refused(provider, SpecInvalid, image=name)
    assert error.faults[0].code == "no_tools"
    assert strays(client) == []


async def test_a_sandbox_keeps_the_image_that_its_tag_was_pinned_to(client, provider):
    """RS-3, and the tag moves on: the very same image, or failure."""
    async with image(client, files={"old": b"1"}) as name:
        spec = await pinned(provider, resolved(image=name))
        assert spec.pins["image_id"] == client.images.get(name).id
        assert "image_digest" in spec.unpinned
        repository, tag = name.split(":")
        old = client.images.get(name)
        old.tag(repository, tag + "-kept")
        client.images.get(BUSYBOX).tag(repository, tag)
        try:
            instance = await provider.create(spec, Context(owner=OWNER))
            assert await said(instance, "ls /old") == "/old\n"
            await instance.destroy()
        finally:
            client.images.remove(f"{repository}:{tag}-kept", force=True)
        with pytest.raises(NotFound, match="pinned to exactly this one"):
            await provider.create(spec, Context(owner=OWNER))
    assert strays(client) == []


async def test_a_size_is_refused_where_the_engine_has_no_quota(client, provider):
    """RS-4, TR-2: and said to be lacking; where it has one the size holds."""
    lacks = (await provider.probe()).details["lacks"]
    try:
        async with box(provider, workspace_bytes=16 * 2**20) as instance:
            result = await sh(instance, "head -c 64000000 /dev/zero >big")
            assert result.exit_code != 0
            assert provider.descriptor.limits(resolved(workspace_bytes=16 * 2**20)).workspace_bytes
    except SpecInvalid as error:
        (fault,) = error.faults
        assert fault.pointer == "/target/options/workspace_bytes"
        assert fault.code == "unsupported"
        backing = dict(client.info()["DriverStatus"])["Backing Filesystem"]
        assert backing == "xfs" or any(lack.startswith("workspace quota") for lack in lacks)
    else:
        assert not any(lack.startswith("workspace quota") for lack in lacks)
    assert not [v.name for v in client.volumes.list() if v.name.startswith("pinfold-quota")]
    assert strays(client, STORE) == []


def test_pins_are_part_of_the_digest():
    spec = resolved()
    first = PinnedSpec(spec=spec, pins={"image_id": "sha256:1"}, provider="docker")
    second = PinnedSpec(spec=spec, pins={"image_id": "sha256:2"}, provider="docker")
    assert first.digest != second.digest
