"""Made, found, paused, lost, removed; and nothing left behind (LC, PR-3, PR-4)."""

import os
import threading
from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.errors import Lost, OutcomeUnknown, Unavailable
from pinfold.provider import Context, ExecRequest, InstanceRef, InstanceStatus, Owner
from pinfold_docker import DockerProvider
from pinfold_docker.lane import busybox
from tests.providers.docker.support import (
    BUSYBOX,
    OWNER,
    box,
    image,
    make,
    pinned,
    resolved,
    said,
    sh,
    strays,
)

pytestmark = pytest.mark.anyio

HERE = f"life-{os.getpid()}"


def mine(sandbox: str = "sbx_life", store: str = HERE) -> Owner:
    return Owner(store=store, sandbox=sandbox)


async def test_a_pause_keeps_files_and_says_that_processes_are_lost(provider):
    """LC-1, LC-4: stop and start with the volume."""
    async with box(provider, roots=("/scratch",)) as instance:
        await said(instance, "echo kept >/workspace/f; echo gone >/scratch/f; sleep 932 & :")
        await instance.pause()
        await instance.pause()
        assert await instance.status() is InstanceStatus.PAUSED
        with pytest.raises(Unavailable) as caught:
            await sh(instance, "true")
        assert not isinstance(caught.value, Lost | OutcomeUnknown)
        assert caught.value.effect == "none"
        assert await instance.resume() is True
        assert await instance.resume() is False
        assert await instance.status() is InstanceStatus.RUNNING
        assert await said(instance, "cat /workspace/f; ls /scratch; pidof sleep; :") != ""
        assert await said(instance, "cat /workspace/f; ls /scratch") == "kept\n"
        assert await instance.files.read("/workspace/f") == b"kept\n"
        assert (await sh(instance, "grep -al 'slee[p].932' /proc/[0-9]*/cmdline")).stdout == b""


async def test_another_process_takes_an_instance_up_again(provider):
    """Feature attach: a ref, as JSON, is enough."""
    spec = await pinned(provider, resolved())
    ctx = Context(owner=mine(), generation=4)
    first = await provider.create(spec, ctx)
    try:
        await said(first, "echo here >f")
        await first.detach()
        second = await DockerProvider().attach(first.ref, spec, ctx)
        assert await said(second, "cat f") == "here\n"
        assert (await sh(second, "true")).generation == 4
        await second.pause()
        third = await DockerProvider().attach(first.ref, spec, ctx)
        assert await third.status() is InstanceStatus.PAUSED
        await third.resume()
        assert await said(third, "cat f") == "here\n"
        await second.detach()
        await third.detach()
    finally:
        await provider.destroy(first.ref)
    with pytest.raises(Lost):
        await provider.attach(first.ref, spec, ctx)


async def test_somebody_elses_container_of_that_name_is_not_taken_up(client, provider):
    container = client.containers.create("pinfold-test:busybox", ["true"], name="pinfold-imposter")
    ref = InstanceRef(provider="docker", id="pinfold-imposter")
    try:
        with pytest.raises(Lost):
            await provider.attach(ref, await pinned(provider, resolved()), Context(owner=OWNER))
    finally:
        container.remove(force=True)


async def test_loss_is_told_from_stopping(client, provider):
    """LC-5: stopped is not lost."""
    async with box(provider) as instance:
        client.containers.get(instance.ref.id).kill()
        assert await instance.status() is InstanceStatus.PAUSED
        await instance.resume()
        client.containers.get(instance.ref.id).pause()
        assert await instance.status() is InstanceStatus.PAUSED
        assert await instance.resume() is False  # frozen by somebody: no process is lost
        assert await said(instance, "echo on") == "on\n"
        client.containers.get(instance.ref.id).remove(force=True)
        assert await instance.status() is InstanceStatus.ABSENT
        with pytest.raises(Lost):
            await sh(instance, "true")
        with pytest.raises(Lost):
            await instance.files.read("/workspace/x")
        with pytest.raises(Lost):
            await instance.resume()


async def test_destroying_leaves_nothing_and_may_be_repeated(client, provider):
    owner = mine("sbx_gone")
    instance = await make(provider, owner=owner, network="allow")
    assert len(strays(client, HERE)) == 2  # a container, a volume
    assert [ref.id for ref in await provider.list(owner)] == [instance.ref.id]
    await instance.destroy()
    await instance.destroy()
    await provider.destroy(instance.ref)
    await provider.destroy(InstanceRef(provider="docker", id="pinfold-never-was"))
    assert strays(client, HERE) == []
    assert client.networks.list(names=["pinfold"]) == []
    with pytest.raises(Lost):
        await sh(instance, "true")


async def test_a_volume_without_its_container_is_found_too(client, provider):
    """LC-9: whoever removes the container behind our back leaves the volume."""
    instance = await make(provider, owner=mine("sbx_volume"))
    client.containers.get(instance.ref.id).remove(force=True)
    (ref,) = await provider.list(mine("sbx_volume"))
    assert ref.id == instance.ref.id
    assert ref.sandbox == "sbx_volume"
    await provider.destroy(ref)
    assert await provider.list(mine("sbx_volume")) == []
    await instance.detach()


async def test_listing_is_by_store_and_by_sandbox(provider):
    first = await make(provider, owner=mine("sbx_1"))
    second = await make(provider, owner=mine("sbx_2"))
    other = await make(provider, owner=mine("sbx_1", store="other-" + HERE))
    try:
        assert {r.sandbox for r in await provider.list(Owner(store=HERE))} == {"sbx_1", "sbx_2"}
        assert [r.id for r in await provider.list(mine("sbx_2"))] == [second.ref.id]
        assert [r.id for r in await provider.list(Owner(store="other-" + HERE))] == [other.ref.id]
    finally:
        for instance in (first, second, other):
            await instance.destroy()


