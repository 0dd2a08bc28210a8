"""Making, finding, pausing and ending instances (LC, as far as a provider carries it)."""

from __future__ import annotations

import json
import uuid
from pathlib import PurePosixPath

import anyio
import attrs

from pinfold.errors import Effect, Lost, PinfoldError, Unimplemented
from pinfold.provider import (
    Context,
    ExecRequest,
    InstanceRef,
    InstanceStatus,
    Owner,
    Pausable,
    Snapshots,
)
from pinfold.spec import from_json, has_secret_shape, to_json
from pinfold_conformance._case import Case
from pinfold_conformance._expect import (
    AdapterFault,
    Inconclusive,
    equal,
    expect_raises,
    fail,
    require,
)
from pinfold_conformance._forms import typed
from pinfold_conformance._guard import GuardedInstance, Sabotage, blamed, guarded
from pinfold_conformance._registry import Kind, Place, check
from pinfold_conformance.dialects import How


async def _refs(case: Case, ctx: Context) -> set[str]:
    return {ref.id for ref in await case.provider.list(Owner(store=ctx.owner.store), ctx)}


@check("LC-9.register-first", place=Place.NONE, deadline_s=120)
async def register_first(case: Case) -> None:
    """The ref is registered before its effect: where registering fails, nothing is made."""
    ctx = case.site.context()
    store = str(uuid.uuid4())
    seen: list[InstanceRef] = []

    async def refuses(ref: InstanceRef) -> None:
        seen.append(ref)
        raise Sabotage("by the register")

    broken = attrs.evolve(ctx, owner=Owner(store=store, sandbox="sbx_0"), register=refuses)
    with expect_raises(Sabotage, what="a create whose register fails"):
        await case.site.lane.make(case.pinned, broken)
    require(seen, "create did not register a ref")
    left = {ref.id for ref in await case.provider.list(Owner(store=store), broken)}
    equal(left, set(), "what is there though it could not be registered")
    await case.provider.destroy(seen[0], broken)
    async with case.another() as instance:
        equal(await instance.status(), InstanceStatus.RUNNING, "an instance that was registered")


@check("LC-9.cancelled-create", place=Place.NONE, deadline_s=240)
async def cancelled_create(case: Case) -> None:
    """A create that is cancelled leaves nothing but what was registered or carries its labels."""
    store = str(uuid.uuid4())
    seen: list[InstanceRef] = []

    async def register(ref: InstanceRef) -> None:
        seen.append(ref)

    tries = 10 if case.profile.rank > 1 else 4
    made = 0
    for number in range(tries):
        ctx = attrs.evolve(
            case.site.context(),
            owner=Owner(store=store, sandbox=f"sbx_{number}"),
            register=register,
        )
        delay = case.random.uniform(0, 0.3) if number else 0.0
        with anyio.move_on_after(delay):
            inner = await case.site.lane.make(case.pinned, ctx)
            instance = guarded(inner, case.site.meter)
            made += 1
            with case.site.ending():
                await instance.destroy()
    ctx = attrs.evolve(case.site.context(), owner=Owner(store=store))
    for ref in await case.provider.list(Owner(store=store), ctx):
        require(
            any(ref.id == one.id for one in seen), f"{ref.id} was made but never registered (LC-9)"
        )
        await case.provider.destroy(ref, ctx)
    for ref in seen:
        await case.provider.destroy(ref, ctx)
    equal(await _refs(case, ctx), set(), "what is left after every registered ref was destroyed")
    case.evidence.update(tries=tries, ended_before_cancelled=made)
    async with case.another() as instance:
        equal(await instance.status(), InstanceStatus.RUNNING, "a create that is not cancelled")


@check("LC-9.labels", needs={"attach"}, place=Place.NONE, deadline_s=120)
async def labels(case: Case) -> None:
    """list tells of an owner's instances, by store and by sandbox, and of nobody else's."""
    ctx = case.site.context()
    async with case.another() as one, case.another() as two:
        mine = await _refs(case, ctx)
        require({one.ref.id, two.ref.id} <= mine, "an instance is not listed for its store")
        stranger = Owner(store=str(uuid.uuid4()))
        equal(list(await case.provider.list(stranger, ctx)), [], "another store's instances")
        for instance in (one, two):
            owner = Owner(store=ctx.owner.store, sandbox=instance.ref.sandbox)
            if instance.ref.sandbox is not None:
                found = {ref.id for ref in await case.provider.list(owner, ctx)}
                equal(found, {instance.ref.id}, "the instances of one sandbox")
    left = await _refs(case, ctx)
    require(not {one.ref.id, two.ref.id} & left, "a destroyed instance is still listed (LC-9)")


