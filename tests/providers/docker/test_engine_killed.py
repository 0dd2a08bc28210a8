"""An engine that is killed while something is under way, and comes back (EX-14, LC-3, LC-5)."""

from pathlib import Path

import anyio
import pytest

import pinfold
from pinfold.checkpoint import CheckpointStore
from pinfold.errors import Lost, OutcomeUnknown, PinfoldError, Unavailable, Unreachable
from pinfold.provider import Context, InstanceStatus, Owner
from pinfold.sandbox import DurableSandbox, Store
from pinfold.spec import PinnedSpec
from pinfold.state import MemoryStateStore
from pinfold_docker import DockerProvider
from tests.providers.docker.support import BUSYBOX, make, pinned, resolved, said, sh

pytestmark = pytest.mark.anyio

OWNER = Owner(store="tests-of-engines", sandbox="sbx_killed")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Starting an engine takes seconds: the event loops take turns elsewhere."""
    return "asyncio"


async def test_a_killed_engine_in_the_middle_of_an_exec_is_an_unknown_outcome(there):
    """EX-14: never sent again; LC-5: away is not lost, stopped is not lost."""
    provider = DockerProvider()
    instance = await make(provider, owner=OWNER)
    outcome: list[BaseException] = []

    async def run() -> None:
        try:
            await sh(instance, "echo once >>ran; sleep 60")
        except Unavailable as exc:
            outcome.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        while True:
            with anyio.move_on_after(5):
                if (await sh(instance, "cat ran")).stdout:
                    break
        there.kill()
    assert isinstance(outcome[0], OutcomeUnknown)

    assert await instance.status() is InstanceStatus.UNREACHABLE
    with pytest.raises(Unreachable) as caught:
        await sh(instance, "true")
    assert caught.value.effect == "none"
    with pytest.raises(Unreachable):
        await provider.attach(instance.ref, await _pinned_offline(), Context(owner=OWNER))
    with pytest.raises(Unavailable):
        await provider.destroy(instance.ref)
    state = await provider.probe()
    assert not state.available
    assert "nobody listens" in state.reason

    there.start()
    assert await instance.status() is InstanceStatus.PAUSED
    with pytest.raises(Unavailable) as stopped:
        await sh(instance, "true")
    assert not isinstance(stopped.value, Lost)
    assert await instance.resume() is True
    assert await said(instance, "cat ran") == "once\n"
    await instance.destroy()
    assert await provider.list(OWNER) == []


async def _pinned_offline():
    return PinnedSpec(spec=resolved(), pins={"image_id": "sha256:" + "0" * 64}, provider="docker")


async def test_a_killed_engine_in_the_middle_of_a_copy_leaves_the_old_file(there):
    """FS-4: the old file or the new one, whole."""
    instance = await make(DockerProvider(), owner=OWNER)
    await instance.files.write("/workspace/f", b"old")
    sent, killed = anyio.Event(), anyio.Event()

    async def chunks():
        for number in range(40):
            yield bytes(65536)
            if number == 20:
                sent.set()
                await killed.wait()

    async def upload() -> None:
        with pytest.raises(Unavailable):
            await instance.files.upload("/workspace/f", chunks())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upload)
        await sent.wait()
        there.kill()
        killed.set()
    there.start()
    await instance.resume()
    assert await instance.files.read("/workspace/f") == b"old"
    await instance.destroy()


async def test_an_engine_killed_while_a_sandbox_is_made_leaves_nothing_unknown(there):
    provider = DockerProvider()
    spec = await pinned(provider, resolved())
    refs = []

    async def register(ref) -> None:
        refs.append(ref)

    async def create() -> None:
        with pytest.raises(Unavailable):
            await provider.create(spec, Context(owner=OWNER, register=register))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        while not refs:
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.05)
        there.kill()
    there.start()
    for ref in {ref.id: ref for ref in [*refs, *await provider.list(OWNER)]}.values():
        await provider.destroy(ref)
    assert await provider.list(OWNER) == []


#: A checkpoint's steps, by what its store is about to do: nothing of the tree is stored; the first
#: of many blobs is, and most are still in the container.
MOMENTS = {
    "nothing is stored": ("exists", "objects/"),
    "one blob of many is": ("write", "objects/"),
}


@pytest.mark.parametrize(
    ("helper", "moment"),
    [
        pytest.param(
            helper,
            moment,
            id=f"helper {helper}, {name}",
            marks=[]
            if (helper == "required") == (name == "one blob of many is")
            else pytest.mark.nightly,
        )
        for helper in ("required", "never")
        for name, moment in MOMENTS.items()
    ],
)
async def test_a_killed_engine_in_the_middle_of_a_checkpoint_leaves_the_one_before(
    there, tmp_path: Path, moment, helper
):
    """LC-3: what was done is done, and said to be; the previous checkpoint is the current one.

    Nothing is run a second time, and the next call finds the container stopped, starts it, and
    commits what is in its volume.
    """
    options = {"image": BUSYBOX, "helper": helper}
    target = {"kind": "container", "provider": "docker", "options": options}
    spec = {"target": target, "durability": "checkpointed"}
    armed: list[str] = []

    def on_step(step: str, key: str) -> None:
        name, prefix = moment
        if armed and step == name and key.startswith(prefix):
            armed.clear()
            there.kill()

    store = Store(CheckpointStore(tmp_path / "checkpoints", on_step=on_step), MemoryStateStore())
    script = "echo once >>ran; for n in $(seq 24); do head -c 1000000 /dev/urandom >f$n; done"
    async with pinfold.open(spec, store=store) as box:
        assert isinstance(box, DurableSandbox)
        await box.exec(shell="echo before >f")
        before = await box.checkpoints()
        armed.append("now")
        with pytest.raises(PinfoldError) as caught:
            await box.exec(shell=script, timeout_seconds=60)
        assert armed == []
        assert caught.value.effect == "done"
        assert await box.checkpoints() == before

        with pytest.raises(Unreachable):
            await box.exec(shell="true")
        there.start()
        result = await box.exec(shell="cat ran; cat f*[0-9] | wc -c")
        assert result.stdout == b"once\n24000000\n"
        assert len(await box.checkpoints()) == len(before) + 1
        assert (await store.checkpoints.verify()).problems == ()
        await box.delete()