async def test_what_somebody_makes_from_a_commit_is_not_ours(client, provider):
    """A commit inherits labels; gc must not touch what is run from it."""
    instance = await make(provider, owner=mine("sbx_commit"))
    container = client.containers.get(instance.ref.id)
    committed = container.commit("pinfold-test", "committed")
    copy = client.containers.create(committed.id, ["true"])
    try:
        assert copy.labels["pinfold.store"] == HERE
        assert [ref.id for ref in await provider.list(Owner(store=HERE))] == [instance.ref.id]
    finally:
        copy.remove(force=True)
        await instance.destroy()
        client.images.remove(committed.id, force=True)


async def test_a_ref_is_registered_before_the_effect_it_names(client, provider):
    seen = []

    async def register(ref: InstanceRef) -> None:
        seen.append((ref, strays(client, HERE)))

    spec = await pinned(provider, resolved())
    instance = await provider.create(spec, Context(owner=mine("sbx_reg"), register=register))
    await instance.destroy()
    assert seen == [(instance.ref, [])]


@pytest.mark.parametrize("milliseconds", [0, 5, 20, 40, 80, 160, 320])
async def test_a_create_that_is_cancelled_leaves_nothing(client, provider, milliseconds):
    spec = await pinned(provider, resolved())
    instance = None
    with anyio.move_on_after(milliseconds / 1000):
        instance = await provider.create(spec, Context(owner=mine("sbx_cancel")))
    if instance is not None:
        await instance.destroy()
    assert strays(client, HERE) == []


async def test_an_image_with_its_own_workspace_gives_an_empty_one(client, provider):
    """The quick way, by which an image passes the owner on, is taken only where nothing is there."""
    script = "ls -A; stat -c '%u %a' ."
    seeder = provider._maker._seeder
    files = {"workspace/from-image": b"x"}
    async with image(client, files=files) as name:
        for number in range(2):
            async with box(provider, image=name) as instance:
                assert await said(instance, script) == "1000 755\n", number
        assert not seeder.fits(client.images.get(name).id, 1000, ())
    for number in range(2):
        async with box(provider) as instance:
            assert await said(instance, script) == "1000 755\n", number
    assert seeder.fits(client.images.get(BUSYBOX).id, 1000, ())
    assert not seeder.fits(client.images.get(BUSYBOX).id, 4321, ())


async def test_a_users_own_labels_are_added(client, provider):
    async with box(provider, labels={"team": "blue"}) as instance:
        labels = client.containers.get(instance.ref.id).labels
        assert labels["team"] == "blue"
        assert labels["pinfold.store"] == OWNER.store


async def test_a_sandbox_holds_one_socket_and_no_thread_and_lets_go_of_it(client, provider):
    """The socket is its helper's; also when many commands have been run."""

    def held() -> tuple[int, int]:
        return len([*Path("/proc/self/fd").iterdir()]), threading.active_count()

    instances = [await make(provider)]
    await said(instances[0], "true")
    descriptors, threads = held()
    instances += [await make(provider) for _ in range(3)]
    for instance in instances:
        for _ in range(3):
            await said(instance, "true")
    assert held() <= (descriptors + 3, threads)
    for instance in instances:
        await instance.destroy()
    assert held() <= (descriptors - 1, threads)


async def test_probe_asks_the_engine_and_says_what_it_lacks(client, provider):
    """PR-4: for real; what is missing is shown, not hidden."""
    state = await provider.probe()
    assert state.available
    assert state.details["engine"] == client.version()["Version"]
    info = client.info()
    has_userns = any("userns" in option for option in info["SecurityOptions"])
    assert has_userns != any("user namespaces" in lack for lack in state.details["lacks"])


async def test_an_instance_says_what_its_engine_lacks(provider):
    async with box(provider) as instance:
        state = await provider.probe()
        assert set(state.details["lacks"]) <= set(instance.details.lacks)
        assert instance.features.missing(provider.descriptor.features(resolved())) == ()


async def test_files_and_commands_see_the_same(provider, flavour):
    """FS-6, as the same user."""
    async with box(provider, image=flavour) as instance:
        path = PurePosixPath("/workspace/d/f")
        await instance.files.write(path, b"by files\n")
        assert await said(instance, "cat d/f; stat -c %u d/f") == "by files\n1000\n"
        await sh(instance, "echo by exec >d/f; ln -s /etc d/out")
        assert await instance.files.read(path) == b"by exec\n"
        assert [entry.path.name for entry in await instance.files.list("/workspace/d")] == [
            "f", "out",
        ]  # fmt: skip
        scan = await instance.tree.scan()
        assert [entry.path for entry in scan.entries] == ["d", "d/f", "d/out"]
        done = await instance.exec(ExecRequest(argv=["cat"], stdin=b"\0\xff", cwd="/workspace/d"))
        assert done.stdout == b"\0\xff"


async def test_the_lane_cuts_what_this_process_holds(provider):
    """PR-1, EX-14: the hook is real, and what was cut is made anew by the next call."""
    async with box(provider) as instance:
        assert await said(instance, "echo on >>f; cat f") == "on\n"
        assert not instance._guest.was_cut()
        assert await busybox.cut(instance.ref)
        assert instance._guest.was_cut()
        assert await said(instance, "echo on >>f; cat f") == "on\non\n"