@check("LC-9.destroy", place=Place.NONE, deadline_s=120)
async def destroy(case: Case) -> None:
    """destroy is idempotent, by the instance and by its ref, also for what never was."""
    ctx = case.site.context()
    instance = await case.site.make()
    equal(await instance.status(), InstanceStatus.RUNNING, "status of a new instance")
    await instance.files.write("/workspace/file", b"1")
    for _ in range(3):
        await instance.destroy()
    for _ in range(2):
        await case.provider.destroy(instance.ref, ctx)
    case.site.ledger.forget(instance.ref)
    equal(await instance.status(), InstanceStatus.ABSENT, "status of a destroyed instance")
    with expect_raises(Lost, what="read after destroy"):
        await instance.files.read("/workspace/file")
    if case.pinned.spec.target is not None:
        with expect_raises(Lost, what="exec after destroy"):
            await instance.exec(ExecRequest(argv=("x",)))
    other = await case.site.make()
    await case.provider.destroy(other.ref, ctx)
    case.site.ledger.forget(other.ref)
    equal(await other.status(), InstanceStatus.ABSENT, "status after a destroy by ref alone")
    with expect_raises(Lost, what="read after a destroy by ref"):
        await other.files.read("/workspace/file")
    await other.destroy()
    equal(await other.status(), InstanceStatus.ABSENT, "status after another destroy")
    never = attrs.evolve(instance.ref, id=f"never-{uuid.uuid4().hex}")
    try:
        await case.provider.destroy(never, ctx)
    except PinfoldError as exc:
        fail(f"destroying what never was raised {type(exc).__name__}: {exc.message} (LC-9)")


@check("LC-9.destroy-jobs", needs={"exec", "background"}, place=Place.NONE, deadline_s=120)
async def destroy_jobs(case: Case) -> None:
    """destroy, by the instance and by its ref, ends what its commands left running."""
    d, seen = case.dialect, case.evidence.setdefault("seen", [])
    async with case.another() as other:

        async def outside(path: str) -> int:
            """Return a file's size as another instance sees it: 0 where they share no /tmp."""
            return len((await other.exec(ExecRequest(shell=d.load(path)))).stdout)

        for way in ("the instance", "its ref"):
            instance = await case.site.make()
            witness = case.site.lane.witness(instance.inner)
            beat, shared = PurePosixPath("/workspace/beat"), f"/tmp/{case.name('beat-')}"  # noqa: S108
            job = d.seq(d.start(d.beat(beat.name), How.QUIET), d.start(d.beat(shared), How.QUIET))
            result = await instance.exec(ExecRequest(shell=job))
            equal(result.exit_code, 0, "a command that starts jobs")

            async def begun(instance: GuardedInstance = instance) -> bool:
                listed = await instance.files.list("/workspace")
                return any(entry.size > 2 for entry in listed)

            await case.until(begun, "a job beats")
            visible = await outside(shared) > 0
            seen.append(visible)
            if way == "the instance":
                await instance.destroy()
            else:
                await case.provider.destroy(instance.ref, case.site.context())
            case.site.ledger.forget(instance.ref)
            if witness is not None:
                try:
                    alive = await witness.is_alive(beat)
                except (FileNotFoundError, AdapterFault):  # the witness is gone with the place
                    alive = False
                require(not alive, f"a job outlived the destroy of {way} (LC-9)")
            if visible:
                before = await outside(shared)
                await anyio.sleep(0.7)
                after = await outside(shared)
                await other.exec(ExecRequest(shell=d.remove(shared)))
                equal(after, before, f"what a job wrote after the destroy of {way} (LC-9)")
            await instance.destroy()  # what this process still holds of it


@check("LC-2.apart", place=Place.NONE, deadline_s=120)
async def apart(case: Case) -> None:
    """Two instances share nothing: files, commands, fate."""
    async with case.another() as one, case.another() as two:
        require(one.ref.id != two.ref.id, "two instances have one id")
        await one.files.write("/workspace/mine", b"one")
        await two.files.write("/workspace/mine", b"two")
        equal(await one.files.read("/workspace/mine"), b"one", "a file of the first")
        equal([e.path.name for e in await two.files.list("/workspace")], ["mine"], "of the second")
        await two.destroy()
        equal(await one.files.read("/workspace/mine"), b"one", "a file after the other's end")
        if case.pinned.spec.target is not None:
            result = await one.exec(ExecRequest(shell=case.dialect.load("mine")))
            equal(result.stdout, b"one", "a command after the other's end")


