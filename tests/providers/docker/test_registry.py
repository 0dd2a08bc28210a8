"""Images that come from a registry: pulled as the options say, pinned by digest (RS-3)."""

from collections.abc import Iterator

import pytest

from pinfold.errors import NotFound, Unauthorized
from pinfold.provider import Context
from tests.providers.docker.registry import Registry, serving
from tests.providers.docker.support import OWNER, make, pinned, resolved, said, strays

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What an engine does with a registry does not depend on the event loop: one is enough."""
    return "asyncio"


@pytest.fixture
def registry(client) -> Iterator[Registry]:
    with serving() as registry:
        yield registry
        forget(client, registry)


def forget(client, registry) -> None:
    """Remove all images of a registry from the engine."""
    for image in client.images.list():
        if any(registry.address in name for name in (*image.tags, *image.attrs["RepoDigests"])):
            client.images.remove(image.id, force=True)


async def test_rs3_a_tag_is_pinned_to_its_digest_and_fetched_again_by_it(
    client, provider, registry
):
    digest = registry.publish(client, "tag", b"1")
    spec = await pinned(provider, resolved(image=f"{registry.name}:tag"))
    assert spec.pins["image_digest"] == f"{registry.name}@{digest}"
    assert dict(spec.unpinned) == {}
    registry.publish(client, "tag", b"2")
    forget(client, registry)
    instance = await provider.create(spec, Context(owner=OWNER))
    try:
        assert await said(instance, "cat /version") == "1"
    finally:
        await instance.destroy()
    forget(client, registry)
    registry.blobs.clear()  # an engine may have kept the manifest
    with pytest.raises(NotFound, match="no image"):
        await provider.create(spec, Context(owner=OWNER))
    assert strays(client) == []


@pytest.mark.parametrize(("pull", "version"), [("missing", "1"), ("never", "1"), ("always", "2")])
async def test_an_image_that_is_there_is_asked_for_again_only_where_it_is_always_pulled(
    client, provider, registry, pull, version
):
    registry.publish(client, "tag", b"1")
    client.images.pull(registry.name, tag="tag")
    registry.publish(client, "tag", b"2")
    registry.pulls.clear()
    instance = await make(provider, image=f"{registry.name}:tag", pull=pull)
    try:
        assert await said(instance, "cat /version") == version
        assert bool(registry.pulls) is (pull == "always")
    finally:
        await instance.destroy()


async def test_an_image_named_by_its_digest_is_that_one(client, provider, registry):
    digest = registry.publish(client, "tag", b"1")
    registry.publish(client, "tag", b"2")
    instance = await make(provider, image=f"{registry.name}@{digest}")
    try:
        assert await said(instance, "cat /version") == "1"
    finally:
        await instance.destroy()


async def test_a_registry_that_wants_a_login_says_so(client, provider, registry):
    registry.publish(client, "tag", b"1")
    registry.locked = True
    with pytest.raises(Unauthorized) as caught:
        await make(provider, image=f"{registry.name}:tag")
    assert "log in" in caught.value.hint


async def test_a_tag_that_the_registry_does_not_have_is_not_found(provider, registry):
    with pytest.raises(NotFound) as caught:
        await make(provider, image=f"{registry.name}:nothing")
    assert "docker load" in caught.value.hint