@check("LC-1.generation", needs={"exec"}, place=Place.NONE, deadline_s=120)
async def generation(case: Case) -> None:
    """Results carry the generation that the instance was made under."""
    for number in (1, 7):
        async with case.site.lent(generation=number) as instance:
            result = await instance.exec(ExecRequest(shell=case.dialect.out(b"x")))
            equal((result.generation, result.stdout), (number, b"x"), "generation and output")
            if instance.features.attach:
                await instance.detach()
                inner = await case.provider.attach(
                    instance.ref, case.pinned, case.site.context(generation=number)
                )
                again = guarded(inner, case.site.meter)
                result = await again.exec(ExecRequest(shell=case.dialect.out(b"y")))
                equal((result.generation, result.stdout), (number, b"y"), "both after attach")
                promised = case.provider.descriptor.features(case.pinned.spec)
                equal(again.features.missing(promised), (), "promised features after attach")
                await again.destroy()


@check("LC-5.empty", place=Place.OWN)
async def empty(case: Case) -> None:
    """A new instance has an empty workspace and is ready for its first exec."""
    equal(list(await case.files.list("/workspace")), [], "the workspace of a new instance")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "its status")
    require((await case.files.stat("/workspace")).type == "directory", "it has no workspace")
    if case.pinned.spec.target is not None:
        result = await case.sh(case.dialect.out(b"ready"))
        equal((result.exit_code, result.stdout), (0, b"ready"), "its first exec")


@check("PR-5.ref")
async def ref(case: Case) -> None:
    """A ref is plain data of at most 64 KiB that survives JSON, with no secret in it."""
    value = case.instance.ref
    form = json.dumps(to_json(value))
    equal(from_json(json.loads(form), InstanceRef), value, "the ref through JSON")
    require(len(form) <= 64 * 1024, f"the ref takes {len(form)} bytes")
    require(not has_secret_shape(form), "the ref has a value of a credential's shape (PR-5)")
    equal(value.provider, case.provider.descriptor.name, "Instance.ref.provider")
    require(value.id, "the ref has no id")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "the instance of the ref")


@check("LC-1.attach", needs={"exec", "attach"}, kind=Kind.CLAIM, place=Place.OWN, deadline_s=60)
async def attach(case: Case) -> None:
    """attach takes an instance up again from its ref alone: files there, jobs still running."""
    d = case.dialect
    await case.files.write("/workspace/file", b"kept")
    beat = await case.scratch() / "beat"
    if case.features.background:
        await case.sh(d.start(d.beat(beat.name), How.QUIET), cwd=beat.parent)
        await case.lives(beat, "a job has begun to beat")
    value = from_json(json.loads(json.dumps(to_json(case.instance.ref))), InstanceRef)
    await case.instance.detach()
    ctx = case.site.context(generation=1)
    inner = await case.provider.attach(value, case.pinned, ctx)
    again = case.target = guarded(inner, case.site.meter)
    equal(again.ref.id, value.id, "the id after attach")
    equal(await again.files.read("/workspace/file"), b"kept", "a file after attach")
    equal((await case.sh(d.out(b"on"))).stdout, b"on", "a command after attach")
    if case.features.background:
        await case.lives(beat, "a job lives on after detach and attach (LC-1)")
    await again.destroy()
    with expect_raises(Lost, what="attach to a destroyed instance"):
        await case.provider.attach(value, case.pinned, ctx)


@check("LC-1.attach-absent", needs={"!attach"}, kind=Kind.CLAIM, place=Place.OWN)
async def attach_absent(case: Case) -> None:
    """Without attach it is unimplemented, and the instance is as before."""
    await case.files.write("/workspace/file", b"1")
    with expect_raises(Unimplemented, what="attach without the feature"):
        await case.provider.attach(case.instance.ref, case.pinned, case.site.context())
    equal(await case.files.read("/workspace/file"), b"1", "a file of the instance")


@check("LC-1.pause", needs={"exec", "pause"}, kind=Kind.CLAIM, place=Place.OWN, deadline_s=90)
async def pause(case: Case) -> None:
    """pause stops it, resume starts it; files are kept; both are idempotent."""
    instance: object = case.instance
    if not isinstance(instance, Pausable):
        fail("the feature pause is claimed, but the instance is not Pausable (PR-7)")
        return
    d = case.dialect
    await case.files.write("/workspace/file", b"kept")
    beat = await case.scratch() / "beat"
    if case.features.background:
        await case.sh(d.start(d.beat(beat.name), How.QUIET), cwd=beat.parent)
        await case.lives(beat, "a job has begun to beat")
    for _ in range(2):
        await instance.pause()
        equal(await case.instance.status(), InstanceStatus.PAUSED, "status of a paused instance")
    gone = False
    for _ in range(2):
        gone = bool(await instance.resume()) or gone
        equal(await case.instance.status(), InstanceStatus.RUNNING, "status of a resumed instance")
    equal(await case.files.read("/workspace/file"), b"kept", "a file after pause and resume")
    equal((await case.sh(d.load("file"))).stdout, b"kept", "a command after pause and resume")
    case.evidence["processes_lost"] = gone
    if case.features.background and gone:
        require(not await case.beats(beat), "a job lives on though processes were lost (LC-1)")
    elif case.features.background:
        await case.lives(beat, "a job lives on where no process was lost (LC-1)")


@check("LC-5.paused", needs={"pause"}, kind=Kind.LAW, place=Place.OWN, deadline_s=90)
async def lost_while_paused(case: Case) -> None:
    """What goes away while it is paused is lost, not stopped, to every call."""
    instance: object = case.instance
    if not isinstance(instance, Pausable):
        fail("the feature pause is claimed, but the instance is not Pausable (PR-7)")
        return
    await instance.pause()
    if not await case.site.lane.lose(case.instance.ref):
        raise Inconclusive("the lane can't destroy compute behind the controller's back")
    with expect_raises(Lost, what="read of what is gone", effect=Effect.NONE):
        await case.files.read("/workspace/x")
    with expect_raises(Lost, what="list of what is gone", effect=Effect.NONE):
        await case.files.list("/workspace")
    if case.pinned.spec.target is not None:
        with expect_raises(Lost, what="exec on what is gone", effect=Effect.NONE):
            await case.sh(case.dialect.exit(0))
    equal(await case.instance.status(), InstanceStatus.ABSENT, "status after the loss")


@check(
    "LC-4.survives", needs={"keeps:provider_snapshot"}, kind=Kind.CLAIM, place=Place.OWN,
    each_spec=True, deadline_s=120,
)  # fmt: skip
async def survives(case: Case) -> None:
    """provider_snapshot: the workspace survives a stop and a start, or a snapshot and a restore."""
    path, instance, inner = PurePosixPath("/workspace/deep/file"), case.instance, case.inner
    data = case.bytes(5000)
    await instance.files.write(path, data)
    if isinstance(inner, Snapshots):
        with blamed("snapshot"):
            taken = typed("the result of snapshot", await inner.snapshot(), str)
        await instance.files.write(path, b"changed")
        with blamed("restore_snapshot"):
            await inner.restore_snapshot(taken)
        case.evidence["by"] = "snapshot and restore"
    elif isinstance(instance, Pausable):
        await instance.pause()
        await instance.resume()
        case.evidence["by"] = "stop and start"
    else:
        fail("provider_snapshot is claimed; the instance is neither Snapshots nor Pausable (LC-4)")
    equal(await instance.files.read(path), data, "the file afterwards")
    equal(await instance.status(), InstanceStatus.RUNNING, "the status afterwards")


@check("LC-1.pause-absent", needs={"!pause"}, kind=Kind.CLAIM)
async def pause_absent(case: Case) -> None:
    """Without pause the instance is not Pausable, and runs."""
    require(not isinstance(case.inner, Pausable), "Pausable without the feature pause (PR-7)")
    equal(await case.instance.status(), InstanceStatus.RUNNING, "status")


@check("LC-5.not-lost", place=Place.OWN)
async def not_lost(case: Case) -> None:
    """Nothing that a command does makes its instance lost: it ends, the instance stays."""
    await case.files.write("/workspace/file", b"1")
    if case.pinned.spec.target is not None:
        d = case.dialect
        for script in (d.exit(1), d.exit(255), d.die(9), d.remove("file"), "no such syntax ((("):
            try:
                await case.sh(script, timeout=5)
            except Lost as exc:
                fail(f"a command was taken for the loss of the compute: {exc.message}")
            equal(await case.instance.status(), InstanceStatus.RUNNING, "status after a command")
    await case.files.write("/workspace/file", b"2")
    equal(await case.files.read("/workspace/file"), b"2", "a file afterwards")


@check("LC-5.lane-reset", place=Place.OWN, deadline_s=60)
async def reset(case: Case) -> None:
    """The lane's reset gives back a clean instance: no file, no process of before."""
    d = case.dialect
    scratch = await case.scratch()
    if case.pinned.spec.target is not None:
        job = d.start(d.beat("beat"), How.QUIET)
        await case.sh(job, cwd=scratch, timeout=2 if not case.features.background else 20)
        if case.features.background:
            await case.lives(scratch / "beat", "a job has begun to beat")
    await case.files.write(scratch / "deep" / "file", b"1")
    equal(await case.files.read(scratch / "deep" / "file"), b"1", "a file before the reset")
    await case.site.lane.reset(case.inner)
    equal(list(await case.files.list("/workspace")), [], "the workspace after a reset")
    await case.files.write(scratch / "beat", b"")
    require(not await case.beats(scratch / "beat"), "a process outlived the reset")
    equal((await case.files.stat(scratch / "beat")).size, 0, "a file of a process of before")
